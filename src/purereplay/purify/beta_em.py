"""Arithmetic of the beta mixture: scaling of scores, densities, and EM for many fits at once.

In: scores (R, N) of R fits. Out: parameters (R, 2). Paper: appendix "Posterior in the Beta Mixture Model". The
treatment of fits that fail is decided and explained in `beta_mixture`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

EDGE = 1e-3  # scaled scores keep this distance from 0 and 1, where a beta density may be infinite
MIN_VARIANCE = 1e-6  # a component narrower than EDGE sits on one value


class Betas(NamedTuple):
    """Two beta components for each of R fits."""

    alpha: Tensor  # (R, 2)
    beta: Tensor  # (R, 2)
    weights: Tensor  # (R, 2), sum 1


class Ascent(NamedTuple):
    """Result of EM."""

    betas: Betas
    n_steps: Tensor  # int64 (R,): fewer than `n_iter` if a component collapsed
    change: Tensor  # (R,): change of the mean log-likelihood in the last step


def quantile(ordered: Tensor, n_scores: Tensor, q: float) -> Tensor:
    """Return the q-quantile of the first `n_scores` (R,) values of each sorted row (R, N), linearly interpolated."""
    place = q * (n_scores - 1).clamp(min=0).to(ordered.dtype)
    share = place - place.floor()
    below, above = (ordered.gather(1, at.long()[:, None])[:, 0] for at in (place.floor(), place.ceil()))
    return below * (1 - share) + above * share


def scale(scores: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return scores (R, N) scaled with low → 0 and high → 1, clamped to [EDGE, 1 - EDGE]; 1/2 where 0/0."""
    # halves, since the difference of two finite numbers may be infinite
    scaled = (scores / 2 - low[:, None] / 2) / (high / 2 - low / 2)[:, None]
    return scaled.nan_to_num(0.5).clamp(EDGE, 1 - EDGE)


def logs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return log x and log(1 - x) for x in (0, 1), which is all the densities need."""
    return x.log(), torch.log1p(-x)


def log_joint(betas: Betas, log_x: Tensor, log_rest: Tensor) -> Tensor:
    """Return log π_z p(x | α_z, β_z) as (R, 2, N) for the `logs` (R, N) of x."""
    alpha, beta, weights = betas
    constant = weights.log() + torch.lgamma(alpha + beta) - torch.lgamma(alpha) - torch.lgamma(beta)
    return constant[..., None] + (alpha - 1)[..., None] * log_x[:, None] + (beta - 1)[..., None] * log_rest[:, None]


def expectation_maximisation(x: Tensor, mask: Tensor, n_iter: int) -> Ascent:
    """Make `n_iter` EM steps from noisy (α, β) = (1, 2), clean (2, 1) on scaled scores x (R, N) where `mask` (R, N).

    A fit stops before the first step that gives a component no spread, or a number that is not finite and positive.
    """
    share = mask.to(x.dtype) / mask.sum(1, keepdim=True).clamp(min=1)
    alpha = torch.tensor([1.0, 2.0], dtype=x.dtype, device=x.device).expand(len(x), 2)
    betas = before = Betas(alpha, 3.0 - alpha, torch.full_like(alpha, 0.5))
    alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
    n_steps = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    logs_of_x = logs(x)
    for _ in range(n_iter):
        gamma = log_joint(betas, *logs_of_x).softmax(1) * share[:, None]  # E-step, (R, 2, N)
        weights = gamma.sum(-1)
        mean = (gamma * x[:, None]).sum(-1) / weights
        variance = (gamma * (x[:, None] - mean[..., None]).square()).sum(-1) / weights
        precision = mean * (1 - mean) / variance - 1  # α + β
        new = Betas(mean * precision, (1 - mean) * precision, weights)
        # comparisons are False for NaN
        sound = (variance > MIN_VARIANCE) & (weights > 0) & (precision > 0) & (precision < torch.inf)
        alive = alive & sound.all(1)
        before, betas = betas, Betas(*(torch.where(alive[:, None], n, o) for n, o in zip(new, betas, strict=True)))
        n_steps = n_steps + alive
    old, now = ((log_joint(b, *logs_of_x).logsumexp(1) * share).sum(1) for b in (before, betas))
    return Ascent(betas, n_steps, (now - old).abs())
