"""The losses of K networks at once: NT-Xent (paper, equation 1) and cross-entropy."""

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(projections: Tensor, temperature: float) -> Tensor:
    """Loss per network (K,) of projections (K, 2B, d); rows i and i + B are the two views of one image.

    The mean over the views, as in the released code; the paper writes the sum, which Adam does not tell apart.
    """
    z = F.normalize(projections, dim=-1)
    n = z.shape[1]
    similarity = torch.bmm(z, z.transpose(1, 2)) / temperature
    positive = (z * z.roll(n // 2, dims=1)).sum(-1) / temperature
    others = similarity.masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), -torch.inf)
    return (torch.logsumexp(others, dim=-1) - positive).mean(1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy per network (K,) of logits (K, B, classes) and labels (K, B)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(1)
