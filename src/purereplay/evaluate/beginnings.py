"""What a run begins with, each a function of its settings and its data: dataset, given labels, stream and learner.

True labels go no further than from here to the judge, but for the clean samples that L2R is given by its rules.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.data import datasets
from purereplay.data.batch import Batch
from purereplay.data.datasets import Dataset
from purereplay.data.episodes import tasks_for
from purereplay.data.features import read_rows
from purereplay.data.progress import Progress
from purereplay.data.streams import Stream
from purereplay.errors import UserError
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.base import Learner
from purereplay.learners.baselines.build import build_rival
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.learners.build import build_spr, make_backbone
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Head, Network


def load(settings: RunSettings, progress: Progress | None = None) -> Dataset:
    """The data of a run."""
    dataset = datasets.load(settings.dataset, progress=progress)
    return datasets.validation(dataset) if settings.validation else dataset


def make_stream(settings: RunSettings, dataset: Dataset) -> tuple[NDArray[np.int64], Stream]:
    """The given labels and the stream of a run: pure functions of its settings."""
    given = datasets.given_labels(dataset, noise=settings.noise, rate=settings.noise_rate, seed=settings.seed)
    tasks = tasks_for(settings.dataset, settings.noise, settings.episode)
    return given, Stream(
        dataset.images, given, tasks=tasks, seed=settings.seed, without=_clean_index(settings, dataset)
    )


def _clean_index(settings: RunSettings, dataset: Dataset) -> NDArray[np.int64]:
    """The samples that L2R is given with their true labels, and that its stream goes without; else nobody."""
    options = settings.options
    if not isinstance(options, RivalSettings) or options.robust != "l2r":
        return np.empty(0, np.int64)
    return datasets.clean_index(dataset, options.l2r_clean, settings.seed)


def bring_features(settings: RunSettings, dataset: Dataset) -> torch.Tensor | None:
    """The user's own features, a row for each training image in the dataset's order, if the run has any."""
    if settings.features is None:
        return None
    rows = read_rows(Path(settings.features))
    n_images = len(dataset.images) + (0 if dataset.held_out is None else len(dataset.held_out))
    if len(rows) != n_images:
        raise UserError(
            f"{settings.features} has features of {len(rows)} samples, but {settings.dataset} has "
            f"{n_images} training images."
        )
    rows = rows if dataset.held_out is None else np.delete(rows, dataset.held_out, axis=0)
    return torch.from_numpy(rows)


def make_learner(
    settings: RunSettings, dataset: Dataset, engine: Engine, brought: torch.Tensor | None = None
) -> Learner:
    """The learner of a run; of the dataset it is told shape, size and the number of classes.

    L2R alone is given true labels: those of its declared clean samples, which are not in its stream.
    """
    info, options = dataset.info, settings.options
    if isinstance(options, RivalSettings):
        clean, held_out = None, _clean_index(settings, dataset)
        if len(held_out):
            assert dataset.true_labels is not None
            images, labels = dataset.images[held_out], dataset.true_labels[held_out]
            clean = Batch(*(torch.from_numpy(a) for a in (images, labels, held_out)))
        return build_rival(
            settings.learner,
            options,
            network=Network(make_backbone(options, info.shape), Head(info.n_classes), info.mean, info.std),
            image_shape=info.shape,
            n_classes=info.n_classes,
            n_stream=len(dataset.images),
            engine=engine,
            seed=settings.seed,
            clean=clean,
        )
    return build_spr(
        options,
        image_shape=info.shape,
        n_classes=info.n_classes,
        engine=engine,
        seed=settings.seed,
        brought=brought,
        mean=info.mean,
        std=info.std,
    )
