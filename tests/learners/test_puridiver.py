"""The parts of PuriDivER against slow, obvious versions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_contract import learner, separable

from purereplay.learners.baselines.puridiver import (
    CLEAN,
    RELABELLED,
    UNLABELLED,
    RobustTraining,
    Scores,
    assign_roles,
    select,
)
from purereplay.learners.baselines.step_views import ViewKinds, views_of
from purereplay.nets.augment import cutmix
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.lockstep import drive
from purereplay.nets.networks import MLP, Head, Network, stack
from purereplay.nets.technique import Step
from purereplay.nets.views import Views

VIEWS = ViewKinds(Views(area=(0.8, 1.0), flip=0.0), Views(area=(0.5, 1.0), flip=0.0))


def some_scores(n: int, seed: int) -> Scores:
    rng = np.random.default_rng(seed)
    losses, features = (torch.from_numpy(rng.random(shape)) for shape in [n, (n, 8)])
    return Scores(losses, features, rng.integers(0, 3, n), torch.from_numpy(rng.normal(size=(8, 4))))


def slow_selection(scores: Scores, capacity: int, alpha: float, draws: list[float]) -> list[int]:
    """Every score from scratch for every sample that leaves."""
    left, draws = list(range(len(scores.labels))), list(draws)
    while len(left) > capacity:
        counts = {c: sum(scores.labels[i] == c for i in left) for c in range(3)}
        crowded = [c for c in range(3) if counts[c] == max(counts.values())]
        c = crowded[int(draws.pop(0) * len(crowded))]
        own = [i for i in left if scores.labels[i] == c]
        used = [j for j in range(8) if scores.weights[j, c] > scores.weights[j].mean()]
        losses = np.array([float(scores.losses[i]) for i in own])
        cosines = [
            np.mean([float(F.cosine_similarity(scores.features[i, used], scores.features[k, used], 0)) for k in own])
            for i in own
        ]
        a, b = ((v - v.mean()) / v.std() for v in (losses, np.array(cosines)))
        left.remove(own[int(np.argmax((1 - alpha) * a + alpha * b))])
    return left


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("n", "capacity"), [(20, 14), (25, 24), (12, 12)])
def test_the_selection_is_that_of_an_obvious_loop(alpha, n, capacity):
    scores = some_scores(n, seed=n)
    draws = np.random.default_rng(1).random(max(0, n - capacity)).tolist()
    assert select(scores, capacity, alpha, draws).tolist() == slow_selection(scores, capacity, alpha, draws)


def test_pure_selection_drops_the_largest_losses_and_diverse_selection_the_duplicates():
    n = 10
    losses = torch.linspace(0, 1, n)
    features = torch.eye(n)
    features[:3] = features[0]  # three equal samples
    scores = Scores(losses, features, np.zeros(n, np.int64), torch.eye(n, 2))
    scores = scores._replace(weights=torch.tensor([[1.0, 0.0]]).expand(n, 2))
    assert select(scores, 8, 0.0, [0.0, 0.0]).tolist() == list(range(8))
    assert len(set(select(scores, 8, 1.0, [0.0, 0.0]).tolist()) & {0, 1, 2}) == 1


def test_roles_follow_loss_and_uncertainty():
    labels = torch.zeros(12, dtype=torch.int64)
    logits = torch.zeros(12, 3)
    logits[:6, 0] = 8 + torch.linspace(0, 0.1, 6)  # agree with the label
    logits[6:9, 1] = 8 + torch.linspace(0, 0.1, 3)  # surely another class
    logits[9:, 1] = 0.5 + torch.linspace(0, 0.1, 3)  # unsure
    logits[9:, 0] = -6
    role, small = assign_roles(logits, labels, "certain")
    assert role.tolist() == [CLEAN] * 6 + [RELABELLED] * 3 + [UNLABELLED] * 3
    assert (small[:6] > 0.9).all() and (small[6:] < 0.1).all()
    other, _ = assign_roles(logits, labels, "uncertain")
    assert other.tolist() == [CLEAN] * 6 + [UNLABELLED] * 3 + [RELABELLED] * 3


def test_all_samples_are_clean_if_a_set_would_be_almost_empty():
    labels = torch.zeros(12, dtype=torch.int64)
    logits = torch.zeros(12, 3)
    logits[:7, 0] = 8
    logits[7:10, 1] = 8 + torch.linspace(0, 0.1, 3)  # surely another class
    logits[10:, 1] = 0.5  # two unsure ones
    logits[10:, 0] = -6
    assert (assign_roles(logits, labels, "certain")[0] == CLEAN).all()
    logits[:, 0] = 8
    assert (assign_roles(logits, labels, "certain")[0] == CLEAN).all()


@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_the_robust_loss_is_that_of_single_samples(mixing):
    network = Network(MLP(16, (6, 5)), Head(3))
    k, b = 2, 8
    generator = torch.Generator().manual_seed(1)
    state = stack([network.init(i) for i in range(k)])
    images, labels = torch.rand(k, b, 1, 4, 4, generator=generator), torch.randint(0, 3, (k, b), generator=generator)
    role = torch.tensor([[0, 1, 2, 0, 0, 2, 1, 0], [0, 0, 0, 0, 1, 1, 2, 0]])
    small = torch.rand(k, b, generator=generator)
    first = torch.tensor([3, 4]), torch.tensor([7, 9]), torch.zeros(k), torch.ones(k, dtype=torch.bool)
    index = torch.arange(b).expand(k, b)
    step = Step(network, state, images, labels, index, *first, {"role": role, "small": small})
    found = RobustTraining(views=VIEWS, cutmix=mixing).loss(step)

    weak, strong = views_of(step, images, VIEWS)
    u = uniforms_per_key(step.keys, step.number, 4, stream=RandomStream.CUTMIX)
    mixed, (_, own) = cutmix(strong, labels, u, mixing)
    for j in range(k):
        total = 0.0
        for i in range(b):
            pasted = role[j, i] == CLEAN and role[j, i - 1] == CLEAN
            image = mixed[j, i] if pasted else strong[j, i]
            one = {name: t[j : j + 1] for name, t in state.items()}
            log_p = network.outputs(one, image[None, None])[0, 0].log_softmax(0)
            if role[j, i] == CLEAN:
                share = float(own[j, 0]) if pasted else 1.0
                total -= share * log_p[labels[j, i]] + (1 - share) * log_p[labels[j, i - 1]]
                continue
            plain, other = (network.outputs(one, v[j, i][None, None])[0, 0] for v in (strong, weak))
            if role[j, i] == RELABELLED:
                target = (1 - small[j, i]) * other.softmax(0)
                target[labels[j, i]] += small[j, i]
                total -= (target * plain.log_softmax(0)).sum()
            else:
                total += ((plain - other) ** 2).mean()
        torch.testing.assert_close(found[j], total / b, rtol=1e-4, atol=1e-6)


def test_the_memory_is_trained_on_at_task_ends_and_once_per_end():
    one = learner("puridiver")
    one.observe(separable(48, seed=1))
    assert not one.pending
    one.end_task()
    steps = int(one.optimizer["step"])
    n_epochs = 0
    while one.pending:
        drive(one.work(), one.engine)
        n_epochs += 1
    assert n_epochs == 40
    assert int(one.optimizer["step"]) - steps == 40 * (30 // 16)
    one.end_task()  # no sample came since
    assert not one.pending
    one.finish()
    assert not one.pending
