"""A finished run from the inside, for its report: what its final learner holds and predicts, with the truth beside it.

Everything is computed from the newest checkpoint and the data; no file of the run is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.data.forms import Limits
from purereplay.errors import UserError
from purereplay.evaluate.checkpoint import read_checkpoint
from purereplay.evaluate.preparation import load, make_data_spec, make_learner, make_stream
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.spr.buffers import FullBuffer
from purereplay.learners.spr.learner import SPR
from purereplay.memory.purified import PurifiedBuffer
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive
from purereplay.purify.self_centered import score_samples, select

Whole = NDArray[np.int64]


class Held(NamedTuple):
    """Samples of the purified buffer, the surest first."""

    images: NDArray[np.uint8]  # (n, C, H, W)
    labels: Whole  # as given
    true_labels: Whole | None
    probability: NDArray[np.float64]  # of being clean, high = clean


class Inspection(NamedTuple):
    """The final learner of a run."""

    confusion: Whole  # (n_classes, n_classes): test samples by true and predicted label
    held: Held | None  # None: the learner has no purified buffer
    n_classes: int


class Rescored(NamedTuple):
    """A delayed buffer whose features were computed again, as the run computed them."""

    number: int
    images: NDArray[np.uint8]  # (n, C, H, W)
    labels: Whole  # as given
    true_labels: Whole | None
    probability: NDArray[np.float64]
    centrality: NDArray[np.float64]  # mean over the sampled graphs
    fixed: NDArray[np.float64]  # centrality in the graph of all similarities
    accepted: NDArray[np.bool_]


def _make_engine(settings: RunSettings, device: str) -> Engine:
    """Return an engine with the precision of the run if it is on the run's device."""
    device = pick_device(device)
    precision = settings.precision if device == settings.device else pick_precision("auto", device)
    return Engine(torch.device(device), precision=precision)


def rescore(path: Path, n: int, device: str, progress: Callable[[int, int], None]) -> list[Rescored]:
    """Score the last n delayed buffers of a run again, with the same features; its experts are trained again.

    UserError unless the run has the Self-Centered filter with features that do not depend on other networks.
    """
    _, settings = RunDirectory.open(path)
    if settings.encoder is not None:
        raise UserError(f"{path} has features of an encoder, which cannot be shown as images.")
    dataset = load(settings)
    given, stream = make_stream(settings, dataset)
    engine = _make_engine(settings, device)
    learner = make_learner(settings, make_data_spec(settings, dataset), engine)
    if type(learner) is not SPR or learner.buffer_filter.choice.name != "self-centered":
        raise UserError(f"The scores of the learner {settings.learner} cannot be computed again.")
    size, options = learner.delayed.capacity, learner.buffer_filter.choice.options
    total = len(stream) // size if learner.tail == "drop" else -(-len(stream) // size)
    found = []
    for i, number in enumerate(range(max(0, total - n), total)):
        progress(i, min(n, total))
        batch = stream.batch(number * size, min(len(stream), (number + 1) * size))
        buffer = FullBuffer(number, batch._replace(images=batch.images.to(engine.device)))
        [features], _ = drive(learner.buffer_filter.buffer_features([buffer], learner._seed), engine)
        seed = learner._seed("graphs", number)
        verdict = score_samples(features, batch.labels, seed, options=options)
        fixed = score_samples(features, batch.labels, seed, options=replace(options, n_graphs=0)).centrality
        probability = verdict.clean_probability.cpu()
        accepted = select(probability, learner._seed("selection", number))
        index = batch.index.numpy()
        truth = None if dataset.true_labels is None else dataset.true_labels[index]
        scores = (t.cpu().numpy() for t in (probability, verdict.centrality, fixed, accepted))
        found.append(Rescored(number, dataset.images[index], given[index], truth, *scores))
    return found


def inspect_run(path: Path, device: str = "cpu") -> Inspection:
    """Load the final learner of a run; UserError if it cannot be, for instance without the data."""
    _, settings = RunDirectory.open(path)
    found = read_checkpoint(path / "checkpoints")
    if found is None:
        raise UserError(f"{path} has no checkpoint.")
    dataset = load(settings)
    given, _ = make_stream(settings, dataset)
    spec = make_data_spec(settings, dataset)
    engine = _make_engine(settings, device)
    learner: Any = make_learner(settings, spec, engine)
    try:
        learner.restore(found[0], Limits(spec.n_classes, spec.n_samples))
    except ValueError as error:
        raise UserError(f"The checkpoint of {path} cannot be used: {error}.") from None
    images = torch.from_numpy(np.ascontiguousarray(dataset.test_images))
    predicted = learner.classifier().predict(images.to(engine.device)).cpu().numpy()
    n = spec.n_classes
    confusion = np.bincount(dataset.test_labels * n + predicted, minlength=n * n).reshape(n, n)
    purified = getattr(learner, "purified", None)
    held = None
    if isinstance(purified, PurifiedBuffer) and dataset.images.dtype == np.uint8:
        batch, probability = purified.contents()
        order = np.argsort(-probability.numpy(), kind="stable")
        index = batch.index.numpy()[order]
        truth = None if dataset.true_labels is None else dataset.true_labels[index]
        held = Held(dataset.images[index], given[index], truth, probability.numpy()[order])
    return Inspection(confusion, held, n)
