"""How many given labels are wrong, without any truth: what a sample's neighbours say against what it is called.

In: features and given labels. Out: the share of wrong labels, over all samples and by label, with an interval.

1. Votes. Each sample asks its `N_NEIGHBOURS` nearest by cosine, itself excluded, for their labels; that gives a share
   of votes for every label. In the next rounds a neighbour's vote counts as much as the round before agreed with it,
   which matters where most labels are wrong.
2. Counting (Northcutt, Jiang & Chuang 2021, confident learning). A sample speaks for the label that got the most
   votes, among those labels that got at least as many as they get on average from samples that bear them; one that
   reaches no such bar is not counted. Plain disagreement would count every sample that is merely hard as wrong.
3. Each label's counts give its share of wrong labels; the overall share is their mean, weighted by how often each label
   was given.

The mean clean probability of the filter is no such estimate: two components are always fitted, so that about half of a
perfectly clean class is doubted. This one has errors too; docs/estimator.md has them as measured. It is too high where
samples are few or look alike across classes, since one among strangers is counted as wrong. It is too low where wrong
labels agree with each other: samples of one class that all bear the same wrong label count for less the nearer they
come to being half of their class, and images of a class that has no name yet are not seen to be wrong at all.

The interval is Wilson's, at 95 %: it covers the chance of drawing these samples, not these errors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

N_NEIGHBOURS = 10
_ROUNDS = 4
_LEAST = 1e-3  # of a vote's weight
_ROWS_AT_ONCE = 512  # of the similarities, which are never whole in memory
_Z = 1.959964  # of the normal distribution, for 95 %

Real = NDArray[np.float64]
Whole = NDArray[np.int64]


class NoiseRate(NamedTuple):
    """A share of wrong labels in [0, 1]; NaN where nothing was counted."""

    rate: float
    low: float  # of the 95 % interval
    high: float
    n: int  # samples counted


def noise_rates(features: NDArray[Any], labels: Whole, n_classes: int) -> tuple[NoiseRate, list[NoiseRate]]:
    """Overall and by label, of features (n, d) and given labels int64 (n,) below `n_classes`."""
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
    """Each sample's share of votes by label, (n, n_classes)."""
    n = len(labels)
    near = neighbours(features, max(0, min(N_NEIGHBOURS, n - 1)))
    rows = np.repeat(np.arange(n), near.shape[1])
    weight = np.ones(n)
    for _ in range(_ROUNDS):
        shares = np.zeros((n, n_classes))
        np.add.at(shares, (rows, labels[near].ravel()), weight[near].ravel())
        shares /= np.maximum(shares.sum(1, keepdims=True), 1e-300)  # a single sample has nobody to ask
        weight = shares[np.arange(n), labels] + _LEAST
    return shares


def neighbours(features: NDArray[Any], k: int) -> Whole:
    """The k nearest others of each row by cosine, int64 (n, k); of equals the first."""
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
    """How many samples that bear label i speak for label j, int64 (n_classes, n_classes)."""
    n, n_classes = shares.shape
    borne = np.bincount(labels, minlength=n_classes)
    own = np.bincount(labels, shares[np.arange(n), labels], minlength=n_classes)
    bar = np.where(borne > 0, own / np.maximum(borne, 1), np.inf)
    speaks = np.where((shares >= bar) & (shares > 0), shares, -1.0)
    heard = speaks.max(1) > 0
    counts = np.zeros((n_classes, n_classes), np.int64)
    np.add.at(counts, (labels[heard], speaks[heard].argmax(1)), 1)
    return counts


def wilson(n_wrong: float, n: int) -> NoiseRate:
    """The share n_wrong / n with Wilson's interval; without samples nothing is known."""
    if n == 0:
        return NoiseRate(math.nan, 0.0, 1.0, 0)
    rate = n_wrong / n
    middle = (rate + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
    return NoiseRate(rate, max(0.0, min(rate, middle - half)), min(1.0, max(rate, middle + half)), n)
