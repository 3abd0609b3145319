"""The parts of CNLL against slow, obvious versions."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import beta, kstest
from test_contract import learner, separable

from purereplay.errors import UserError
from purereplay.evaluate.settings import resolve
from purereplay.learners.baselines.cnll import SemiSupervised, distances, separate
from purereplay.learners.baselines.step_views import ViewKinds, views_of
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.lockstep import drive
from purereplay.nets.networks import MLP, Head, Network, stack
from purereplay.nets.technique import Step
from purereplay.nets.views import Views

VIEWS = ViewKinds(Views(area=(0.8, 1.0), flip=0.0), Views(area=(0.5, 1.0), flip=0.0))
LOSS = SemiSupervised(views=VIEWS, temperature=0.5, mixup=4, weight=3.0, delay=5)


def test_distances_are_scipys_jensen_shannon_divergence():
    generator = torch.Generator().manual_seed(1)
    logits, labels = 3 * torch.randn(9, 4, generator=generator), torch.randint(0, 4, (9,), generator=generator)
    found = distances(logits, labels, "soft")
    for i in range(9):
        expected = jensenshannon(np.eye(4)[labels[i]], logits[i].double().softmax(0).numpy()) ** 2
        assert float(found[i]) == pytest.approx(expected, abs=1e-6)
    hard = distances(logits, labels, "hard")
    agree = logits.argmax(1) == labels
    assert torch.allclose(hard, torch.where(agree, 0.0, math.log(2)).double())


def test_samples_below_the_mean_distance_are_clean():
    assert separate(torch.tensor([0.1, 0.2, 0.6, 0.7])).tolist() == [True, True, False, False]
    assert separate(torch.tensor([0.3, 0.3])).all()


def a_step(number: int = 7, k: int = 2, size: int = 3) -> Step:
    network = Network(MLP(16, (6, 5)), Head(3))
    generator = torch.Generator().manual_seed(number)
    images = torch.rand(k, 2 * size, 1, 4, 4, generator=generator)
    labels = torch.randint(0, 3, (k, 2 * size), generator=generator)
    state = stack([network.init(i) for i in range(k)])
    numbers = torch.arange(k) + number
    first = torch.arange(k) + 5, numbers, torch.zeros(k), torch.ones(k, dtype=torch.bool)
    return Step(network, state, images, labels, labels, *first, {"epoch_steps": torch.full((k,), 0.9)})


def test_the_loss_is_that_of_single_samples():
    step = a_step()
    found = LOSS.loss(step)
    weak_a, weak_b, strong_a, strong_b = views_of(step, step.images, (VIEWS.weak, VIEWS.weak, *[VIEWS.strong] * 2))
    u = uniforms_per_key(step.keys, step.number, 12 + 7, stream=RandomStream.MIXUP)
    for k in range(2):
        one = {name: t[k : k + 1] for name, t in step.state.items()}

        def logits(image: torch.Tensor, one: dict = one) -> torch.Tensor:
            return step.network.outputs(one, image[None, None])[0, 0]

        pairs = [(weak[k, i], torch.eye(3)[step.labels[k, i]]) for weak in (weak_a, weak_b) for i in range(3)]
        for strong in (strong_a, strong_b):
            for i in range(3, 6):
                mean = (logits(weak_a[k, i]).softmax(0) + logits(weak_b[k, i]).softmax(0)) / 2
                pairs.append((strong[k, i], (mean**2 / (mean**2).sum()).detach()))
        partners = sorted(range(12), key=lambda i, k=k: float(u[k, i]))
        share = float(sorted(u[k, 12:].tolist())[3])
        share = max(share, 1 - share)
        clean, noisy, p = [], [], []
        for i, (image, target) in enumerate(pairs):
            other, aim = pairs[partners[i]]
            out = logits(share * image + (1 - share) * other)
            target = share * target + (1 - share) * aim
            p.append(out.softmax(0))
            if i < 6:
                clean.append(-(target * out.log_softmax(0)).sum())
            else:
                noisy.append((p[-1] - target).square().mean())
        unequal = sum(math.log(1 / 3 / float(q)) / 3 for q in torch.stack(p).mean(0))
        epoch = float(step.number[k]) / 0.9
        weight = 3.0 * min(1.0, max(0.0, (epoch - 5) / 16))
        expected = torch.stack(clean).mean() + weight * torch.stack(noisy).mean() + unequal
        assert weight > 0
        torch.testing.assert_close(found[k], expected, rtol=1e-4, atol=1e-5)


def test_the_weights_of_mixup_have_its_beta_distribution():
    u = uniforms_per_key(torch.arange(3000), torch.zeros(3000, dtype=torch.int64), 7, stream=RandomStream.MIXUP)
    assert kstest(u.sort(1).values[:, 3].numpy(), beta(4, 4).cdf).pvalue > 0.01


def test_guessing_labels_leaves_the_statistics_of_batch_norm():
    step = a_step()
    before = {name: t.clone() for name, t in step.state.items()}
    guess = LOSS._guess(step, step.images, step.images)
    assert torch.allclose(guess.sum(-1), torch.ones(2, 6)) and not guess.requires_grad
    assert all(torch.equal(t, before[name]) for name, t in step.state.items())


def test_a_buffer_is_warmed_up_separated_and_finetuned():
    one = learner("cnll")
    one.take(separable(40, seed=1))
    assert drive(one.work(), one.engine) is None and one.clean.n == one.noisy.n == 0 and one.waiting.n == 40
    logits = one.classifier().logits(one.waiting.images)
    distance = distances(logits, one.waiting.labels, "soft")
    is_clean = separate(distance)
    waiting = one.waiting
    report = drive(one.work(), one.engine)
    assert one.waiting.n == 0 and len(report.index) == 40
    surest = distance.argsort()[: min(25, int(is_clean.sum()))]
    assert set(one.clean.index.tolist()) <= set(waiting.index[surest].tolist()) and one.clean.n == min(22, len(surest))
    assert set(one.noisy.index.tolist()) <= set(waiting.index[~is_clean].tolist()) and 0 < one.noisy.n <= 8


def test_both_replay_memories_need_room():
    for overrides in ({"noisy_share": "0"}, {"memory_size": "2", "noisy_share": "0.9"}):
        with pytest.raises(UserError, match="leave one of them empty"):
            resolve(dataset="digits", learner="cnll", device="cpu", overrides=overrides)
