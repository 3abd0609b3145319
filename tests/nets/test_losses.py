import math

import torch

from purereplay.nets.losses import MIN_TEMPERATURE, cross_entropy, nt_xent, supervised_contrastive


def slow_nt_xent(u: list[list[float]], tau: float) -> float:
    """Equation 1, term by term."""
    norm = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in u]
    n = len(u)
    total = 0.0
    for i in range(n):
        j = (i + n // 2) % n
        similar = [math.exp(sum(a * b for a, b in zip(norm[i], norm[k], strict=True)) / tau) for k in range(n)]
        total -= math.log(similar[j] / sum(s for k, s in enumerate(similar) if k != i))
    return total / n


def test_nt_xent_equals_the_formula():
    z = torch.randn(3, 10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = nt_xent(z, 0.5)
    for k in range(3):
        assert math.isclose(ours[k], slow_nt_xent(z[k].tolist(), 0.5), rel_tol=1e-10)


def test_the_gradient_of_nt_xent_is_its_gradient():
    z = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    for temperature in (0.5, 0.1):
        assert torch.autograd.gradcheck(lambda u, t=temperature: nt_xent(u, t), z, atol=1e-4)
    assert nt_xent(z.float(), MIN_TEMPERATURE).isfinite().all()


def test_nt_xent_is_small_when_views_agree_and_others_do_not():
    one = torch.eye(4)
    agree, disagree = torch.cat([one, one])[None], torch.cat([one, one.roll(1, 0)])[None]
    assert nt_xent(agree, 0.1) < 0.01 < nt_xent(disagree, 0.1)


def test_nt_xent_of_one_image_is_zero_not_nan():
    assert abs(nt_xent(torch.randn(1, 2, 4), 0.5).item()) < 1e-6


def test_cross_entropy_is_each_networks_own_mean():
    logits, labels = torch.randn(2, 5, 3), torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0]])
    for k in range(2):
        expected = -logits[k].log_softmax(-1)[torch.arange(5), labels[k]].mean()
        torch.testing.assert_close(cross_entropy(logits, labels)[k], expected)


def test_supervised_contrast_of_pairs_is_nt_xent():
    z = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = torch.arange(4).repeat(2, 2)
    torch.testing.assert_close(supervised_contrastive(z, pairs, 0.3), nt_xent(z, 0.3))


def test_supervised_contrast_is_finite_for_lonely_labels_and_low_temperatures():
    z = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([[0, 0, 1, 2, 3]])
    loss = supervised_contrastive(z, labels, 0.001)
    loss.sum().backward()
    assert loss.isfinite().all() and z.grad is not None and z.grad.isfinite().all()
    assert supervised_contrastive(z, torch.arange(5)[None], 0.1).item() == 0
