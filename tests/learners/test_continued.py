"""Learners with several jobs on a batch or buffer: stopped between or within them, they go on to the same bits."""

import pytest
import torch
from test_contract import learner, same, separable

from purereplay.data.batch import Batch
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry
from purereplay.learners.base import DataSpec
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive

NAMES = ["puridiver", "cnll", "aer"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_works", [1, 2, 5])
def test_a_state_within_a_buffer_is_continued_to_the_same_bits(name, n_works):
    one, other = learner(name), learner(name)
    one.take(separable(87, seed=1))
    one.finish()
    for _ in range(n_works):
        drive(one.work(), one.engine)
    other.load({n: t.clone() for n, t in one.state().items()})
    assert same(one, other)
    for each in (one, other):
        while each.pending:
            drive(each.work(), each.engine)
    assert same(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_abandoned_jobs_are_done_again(name):
    one, other = learner(name), learner(name)
    for each in (one, other):
        each.take(separable(87, seed=1))
        each.finish()
        while each.pending:
            if each is one:
                work = each.work()
                next(work)  # the request is never answered
                work.close()
            drive(each.work(), each.engine)
    assert same(one, other)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_colour_images_train_a_resnet_under_augmentation(name):
    few = {"batch_size": "4", "epochs": "2", "memory_size": "8", "warm_up": "1", "delayed_size": "8"}
    known = registry.entry(name).settings.__dataclass_fields__
    few = {key: value for key, value in few.items() if key in known}
    options = resolve(dataset="cifar10", learner=name, device="cpu", overrides=few).options
    data = DataSpec(image_shape=(3, 8, 8), n_classes=10, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    one = registry.entry(name).build(options, data, engine=Engine(torch.device("cpu")), seed=1)
    images = torch.randint(0, 256, (24, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = {n: t.clone() for n, t in one.weights.items()}
    one.observe(Batch(images, torch.arange(24) % 3, torch.arange(24)))
    one.flush()
    assert all(t.isfinite().all() for t in one.weights.values())
    assert not all(torch.equal(t, before[n]) for n, t in one.weights.items() if "running" in n)
    assert one.classifier().predict(images).shape == (24,)
