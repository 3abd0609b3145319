"""Noise matrices: shares of each true class by given label, (n_classes, n_classes), rows in all 1.

Members that see too little of two classes always confuse them, which looks like noise between them. So a pair
of classes keeps a rate of its own only if it stands out. The others share one rate, that of equal noise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STANDS_OUT = 1.5  # standard errors of a pair's count from the common rate at which its own rate begins to count
_ROUNDS = 20
_LEAST = 1e-6  # of an entry; the diagonal is at least 0.05

Real = NDArray[np.float64]


def equal_noise(rate: float, n_classes: int) -> Real:
    """Return the matrix of symmetric noise."""
    noise = np.full((n_classes, n_classes), rate / max(1, n_classes - 1))
    np.fill_diagonal(noise, 1 - rate)
    return noise


def sparse_noise(counts: Real) -> Real:
    """Return the matrix for expected counts of (true class, given label): a common rate, and pairs that stand out.

    A pair's deviation d from the common rate is multiplied by max(0, 1 - (t / d)²) with t of 1.5 standard errors.
    """
    n_classes = len(counts)
    totals = np.maximum(counts.sum(1, keepdims=True), 1e-9)
    others = ~np.eye(n_classes, dtype=bool)
    rates, limit = counts / totals, _STANDS_OUT * np.sqrt(counts + 1) / totals
    sizes = np.broadcast_to(totals, counts.shape)
    common, kept = float(rates[others].mean()), np.zeros_like(rates)
    for _ in range(_ROUNDS):
        deviation = rates - common
        kept = np.clip(1 - np.square(limit / np.maximum(np.abs(deviation), 1e-12)), 0, 1)
        plain = (kept <= 0) & others
        before, common = common, float(np.average(rates[plain], weights=sizes[plain])) if plain.any() else common
        if abs(common - before) < _LEAST:
            break
    noise: Real = np.maximum(common + (rates - common) * kept, _LEAST)
    np.fill_diagonal(noise, 0)
    np.fill_diagonal(noise, np.maximum(1 - noise.sum(1), 0.05))
    found: Real = noise / noise.sum(1, keepdims=True)
    return found
