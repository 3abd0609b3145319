"""The learner never sees the truth: nothing that a learner holds leads to a true label.

The true labels are given a mark, a number that nothing else in a run can have: whatever of them reaches a learner, in
any order, form or part, is found by it.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch

from purereplay.data.batch import Batch
from purereplay.data.datasets import clean_index, given_labels, load
from purereplay.errors import UserError
from purereplay.evaluate.experiment import Experiment, prepare
from purereplay.evaluate.judge import Judge
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry
from purereplay.nets.lockstep import drive

MARK = 7_000_000


def reachable(root: object) -> list[object]:
    """Everything that can be got at from an object by attributes, items, closures and array bases."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (ModuleType, type)):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, FunctionType):  # what it closes over, not the globals of its module
            todo += [cell.cell_contents for cell in thing.__closure__ or ()] + list(thing.__defaults__ or ())
            continue
        todo += gc.get_referents(thing)
        todo += [thing.base] if isinstance(thing, np.ndarray) else []
        todo += [thing.__dict__] if hasattr(thing, "__dict__") else []
    return list(seen.values())


def truths(root: object) -> list[object]:
    """Numbers, arrays and tensors in reach that carry the mark, and the people who know the truth."""
    found: list[object] = []
    for thing in reachable(root):
        values = thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else thing
        if isinstance(values, (np.ndarray, np.number, int, float)) and np.asarray(values).dtype.kind in "iuf":
            marked = (np.asarray(values) >= MARK) & (np.asarray(values) < MARK + 10)
            found += [thing] if marked.any() else []
        elif isinstance(thing, (Judge, Experiment)):
            found.append(thing)
    return found


SHORT = {"expert_epochs": "2", "base_epochs": "2", "finetune_epochs": "1", "hidden": "8", "epochs": "1"}
WITH_ROBUST = [entry.name for entry in registry.entries() if entry.takes_robust_loss]


def marked_experiment(path: Path, learner: str = "spr") -> Experiment:
    """A tiny run on digits whose true labels are marked."""
    digits = load("digits")
    assert digits.true_labels is not None
    given = given_labels(digits, noise="symmetric", rate=0.4, seed=1)
    marked = replace(digits, given_labels=given, true_labels=digits.true_labels + MARK)
    learner, _, technique = (learner, "", "") if learner in registry.names() else learner.partition("+")
    known = registry.entry(learner).settings.__dataclass_fields__
    overrides = {name: value for name, value in SHORT.items() if name in known}
    overrides |= {"robust": technique} if technique else {}
    chosen = {"learner": learner, "preset_name": "demo", "overrides": overrides, "device": "cpu"}
    settings = resolve(dataset="digits", noise="none", **chosen)
    return prepare(settings, path, dataset=marked)


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return marked_experiment(tmp_path / "run")


def run_until(experiment: Experiment, n_buffers: int, each: Callable[[], None]) -> None:
    while experiment.learner.n_done < n_buffers:
        line = drive(experiment._move(), experiment.engine)
        if line:
            experiment.run.record(line)
        each()


def test_no_true_label_is_reachable_from_a_learner(experiment):
    def look() -> None:
        assert any(thing is experiment.learner.delayed for thing in reachable(experiment.learner))
        assert not truths(experiment.learner)
        assert not truths(experiment.stream)

    run_until(experiment, 3, look)
    experiment.learner.classifier()
    look()


OTHERS = [f"{learner}+{technique}" for learner in WITH_ROBUST for technique in ("pencil", "sl", "jocor")]


@pytest.mark.long
@pytest.mark.parametrize("name", [*registry.names(), *OTHERS])
def test_no_learner_reaches_the_truth(tmp_path, name):
    experiment = marked_experiment(tmp_path / "run", name)
    run_until(experiment, 2, lambda: None)
    experiment.learner.classifier()
    assert not truths(experiment.learner)


@pytest.mark.parametrize("name", WITH_ROBUST)
def test_l2r_is_told_the_truth_of_its_declared_samples_alone(tmp_path, name):
    experiment = marked_experiment(tmp_path / "run", f"{name}+l2r")
    learner, stream = experiment.learner, experiment.stream
    told = learner.loss.constants["clean_labels"]
    assert len(told) == 100 and all(int((told == MARK + c).sum()) == 10 for c in range(10))
    digits = load("digits")
    declared = clean_index(digits, 10, seed=1)
    assert torch.equal(learner.loss.constants["clean_images"], torch.from_numpy(digits.images[declared]))
    assert not np.isin(stream.order, declared).any() and len(stream.order) + 100 == len(digits.images)
    learner.loss.constants["clean_labels"] = told - MARK  # it cannot train on marks
    assert not truths(learner)
    run_until(experiment, 2, lambda: None)
    learner.classifier()
    assert not truths(learner)


def test_clean_samples_are_the_same_whatever_the_noise_and_others_go_without_them():
    digits = load("digits")
    index = clean_index(digits, 7, seed=3)
    assert len(set(index.tolist())) == 70 and digits.true_labels is not None
    assert (np.bincount(digits.true_labels[index]) == 7).all()
    with pytest.raises(UserError, match="The true labels of digits are unknown"):
        clean_index(replace(digits, true_labels=None), 7, seed=3)
    with pytest.raises(UserError, match=r"Class 0 of digits has \d+ samples: 1000 clean samples would leave none"):
        clean_index(digits, 1000, seed=3)


@pytest.mark.parametrize("form", ["tensor of a few", "list in stream order", "closure", "judge", "single number"])
def test_the_search_finds_a_leak(experiment, form):
    truth = load("digits").true_labels + MARK
    leaks = {
        "tensor of a few": torch.from_numpy(truth[5:9].copy()),
        "list in stream order": truth[experiment.stream.order].tolist(),
        "closure": lambda: truth,
        "judge": experiment.judge,
        "single number": {"label": int(truth[0])},
    }
    experiment.learner.extra = leaks[form]
    assert truths(experiment.learner)


def test_what_travels_is_the_given_label_only(tmp_path):
    settings = resolve(dataset="digits", preset_name="demo", device="cpu", noise_rate=0.4)
    experiment = prepare(settings, tmp_path / "run")
    batch = experiment.stream.batch(0, len(experiment.stream))
    assert batch._fields == ("images", "labels", "index") and isinstance(batch, Batch)
    noise = experiment.judge.noise_share(batch.index)
    assert noise is not None and abs(noise - 0.4) < 0.01  # the labels that travel are the noisy ones
    for tensor in batch:  # and they are copies: no view leads back to the dataset
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
