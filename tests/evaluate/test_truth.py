"""The learner never sees the truth: nothing that a learner holds leads to a true label."""

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType

import numpy as np
import torch

from purereplay.data.batch import Batch
from purereplay.data.datasets import load
from purereplay.evaluate.experiment import Experiment, prepare
from purereplay.evaluate.judge import Judge
from purereplay.evaluate.settings import resolve
from purereplay.nets.engine import drive


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
        todo += [getattr(thing, "base", None)] if isinstance(thing, np.ndarray) else []
        todo += [thing.__dict__] if hasattr(thing, "__dict__") else []
    return list(seen.values())


def truths(things: list[object], true_labels: np.ndarray) -> list[object]:
    """Arrays and tensors that hold the true labels, and the people who know them."""
    found: list[object] = []
    for thing in things:
        values = thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else thing
        holds_them = isinstance(values, np.ndarray) and np.array_equal(values.ravel(), true_labels)
        if holds_them or isinstance(thing, (Judge, Experiment)):
            found.append(thing)
    return found


def run_until(experiment: Experiment, n_buffers: int, each: Callable[[], None]) -> None:
    while experiment.learner.n_done < n_buffers:
        line = drive(experiment._move(), experiment.engine)
        if line:
            experiment.run.record(line)
        each()


def test_no_true_label_is_reachable_from_a_learner(tmp_path):
    overrides = {"expert_epochs": "2", "base_epochs": "2", "finetune_epochs": "1", "hidden": "8"}
    settings = resolve(dataset="digits", preset_name="demo", overrides=overrides, device="cpu")
    experiment = prepare(settings, tmp_path / "run")
    true_labels = load("digits").true_labels
    assert true_labels is not None
    # the search finds truth where it is: from the experiment
    assert truths(reachable(experiment), true_labels)

    def look() -> None:
        things = reachable(experiment.learner)
        assert any(t is experiment.learner.delayed for t in things)  # the search does reach the learner's memory
        assert not truths(things, true_labels)

    run_until(experiment, 3, look)
    experiment.learner.classifier()
    look()


def test_what_travels_is_the_given_label_only(tmp_path):
    settings = resolve(dataset="digits", preset_name="demo", device="cpu", noise_rate=0.4)
    experiment = prepare(settings, tmp_path / "run")
    batch = experiment.stream.batch(0, len(experiment.stream))
    assert batch._fields == ("images", "labels", "index") and isinstance(batch, Batch)
    noise = experiment.judge.noise_share(batch.index)
    assert noise is not None and abs(noise - 0.4) < 0.01  # the labels that travel are the noisy ones
    for tensor in batch:  # and they are copies: no view leads back to the dataset
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
