"""The classifier of a state, and its predictions: finetuned when first needed, kept until the learner changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from purereplay.data.files import write_whole
from purereplay.data.forms import check_forms, forms_like, n_bytes
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import UserError
from purereplay.live.buffers import load_learner, make_learner
from purereplay.live.encoding import PIECE, Encoding
from purereplay.live.images import Encodable, is_other_file, read_pixels
from purereplay.live.items import Refused
from purereplay.live.lists import within
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.opinion import load_opinion
from purereplay.live.settings import Opened
from purereplay.live.store import Current, Store
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.networks import Head

_BATCH = 256  # images read at once
_TRIES = 5  # another process may replace the learner file while it is opened

Answer = TypeVar("Answer")


class Prediction(NamedTuple):
    """The prediction for one image file; `error` if it cannot be read."""

    path: Path
    probabilities: Tensor | None = None  # float (n_classes,), in the order of the labels
    error: str | None = None


class ImageFile(NamedTuple):
    """An image file that the user names, or one in a folder that the user names."""

    path: Path
    root: Path | None = None  # that folder: a link out of it is not followed


def with_current(store: Store, use: Callable[[Current | None], Answer]) -> Answer:
    """Return `use(current)` on a snapshot; try again if another process replaced the learner file meanwhile."""
    for _ in range(_TRIES - 1):
        with store.snapshot():
            current = _checked_current(store)
            try:
                return use(current)
            except UserError:
                if current is None or current.path.exists():
                    raise
    with store.snapshot():
        return use(_checked_current(store))


def _checked_current(store: Store) -> Current | None:
    store.check("classes", "learner")
    return store.current()


class Predictor(Protocol):
    """A classifier of images."""

    @property
    def n_classes(self) -> int:
        """Number of labels that it knows."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Images uint8 (n, C, H, W), or features (n, dim) of an encoder -> class probabilities (n, n_classes)."""


def current_classifier(store: Store, current: Current, engine: Engine) -> Predictor | None:
    """Return the classifier of a learner; None if the purified buffer is empty."""
    if store.settings.learner == FULL_MEMORY:
        return load_opinion(store, current)
    kept = store.classifier_path(current)
    with suppress(ValueError):  # missing, damaged or of another learner: it is made again
        return _kept_classifier(kept, store, current, engine)
    learner = load_learner(store, current, engine)
    if learner.purified.n == 0:
        return None
    classifier = learner.classifier()
    with suppress(UserError):  # the file only saves time, and the folder may be read-only
        facts = {"n_classes": learner.n_classes, "learner": current.digest}
        write_whole(kept, pack_tensors(classifier.state, facts)[0], private=True)
    return classifier


def ready_kept(store: Store, current: Current, engine: Engine) -> Predictor | None:
    """Return the classifier of a learner without training; None if another process has not made it yet."""
    if store.settings.learner == FULL_MEMORY:
        return load_opinion(store, current)
    with suppress(ValueError):
        return _kept_classifier(store.classifier_path(current), store, current, engine)
    return None


def _kept_classifier(path: Path, store: Store, current: Current, engine: Engine) -> Classifier:
    """Return a saved classifier; ValueError with the reason if there is none of this learner."""
    if not path.exists():
        raise ValueError("it is missing")
    settings, n_labels = store.image_settings, len(store.labels())
    learner = make_learner(settings, engine)
    widest = max(n for t in learner.base.values() for n in (1, *t.shape))
    saved = unpack_tensors(path, most=2**24 + 2 * n_bytes(learner.base) + 8 * n_labels * (widest + 1), follow=False)
    n_classes = saved.facts.get("n_classes")
    if type(n_classes) is not int or not 1 <= n_classes <= n_labels:
        raise ValueError(f"it has {n_classes!r} classes")
    if saved.facts.get("learner", current.digest) != current.digest:  # version 0.1.0 did not save it
        raise ValueError("it belongs to another learner")
    network, state = learner.network.with_head(Head(n_classes), learner.base, 0)
    check_forms(saved.tensors, forms_like(state))
    return Classifier(network, {name: t.to(engine.device) for name, t in saved.tensors.items()}, settings.shape)


def ready_classifier(store: Store, engine: Engine) -> tuple[Predictor, list[str]]:
    """Return the classifier and its labels; UserError if no sample has passed the filter yet."""

    def use(current: Current | None) -> tuple[Predictor, list[str]]:
        classifier = None if current is None else current_classifier(store, current, engine)
        if classifier is None:
            missing = "sample was judged" if store.settings.learner == FULL_MEMORY else "sample has passed the filter"
            raise UserError(
                f"{store.folder} has no classifier yet, since no {missing}: add more with `purereplay learn`."
            )
        return classifier, store.labels()[: classifier.n_classes]

    return with_current(store, use)


def image_files(paths: list[Path]) -> list[ImageFile]:
    """Return files as they are, and folders replaced by all their images that are not hidden, by name.

    UserError if a folder has no images. Other files in it, such as readme.txt, are skipped.
    """
    return [found for path in paths for found in (_files_below(path) if path.is_dir() else [ImageFile(path)])]


def _files_below(folder: Path) -> list[ImageFile]:
    found = (Path(below, name) for below, _, names in os.walk(folder) for name in names if not name.startswith("."))
    files = [ImageFile(path, folder) for path in sorted(found) if path.is_file() and not is_other_file(path)]
    if not files:
        raise UserError(f"{folder} holds no images to classify.")
    return files


def predict(
    store: Store, classifier: Predictor, files: list[ImageFile], encoder: Opened | None = None
) -> Iterator[Prediction]:
    """Classify image files, in their order; `encoder`: that of the state, if the user named it."""
    reader = ImageReader(store, encoder)
    for start in range(0, len(files), reader.at_once):
        some = files[start : start + reader.at_once]
        inputs = reader.inputs([_source(file) for file in some])
        given = [own for own in inputs if isinstance(own, Tensor)]
        rows: Iterator[Tensor] = iter(classifier.probabilities(torch.stack(given)).cpu() if given else ())
        for file, own in zip(some, inputs, strict=True):
            if isinstance(own, Tensor):
                yield Prediction(file.path, next(rows))
            else:
                yield Prediction(file.path, error=str(own))


class ImageSource(NamedTuple):
    """An image to be classified."""

    image: Path | bytes
    root: Path | None = None  # folder that the file must be in
    names: tuple[str, ...] = ()  # by which a file of features may know it


class ImageReader:
    """Reads images as the classifier of a state takes them: pixels, or the features of the state's encoder."""

    def __init__(self, store: Store, encoder: Opened | None = None) -> None:
        self.settings = store.image_settings
        self.encoding = Encoding.of_state(store, encoder)
        self.at_once = _BATCH if self.encoding is None else PIECE  # images to be read together

    def inputs(self, images: Sequence[ImageSource | Refused]) -> list[Tensor | Refused]:
        """Return what `probabilities` takes a stack of, or the reason why an image is refused."""
        found: list[Tensor | Refused | None] = []
        encodable, names, s = list[Encodable](), list[tuple[str, ...]](), self.settings
        for source in images:
            try:
                if isinstance(source, Refused):
                    raise source
                image, root, own_names = source
                if self.encoding is not None:
                    encodable.append(self.encoding.read(image, s, root))
                    names.append(own_names)
                    found.append(None)
                    continue
                pixels = read_pixels(image, size=s.size, channels=s.channels, shape=s.shape, root=root, fit=s.fit)
                found.append(torch.from_numpy(pixels))
            except Refused as reason:
                found.append(reason)
        features = iter([] if self.encoding is None else self.encoding.features(encodable, names))
        answers = (next(features) if own is None else own for own in found)
        return [torch.from_numpy(own) if isinstance(own, np.ndarray) else own for own in answers]


def _source(file: ImageFile) -> ImageSource | Refused:
    """Return the source of a file, or the reason why it is refused: it may be a link out of its folder."""
    path, root = file
    if root is None:
        return ImageSource(path, None, _names(path))
    name = path.relative_to(root)
    try:
        found, own = within(str(name), root)
    except Refused as reason:
        return reason
    return ImageSource(found, own, _names(path))


def _names(path: Path) -> tuple[str, ...]:
    """Return the ends of a path, the longest first: an id is relative to a folder that is not known here."""
    return tuple("/".join(path.parts[start:]) for start in range(len(path.parts)))
