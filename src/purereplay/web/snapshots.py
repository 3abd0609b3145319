"""Snapshots of a state's classifier: immutable, warmed up before use, and swapped by reference.

A request uses the snapshot that it found, also if another one takes over meanwhile. A classifier that cannot be loaded
or fails its warm-up never takes over; the one before goes on serving.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.errors import UserError
from purereplay.live.predict import Predictor, ready_kept, with_current
from purereplay.live.settings import StateSettings
from purereplay.live.store import Current, Store
from purereplay.nets.engine import Engine

_WARM = (1, 5, 32)  # numbers of images of the warm-up
_TOLERANCE = 1e-3  # of a sum of probabilities


class Unfit(UserError):
    """A classifier that failed its warm-up."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One classifier of a state."""

    version: str
    labels: tuple[str, ...]
    classifier: Predictor
    settings: StateSettings
    n_samples: int  # that the learner had when it was made
    made: float = field(default_factory=time.time)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: of an image, or of its features by the state's encoder."""
        encoder = self.settings.encoder
        return self.settings.shape if encoder is None else (encoder.dim,)

    @property
    def takes_features(self) -> bool:
        """True if the inputs are features of an encoder, float32; otherwise they are images, uint8."""
        return self.settings.encoder is not None

    def probabilities(self, images: NDArray[Any]) -> NDArray[np.float64]:
        """Images uint8 (n, C, H, W), or features float32 (n, dim) -> probabilities (n, labels)."""
        with torch.inference_mode():
            found = self.classifier.probabilities(torch.from_numpy(images))
        return np.asarray(found.cpu().numpy(), np.float64)


class Snapshots:
    """The snapshot in use; `refresh` belongs to one thread, `current` may be read by any."""

    def __init__(self, state: Path, engine: Engine) -> None:
        self.state = state
        self.engine = engine
        self.current: Snapshot | None = None  # None: the state has no classifier yet
        self.n_swaps = 0
        self.n_failures = 0
        self.failure: str | None = None  # why the newest classifier is not in use

    def refresh(self) -> bool:
        """Load the state's newest classifier, warm it up and swap it in; returns whether it is in use now."""
        try:
            found = self._load()
            if found is None:
                return False
            warm_up(found)
        except UserError as error:
            self._fail(str(error))
            return False
        except Exception as error:  # a full memory, for instance; the thread that calls this must go on
            self._fail(f"The newest classifier cannot be loaded: {error}.")
            return False
        self.current, self.failure = found, None
        self.n_swaps += 1
        return True

    def _load(self) -> Snapshot | None:
        """Return the newest classifier; None if it is in use already, or not made yet."""
        with Store.reading(self.state, upgrade=False) as store:

            def use(current: Current | None) -> Snapshot | None:
                version = None if current is None else current.digest[:16]
                if current is None or version is None or (self.current and version == self.current.version):
                    return None
                classifier = ready_kept(store, current, self.engine)
                if classifier is None:
                    return None
                labels = tuple(store.labels()[: classifier.n_classes])
                return Snapshot(version, labels, classifier, store.image_settings, current.taken)

            return with_current(store, use)

    def _fail(self, sentence: str) -> None:
        if sentence != self.failure:
            logging.getLogger(__name__).warning("%s", sentence)
        self.n_failures += 1
        self.failure = sentence


def warm_up(snapshot: Snapshot) -> None:
    """Classify a few made-up inputs; Unfit if a probability is missing, not finite or out of range."""
    rng = np.random.default_rng(0)
    for n in _WARM:
        if snapshot.takes_features:
            images: NDArray[Any] = rng.standard_normal((n, *snapshot.shape), np.float32)
        else:
            images = rng.integers(0, 256, (n, *snapshot.shape), dtype=np.uint8)
        images[0] = 0
        try:
            found = snapshot.probabilities(images)
        except Exception as error:  # a classifier of a damaged file may raise anything
            raise Unfit(f"The classifier {snapshot.version} failed its warm-up: {error}.") from error
        if found.shape != (n, len(snapshot.labels)):
            raise Unfit(f"The classifier {snapshot.version} failed its warm-up: it returned the shape {found.shape}.")
        in_range = np.isfinite(found).all() and (found >= 0).all() and (abs(found.sum(1) - 1) < _TOLERANCE).all()
        if not in_range:
            raise Unfit(f"The classifier {snapshot.version} failed its warm-up: it returned no probabilities.")
