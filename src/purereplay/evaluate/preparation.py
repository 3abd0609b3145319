"""The parts of a run, each a function of its settings and its data: dataset, given labels, stream and learner.

True labels go from here to the judge only, except for the clean samples that define L2R.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from purereplay.data import datasets
from purereplay.data.batch import Batch
from purereplay.data.datasets import Dataset
from purereplay.data.episodes import tasks_for
from purereplay.data.features import read_encoder_name, read_rows
from purereplay.data.files import disk_errors, write_whole
from purereplay.data.progress import Progress
from purereplay.data.streams import Stream
from purereplay.errors import UserError
from purereplay.evaluate.encoded import encode
from purereplay.evaluate.settings import RunSettings
from purereplay.learners import registry
from purereplay.learners.base import DataSpec, Learner, Report
from purereplay.learners.robust.settings import RobustSettings
from purereplay.nets.engine import Engine

FEATURES = "features"  # the user's own, among the digests of a run's data
_digests: WeakKeyDictionary[Dataset, dict[str, str | None]] = WeakKeyDictionary()  # runs may share a dataset


def load(settings: RunSettings, progress: Progress | None = None) -> Dataset:
    """Load the data of a run; with an encoder the images are its features."""
    dataset = datasets.load(settings.dataset, progress=progress)
    dataset = datasets.validation(dataset) if settings.validation else dataset
    return dataset if settings.encoder is None else encode(dataset, settings.encoder, progress)


def make_stream(settings: RunSettings, dataset: Dataset) -> tuple[NDArray[np.int64], Stream]:
    """Return the given labels and the stream of a run: pure functions of its settings."""
    given = datasets.given_labels(dataset, noise=settings.noise, rate=settings.noise_rate, seed=settings.seed)
    tasks = tasks_for(settings.dataset, settings.noise, settings.episode)
    clean = _clean_index(settings, dataset)
    return given, Stream(dataset.images, given, tasks=tasks, seed=settings.seed, without=clean)


def write_list(settings: RunSettings, folder: Path) -> Path:
    """Write the images of a run's stream with their given labels as a list that `learn` reads, and return its path."""
    dataset = load(settings)
    given, stream = make_stream(settings, dataset)
    lines = []
    for i in stream.order.tolist():
        file, pixels = io.BytesIO(), dataset.images[i]
        Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "png")
        image = base64.b64encode(file.getvalue()).decode()
        lines.append(json.dumps({"id": f"{settings.dataset}-{i:05}", "label": str(given[i]), "image": image}) + "\n")
    path = folder / "images.jsonl"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines).encode())
    return path


def make_data_spec(settings: RunSettings, dataset: Dataset) -> DataSpec:
    """Return everything that the learner of a run is told about its data."""
    info, facts = dataset.info, settings.encoder
    return DataSpec(
        image_shape=info.shape if facts is None else (facts.dim, 1, 1),
        n_classes=info.n_classes,
        n_samples=len(dataset.images),
        mean=info.mean if facts is None else None,
        std=info.std if facts is None else None,
        is_vectors=facts is not None,
        features=_own_features(settings, dataset),
        clean=_clean_samples(settings, dataset),
    )


def data_digests(dataset: Dataset, features: torch.Tensor | None) -> dict[str, str | None]:
    """Return a digest of each part of the data that enters a run's numbers; None if the data have no such part."""
    if dataset not in _digests:
        _digests[dataset] = {
            "training images": _digest(dataset.images),
            "true labels": _digest(dataset.true_labels),
            "given labels": _digest(dataset.given_labels),
            "test images": _digest(dataset.test_images),
            "test labels": _digest(dataset.test_labels),
        }
    return _digests[dataset] | {FEATURES: None if features is None else _former_digest(features)}


def features_digest(path: Path) -> str:
    """Return the digest of a file of the user's own features, as in a run's result."""
    return _former_digest(torch.from_numpy(read_rows(path)))


def features_encoder(settings: RunSettings) -> dict[str, str] | None:
    """Return name and digest of the encoder that made the user's own features, if their file says it."""
    found = None if settings.features_file is None else read_encoder_name(Path(settings.features_file))
    return None if found is None else dict(zip(("name", "digest"), found, strict=True))


def _digest(values: NDArray[Any] | None) -> str | None:
    """Return a digest of an array's kind, shape and contents."""
    if values is None:
        return None
    digest = hashlib.blake2b(f"{values.dtype.str} {values.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _former_digest(features: torch.Tensor) -> str:
    """Return the digest that checkpoints of version 0.1.0 have as well."""
    return hashlib.blake2b(features.numpy().tobytes(), digest_size=8).hexdigest()


def make_learner(settings: RunSettings, data: DataSpec, engine: Engine) -> Learner[Report]:
    """Return the learner of a run."""
    return registry.entry(settings.learner).build(settings.options, data, engine=engine, seed=settings.seed)


def _clean_index(settings: RunSettings, dataset: Dataset) -> NDArray[np.int64]:
    """Return the samples that L2R gets with true labels, and that its stream does not contain; otherwise none."""
    options = settings.options
    if not isinstance(options, RobustSettings) or options.robust != "l2r":
        return np.empty(0, np.int64)
    return datasets.clean_index(dataset, options.l2r_clean, settings.seed)


def _clean_samples(settings: RunSettings, dataset: Dataset) -> Batch | None:
    index = _clean_index(settings, dataset)
    if not len(index) or dataset.true_labels is None:
        return None
    arrays = dataset.images[index], dataset.true_labels[index], index
    return Batch(*(torch.from_numpy(a) for a in arrays))


def _own_features(settings: RunSettings, dataset: Dataset) -> torch.Tensor | None:
    """Return the user's own features, one row per training image in the dataset's order, if the run has any."""
    if settings.features_file is None:
        return None
    rows = read_rows(Path(settings.features_file))
    n_images = len(dataset.images) + (0 if dataset.held_out is None else len(dataset.held_out))
    if len(rows) != n_images:
        raise UserError(
            f"{settings.features_file} has features of {len(rows)} samples, but {settings.dataset} has "
            f"{n_images} training images."
        )
    rows = rows if dataset.held_out is None else np.delete(rows, dataset.held_out, axis=0)
    return torch.from_numpy(rows)
