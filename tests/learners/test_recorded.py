"""The learner that records every decision: pieces and interruptions neither lose a sample nor change a result."""

import numpy as np
import pytest
import torch

from purereplay.data.scale import Scale, fit_scale
from purereplay.learners.base import DataSpec
from purereplay.learners.pure_replay import PureReplaySettings
from purereplay.learners.pure_replay import build as build_pure_replay
from purereplay.learners.recorded import SAMPLE_SIZE, RecordedLearner
from purereplay.learners.spr.build import build_spr
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Job, Trained

SIZES = {
    "delayed_size": 20,
    "purified_size": 15,
    "network": "mlp",
    "hidden": 16,
    "projection_size": 8,
    "expert_epochs": 4,
    "base_epochs": 3,
    "expert_batch": 20,
    "base_batch": 20,
    "warm_epochs": 1,
    "finetune_epochs": 3,
    "small_class": "keep",
}
TINY = SprSettings(**SIZES)
LEARNERS = {
    "spr": (TINY, build_spr),
    "pure-replay": (PureReplaySettings(**SIZES, features="projection", crop_area=0.25, flip=0.0), build_pure_replay),
}


def recorded(vectors=True, n_classes=3, engine=None, learner="spr") -> RecordedLearner:
    shape = (4, 1, 1) if vectors else (1, 5, 6)
    engine = engine or Engine(torch.device("cpu"))
    data = DataSpec(image_shape=shape, n_classes=n_classes, is_vectors=vectors)
    settings, build = LEARNERS[learner]
    return RecordedLearner(build(settings, data, engine=engine, seed=3))


def samples(n, vectors=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    if vectors:
        return 50 + 7 * torch.randn(n, 4, 1, 1, dtype=torch.float64, generator=generator), labels
    return torch.randint(0, 256, (n, 1, 5, 6), dtype=torch.uint8, generator=generator), labels


def same(a: RecordedLearner, b: RecordedLearner) -> bool:
    ours, theirs = a.state(), b.state()
    return set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("pieces", [(1,) * 50, (19, 2, 29), (50,), (20, 20, 10)])
def test_the_pieces_do_not_matter(learner, vectors, pieces):
    x, y = samples(50, vectors)
    whole, cut = (recorded(vectors, learner=learner) for _ in range(2))
    whole.put(x, y)
    whole.work()
    for own_x, own_y in zip(x.split(pieces), y.split(pieces), strict=True):
        cut.put(own_x, own_y)
        cut.work()
    assert same(whole, cut) and whole.verdicts.n == 40 and whole.learner.delayed.n == 10
    for one in (whole, cut):
        one.work(flush=True)
    assert same(whole, cut) and whole.verdicts.n == 50 and whole.sample.n == 50
    assert torch.equal(whole.verdicts.table().labels, y)


def test_the_scale_is_that_of_the_first_buffer():
    x, y = samples(31)
    x[:, 2] = 5.0  # constant
    x[25, 1] = 1e9
    one = recorded()
    one.put(x[:19], y[:19])
    one.work()
    assert one.scale is None and one.inbox.n == 19 and one.classifier() is None
    one.put(x[19:], y[19:])
    one.work()
    assert one.scale is not None and one.inbox.n == 0
    first = x[:20, :, 0, 0].numpy()
    np.testing.assert_allclose(one.scale.mean[:, 0, 0], first.mean(0))
    np.testing.assert_allclose(one.scale.std[:, 0, 0], [first[:, 0].std(), first[:, 1].std(), 1.0, first[:, 3].std()])
    scaled = one.scaled(x)
    assert scaled.dtype == torch.float32 and float(scaled[25, 1]) == 10.0 and bool((scaled[:, 2] == 0).all())
    torch.testing.assert_close(one.scale.undo(scaled[:20]), x[:20], rtol=1e-6, atol=1e-6)


def test_the_scale_of_a_stream_shorter_than_a_buffer():
    x, y = samples(7)
    one = recorded()
    one.put(x, y)
    one.work(flush=True)
    assert one.verdicts.n == 7 and one.scale is not None
    torch.testing.assert_close(one.scale.mean, x.mean(0))


def test_one_sample_and_equal_samples_have_a_scale():
    for x in (torch.full((1, 2, 1, 1), 0.1).double(), torch.full((9, 2, 1, 1), 0.1).double()):
        scale = fit_scale(x)
        assert bool((scale.std == 1).all()) and bool((scale.apply(x).abs() < 1e-6).all())
    assert isinstance(scale, Scale)


@pytest.mark.parametrize("factor", [2.0**-100, 2.0**-700, 2.0**-1000, 2.0**100])
def test_the_scale_of_tiny_and_large_features_is_exact(factor):
    """The squares of numbers below 1e-154 are 0 in float64."""
    x = samples(40)[0] - 50
    scale, other = fit_scale(x), fit_scale(factor * x)
    assert torch.equal(scale.std, x.std(0, correction=0)) and torch.equal(other.std, factor * scale.std)
    assert torch.equal(other.apply(factor * x), scale.apply(x))


class Stops(Engine):
    """Trains some networks of one phase and is interrupted at the next."""

    def __init__(self, phase: str, lets: int) -> None:
        super().__init__(torch.device("cpu"))
        self.phase, self.left = phase, lets

    def train(self, jobs: list[Job]) -> list[Trained]:
        if jobs[0].phase == self.phase:
            self.left -= 1
            if self.left < 0:
                raise InterruptedError
        return super().train(jobs)


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("stop_at", ["expert", "base"])
def test_interrupted_work_continues(learner, stop_at):
    """Interrupted in the training of every buffer and restored from its state, it ends with the same result."""
    x, y = samples(65)
    whole = recorded(learner=learner)
    whole.put(x, y)
    whole.work(flush=True)
    ours, stopped = recorded(engine=Stops(stop_at, lets=0), learner=learner), []
    ours.put(x, y)
    while ours.verdicts.n < 65:
        try:
            ours.work(flush=True)
        except InterruptedError:
            stopped.append(ours.learner.n_done)
        moved = recorded(engine=Stops(stop_at, lets=1), learner=learner)
        moved.load({name: t.clone() for name, t in ours.state().items()})
        ours = moved
    assert stopped == [0, 1, 2, 3] and same(ours, whole)


@pytest.mark.parametrize("learner", LEARNERS)
def test_unannounced_labels_may_appear(learner):
    """Announced before the first sample, or unknown until they appear."""
    x, y = samples(50)
    known, grown = (recorded(n_classes=0, learner=learner) for _ in range(2))
    known.grow(3)
    known.put(x, y)
    known.work()
    for start in range(0, 50, 10):
        grown.grow(int(y[: start + 10].max()) + 1)
        grown.put(x[start : start + 10], y[start : start + 10])
        grown.work()
    assert same(known, grown)


def test_the_sample_of_scored_samples_is_uniform():
    assert recorded().sample.capacity == SAMPLE_SIZE
    x, y = samples(60)
    one = recorded()
    one.sample.capacity = 20
    one.put(x, y)
    one.work()
    held = one.sample.contents()
    assert held.n == 20 and bool((held.index >= 20).any())
    assert torch.equal(held.labels, y[held.index]) and torch.equal(held.images, one.scaled(x)[held.index])


def test_fewer_large_images_are_kept():
    data = DataSpec(image_shape=(3, 400, 400), n_classes=2)
    one = RecordedLearner(build_spr(TINY, data, engine=Engine(torch.device("cpu")), seed=0))
    assert one.sample.capacity == 200
