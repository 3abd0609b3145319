"""Agreement of labels: how well the label of a sample is predicted from the other samples.

The Self-Centered filter compares a sample with the samples of its own label only. Agreement compares it with those of
all labels: the labels are regressed on the features (kernel ridge regression, all labels with equal weight in total),
and each sample is predicted by the regression without it. A second regression gives less weight to samples that did not
agree in the first one. Samples whose labels are trusted, such as those of P, take part but are not scored.

In: features (n, d), given labels (n,), number of samples to score. Out: agreement float64 (m,) in [0, 1], high = clean.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SHARPNESS = 3.0  # of the kernel exp(sharpness · (cosine - 1)): a little more local than a linear one
_CONSTANT = 0.5  # added to the kernel, so that the regression has an intercept
_RIDGE = 1.0
_RIVAL = 0.5  # weight of the strongest other label in the score
_LEAST_WEIGHT = 1e-3  # of a sample in the second regression
_TRIMMED = (0.05, 0.95)  # quantiles of the scores of a label that become 0 and 1


def label_agreement(features: Tensor, labels: Tensor, n_scored: int) -> Tensor:
    """Return the agreement of the first `n_scored` samples; the others are trusted."""
    present, target = torch.unique(labels.to(features.device), return_inverse=True)
    wanted = F.one_hot(target, len(present)).double()
    unit = F.normalize(features.double())
    kernel = (_SHARPNESS * (unit @ unit.T - 1)).exp() + _CONSTANT
    weight = torch.ones(len(target), dtype=torch.float64, device=features.device)
    ranks = _ranks(_scores(kernel, wanted, weight)[:n_scored], target[:n_scored])
    weight[:n_scored] = ranks.clamp(min=_LEAST_WEIGHT)
    return _scaled(_scores(kernel, wanted, weight)[:n_scored], target[:n_scored])


def _scores(kernel: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """Score (n,) of each sample's label by the regression without the sample.

    With G = (kernel + ridge / weights)⁻¹ and a = G · labels, the prediction without sample i is label_i - a_i / G_ii.
    """
    total = weight @ wanted  # per label
    balanced = weight * (len(weight) / wanted.shape[1] / total)[wanted.argmax(1)]
    inverse = torch.linalg.inv(kernel + torch.diag(_RIDGE / balanced))
    predicted = wanted - inverse @ (wanted - wanted.mean(0)) / inverse.diagonal()[:, None]
    own: Tensor = (predicted * wanted).sum(1)
    if wanted.shape[1] == 1:
        return own
    rival: Tensor = predicted.masked_fill(wanted.bool(), -torch.inf).max(1).values
    return own - _RIVAL * rival


def _ranks(scores: Tensor, labels: Tensor) -> Tensor:
    """Rank of each score among those of its label, as a share: 1 is the highest."""
    less = (scores[:, None] > scores) & (labels[:, None] == labels)
    return (less.sum(1) + 1) / (labels[:, None] == labels).sum(1)


def _scaled(scores: Tensor, labels: Tensor) -> Tensor:
    """Scores of each label as [0, 1] between two quantiles; equal scores become 1."""
    scaled = torch.ones_like(scores)
    for label in torch.unique(labels):
        own = scores[labels == label]
        low, high = torch.quantile(own, own.new_tensor(_TRIMMED))
        if high > low:
            scaled[labels == label] = ((own - low) / (high - low)).clamp(0, 1)
    return scaled
