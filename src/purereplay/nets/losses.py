"""Losses of K networks: NT-Xent (paper, equation 1), supervised contrast, and cross-entropy.

Cross-entropy is plain, or weighted over some of the classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_TEMPERATURE = 0.0125  # below, exp(1 / temperature) overflows float32
NEVER = -1e4  # logit of a class that does not take part; finite, since a weight of 0 times infinity is not 0


def nt_xent(projections: Tensor, temperature: float) -> Tensor:
    """Loss per network (K,) of projections (K, 2B, d); rows i and i + B are the two views of one image.

    The mean over the views, as in the released code. The paper writes the sum, which gives the same steps of Adam.
    """
    loss: Tensor = _NTXent.apply(projections, temperature)  # type: ignore[no-untyped-call]
    return loss


class _NTXent(torch.autograd.Function):
    """NT-Xent with an explicit gradient: one product and two passes over the similarities instead of a dozen."""

    @staticmethod
    def forward(ctx: Any, projections: Tensor, temperature: float) -> Tensor:
        n = projections.shape[1]
        length = projections.norm(dim=-1, keepdim=True).clamp_(min=1e-12)
        z = projections / length
        similarity = torch.baddbmm(z.new_empty(1, 1, 1), z, z.transpose(1, 2), beta=0, alpha=1 / temperature)
        positive = similarity.diagonal(n // 2, 1, 2).mean(1)  # of view i and view i + B; symmetric
        powers = similarity.exp_()  # at most exp(1 / temperature)
        powers.diagonal(dim1=1, dim2=2).zero_()
        sums = powers.sum(2)
        ctx.powers, ctx.temperature = powers, temperature
        ctx.save_for_backward(z, length, sums)
        return sums.log().mean(1) - positive

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        z, length, sums = ctx.saved_tensors
        n, share = z.shape[1], sums.reciprocal()
        weights = (share[:, :, None] + share[:, None, :]).mul_(ctx.powers)  # p_ij + p_ji
        d = torch.baddbmm(z.roll(n // 2, 1), weights, z, beta=-2)
        d.sub_(z * (z * d).sum(-1, keepdim=True))  # gradient of the normalisation to length 1
        return d.mul_((gradient / (n * ctx.temperature))[:, None, None] / length), None


def supervised_contrastive(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Loss per network (K,) of projections (K, n, d) with labels (K, n) (Khosla et al. 2020).

    The mean over all rows of the cross-entropy between the row's similarities to the others and the uniform
    distribution over the others of its label. A row that is the only one of its label counts 0.
    """
    z = F.normalize(projections, dim=-1)
    itself = torch.eye(z.shape[1], dtype=torch.bool, device=z.device)
    log_p = (z @ z.transpose(1, 2) / temperature).masked_fill(itself, -torch.inf).log_softmax(-1)
    positive = (labels[:, :, None] == labels[:, None, :]) & ~itself
    sums = torch.where(positive, log_p, torch.zeros_like(log_p)).sum(2)
    return -(sums / positive.sum(2).clamp(min=1)).mean(1)


def sample_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy per sample (K, B) of logits (K, B, classes) and labels (K, B)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy per network (K,) of logits (K, B, classes) and labels (K, B)."""
    return sample_losses(logits, labels).mean(1)


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, allowed: Tensor) -> Tensor:
    """Weighted mean of the cross-entropy per network (K,), over the allowed classes only.

    Logits (K, B, classes), labels and weights (K, B), allowed bool (K, classes). The label of a sample with a weight
    must be allowed. If the weights sum up to less than 1, the sum takes the place of the mean.
    """
    among = logits.masked_fill(~allowed[:, None], NEVER)
    return (sample_losses(among, labels) * weights).sum(1) / weights.sum(1).clamp(min=1)


def logit_error(logits: Tensor, wanted: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """Mean squared error of logits per network (K,), over the known classes of the samples that have a known label.

    Logits and wanted ones (K, B, classes), labels (K, B), known bool (K, classes). Samples of other labels count as 0.
    """
    takes_part = known[:, None] & known.gather(1, labels)[:, :, None]
    errors = (logits - wanted).square() * takes_part
    return errors.sum((1, 2)) / (logits.shape[1] * known.sum(1).clamp(min=1))
