"""Votes of the nearest neighbours, each with its weight; a sample does not vote for itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.forms import Form, check_forms
from purereplay.purify.opinions.ridge import KnownPoints, squared_distances

N_NEIGHBOURS = 30
_SMOOTHING = 1.0  # votes that are added in all, spread over the classes by their frequency
_ROWS_AT_ONCE = 500

Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Neighbours:
    """The samples themselves, with labels and weights."""

    features: Real32  # (m, d)
    labels: Whole  # (m,)
    weights: Real32  # (m,)
    n_classes: int
    kind: ClassVar[str] = "neighbours"

    @classmethod
    def fit(cls, features: Real32, labels: Whole, weights: Real32, n_classes: int, seed: int) -> tuple[Self, Real]:
        """Return the model, and scores without the sample."""
        model = cls(features, labels, weights, n_classes)
        return model, model._votes(features, leave_out=True)

    def scores(self, features: Real32) -> Real:
        return self._votes(features, leave_out=False)

    def _votes(self, features: Real32, *, leave_out: bool) -> Real:
        k = min(N_NEIGHBOURS, len(self.labels) - leave_out)
        votes = np.zeros((len(features), self.n_classes))
        for start in range(0, len(features) if k else 0, _ROWS_AT_ONCE):
            rows_at_once = features[start : start + _ROWS_AT_ONCE]
            if leave_out:
                distances: NDArray[np.floating] = squared_distances(rows_at_once, self.features)
            else:
                distances = self._known.squared_distances(rows_at_once)
            own = np.arange(len(distances))
            if leave_out:
                distances[own, start + own] = np.inf
            near = np.argpartition(distances, k - 1, 1)[:, :k]
            rows = np.repeat(start + own, k)
            np.add.at(votes, (rows, self.labels[near].ravel()), self.weights[near].ravel())
        votes += self.prior()
        shares: Real = np.log(votes / votes.sum(1, keepdims=True))
        return shares

    @cached_property
    def _known(self) -> KnownPoints:
        return KnownPoints(self.features)

    def prior(self) -> Real:
        """Return the votes that every sample has for each class."""
        frequency = np.bincount(self.labels, self.weights, minlength=self.n_classes) + 1e-3
        found: Real = 2 * _SMOOTHING * frequency / frequency.sum() + _SMOOTHING / self.n_classes
        return found

    def tensors(self) -> dict[str, Tensor]:
        return {
            "features": torch.from_numpy(np.array(self.features)),
            "labels": torch.from_numpy(np.array(self.labels)),
            "weights": torch.from_numpy(np.array(self.weights)),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_features: int, n_classes: int) -> Self:
        n = tensors["labels"].shape[0] if "labels" in tensors and tensors["labels"].ndim else 0
        forms = {
            "features": Form(torch.float32, (n, n_features), finite=True),
            "labels": Form(torch.int64, (n,), 0, n_classes - 1),
            "weights": Form(torch.float32, (n,), 0, finite=True),
        }
        check_forms(tensors, forms)
        return cls(tensors["features"].numpy(), tensors["labels"].numpy(), tensors["weights"].numpy(), n_classes)
