"""Accuracy of a state's classifier: measured on labelled images, or estimated without true labels.

The estimate fits the classifier of `full-memory` once more without a quarter of the samples, and counts how often it
predicts their given labels. With a share e of wrong labels that do not depend on the image, and K labels, a classifier
of accuracy a agrees with a (1 - e) + (1 - a) e / (K - 1) of the given labels. The interval has the extremes of both:
chance in the agreement, and the interval of e.
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
from purereplay.live.items import Item
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.opinion import form_opinion
from purereplay.live.predict import ImageReader, ImageSource, Predictor
from purereplay.live.settings import Opened
from purereplay.live.store import Store
from purereplay.live.verdicts import ALL, read_noise
from purereplay.purify.noise_rate import wilson

_LEAST = 50  # samples for an estimate
_MOST_HELD = 2000
_AT_ONCE = 500


class Accuracy(NamedTuple):
    """Share of right predictions, with an interval."""

    rate: float
    low: float
    high: float
    n: int  # images
    measured: bool  # False: estimated without true labels
    n_refused: int = 0  # files that could not be used


def measure(store: Store, classifier: Predictor, folder: Path, encoder: Opened | None = None) -> Accuracy:
    """Return the accuracy on a folder label/name.png."""
    reader, labels = ImageReader(store, encoder), store.labels()
    n = n_right = 0
    offers = ImageFolder(folder, store.folder).listing()
    items = [offer for offer in offers if isinstance(offer, Item)]
    for start in range(0, len(items), reader.at_once):
        some = items[start : start + reader.at_once]
        sources = [ImageSource(item.image, item.root, (item.id,)) for item in some]
        given = zip(some, reader.inputs(sources), strict=True)
        known = [(item.label, own) for item, own in given if isinstance(own, torch.Tensor)]
        if known:
            codes = classifier.probabilities(torch.stack([own for _, own in known])).argmax(1).tolist()
            n += len(known)
            n_right += sum(labels[code] == label for code, (label, _) in zip(codes, known, strict=True))
    if not n:
        raise UserError(f"{folder} holds no images that can be classified: use folders label/name.png.")
    return Accuracy(*wilson(n_right, n)[:3], n, measured=True, n_refused=len(offers) - n)


def estimate(store: Store, watch: Progress | None = None) -> Accuracy | None:
    """Return the estimated accuracy; None for other learners than `full-memory`, or if there are too few samples."""
    n = store.n_samples
    noise = read_noise(store).get((ALL, ALL))
    if store.settings.learner != FULL_MEMORY or n < _LEAST or noise is None:
        return None
    memory, settings = FullMemory(store), store.image_settings
    known, seed = memory.known(0, n), derive_seed(settings.seed, "held out")
    order = np.random.default_rng(seed).permutation(np.flatnonzero(~known.dropped))
    n_held = min(_MOST_HELD, len(order) // 4)
    held = np.sort(order[:n_held])
    fitted = np.sort(order[n_held : n_held + settings.memory_options.capacity])
    n_labels = len(np.unique(known.labels[fitted]))
    if n_labels < 2:
        return None
    opinion, _ = form_opinion(
        lambda some: memory.inputs(fitted[some]),
        known.part(fitted),
        known.n_classes,
        settings.shape,
        seed=seed,
        number=1,
        basis="",
        watch=watch,
    )
    pieces = [held[start : start + _AT_ONCE] for start in range(0, n_held, _AT_ONCE)]
    predicted = np.concatenate([opinion.probabilities(memory.inputs(some)).argmax(1).numpy() for some in pieces])
    agreement = wilson(int((predicted == known.labels[held]).sum()), n_held)
    doubtful = 1 - float(known.trusted[held].mean())  # labels that a person has checked are right
    return Accuracy(
        _accuracy(agreement.rate, doubtful * noise.rate, n_labels),
        _accuracy(agreement.low, doubtful * noise.low, n_labels),
        _accuracy(agreement.high, doubtful * noise.high, n_labels),
        n_held,
        measured=False,
    )


def _accuracy(agreement: float, wrong: float, n_labels: int) -> float:
    """Return the accuracy at which predictions agree with so many labels, of which a share is wrong."""
    by_chance = wrong / (n_labels - 1)
    return min(1.0, max(0.0, (agreement - by_chance) / max(1 - wrong - by_chance, 1e-9)))
