"""Properties of every learner in the registry, alone and with every loss against wrong labels that it takes."""

import pytest
import torch

from purereplay.data.batch import Batch
from purereplay.errors import UserError
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry
from purereplay.learners.base import DataSpec, Learner
from purereplay.nets.engine import Engine

CPU = torch.device("cpu")
LOSSES = ("l2r", "pencil", "sl", "jocor")
NAMES = [
    *registry.names(),
    "spr+patches",
    "spr+combined",
    *(f"{entry.name}+{loss}" for entry in registry.entries() if entry.takes_robust_loss for loss in LOSSES),
]
CASES = [pytest.param(name, marks=[pytest.mark.long] * (name not in registry.names())) for name in NAMES]
SHAPE = (1, 8, 8)
SMALL = {  # for a stream of a few hundred samples; a learner takes those of its settings
    "expert_epochs": "8",
    "base_epochs": "8",
    "hidden": "24",
    "delayed_size": "40",
    "purified_size": "30",
    "memory_size": "30",
    "candidates": "20",
    "cutmix": "0",
    "l2r_batch": "20",
    "warm_up": "3",
    "pencil_stage1": "3",  # of some 40 epochs online
    "pencil_stage2": "8",
    "pencil_lr": "20",
    "jocor_epochs": "2",
}
EPOCHS = {"gdumb": "60", "multitask": "5", "puridiver": "40", "aer": "10", "cnll": "10"}


def small_settings(name: str) -> dict[str, str]:
    """Settings of a learner that make it fast."""
    known = registry.entry(name).settings.__dataclass_fields__
    epochs = {"epochs": EPOCHS[name]} if name in EPOCHS else {}
    return {key: value for key, value in SMALL.items() if key in known} | epochs


def learner(name: str, seed: int = 0) -> Learner:
    name, _, variant = (name, "", "") if name in registry.names() else name.partition("+")
    entry = registry.entry(name)
    option = "robust" if entry.takes_robust_loss else "features"
    overrides = small_settings(name) | ({option: variant} if variant else {})
    options = resolve(dataset="digits", learner=name, device="cpu", preset_name="demo", overrides=overrides).options
    data = DataSpec(image_shape=SHAPE, n_classes=10, n_samples=400, clean=separable(80, 77))
    return entry.build(options, data, engine=Engine(CPU), seed=seed)


def separable(n: int, seed: int = 0, classes: tuple[int, ...] = (0, 1, 2, 3)) -> Batch:
    """Images whose class is the row that is bright."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(0, len(classes), (n,), generator=generator)]
    images = torch.randint(0, 60, (n, *SHAPE), dtype=torch.uint8, generator=generator)
    images[torch.arange(n), 0, labels] = 250
    return Batch(images, labels, torch.arange(n) + 1000 * seed)


def same(a: Learner, b: Learner) -> bool:
    ours, theirs = a.state(), b.state()
    return set(ours) == set(theirs) and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.parametrize("name", CASES)
def test_it_learns_a_separable_stream(name):
    one = learner(name)
    for i in range(4):
        one.observe(separable(100, seed=i + 1))
    one.flush()
    test = separable(200, seed=9)
    accuracy = float((one.classifier().predict(test.images) == test.labels).double().mean())
    assert accuracy > 0.5  # guessing gives 0.25


@pytest.mark.parametrize("name", CASES)
def test_it_classifies_before_the_first_sample(name):
    assert learner(name).classifier().predict(separable(7).images).shape == (7,)


@pytest.mark.parametrize("name", CASES)
def test_same_seed_same_bits_other_seed_other_bits(name):
    a, b, c = (learner(name, seed) for seed in (1, 1, 2))
    for one in (a, b, c):
        one.observe(separable(90, seed=1))
    assert same(a, b)
    images = separable(50, seed=3).images
    assert torch.equal(a.classifier().logits(images), b.classifier().logits(images))
    assert not torch.equal(a.classifier().logits(images), c.classifier().logits(images))


@pytest.mark.parametrize("name", CASES)
def test_its_state_moves_to_another_learner_at_any_time(name):
    one = learner(name)
    one.observe(separable(87, seed=1))
    other = learner(name)
    other.load({n: t.clone() for n, t in one.state().items()})
    for each in (one, other):
        each.observe(separable(53, seed=2))
        each.flush()
    assert same(one, other)
    images = separable(50, seed=3).images
    assert torch.equal(one.classifier().logits(images), other.classifier().logits(images))


@pytest.mark.parametrize("name", [case for case in CASES if case.values[0] not in ("finetune", "multitask")])
def test_it_holds_no_more_than_it_may(name):
    one = learner(name)
    for i in range(4):
        reports = one.observe(separable(100, seed=i + 1))
        assert all(len(report.held_index) <= 30 for report in reports)
        assert all(t.shape[0] <= 30 for n, t in one.state().items() if n.startswith("carried."))
    held = sum(t.shape[0] for n, t in one.state().items() if n.endswith(".images") or n == "images")
    assert held <= 30 + 40  # memory, and what waits


@pytest.mark.parametrize("name", CASES)
def test_new_classes_appear_at_any_time(name):
    one = learner(name)
    one.observe(separable(90, seed=1, classes=(0, 1)))
    before = one.classifier()
    one.observe(separable(90, seed=2, classes=(7,)))
    one.flush()
    assert before.predict(separable(5).images).shape == one.classifier().predict(separable(5).images).shape


@pytest.mark.parametrize("name", CASES)
def test_bad_batches_change_nothing(name):
    one, other = learner(name), learner(name)
    for each in (one, other):
        each.observe(separable(45, seed=1))
    good = separable(10, seed=2)
    for bad in (good._replace(labels=good.labels + 100), good._replace(images=good.images[:, :, :4])):
        with pytest.raises(UserError):
            one.observe(bad)
    assert same(one, other)


@pytest.mark.parametrize("name", CASES)
def test_batch_sizes_of_the_stream_do_not_matter(name):
    """Samples come in pieces of any size; memories and training are the same."""
    one, other = learner(name), learner(name)
    whole = separable(120, seed=1)
    one.observe(whole)
    for start in range(0, 120, 17):
        other.observe(Batch(*(t[start : start + 17] for t in whole)))
    a, b = one.state(), other.state()
    counts = {"n_done"}  # how many jobs it took
    assert all(torch.allclose(a[n].double(), b[n].double(), rtol=1e-3, atol=1e-4) for n in a if n not in counts)


@pytest.mark.parametrize("name", ["gdumb", "multitask", "spr"])
def test_what_trains_for_a_test_is_kept_until_something_changes(name):
    one = learner(name)
    one.observe(separable(90, seed=1))
    first = one.classifier()
    assert one.classifier() is first
    one.observe(separable(90, seed=2))
    assert one.classifier() is not first


def test_a_stream_shorter_than_a_batch_is_learned_from():
    for name in ("crs", "mir", "finetune", "er-ace", "der++", "scr", "er-mkd"):
        one = learner(name)
        one.observe(separable(4, seed=1))
        [report] = one.flush()
        assert len(report.index) == 4
