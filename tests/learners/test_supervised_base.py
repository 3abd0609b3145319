"""SPR with a supervised base, and the memories without a filter: what the paper's figures compare."""

import numpy as np
import pytest
import torch

from purereplay.data.batch import Batch
from purereplay.errors import UserError
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry
from purereplay.learners.base import DataSpec, Learner
from purereplay.nets.engine import Engine

TINY = {"expert_epochs": "1", "base_epochs": "3", "finetune_epochs": "2", "hidden": "8", "projection_size": "4"}
TINY |= {"delayed_size": "30", "purified_size": "20", "features": "patches"}


def learner(name: str, **overrides: str) -> Learner:
    entry = registry.entry(name)
    usual = TINY if "memory_size" not in entry.settings.__dataclass_fields__ else {"hidden": "8", "epochs": "2"}
    options = resolve(dataset="digits", preset_name="demo", learner=name, device="cpu", overrides=usual | overrides)
    data = DataSpec(image_shape=(1, 8, 8), n_classes=4, n_samples=400)
    return entry.build(options.options, data, engine=Engine(torch.device("cpu")), seed=0)


def batch(n: int, shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)) -> Batch:
    rng = np.random.default_rng(5)
    images = torch.from_numpy(rng.integers(0, 256, (n, 1, 8, 8)).astype(np.uint8))
    return Batch(images, torch.from_numpy(rng.choice(4, n, p=shares)), torch.arange(n))


def base(name: str, labels: torch.Tensor | None = None, **overrides: str) -> dict[str, torch.Tensor]:
    one, given = learner(name, filter="none", **overrides), batch(60)
    one.observe(given if labels is None else given._replace(labels=labels))
    return {key: t for key, t in one.base.items() if "classes" not in key}


def test_only_a_supervised_base_depends_on_labels():
    other = batch(60).labels.flip(0)
    for name, depends in (("self-replay", False), ("supervised-base", True)):
        ours, theirs = base(name), base(name, other)
        assert any(not torch.equal(ours[key], theirs[key]) for key in ours) == depends


def test_every_label_of_the_delayed_buffer_weighs_the_same():
    """Also one that the filter takes for wrong, and over all classes seen so far."""
    one, asked = learner("supervised-base"), []
    one.take(batch(30))
    work = one.work()  # scores the buffer: patches need no training
    with pytest.raises(StopIteration):
        next(work)
    asked = next(one.work())
    assert [job.phase for job in asked] == ["base"]
    assert set(asked[0].weights.tolist()) == {1.0} and asked[0].allowed.all()
    assert (asked[0].recipe.contrastive, asked[0].recipe.average) == (0, 0)


def test_it_is_spr_but_for_the_base():
    ours, theirs = learner("supervised-base"), learner("spr")
    mine, other = ours.observe(batch(60)), theirs.observe(batch(60))
    for a, b in zip(mine, other, strict=True):
        assert torch.equal(a.clean_probability, b.clean_probability) and torch.equal(a.held_index, b.held_index)
    assert ours.classifier().predict(batch(5).images).shape == (5,)
    with pytest.raises(UserError, match="needs replay=halves and self_replay=every-buffer"):
        learner("supervised-base", replay="union")


@pytest.mark.parametrize(("reservoir", "largest"), [("plain", 14), ("balanced", 6)])
def test_the_memory_without_a_filter_is_plain_or_balanced(reservoir, largest):
    one = learner("self-replay", reservoir=reservoir, self_replay="never")
    one.observe(batch(390, shares=(0.85, 0.05, 0.05, 0.05)))
    counts = torch.bincount(one.held().labels, minlength=4)
    assert counts.sum() == 20 and (counts.max() >= 14 if reservoir == "plain" else counts.max() <= largest)
    again = learner("self-replay", reservoir=reservoir, self_replay="never")
    again.load(one.state())
    assert torch.equal(again.held_index(), one.held_index())


@pytest.mark.parametrize("memory", ["balanced", "reservoir"])
def test_gdumb_on_a_plain_reservoir(memory):
    one = learner("gdumb", memory=memory, memory_size="20")
    one.observe(batch(390, shares=(0.85, 0.05, 0.05, 0.05)))
    counts = torch.bincount(one.memory.contents().labels, minlength=4)
    assert counts.sum() == 20 and (counts.max() >= 14) == (memory == "reservoir")


def test_gdumb_trains_longer_on_webvision():
    epochs = {
        name: resolve(dataset=name, learner="gdumb", device="cpu").options.epochs for name in ("mnist", "cifar100")
    }
    assert epochs == {"mnist": 100, "cifar100": 100}
    assert resolve(dataset="webvision14", learner="gdumb", device="cpu").options.epochs == 500
