"""Data of the centrality histograms: counts, and the two components of the beta mixture, for each buffer and label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta

from purereplay.purify.beta_mixture import MIN_SAMPLES, fit_mixtures

_BINS = 20
_POINTS = 40  # of a curve
Real = NDArray[np.float64]


class Scored(NamedTuple):
    """The scores of one buffer."""

    number: int
    labels: NDArray[np.int64]  # (n,): as given
    centrality: Real  # (n,): of the sampled graphs
    accepted: NDArray[np.bool_]  # (n,)
    fixed: Real | None = None  # (n,): centrality of the fixed graph


def histogram_data(buffers: Sequence[Scored], names: list[str]) -> dict[str, Any]:
    """Return what report.js draws."""
    found = []
    for buffer in buffers:
        cells = {}
        for code in np.unique(buffer.labels).tolist():
            own = buffer.labels == code
            cells[code] = {
                "n": int(own.sum()),
                "accepted": int(buffer.accepted[own].sum()),
                "sampled": histogram(buffer.centrality[own]),
                "fixed": None if buffer.fixed is None else histogram(buffer.fixed[own]),
            }
        found.append({"number": buffer.number, "labels": cells})
    return {"names": names, "buffers": found}


def histogram(centrality: Real) -> dict[str, Any] | None:
    """Return counts of centralities and the mixture fitted to them, noisy component first; None for too few."""
    scores = centrality[np.isfinite(centrality)]
    if len(scores) < MIN_SAMPLES:
        return None
    low, high = float(scores.min()), float(scores.max())
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # all alike
        return None
    counts, _ = np.histogram(scores, _BINS, (low, high))
    tensor = torch.from_numpy(np.ascontiguousarray(scores))[None]
    fits = fit_mixtures(tensor, torch.ones_like(tensor, dtype=torch.bool))
    bottom, top = float(fits.low[0]), float(fits.high[0])
    at = low + (np.arange(_POINTS) + 0.5) / _POINTS * (high - low)
    scaled = (at - bottom) / max(top - bottom, 1e-12)
    inside = (scaled > 0) & (scaled < 1)  # the mixture is fitted between two percentiles
    # samples per bin that each component accounts for
    factor = len(scores) * (high - low) / _BINS / max(top - bottom, 1e-12)
    alpha, betas, weights = (part[0].numpy() for part in fits.betas)
    curves = [weights[k] * beta.pdf(np.clip(scaled, 0.001, 0.999), alpha[k], betas[k]) * factor for k in (0, 1)]
    limit = 1.5 * float(counts.max())  # a density may be infinite at its ends
    rounded = [
        [round(float(min(v, limit)), 1) if use else None for v, use in zip(curve, inside, strict=True)]
        for curve in curves
    ]
    return {"low": _short(low), "high": _short(high), "counts": counts.tolist(), "curves": rounded}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
