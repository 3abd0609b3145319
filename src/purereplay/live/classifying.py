"""The classifier of a state: finetuned when somebody first asks, kept until something is learned or corrected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from purereplay.data.files import write_whole
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import UserError
from purereplay.live.images import read_pixels
from purereplay.live.items import Refused
from purereplay.live.learning import load_learner, make_learner
from purereplay.live.store import Current, Store
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.networks import Head

_AT_ONCE = 256  # images
_TRIES = 5  # another process may replace the learner just while its file is opened

Answer = TypeVar("Answer")


class Prediction(NamedTuple):
    """What the classifier says of an image; `error` where it is none."""

    path: Path
    probabilities: Tensor | None = None  # float (n_classes,), in the order of the labels
    error: str | None = None


def with_current(store: Store, use: Callable[[Current | None], Answer]) -> Answer:
    """`use` of the learner that counts, seen at one moment; again where its file was replaced in that moment."""
    for attempt in range(_TRIES):
        with store.snapshot():
            current = store.current()
            try:
                return use(current)
            except UserError:
                if current is None or current.path.exists() or attempt == _TRIES - 1:
                    raise
    raise AssertionError("unreachable")


def classifier_of(store: Store, current: Current, engine: Engine) -> Classifier | None:
    """The classifier; None where P holds nothing that it could be finetuned on."""
    kept = store.classifier_path(current)
    with suppress(ValueError):
        saved = unpack_tensors(kept)
        assert store.settings is not None and store.settings.shape is not None
        network = make_learner(store.settings, engine).network
        state = {name: t.to(engine.device) for name, t in saved.tensors.items()}
        return Classifier(replace(network, head=Head(saved.facts["n_classes"])), state, store.settings.shape)
    learner = load_learner(store, current, engine)
    if learner.purified.n == 0:
        return None
    classifier = learner.classifier()
    with suppress(UserError):  # it is a matter of time only, and the folder may be somebody else's
        write_whole(kept, pack_tensors(classifier.state, {"n_classes": learner.n_classes})[0])
    return classifier


def ready_classifier(store: Store, engine: Engine) -> tuple[Classifier, list[str]]:
    """The classifier and its labels; UserError before anything was learned."""

    def use(current: Current | None) -> tuple[Classifier, list[str]]:
        classifier = None if current is None else classifier_of(store, current, engine)
        if classifier is None:
            raise UserError(f"{store.folder} has no classifier yet: no sample has passed the filter.")
        return classifier, store.labels()[: classifier.network.head.n_outputs]

    return with_current(store, use)


def predict(store: Store, classifier: Classifier, paths: list[Path]) -> Iterator[Prediction]:
    """Classify image files, in their order."""
    assert store.settings is not None
    s = store.settings
    for start in range(0, len(paths), _AT_ONCE):
        images, answers = [], []
        for path in paths[start : start + _AT_ONCE]:
            try:
                pixels = read_pixels(path, size=s.size, channels=s.channels, shape=s.shape)
                images.append(torch.from_numpy(pixels))
                answers.append(Prediction(path))
            except Refused as reason:
                answers.append(Prediction(path, error=str(reason)))
        rows: Iterator[Tensor] = iter(classifier.probabilities(torch.stack(images)).cpu() if images else ())
        yield from (a if a.error else a._replace(probabilities=next(rows)) for a in answers)
