"""Combination of several opinions into one probability of the true class, and the noise of the labels.

Model of a given label: p(given = j | x) = Σ_k T[k, j] · q_k(x).

- q, the pooled opinion about the true class, is softmax(Σ_m w_m · s_m + A s + b): a log-linear pool of the members'
  standardised scores s_m with w ≥ 0. A, applied to their mean s, corrects confusions of classes that they share.
- T, the noise matrix, holds the shares of each true class by given label. Its prior is a Dirichlet distribution around
  equal noise of all classes, whose rate is estimated with it. This T is then the mean of the prior of a sparse one, in
  which only some pairs of classes have a rate of their own.

All parameters are chosen by the likelihood of the given labels under out-of-sample scores; no true label is needed. It
has several maxima, so the search begins with soft opinions and again with sharp ones, and the better result is taken.
Overlap of classes and noise differ in form: overlap depends on x, whereas noise also hits samples far from other
classes. So a clean, hard problem gets soft q and T near 1, and a noisy, easy one sharp q and T with a margin. Few
samples hardly tell the two apart: the likelihood of equal noise is almost flat from one to the other. Both searches
therefore have a prior. Without one the search slides along the ridge, and rounding decides where it ends.

Then p(clean | x, y) = T[y, y] · q_y(x) / Σ_k T[k, y] · q_k(x). The true class of a trusted sample is
its label; if the label that it had before is known too, it tells about T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from purereplay.purify.opinions.noise_matrix import equal_noise, sparse_noise

MOST_CORRECTED = 40  # classes up to which A is fitted; it has as many entries as T
_CONCENTRATION = 20.0  # pseudo-counts of a row of T
_SPARSE_CONCENTRATION = 5.0  # the same for the sparse noise matrix; more would keep noise of clean classes that overlap
_CORRECTION = 30.0  # strength of the ridge on A and b
_WEIGHTS = 0.1  # the same on w for a known T: if the members separate the labels, it would grow without limit
_FIRST_RATE = 0.15  # noise rate to start with
_SOFT, _SHARP = 2.0, 6.0  # weight of all members to start with
_CLEARLY = 0.005  # by which the loss per sample after the sharp start must be lower to be preferred
_ROUNDS, _STEPS = 25, 40  # updates of the noise rate, and steps of the optimiser in each
_SPARSE_ROUNDS, _SPARSE_STEPS, _UPDATES = 30, 8, 3  # the same for the sparse noise matrix, and its updates
_CONVERGED = 2e-4  # change of the noise rate
_LEAST = 1e-4  # of a member's weight
_SILENT = 1e30  # scale of a member that knows nothing

Real = NDArray[np.float64]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Pool(NamedTuple):
    """Parameters of the pooled opinion; `weights` belong to standardised scores."""

    weights: Real  # (members,)
    scales: Real  # (members,), by which scores are divided
    correction: Real  # A, (n_classes, n_classes)
    bias: Real  # b, (n_classes,)

    def probabilities(self, scores: list[Real]) -> Real:
        """Return the probability of each class, (n, n_classes)."""
        inputs = [own / scale for own, scale in zip(scores, self.scales, strict=True)]
        combined: Real = sum((w * own for w, own in zip(self.weights, inputs, strict=True)), np.zeros_like(inputs[0]))
        return softmax(combined + _mean(inputs) @ self.correction.T + self.bias)


class Fit(NamedTuple):
    """A pool with the noise that belongs to it."""

    pool: Pool
    noise: Real  # T, (n_classes, n_classes): true class, given label


def fit_pool(
    scores: list[Real], labels: Whole, trusted: Mask, noise: Real | None = None, given: Whole | None = None
) -> Fit:
    """Fit the pool on out-of-sample scores (n, n_classes) of samples with labels (n,).

    `noise` is a known T, such as 1 for labels that are believed; None: fit it as well. `given` are the labels before
    any correction: with them, trusted samples tell about T too.
    """
    scales = np.array([max(float(own.std()), 1e-9) if _knows(own, labels) else _SILENT for own in scores])
    inputs = [own / scale for own, scale in zip(scores, scales, strict=True)]
    problem = _Problem(inputs, labels, trusted, noise, given)
    is_known = noise is not None
    values = problem.improve(problem.start(_FIRST_RATE), 0.0, _STEPS) if is_known else _fit_all(problem)
    assert problem.known is not None
    weights, correction, bias, _ = problem.parts(values)
    return Fit(Pool(weights, scales, correction, bias), problem.known)


def _knows(scores: Real, labels: Whole) -> bool:
    """Return whether out-of-sample scores prefer the given labels at all.

    Without the sample its own label is rarer. If features say nothing, that alone would tell the label, reversed.
    """
    own = scores[np.arange(len(labels)), labels]
    return float((own - scores.mean(1)).mean()) > 0


def _fit_all(problem: _Problem) -> Real:
    """Fit all parameters, and leave the noise in the problem.

    From one start the search may end at no noise and opinions as soft as the labels are noisy.
    """
    values = _fit_sparse(problem, _fit_dense(problem, _SOFT))
    if problem.corrects:
        noise, loss = problem.known, problem.loss(values)
        problem.known = None
        others = _fit_sparse(problem, _fit_dense(problem, _SHARP))
        if problem.loss(others) < loss - _CLEARLY:
            return others
        problem.known = noise
    return values


def _fit_dense(problem: _Problem, weight: float) -> Real:
    """Fit all parameters, with a rate of its own for every pair of classes, and leave the noise in the problem.

    With many classes there are too few samples of each pair: equal noise is kept.
    """
    rate = _FIRST_RATE
    if not problem.corrects:
        problem.known = equal_noise(rate, problem.n_classes)
        return problem.improve(problem.start(rate), rate, _STEPS)
    values = problem.start(rate, weight)
    for _ in range(_ROUNDS):
        values = problem.improve(values, rate, _STEPS)
        before, rate = rate, problem.rate(values)
        if abs(rate - before) < _CONVERGED:
            break
    problem.known = problem.noise(values)
    return values[: -(problem.n_classes**2)]  # T is known from here on


def _fit_sparse(problem: _Problem, values: Real) -> Real:
    """Go on with a noise matrix in which only some pairs have a rate of their own, and leave it in the problem.

    The noise matrix so far is the mean of its prior, unless it was not fitted, as with many classes.
    """
    assert problem.known is not None
    rate, prior = problem.rate(values), _SPARSE_CONCENTRATION * problem.corrects * problem.known
    for _ in range(_SPARSE_ROUNDS):
        values = problem.improve(values, rate, _SPARSE_STEPS)
        for _ in range(_UPDATES):
            problem.known = sparse_noise(problem.counts(values) + prior)
        before, rate = rate, problem.rate(values)
        if abs(rate - before) < _CONVERGED:
            break
    return values


def posterior(probabilities: Real, noise: Real, labels: Whole, trusted: Mask) -> Real:
    """Return the probability of each true class after the given label is known, (n, n_classes)."""
    joint = probabilities * noise[:, labels].T
    total = joint.sum(1, keepdims=True)
    found: Real = np.divide(joint, total, out=np.zeros_like(joint), where=total > 0)
    impossible = total[:, 0] <= 0  # underflow: the label is believed
    found[impossible | trusted] = 0
    rows = np.flatnonzero(impossible | trusted)
    found[rows, labels[rows]] = 1
    return found


def softmax(logits: Real) -> Real:
    """Return probabilities along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    found: Real = powers / powers.sum(-1, keepdims=True)
    return found


class _Problem:
    """Likelihood of the given labels with its gradient, as a function of all parameters in one vector."""

    def __init__(
        self, inputs: list[Real], labels: Whole, trusted: Mask, noise: Real | None, given: Whole | None
    ) -> None:
        self.inputs, self.known, self.ridge = inputs, noise, 0.0 if noise is None else _WEIGHTS  # ridge on w
        self.given = labels if given is None else given
        self.trusted, self.right = np.flatnonzero(trusted), labels[trusted]
        self.n, self.n_classes = inputs[0].shape
        self.corrects = self.n_classes <= MOST_CORRECTED
        self.mean, self.zeros = _mean(inputs), np.zeros((self.n_classes, self.n_classes))
        self.rows = np.arange(self.n)
        self.counted = np.flatnonzero(~trusted) if given is None else self.rows  # samples that tell about T
        self.trusts_label_only = given is None

    def start(self, rate: float, weight: float = _SOFT) -> Real:
        k, m = self.n_classes, len(self.inputs)
        found = np.concatenate([np.full(m, weight / m), np.zeros(k + k * k * self.corrects)])
        if self.known is not None:
            return found
        return np.concatenate([found, np.log(np.maximum(equal_noise(rate, k), 1e-12)).ravel()])

    def parts(self, values: Real) -> tuple[Real, Real, Real, Real]:
        """Return w, A, b and the logits of T; A is 0 for many classes, and there are no logits of a known T."""
        k, m = self.n_classes, len(self.inputs)
        weights, bias, correction, logits = np.split(values, np.cumsum([m, k, k * k * self.corrects]))
        return weights, correction.reshape(k, k) if self.corrects else self.zeros, bias, logits.reshape(-1, k)

    def improve(self, values: Real, rate: float, n_steps: int) -> Real:
        """Return better parameters for a given rate of the prior."""
        m = len(self.inputs)
        bounds = [(_LEAST, None)] * m + [(None, None)] * (len(values) - m)
        options = {"maxiter": n_steps}
        found = minimize(self._loss, values, (rate,), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        better: Real = found.x
        return better

    def loss(self, values: Real) -> float:
        """Return the negative logarithm of the likelihood with the ridge, per sample, for a known T."""
        return self._loss(values, 0.0)[0]

    def rate(self, values: Real) -> float:
        """Return the expected share of wrong labels among the counted samples."""
        pooled, noise = self._pooled(values)
        right = self._responsibility(pooled, noise)[0][self.rows, self.given]
        return (float((1 - right)[self.counted].sum()) + 0.5) / (len(self.counted) + 10)

    def counts(self, values: Real) -> Real:
        """Return the expected number of counted samples by true class and given label, (n_classes, n_classes)."""
        responsibility, _ = self._responsibility(*self._pooled(values))
        return self._added(np.zeros((self.n_classes, self.n_classes)), responsibility)

    def _added(self, counts: Real, responsibility: Real) -> Real:
        np.add.at(counts.T, self.given[self.counted], responsibility[self.counted])
        return counts

    def _pooled(self, values: Real) -> tuple[Real, Real]:
        weights, correction, bias, _ = self.parts(values)
        total = np.tile(bias, (self.n, 1))
        for w, own in zip(weights, self.inputs, strict=True):
            total += w * own
        if self.corrects:
            total += self.mean @ correction.T
        return softmax(total), self.noise(values)

    def noise(self, values: Real) -> Real:
        """Return T."""
        return softmax(self.parts(values)[3]) if self.known is None else self.known

    def _responsibility(self, pooled: Real, noise: Real) -> tuple[Real, Real]:
        """Return the posterior of the true class, and the likelihood of each label."""
        joint = pooled * noise[:, self.given].T
        own = pooled if self.trusts_label_only else joint
        kept = own[self.trusted, self.right]
        joint[self.trusted] = 0
        joint[self.trusted, self.right] = kept
        total = np.maximum(joint.sum(1), 1e-300)
        joint /= total[:, None]
        joint[self.trusted, self.right] = 1  # also where the likelihood is below all numbers
        return joint, total

    def _loss(self, values: Real, rate: float) -> tuple[float, Real]:
        weights, correction, bias, _ = self.parts(values)
        pooled, noise = self._pooled(values)
        responsibility, total = self._responsibility(pooled, noise)
        objective = np.log(total).sum() - _CORRECTION / 2 * (np.square(correction).sum() + np.square(bias).sum())
        objective -= self.ridge / 2 * np.square(weights).sum()
        slope = responsibility - pooled  # of the log-likelihood by the pooled logits
        by_weight = np.array([float((slope * own).sum()) for own in self.inputs])
        parts = [by_weight - self.ridge * weights, slope.sum(0) - _CORRECTION * bias]
        if self.corrects:
            parts.append((slope.T @ self.mean - _CORRECTION * correction).ravel())
        if self.known is None:
            prior = _CONCENTRATION * equal_noise(rate, self.n_classes)
            objective += (prior * np.log(np.maximum(noise, 1e-300))).sum()
            counts = self._added(prior.copy(), responsibility)
            parts.append((counts - counts.sum(1, keepdims=True) * noise).ravel())
        return -float(objective) / self.n, -np.concatenate(parts) / self.n


def _mean(inputs: list[Real]) -> Real:
    found: Real = np.mean(inputs, 0)
    return found
