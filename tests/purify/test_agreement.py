"""Agreement of labels with those of similar samples."""

import torch
import torch.nn.functional as F

from purereplay.purify.agreement import _scores, label_agreement


def clusters(n: int, wrong: float, seed: int = 0, n_classes: int = 3):
    """Features around the centre of their true class; some given labels are wrong. Returns also which are right."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randint(0, n_classes, (n,), generator=generator)
    features = torch.eye(8)[true] * 2 + torch.randn(n, 8, generator=generator) * 0.7
    swapped = torch.rand(n, generator=generator) < wrong
    given = torch.where(swapped, (true + 1) % n_classes, true)
    return features, given, given == true


def test_a_prediction_is_that_of_the_regression_without_the_sample():
    features, labels, _ = clusters(20, 0.3)
    wanted = F.one_hot(labels, 3).double()
    unit = F.normalize(features.double())
    kernel = (3 * (unit @ unit.T - 1)).exp() + 0.5
    weight = torch.rand(20, dtype=torch.float64) + 0.1
    found = _scores(kernel, wanted, weight)
    share = torch.tensor([20 / 3 / float(weight[labels == c].sum()) for c in range(3)], dtype=torch.float64)
    penalty = 1 / (weight * share[labels])
    mean = wanted.mean(0)
    for i in range(20):
        others = [j for j in range(20) if j != i]
        among = kernel[others][:, others] + torch.diag(penalty[others])
        predicted = mean + kernel[i, others] @ torch.linalg.solve(among, wanted[others] - mean)
        rival = max(float(predicted[c]) for c in range(3) if c != labels[i])
        assert abs(float(found[i]) - (float(predicted[labels[i]]) - 0.5 * rival)) < 1e-9


def test_wrong_labels_agree_less_and_trusted_samples_help():
    features, labels, right = clusters(120, 0.3)
    trusted, their_labels, _ = clusters(60, 0.0, seed=1)

    def auroc(p):
        return float((p[right][:, None] > p[~right]).double().mean())

    alone = label_agreement(features, labels, 120)
    helped = label_agreement(torch.cat([features, trusted]), torch.cat([labels, their_labels]), 120)
    assert auroc(alone) > 0.8 and auroc(helped) > auroc(alone)
    assert alone.shape == (120,) and alone.min() >= 0 and alone.max() <= 1


def test_order_does_not_matter_and_one_label_or_sample_is_enough():
    features, labels, _ = clusters(30, 0.3)
    shuffled = torch.randperm(30)
    torch.testing.assert_close(
        label_agreement(features[shuffled], labels[shuffled], 30), label_agreement(features, labels, 30)[shuffled]
    )
    same = label_agreement(features, torch.zeros(30, dtype=torch.int64), 30)
    assert (same == 1).all()  # there is no other label to compare with
    assert label_agreement(features[:1], labels[:1], 1).tolist() == [1]
    assert label_agreement(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]), 4).isfinite().all()
