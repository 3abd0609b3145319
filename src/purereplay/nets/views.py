"""Random views of whole batches: resized crop, horizontal flip, colour jitter, with one draw per image.

Views of feature vectors drop some features and add noise to the others.

A view is a pure function of the image and uniform numbers. Cropping and resizing is bilinear and separable: a view is
R_y · image · R_xᵀ with two small interpolation matrices, so a batch takes two batched matrix products. Departures from
torchvision and kornia: boxes are continuous instead of whole pixels, and the four steps of the jitter have a fixed
order (brightness, contrast, saturation, hue).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

TRIES = 3  # draws of a box until one fits: each fits with probability 0.86, else the last is clipped (0.3 % of views)
CROP_NUMBERS = 2 * TRIES + 3  # area and ratio per try, position x and y, flip
_JITTER_NUMBERS = 5  # brightness, contrast, saturation, hue, whether to jitter


@dataclass(frozen=True)
class Views:
    """Random changes of an image; the defaults are those of the released code."""

    area: tuple[float, float] = (0.08, 1.0)  # share of the image that the crop keeps
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width : height of the crop, log-uniform
    flip: float = 0.5  # probability of a horizontal flip
    jitter: tuple[float, float, float, float] | None = (
        None  # brightness, contrast, saturation, hue; None: no jitter (grey images)
    )
    jitter_probability: float = 0.5
    jitter_kind: Literal["factors", "additive"] = "factors"  # additive: as in the kornia version of the released code

    @property
    def n_numbers(self) -> int:
        """Uniform numbers per view."""
        return CROP_NUMBERS + (_JITTER_NUMBERS if self.jitter else 0)


@dataclass(frozen=True)
class FeatureViews:
    """Random changes of a standardised feature vector, which is stored as an image of one pixel."""

    n_features: int
    dropout: float = 0.2  # probability that a feature is replaced by its mean, which is 0
    noise: float = 0.3  # standard deviation of the noise added to the others

    @property
    def n_numbers(self) -> int:
        """Uniform numbers per view."""
        return 2 * self.n_features


def make_views(images: Tensor, numbers: Tensor, views: Views | FeatureViews) -> Tensor:
    """Images float in [0, 1] (n, C, H, W) and uniforms (n, views.n_numbers) -> one view of each, (n, C, H, W)."""
    if isinstance(views, FeatureViews):
        return _feature_views(images, numbers, views)
    height, width = images.shape[-2:]
    x, width_share, y, height_share = boxes(numbers, views).unbind(-1)
    rows, columns = _interpolation(y, height_share, height), _interpolation(x, width_share, width)
    view = rows[:, None] @ images @ columns[:, None].transpose(-1, -2)
    if views.jitter is None:
        return view
    drawn = colours(numbers, views.jitter, views.jitter_probability)  # (n, 5)
    brightness, contrast, saturation, turn, apply = drawn.T[:, :, None, None, None]
    jittered = colour_jitter(view, brightness, contrast, saturation, turn, views.jitter_kind)
    return torch.where(apply > 0, jittered, view)


def _feature_views(vectors: Tensor, numbers: Tensor, views: FeatureViews) -> Tensor:
    """Vectors (n, D, 1, 1) and uniforms (n, 2 D) -> one view of each, (n, D, 1, 1)."""
    drop, u = numbers.view(-1, 2, *vectors.shape[1:]).unbind(1)
    # quantile of the normal distribution; half of the uniforms' resolution keeps it finite at 0
    normal = math.sqrt(2) * torch.erfinv(2 * u - (1 - 2.0**-24))
    return (vectors + views.noise * normal).masked_fill(drop < views.dropout, 0.0)


def boxes(numbers: Tensor, views: Views) -> Tensor:
    """Uniforms (..., n_numbers) -> (..., 4): start and extent in x, start and extent in y, as shares of the image."""
    u = numbers.movedim(-1, 0)
    w, h = draw_boxes(u[: 2 * TRIES], views)
    left, top = u[2 * TRIES] * (1 - w), u[2 * TRIES + 1] * (1 - h)
    flipped = u[2 * TRIES + 2] < views.flip
    # a flipped view reads its box from right to left
    return torch.stack([torch.where(flipped, left + w, left), torch.where(flipped, -w, w), top, h], dim=-1)


def colours(numbers: Tensor, strengths: tuple[float, float, float, float], probability: float) -> Tensor:
    """Uniforms (..., n_numbers) -> (..., 5): three factors, the rotation of the hue, and 1 if the jitter applies."""
    u = numbers[..., CROP_NUMBERS:]
    strength = torch.stack(
        [torch.full_like(u[..., 0], s) for s in strengths], dim=-1
    )  # no copy from the host: graph capture
    around_zero = strength * (2 * u[..., :4] - 1)
    factors, turn = 1 + around_zero[..., :3], around_zero[..., 3:]
    return torch.cat([factors, turn, (u[..., 4:] < probability).to(u.dtype)], dim=-1)


def draw_boxes(u: Tensor, views: Views) -> tuple[Tensor, Tensor]:
    """Widths and heights (n,), as shares of the image, from uniforms (2 * tries, n)."""
    low, high = views.area
    area = low + (high - low) * u[:TRIES]
    log_low, log_high = math.log(views.ratio[0]), math.log(views.ratio[1])
    ratio = torch.exp(log_low + (log_high - log_low) * u[TRIES:])
    widths, heights = (area * ratio).sqrt(), (area / ratio).sqrt()
    w, h = widths[-1], heights[-1]
    for i in reversed(range(TRIES - 1)):
        fits = (widths[i] <= 1) & (heights[i] <= 1)
        w, h = torch.where(fits, widths[i], w), torch.where(fits, heights[i], h)
    return w.clamp(max=1), h.clamp(max=1)


def _interpolation(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Matrices (n, size, size) that read `size` pixels evenly from [start, start + extent] (shares of the axis)."""
    pixel = torch.arange(size, device=start.device, dtype=start.dtype)
    position = (start[:, None] + extent[:, None] * (pixel + 0.5) / size) * size - 0.5
    distance = (position.clamp_(0, size - 1)[:, :, None] - pixel).abs_()
    return distance.neg_().add_(1).clamp_(min=0)


def colour_jitter(
    x: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, turn: Tensor, kind: str
) -> Tensor:
    """Jitter RGB images (n, 3, H, W) by factors (n, 1, 1, 1) around 1 and a hue rotation (share of the circle)."""
    if kind == "additive":
        x = (x + brightness - 1).clamp(0, 1)
        x = (x * contrast).clamp(0, 1)
        return _turn_hue(x, turn, saturation)
    x = (x * brightness).clamp(0, 1)
    x = (contrast * x + (1 - contrast) * _grey(x).mean((2, 3), keepdim=True)).clamp(0, 1)
    x = (saturation * x + (1 - saturation) * _grey(x)).clamp(0, 1)
    return _turn_hue(x, turn)


def _grey(x: Tensor) -> Tensor:
    return 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def _turn_hue(x: Tensor, turn: Tensor, saturation: Tensor | None = None) -> Tensor:
    """Rotate the hue in HSV; with `saturation`, also multiply HSV's saturation (at most to 1)."""
    r, g, b = x[:, :1], x[:, 1:2], x[:, 2:]
    value = x.amax(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    safe = chroma.clamp(min=1e-6)
    hue = torch.where(value == r, (g - b) / safe, torch.where(value == g, (b - r) / safe + 2, (r - g) / safe + 4))
    hue = hue + 6 * turn
    if saturation is not None:
        chroma = torch.minimum(chroma * saturation, value)
    # one channel of an HSV colour: value − chroma · clamp(min(k, 4 − k), 0, 1) with k = (offset + hue) mod 6
    k = torch.remainder(torch.cat([hue + 5, hue + 3, hue + 1], dim=1), 6)
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)
