"""Augmentation of the images of a supervised step, for whole batches of K networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4  # maximal shift in pixels


def cutmix(images: Tensor, labels: Tensor, u: Tensor, probability: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Paste a box of another image of the batch into each image; one box per network (Yun et al., 2019; α = 1).

    images (K, B, C, H, W), labels (K, B), uniforms u (K, 4). Returns the images, the labels of the pasted images (K, B)
    and the weight of the original labels (K, 1). With probability 1 - `probability` nothing is pasted.
    """
    batch, height, width = images.shape[1], *images.shape[-2:]
    share, x, y, apply = u.unbind(1)
    side = torch.where(apply < probability, (1 - share).sqrt(), torch.zeros_like(share))  # of the box, per axis
    column, row = (torch.arange(n, device=images.device) for n in (width, height))
    inside = torch.ones(images.shape[0], height, width, dtype=torch.bool, device=images.device)
    for centre, at, n, shape in ((x, column, width, (1, 1, -1)), (y, row, height, (1, -1, 1))):
        middle, half = (centre * n)[:, None, None], (side * n / 2)[:, None, None]
        at = at.view(shape)
        inside = inside & (at >= (middle - half).floor()) & (at < (middle + half).floor())
    own = 1 - inside.double().mean((1, 2)).to(images.dtype)
    mixed = torch.where(inside[:, None, None], images.roll(1, 1), images)
    return mixed, (labels.roll(1, 1) if batch > 1 else labels, own[:, None])


def shifted_and_flipped(images: Tensor, u: Tensor) -> Tensor:
    """Crop images at random after padding them by PADDING black pixels, and flip half of them horizontally.

    images (K, B, C, H, W), uniforms u (K, B, 3): vertical shift, horizontal shift and flip of each image.
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, (PADDING,) * 4)
    top, left = ((u[..., i] * (2 * PADDING + 1)).long()[..., None] for i in (0, 1))  # (K, B, 1)
    rows = top + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(*left.shape[:-1], width)
    columns = left + torch.where(u[..., 2:] < 0.5, columns, width - 1 - columns)
    shape = images.shape
    down = padded.gather(3, rows[:, :, None, :, None].expand(*shape[:4], padded.shape[-1]))
    return down.gather(4, columns[:, :, None, None, :].expand(shape))
