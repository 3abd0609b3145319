"""Verdicts on labels: a calibrated clean probability of every sample, and the shares of wrong labels.

Two rounds. In the first, members are fitted on all given labels with equal weight. The noise is estimated here. In the
second, every sample has its clean probability of the first round as its weight, which separates better. A label has a
small influence on the weights of others, so the noise matrix of the first round is kept. In both rounds a sample is
scored without itself, and the pool combines the scores (see `pool`).

In: features float32 (n, d), given labels int64 (n,) below n_classes, optionally which labels are trusted because a
person has checked them. Out: `Verdicts`. Nothing depends on the order of the samples, except for random draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.errors import InputError
from purereplay.purify.noise_rate import NoiseRate, NoiseTable, wilson
from purereplay.purify.opinions.inputs import checked_features, checked_labels
from purereplay.purify.opinions.members import fit_members, fitted_rows, kinds_for
from purereplay.purify.opinions.pool import Fit, fit_pool, posterior

LEAST_OF_CLASS = 3  # samples of a label below which nothing can be said about them
LEAST_OF_FIT = 6  # the same for the estimate of the noise
_ROUNDS = 2
_LEAST_WEIGHT = 0.01  # of a sample in the second round
_AMBIGUITY = 0.15  # share of the ambiguity that widens an interval

Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Verdicts(NamedTuple):
    """Verdicts on the labels of all samples.

    Fields:
        clean_probability: float64 (n,) in [0, 1], probability that the label is right, calibrated, high = clean
        class_probability: float64 (n, n_classes), of each true class, without the sample's own label
        likely_label: int64 (n,), the most likely true class after the given label is known
        accepted: bool (n,), whether the label is more likely right than wrong, or trusted
        noise: `NoiseTable`, estimated shares of wrong labels: `overall`, `by_class` and `by_pair`, each with `rate`,
            `low`, `high` and `n`
        noise_matrix: float64 (n_classes, n_classes), true class × given label; 1 for classes without samples
        opinions: weight of each opinion, in all 1
        unjudged: bool (n,), whether nothing is known of the label, since too few samples have it; these are accepted
    """

    clean_probability: Real
    class_probability: Real
    likely_label: Whole
    accepted: Mask
    noise: NoiseTable
    noise_matrix: Real
    opinions: Mapping[str, float]
    unjudged: Mask


def judge_labels(
    features: ArrayLike,
    labels: ArrayLike,
    n_classes: int,
    *,
    trusted: ArrayLike | None = None,
    given: ArrayLike | None = None,
    kinds: Sequence[str] | None = None,
    seed: int = 0,
    watch: Progress | None = None,
) -> Verdicts:
    """Judge the labels of all samples together, by models that have not seen the sample.

    Every class is compared with every other. A single label cannot be judged; all samples are accepted then.

    Parameters:
        features: array of real, finite numbers (n, d) of similar scale, as those of `FeatureMap`, which standardises
            features and reduces more than 256 of them to their main directions
        labels: array of integers (n,), each from 0 to n_classes - 1, as given
        n_classes: number of classes; some may have no samples
        trusted: bool (n,), labels that are known to be right; they teach with full weight and are never doubted
        given: integers (n,), the labels before people corrected some of them. A person reviews the worst labels first,
            so the rest alone would make the noise look too small. None: no label was corrected.
        kinds: models to ask, such as `members.IMAGE_KINDS`; None: those that suit vectors of this width
        seed: of all random draws
        watch: called with the work, the steps done and their number

    Returns:
        `Verdicts`: `clean_probability` (n,) in [0, 1], calibrated, high = clean; `accepted` (n,); `likely_label` (n,);
        `noise`, the estimated shares of wrong labels with intervals; and the other fields named there
    """
    values, codes, believed = _checked(features, labels, n_classes, trusted)
    present, numbers = np.unique(codes, return_inverse=True)
    before = None if given is None else checked_labels(given, len(codes), n_classes)
    n, k = len(codes), len(present)
    if k < 2:
        return _nothing_to_compare(codes, n_classes, believed)
    kinds = kinds or kinds_for(values.shape[1], k)
    done = 0

    def step(name: str) -> None:
        nonlocal done
        if watch:
            watch(f"opinions: {name}", done, _ROUNDS * len(kinds))
        done += 1

    def in_pool(number: int, part: Mask | slice, weights: Real, noise: Real | None) -> tuple[Fit, Real]:
        """Fit members and pool on some samples; returns the pooled opinion on them, of the labels that they have."""
        own = derive_seed(seed, "round", number)
        own_present, own_numbers = np.unique(codes[part], return_inverse=True)
        scores = fit_members(
            values[part], own_numbers, weights[part], len(own_present), kinds, seed=own, step=step
        ).scores
        rows = fitted_rows(len(own_numbers), derive_seed(seed, "pool"))
        own_given = None if before is None else _numbered(before[part], own_present, own_numbers)[rows]
        fit = fit_pool([own[rows] for own in scores], own_numbers[rows], believed[part][rows], noise, own_given)
        return fit, fit.pool.probabilities(scores)

    common = _of_common_labels(numbers, k)
    everything = slice(None)  # needs no copy of the features
    first, pooled = in_pool(0, everything if common.all() else common, np.ones(n), None)
    rate, noise = _widened_noise(first.noise, numbers, common, k)
    classes, of_common = np.unique(numbers[common], return_inverse=True)
    told = np.zeros((n, k))
    told[np.ix_(common, classes)] = posterior(pooled, first.noise, of_common, believed[common])
    own_chance = np.where(common, told[np.arange(n), numbers], 1 - rate)
    weights = np.where(believed, 1.0, np.maximum(own_chance, _LEAST_WEIGHT))
    second, pooled = in_pool(1, everything, weights, noise)
    after = posterior(pooled, noise, numbers, believed)
    told[~common] = after[~common]
    if watch:
        watch("opinions", done, done)
    return _verdicts(
        numbers,
        believed,
        present,
        n_classes,
        dict(zip(kinds, second.pool.weights, strict=True)),
        noise,
        pooled,
        told,
        after,
    )


def _of_common_labels(numbers: Whole, k: int) -> Mask:
    """Return the samples by which the noise is estimated: those of labels with enough samples, if they are most.

    Many labels of a few samples each, which no feature tells apart, would hide the noise of the others.
    """
    is_common = np.bincount(numbers, minlength=k) >= LEAST_OF_FIT
    found: Mask = is_common[numbers]
    return found if is_common.sum() >= 2 and 2 * found.sum() >= len(numbers) else np.ones(len(numbers), dtype=bool)


def _widened_noise(noise: Real, numbers: Whole, common: Mask, k: int) -> tuple[float, Real]:
    """Return the noise rate, and the noise matrix of all k labels from that of the common ones.

    A wrong label is assumed to be a rare one in proportion to the number of samples with it.
    """
    sizes = np.bincount(numbers, minlength=k) / len(numbers)
    classes = np.unique(numbers[common])
    rate = float(np.average(1 - noise.diagonal(), weights=sizes[classes]))
    if len(classes) == k:
        return rate, noise
    found = np.tile(rate * sizes, (k, 1))
    np.fill_diagonal(found, 0)
    np.fill_diagonal(found, 1 - found.sum(1))
    to_rare = rate * (1 - sizes[classes].sum())
    found[np.ix_(classes, classes)] = noise * (1 - to_rare)
    return rate, found


def _verdicts(
    numbers: Whole,
    trusted: Mask,
    present: Whole,
    n_classes: int,
    opinions: dict[str, float],
    noise: Real,
    pooled: Real,
    told: Real,
    after: Real,
) -> Verdicts:
    n, k = after.shape
    rows = np.arange(n)
    few = (np.bincount(numbers, minlength=k) < LEAST_OF_CLASS)[numbers] & ~trusted
    known = ~few & ~trusted
    clean = after[rows, numbers].copy()
    rate = float(1 - told[rows, numbers][known].mean()) if known.any() else 0.0
    clean[few] = 1 - rate  # too few of its kind to compare with
    believed = np.zeros((n, k))
    believed[rows, numbers] = 1
    after, told = (np.where(few[:, None], believed, own) for own in (after, told))
    matrix = np.eye(n_classes)
    matrix[np.ix_(present, present)] = noise
    total = sum(opinions.values())
    return Verdicts(
        clean_probability=clean,
        class_probability=_widened(pooled, present, n_classes),
        likely_label=present[after.argmax(1)],
        accepted=(clean >= 0.5) | trusted | few,
        noise=_noise_table(present[numbers], _widened(told, present, n_classes), 1 - pooled.max(1), known),
        noise_matrix=matrix,
        opinions={kind: float(weight / total) for kind, weight in opinions.items()},
        unjudged=few,
    )


def _widened(values: Real, present: Whole, n_classes: int) -> Real:
    """Return columns for all classes; those of absent ones are 0."""
    found = np.zeros((len(values), n_classes))
    found[:, present] = values
    return found


def _noise_table(labels: Whole, after: Real, ambiguity: Real, known: Mask) -> NoiseTable:
    """Return shares of wrong labels among the `known` samples, from the posterior of the true class (n, n_classes)."""
    n_classes = after.shape[1]
    counts = np.zeros((n_classes, n_classes))
    np.add.at(counts, labels[known], after[known])
    given = np.bincount(labels[known], minlength=n_classes)
    vague = np.bincount(labels[known], ambiguity[known], minlength=n_classes) / np.maximum(given, 1)
    wrong = given - counts.diagonal()
    overall = _interval(float(wrong.sum()), int(given.sum()), float(ambiguity[known].mean()) if known.any() else 0.0)
    by_class = [_interval(float(wrong[c]), int(given[c]), float(vague[c])) for c in range(n_classes)]
    np.fill_diagonal(counts, 0)
    pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(counts >= 0.5), strict=True)]
    pairs.sort(key=lambda pair: (-counts[pair], pair))
    by_pair = {
        (i, j): _interval(float(counts[i, j]), int(given[i]), float(vague[i] * counts[i, j] / max(wrong[i], 1e-9)))
        for i, j in pairs
    }
    return NoiseTable(overall, by_class, by_pair)


def _interval(n_wrong: float, n: int, ambiguity: float) -> NoiseRate:
    """Return the share n_wrong / n; its interval covers chance (Wilson) and a part of the ambiguity."""
    plain = wilson(min(max(n_wrong, 0.0), float(n)), n)
    more = _AMBIGUITY * ambiguity
    return plain._replace(low=max(0.0, plain.low - more), high=min(1.0, plain.high + more))


def _numbered(given: Whole, present: Whole, numbers: Whole) -> Whole:
    """Return the numbers of given labels among the present ones; one that is gone counts as its correction."""
    place = np.minimum(np.searchsorted(present, given), len(present) - 1)
    found: Whole = np.where(present[place] == given, place, numbers)
    return found


def _nothing_to_compare(labels: Whole, n_classes: int, trusted: Mask) -> Verdicts:
    """Return verdicts for samples of one label: every label is believed, and the noise is unknown."""
    n, unknown = len(labels), wilson(0, 0)
    of_classes = np.zeros((n, n_classes))
    of_classes[np.arange(n), labels] = 1
    table = NoiseTable(unknown, [unknown] * n_classes, {})
    all_accepted = np.ones(n, dtype=bool)
    return Verdicts(np.ones(n), of_classes, labels.copy(), all_accepted, table, np.eye(n_classes), {}, ~trusted)


def _checked(
    features: ArrayLike, labels: ArrayLike, n_classes: int, trusted: ArrayLike | None
) -> tuple[Real32, Whole, Mask]:
    values = checked_features(features)
    numbers = checked_labels(labels, len(values), n_classes)
    mask = np.zeros(len(numbers), dtype=bool) if trusted is None else np.asarray(trusted, dtype=bool)
    if mask.shape != numbers.shape:
        raise InputError(f"trusted has shape {mask.shape}, but {len(numbers)} samples need ({len(numbers)},).")
    return values, numbers, mask
