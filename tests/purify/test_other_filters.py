"""AUM and INCV: what they record against a slow count, and what both promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from purereplay.data.batch import Batch
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive
from purereplay.nets.networks import MLP, Head, Network, stack
from purereplay.purify import aum
from purereplay.purify.aum import AreaUnderMargin, Margins
from purereplay.purify.incv import NoisyCrossValidation, noise_rate

CPU = torch.device("cpu")
NETWORK = Network(MLP(64, (16, 16)), Head(8, hidden=True))
FILTERS = {
    "aum": AreaUnderMargin(epochs=60, batch_size=16),
    "incv": NoisyCrossValidation(epochs=60, rounds=2, lr=0.01),
}
every_filter = pytest.mark.parametrize("kind", FILTERS)


def buffer(n: int = 60, wrong: float = 0.3, seed: int = 0, classes: int = 2) -> tuple[Batch, torch.Tensor]:
    """Images as bright as their class is high, labels of which a share is wrong, and which ones those are."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % classes
    images = torch.randint(0, 60, (n, 1, 8, 8), dtype=torch.uint8, generator=generator)
    images += (180 // (classes - 1) * truth if classes > 1 else truth).to(torch.uint8)[:, None, None, None]
    noisy = torch.rand(n, generator=generator) < wrong
    labels = torch.where(noisy, (truth + 1) % classes, truth)
    return Batch(images, labels, torch.arange(n)), noisy


@every_filter
def test_most_wrong_labels_are_found_and_most_right_ones_kept(kind):
    batch, noisy = buffer()
    [verdict] = drive(FILTERS[kind].score(NETWORK, [batch], 4, [1]), Engine(CPU))
    clean = verdict.clean_probability
    assert set(clean.tolist()) <= {0.0, 1.0}
    assert clean[~noisy].mean() > 0.6 and clean[noisy].mean() < 0.3
    assert verdict.centrality[~noisy].mean() > verdict.centrality[noisy].mean()


@every_filter
def test_a_buffers_verdict_does_not_depend_on_the_others(kind):
    filtering, (one, _), (other, _) = FILTERS[kind], buffer(seed=1), buffer(seed=2)
    [alone] = drive(filtering.score(NETWORK, [one], 4, [5]), Engine(CPU))
    beside = drive(filtering.score(NETWORK, [other, one], 4, [6, 5]), Engine(CPU))[1]
    again = drive(filtering.score(NETWORK, [one], 4, [5]), Engine(CPU))[0]
    assert torch.equal(alone.clean_probability, again.clean_probability)
    assert torch.equal(alone.centrality, again.centrality)
    assert torch.equal(alone.clean_probability, beside.clean_probability)
    torch.testing.assert_close(alone.centrality, beside.centrality, rtol=1e-3, atol=1e-3)


@every_filter
@pytest.mark.parametrize("n", [2, 3, 5])
def test_tiny_buffers_are_scored_too(kind, n):
    batch, _ = buffer(n)
    [verdict] = drive(replace(FILTERS[kind], epochs=2).score(NETWORK, [batch], 4, [0]), Engine(CPU))
    assert verdict.clean_probability.shape == (n,) and verdict.clean_probability.isfinite().all()


@every_filter
def test_steps_are_counted_before_they_are_made(kind):
    batch, _ = buffer()
    steps = 0
    work = FILTERS[kind].score(NETWORK, [batch], 4, [0])
    try:
        jobs = next(work)
        while True:
            steps += sum(job.n_steps for job in jobs)
            jobs = work.send(Engine(CPU).train([job.shortened(1) for job in jobs]))
    except StopIteration:
        assert steps == FILTERS[kind].n_steps(batch.n)


def test_margins_are_added_up_by_visit():
    """Against the same training a step at a time, its margins taken from the logits by hand."""
    batch, _ = buffer(20)
    job = AreaUnderMargin(epochs=3, batch_size=8)._job(replace(NETWORK, head=Head(5)), batch, np.array([1, 4]), 4, 7)
    job = replace(job, recipe=replace(job.recipe, shift_and_flip=False, momentum=0.0, weight_decay=0.0))
    [trained] = Engine(CPU).train([job])
    state = {n: t.clone().requires_grad_() for n, t in stack([job.state]).items()}
    areas, visits = np.zeros(20), np.zeros(20)
    for index in job.index:
        logits = job.network.outputs(state, job.images[index][None].float() / 255, training=True)[0]
        for row, own in zip(index.tolist(), logits.tolist(), strict=True):
            label = int(job.labels[row])
            areas[row] += own[label] - max(v for c, v in enumerate(own) if c != label)
            visits[row] += 1
        gradients = torch.autograd.grad(F.cross_entropy(logits, job.labels[index]), list(state.values()))
        state = {n: (t - 0.1 * g).detach().requires_grad_() for (n, t), g in zip(state.items(), gradients, strict=True)}
    assert job.labels[1] == job.labels[4] == 4 and (visits == trained.extra["visits"].numpy()).all()
    np.testing.assert_allclose(trained.extra["margins"].numpy(), areas, rtol=1e-3, atol=1e-3)
    assert Margins.recorded == tuple(trained.extra)


@pytest.mark.parametrize(("n", "classes", "size"), [(60, 2, 20), (60, 5, 10), (2, 1, 1), (1, 1, 1)])
def test_threshold_samples_of_the_rounds_are_disjoint(n, classes, size):
    first, second = aum._threshold_samples(torch.arange(n) % classes, seed=3)
    assert len(first) == len(second) == size
    assert n == 1 or not set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.6])
def test_the_noise_rate_that_explains_an_agreement(rate):
    assert noise_rate((1 - rate) ** 2 + rate**2 / 9, 10) == pytest.approx(rate)
    assert 0 <= noise_rate(0.0, 10) <= 1 and noise_rate(1.0, 10) == 0
