"""Main directions of a buffer's features, and concatenation of several kinds of features.

What all images of a buffer have in common says nothing about their labels, but dominates cosine similarities, so the
mean is subtracted. Of the rest the 32 main directions are kept, partly whitened, so that minor directions count too.

In: features (n, d) of one buffer. Out: features float32 for the Self-Centered filter. `Directions` are fitted once, on
a part of the samples if there are many, and applied to any rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.seeds import derive_seed

N_DIRECTIONS = 32
_MOST_FITTED = 20_000  # samples that directions are fitted on
_MOST_ENTRIES = 2**23  # of their features
MOST_FEATURES = 2**14  # wider features are not prepared: the copies would take more memory than the features
_LEAST_SHARE = 1e-12  # of the largest eigenvalue; directions below it are rounding
_WHITENING = 0.7  # 0: main directions unchanged, 1: all of unit variance


def main_directions(features: Tensor, n_directions: int = N_DIRECTIONS) -> Tensor:
    """Return the projection on the main directions, (n, at most n_directions); it depends on the buffer alone."""
    deviation, mean = torch.std_mean(features, 0, correction=0)
    x = ((features - mean) / (deviation + 1e-6)).double()
    few_images = x.shape[0] <= x.shape[1]  # the smaller of two products with the same eigenvalues
    values, vectors = torch.linalg.eigh(x @ x.T if few_images else x.T @ x)
    size, directions = values[-n_directions:].clamp(min=1e-12).sqrt(), vectors[:, -n_directions:]
    directions = directions * size if few_images else x @ directions
    found: Tensor = directions / size**_WHITENING
    return found.float()


def concatenate_features(*kinds: Tensor) -> Tensor:
    """Return several kinds of features, (n, d) each, as one whose cosine similarity is the mean of theirs."""
    return torch.cat([F.normalize(kind) for kind in kinds], 1)


class Directions(NamedTuple):
    """Main directions of features, fitted on some samples."""

    unit: NDArray[np.float64]  # (d,), the largest size of a feature
    mean: NDArray[np.float64]  # (d,), in units
    scale: NDArray[np.float64]  # (d,), in units
    projection: NDArray[np.float64]  # (d, at most 32)

    @classmethod
    def fit(cls, features: NDArray[Any], seed: int = 0) -> Self:
        """Fit directions on features (n, d); of many samples a random part is used."""
        n, d = features.shape
        most = min(_MOST_FITTED, _MOST_ENTRIES // d)
        if n > most:
            rng = np.random.default_rng(derive_seed(seed, "directions"))
            features = features[np.sort(rng.choice(n, most, replace=False))]
        values = np.asarray(features, np.float64)
        largest = np.abs(values).max(0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of very large and very small numbers would not be finite
        values = values / unit
        mean, scale = values.mean(0), values.std(0)
        scale = np.where(scale > 1e-12, scale, np.inf)  # a constant feature becomes 0
        x = (values - mean) / scale
        few_rows = len(x) <= d  # the smaller of two products with the same eigenvalues
        eigenvalues, vectors = np.linalg.eigh(x @ x.T if few_rows else x.T @ x)
        kept = (eigenvalues > _LEAST_SHARE * max(eigenvalues[-1], 1e-300)).nonzero()[0][-N_DIRECTIONS:]
        size = np.sqrt(eigenvalues[kept])
        directions = x.T @ vectors[:, kept] / size if few_rows else vectors[:, kept]
        return cls(unit, mean, scale, directions / size**_WHITENING)

    def apply(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the projection of features (n, d) on the directions, float64."""
        found: NDArray[np.float64] = (
            (np.asarray(rows, np.float64) / self.unit - self.mean) / self.scale
        ) @ self.projection
        return found
