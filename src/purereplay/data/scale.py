"""Standardisation of feature vectors by their mean and standard deviation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CLIP = 10.0  # standard deviations; values beyond are clipped


class Scale(NamedTuple):
    """Mean and standard deviation of feature vectors, float64, of the shape of one vector."""

    mean: Tensor
    std: Tensor  # 1 for a constant feature

    def apply(self, vectors: Tensor) -> Tensor:
        """Return standardised vectors, float32, clipped to ±10."""
        return ((vectors - self.mean) / self.std).clamp(-CLIP, CLIP).float()

    def undo(self, vectors: Tensor) -> Tensor:
        """Return vectors on their original scale, float64."""
        return vectors.double() * self.std + self.mean


def fit_scale(vectors: Tensor) -> Scale:
    """Return the scale of vectors float64, (n, D) or (n, D, 1, 1)."""
    largest = vectors.abs().amax(0)
    # the squares of numbers below 1e-154 are 0, so the deviation is taken in units of a power of 2, which is exact
    unit = torch.where(largest > 0, largest / torch.frexp(largest).mantissa, 1.0)
    std = (vectors / unit).std(0, correction=0) * unit
    # rounding in the mean may give a constant feature a tiny deviation
    constant = std <= 1e-12 * largest
    return Scale(vectors.mean(0), torch.where(constant, 1.0, std))
