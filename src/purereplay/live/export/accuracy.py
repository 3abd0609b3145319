"""Accuracy of a state's classifier: measured on labelled images, or estimated without true labels.

The estimate fits the classifier of `full-memory` once more without a fifth of the samples, and averages the probability
of the label that it predicts for each of these. The probabilities are calibrated without true labels (see
`purify.opinions`), so the average is the share of right predictions to be expected.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.live.folders import ImageFolder
from purereplay.live.full_memory import FullMemory
from purereplay.live.images import read_pixels
from purereplay.live.items import Item, Refused
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.opinion import form_opinion
from purereplay.live.predict import Predictor
from purereplay.live.store import Store
from purereplay.purify.noise_rate import wilson

_LEAST = 50  # samples for an estimate
_MOST_HELD = 2000
_AT_ONCE = 500


class Accuracy(NamedTuple):
    """Share of right predictions, with a 95 % interval that covers chance only."""

    rate: float
    low: float
    high: float
    n: int  # images
    measured: bool  # False: estimated without true labels


def measure(store: Store, classifier: Predictor, folder: Path) -> Accuracy:
    """Return the accuracy on a folder label/name.png."""
    s, labels = store.image_settings, store.labels()
    n = n_right = 0
    for offer in ImageFolder(folder, store.folder).listing():
        if not isinstance(offer, Item):
            continue
        try:
            pixels = read_pixels(
                offer.image, size=s.size, channels=s.channels, shape=s.shape, root=offer.root, fit=s.fit
            )
        except Refused:
            continue
        code = int(classifier.probabilities(torch.from_numpy(pixels)[None]).argmax())
        n, n_right = n + 1, n_right + (labels[code] == offer.label)
    if not n:
        raise UserError(f"{folder} holds no images that can be classified: use folders label/name.png.")
    return Accuracy(*wilson(n_right, n)[:3], n, measured=True)


def estimate(store: Store, watch: Progress | None = None) -> Accuracy | None:
    """Return the estimated accuracy; None for other learners than `full-memory`, or if there are too few samples."""
    n = store.n_samples
    if store.settings.learner != FULL_MEMORY or n < _LEAST:
        return None
    memory, settings = FullMemory(store), store.image_settings
    known, seed = memory.known(0, n), derive_seed(settings.seed, "held out")
    order = np.random.default_rng(seed).permutation(np.flatnonzero(~known.dropped))
    n_held = min(_MOST_HELD, len(order) // 5)
    held = np.sort(order[:n_held])
    fitted = np.sort(order[n_held : n_held + settings.memory_options.capacity])
    if len(np.unique(known.labels[fitted])) < 2:
        return None
    opinion, _ = form_opinion(
        lambda some: memory.images(fitted[some]),
        known.part(fitted),
        known.n_classes,
        settings.shape,
        seed=seed,
        number=1,
        basis="",
        watch=watch,
    )
    total = 0.0
    for start in range(0, n_held, _AT_ONCE):
        found = opinion.probabilities(memory.images(held[start : start + _AT_ONCE]))
        total += float(found.max(1).values.sum())
    return Accuracy(*wilson(total, n_held)[:3], n_held, measured=False)
