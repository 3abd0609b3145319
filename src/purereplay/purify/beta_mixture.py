"""Mixture of two beta distributions over centrality scores: noisy (lower mean) and clean (higher mean).

In: the scores of the samples of one label, many labels and graphs at once. Out: the probability that a score belongs to
the clean component (high = clean). Paper: section "Self-Centered Filter", paragraph "Beta Mixture Models", and appendix
"Posterior in the Beta Mixture Model" (EM with weighted moments).

Scores are first scaled to [0, 1]. "trimmed" fits the scores between their 5th and 95th percentile, scaled by these two
bounds (released code). "minmax" fits all of them, scaled by the minimum and the maximum. Scaled scores are clamped to
[0.001, 0.999]. EM starts from noisy (α, β) = (1, 2), clean (2, 1), weights 1/2, and makes `n_iter` steps.

Special cases. No result is ever NaN.

- small: fewer than `MIN_SAMPLES` = 4 scores. On digits (300 classes per size) no fit to 3 scores completes its steps;
  to 4 or 5 some do, to 8 most. The released code computes NaN here, which compares false, so such samples never enter.
  Their probability is 0 (`small_class="drop"`) or 0.5 ("keep"). "drop" is the default: the filter looks for confidently
  clean samples, and nothing is known of these. In a stream of tasks they are a few leftovers at the border of a task,
  as noisy as any other sample. "keep" is for buffers shared by many labels, where a rare label would never enter.
- flat: the two bounds coincide, as when all scores are equal. All samples look the same, and each gets 0.5.
- collapsed: an EM step would leave a component with no spread (variance under 1e-6) or a non-finite number. The
  parameters before that step are kept and `converged` is False. At the first step they are the initial ones, whose
  posterior is the scaled score itself.
- swapped: EM does not keep the second component the higher one, so the components are ordered by mean after the fit.
- turned: the log-odds of two betas can turn once. If the clean component is the wider one, a very low score looks clean
  (the red circles in the paper's figure on the Stochastic Ensemble; 2 in 5 fits to 10 digits). If it is the narrower
  one, a very high score looks noisy. `lookup="exact"` holds the posterior at its value at the turning point on the
  wrong side, which makes it non-decreasing in the score. `lookup="table"` is the released code's: 100 bins, held at the
  table's maximum to the right of it. It can decrease to the left, and it is the same for every sample if the lowest bin
  holds the maximum.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from purereplay.errors import UserError
from purereplay.purify.beta_em import Betas, expectation_maximisation, log_joint, logs, quantile, scale
from purereplay.purify.options import DEFAULTS, Posterior, Scaling, SmallClass, check_choice

MIN_SAMPLES = 4
TOLERANCE = 1e-3  # on the last EM step's change of the mean log-likelihood
RULES = ("fitted", "collapsed", "flat", "small")  # treatment of the scores; `Fits.rule` is an index into it
_FITTED, _COLLAPSED, _FLAT, _SMALL = range(4)
_N_BINS = 100


class Fits(NamedTuple):
    """R mixtures; component 0 is noisy, component 1 clean."""

    low: Tensor  # (R,): score that is scaled to 0
    high: Tensor  # (R,): score that is scaled to 1
    betas: Betas  # (R, 2) each, in scaled scores
    converged: Tensor  # bool (R,)
    n_iter: Tensor  # int64 (R,): EM steps made
    rule: Tensor  # int64 (R,): index into RULES


def fit_mixtures(
    scores: Tensor,
    mask: Tensor,
    *,
    scaling: Scaling = DEFAULTS.scaling,
    n_iter: int = DEFAULTS.n_iter,
    tolerance: float = TOLERANCE,
) -> Fits:
    """Fit R mixtures at once to float64 scores (R, N), finite where `mask` (R, N), with the special cases above.

    A fit has converged if its last EM step changed the mean log-likelihood by less than `tolerance`.
    """
    check_choice("scaling", scaling, get_args(Scaling))
    if n_iter < 1:
        raise UserError(f"n_iter is {n_iter}, but the mixture needs at least one step.")
    n_scores = mask.sum(1)
    # sorted, so that a fit does not depend on the order of its samples in any bit; padding comes last
    ordered = scores.masked_fill(~mask, torch.inf).sort(1).values
    margin = 0.05 if scaling == "trimmed" else 0.0
    low, high = quantile(ordered, n_scores, margin), quantile(ordered, n_scores, 1.0 - margin)
    # slack: whether a score that ties with a bound is fitted must not depend on its last bit
    slack = 1e-9 * (high / 2 - low / 2)
    inside = (ordered >= (low - slack)[:, None]) & (ordered <= (high + slack)[:, None]) & (ordered < torch.inf)
    betas, n_steps, change = expectation_maximisation(scale(ordered, low, high), inside, n_iter)
    mean = betas.alpha / (betas.alpha + betas.beta)
    swapped = (mean[:, 0] > mean[:, 1])[:, None]
    betas = Betas(*(torch.where(swapped, part.flip(1), part) for part in betas))
    flat = high / 2 - low / 2 <= 1e-8 * torch.maximum(low.abs(), high.abs())
    rule = torch.where(n_steps < n_iter, _COLLAPSED, _FITTED)
    rule = torch.where(n_scores < MIN_SAMPLES, _SMALL, torch.where(flat, _FLAT, rule))
    return Fits(low, high, betas, (change < tolerance) & (rule == _FITTED), n_steps, rule)


def read_posterior(
    fits: Fits,
    scores: Tensor,
    *,
    lookup: Posterior = DEFAULTS.posterior,
    small_class: SmallClass = DEFAULTS.small_class,
) -> Tensor:
    """Return the probability that float64 scores (R, N) belong to the clean component of their fit (high = clean)."""
    check_choice("small_class", small_class, get_args(SmallClass))
    check_choice("lookup", lookup, get_args(Posterior))
    x = scale(scores, fits.low, fits.high)
    if lookup == "exact":
        posterior = _clean_share(fits.betas, _hold_at_turn(fits.betas, x))
    else:
        grid = torch.linspace(1e-12, 1 - 1e-12, _N_BINS, dtype=x.dtype, device=x.device)
        table = _clean_share(fits.betas, grid.expand(len(x), _N_BINS))
        top, at = table.max(1, keepdim=True)
        table = torch.where(torch.arange(_N_BINS, device=x.device) >= at, top, table)
        posterior = table.gather(1, (_N_BINS * x).long().clamp(0, _N_BINS - 1))
    rule = fits.rule[:, None]
    posterior = torch.where(rule == _FLAT, 0.5, posterior)
    return torch.where(rule == _SMALL, 0.5 if small_class == "keep" else 0.0, posterior)


def _clean_share(betas: Betas, x: Tensor) -> Tensor:
    """Return γ_clean(x), Eq. p(z | c), as the densities give it: (R, N)."""
    return log_joint(betas, *logs(x)).softmax(1)[:, 1]


def _hold_at_turn(betas: Betas, x: Tensor) -> Tensor:
    """Return x (R, N), moved to the turning point of the log-odds from the side where they decrease in x."""
    # d log-odds / dx = a / x - b / (1 - x), zero at x = a / (a + b). The log-odds cannot decrease everywhere
    # (a < 0 < b), since the clean component has the higher mean.
    a, b = ((part[:, 1] - part[:, 0])[:, None] for part in betas[:2])
    turn = a / (a + b)
    x = torch.where((a > 0) & (b > 0), torch.minimum(x, turn), x)  # the turn is a maximum
    return torch.where((a < 0) & (b < 0), torch.maximum(x, turn), x)  # the turn is a minimum


class BetaMixture:
    """Two beta components of one set of scores, and the posterior of the clean one, which has the higher mean.

    Parameters:
        n_iter: EM steps
        tolerance: on the mean log-likelihood, for `converged_`
        scaling, lookup, small_class: see the module's docstring

    Attributes after `fit`:
        alpha_, beta_, weights_, means_: of (noisy, clean), in scaled scores
        low_, high_: scores that are scaled to 0 and 1
        converged_, n_iter_: whether EM converged, and the steps it made
        rule_: one of RULES
    """

    alpha_: NDArray[np.float64]
    beta_: NDArray[np.float64]
    weights_: NDArray[np.float64]
    means_: NDArray[np.float64]
    low_: float
    high_: float
    converged_: bool
    n_iter_: int
    rule_: str

    def __init__(
        self,
        *,
        n_iter: int = DEFAULTS.n_iter,
        tolerance: float = TOLERANCE,
        scaling: Scaling = DEFAULTS.scaling,
        lookup: Posterior = DEFAULTS.posterior,
        small_class: SmallClass = DEFAULTS.small_class,
    ) -> None:
        self.n_iter = n_iter
        self.tolerance = tolerance
        self.scaling = scaling
        self.lookup = lookup
        self.small_class = small_class

    def fit(self, scores: ArrayLike) -> Self:
        """Fit finite scores (n,), n ≥ 1."""
        row = _one_row(scores)
        mask = torch.ones_like(row, dtype=torch.bool)
        fits = fit_mixtures(row, mask, scaling=self.scaling, n_iter=self.n_iter, tolerance=self.tolerance)
        self._fits = fits
        self.alpha_, self.beta_, self.weights_ = (part[0].numpy() for part in fits.betas)
        self.means_ = self.alpha_ / (self.alpha_ + self.beta_)
        self.low_, self.high_ = float(fits.low), float(fits.high)
        self.converged_, self.n_iter_, self.rule_ = bool(fits.converged), int(fits.n_iter), RULES[int(fits.rule)]
        return self

    def posterior(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Return the probability that each score (n,) belongs to the clean component: in [0, 1], high = clean."""
        if not hasattr(self, "_fits"):
            raise UserError("The beta mixture has no posterior yet: call fit first.")
        row = read_posterior(self._fits, _one_row(scores), lookup=self.lookup, small_class=self.small_class)
        values: NDArray[np.float64] = row[0].numpy()
        return values


def _one_row(scores: ArrayLike) -> Tensor:
    """Return finite scores (n,) as float64 (1, n)."""
    values: NDArray[Any] = np.array(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise UserError(f"Scores have shape {values.shape}, but must be a vector of at least one number.")
    if not np.isfinite(values).all():
        raise UserError(f"Score {int(np.flatnonzero(~np.isfinite(values))[0])} is not a finite number.")
    return torch.from_numpy(values)[None]
