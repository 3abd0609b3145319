"""Estimate of the share of wrong labels without any truth: labels of neighbours against the given label.

In: features and given labels. Out: the share of wrong labels, over all samples and by label, with an interval.

1. Votes. The `N_NEIGHBOURS` nearest neighbours of a sample by cosine, itself excluded, vote with their labels. This
   gives the sample a share of votes for each label. In later rounds a neighbour's vote is weighted by how much the
   previous round agreed with its label; this matters if most labels are wrong.
2. Counting (Northcutt, Jiang & Chuang 2021, confident learning). The threshold of a label is its average share of votes
   among the samples with that label. A sample counts for the label with the most votes among the labels at or above
   their thresholds. A sample with no such label is not counted. Plain disagreement would count every hard sample as
   wrong.
3. The counts of a label give its share of wrong labels. The overall share is their mean, weighted by how often each
   label was given.

The mean clean probability of the filter is no such estimate: two components are always fitted, so about half of a
perfectly clean class gets a low probability. This estimate has errors too; docs/estimator.md lists measured ones. It is
too high if samples are few or look alike across classes, since an isolated sample is counted as wrong. It is too low if
wrong labels agree with each other. Samples of one class with the same wrong label count less the closer they come to
half of their class. Images of a class that has no label of its own are not recognised as wrong at all.

The interval is Wilson's at 95 %: it covers the chance of drawing these samples, not the errors above.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

N_NEIGHBOURS = 10
_ROUNDS = 4
_MIN_WEIGHT = 1e-3  # of a vote
_ROWS_AT_ONCE = 512  # of the similarity matrix, which is never whole in memory
_Z = 1.959964  # quantile of the normal distribution for 95 %

Real = NDArray[np.float64]
Whole = NDArray[np.int64]


class NoiseRate(NamedTuple):
    """Share of wrong labels in [0, 1]; NaN if nothing was counted."""

    rate: float
    low: float  # bounds of the 95 % interval
    high: float
    n: int  # samples counted


class NoiseTable(NamedTuple):
    """Estimated shares of wrong labels."""

    overall: NoiseRate
    by_class: list[NoiseRate]  # by given label
    by_pair: dict[tuple[int, int], NoiseRate]  # (given, likely): share of the given label; the largest ones first


def noise_rates(features: NDArray[Any], labels: Whole, n_classes: int) -> tuple[NoiseRate, list[NoiseRate]]:
    """Return the noise rate overall and by label, for features (n, d) and given labels int64 (n,) below `n_classes`.

    It is unknown if all samples have one label, which leaves no other one to vote for.
    """
    if len(np.unique(labels)) < 2:
        return wilson(0, 0), [wilson(0, 0)] * n_classes
    counts = confident_counts(votes(features, labels, n_classes), labels)
    by_label = [wilson(int(row.sum() - row[c]), int(row.sum())) for c, row in enumerate(counts)]
    given = np.bincount(labels, minlength=n_classes)
    known = [c for c in range(n_classes) if by_label[c].n]
    if not known:
        return wilson(0, 0), by_label
    rate = float(np.average([by_label[c].rate for c in known], weights=given[known]))
    n = int(counts.sum())
    return wilson(rate * n, n), by_label


def votes(features: NDArray[Any], labels: Whole, n_classes: int) -> Real:
    """Return each sample's share of votes by label, (n, n_classes)."""
    n = len(labels)
    near = neighbours(features, max(0, min(N_NEIGHBOURS, n - 1)))
    rows = np.repeat(np.arange(n), near.shape[1])
    weight = np.ones(n)
    for _ in range(_ROUNDS):
        shares = np.zeros((n, n_classes))
        np.add.at(shares, (rows, labels[near].ravel()), weight[near].ravel())
        shares /= np.maximum(shares.sum(1, keepdims=True), 1e-300)  # a single sample has no neighbours
        weight = shares[np.arange(n), labels] + _MIN_WEIGHT
    return shares


def neighbours(features: NDArray[Any], k: int) -> Whole:
    """Return the k nearest other rows of each row by cosine, int64 (n, k); ties go to the first."""
    z = np.asarray(features, np.float64)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
    near = [np.zeros((0, k), np.int64)]
    for start in range(0, len(z), _ROWS_AT_ONCE):
        similarity = z[start : start + _ROWS_AT_ONCE] @ z.T
        own = np.arange(len(similarity))
        similarity[own, start + own] = -np.inf
        near.append(np.argsort(-similarity, 1, kind="stable")[:, :k])
    return np.concatenate(near)


def confident_counts(shares: Real, labels: Whole) -> Whole:
    """Return how many samples with given label i count for label j, int64 (n_classes, n_classes)."""
    n, n_classes = shares.shape
    n_given = np.bincount(labels, minlength=n_classes)
    own = np.bincount(labels, shares[np.arange(n), labels], minlength=n_classes)
    threshold = np.where(n_given > 0, own / np.maximum(n_given, 1), np.inf)
    eligible = np.where((shares >= threshold) & (shares > 0), shares, -1.0)
    counted = eligible.max(1) > 0
    counts = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(counts, (labels[counted], eligible[counted].argmax(1)), 1)
    return counts


def wilson(n_wrong: float, n: int) -> NoiseRate:
    """Return the share n_wrong / n with Wilson's interval; [0, 1] without samples."""
    if n == 0:
        return NoiseRate(math.nan, 0.0, 1.0, 0)
    rate = n_wrong / n
    middle = (rate + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
    return NoiseRate(rate, max(0.0, min(rate, middle - half)), min(1.0, max(rate, middle + half)), n)
