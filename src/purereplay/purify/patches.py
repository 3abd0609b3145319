"""Features of images without training: responses to random patches of the images themselves.

Random patches of a buffer's images are normalised in brightness and contrast and whitened, and serve as convolution
filters (Coates, Lee & Ng 2011, who choose them by k-means). The positive and negative parts of the responses are
averaged over quarters of the image. The main directions of these numbers (see `directions`) are the features. No labels
and no other images are used.

In: images uint8 (n, C, H, W) and a seed. Out: features float32 (n, d) for the Self-Centered filter.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.errors import InputError
from purereplay.purify.directions import N_DIRECTIONS, main_directions

_MAX_SIDE = 32  # pixels; larger images are averaged down
_PATCH = 6 / 32  # side of a patch as a share of the image's
_N_PATCHES = 20_000  # patches drawn for the whitening
_N_FILTERS = 256
CONTRAST = 0.01  # added to the variance of pixels in [0, 1]; below it a patch is nearly blank
_WHITENING = 0.1  # added to the eigenvalues in the whitening, so that noise is not amplified
THRESHOLD = 0.25  # subtracted from responses before the ReLU
GRID = 2  # responses are averaged over 2 × 2 parts of the image
_BATCH, _CPU_BATCH = 100, 5  # images at once: occupies a GPU, fits into a CPU's cache; the results are equal


def patch_features(images: Tensor, seed: int, n_directions: int = N_DIRECTIONS) -> Tensor:
    """Return features (n, at most n_directions) of images, on their device; only images and seed matter."""
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        shape = tuple(images.shape)
        raise InputError(f"Images must be uint8 (n, channels, height, width), not {images.dtype} of shape {shape}.")
    pixels = shrunk(images)
    filters, offset = make_filters(pixels, patch_size(pixels), torch.Generator().manual_seed(seed))
    return main_directions(responses(pixels, filters, offset), n_directions)


def shrunk_size(size: Sequence[int]) -> tuple[int, int]:
    """Return height and width after averaging down."""
    return min(size[0], _MAX_SIDE), min(size[1], _MAX_SIDE)


def shrunk(images: Tensor) -> Tensor:
    """Return images as pixels in [0, 1], averaged down to at most 32 × 32."""
    size = shrunk_size(images.shape[-2:])
    return torch.cat(
        [F.adaptive_avg_pool2d(some.float() / 255, size) for some in torch.split(images, _at_once(images))]
    )


def patch_size(pixels: Tensor) -> int:
    """Return the side of a patch of these images."""
    side = min(pixels.shape[-2:])
    return min(side, max(3, round(_PATCH * side)))


def make_filters(pixels: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return filters (256, C, size, size) for patches of zero mean and unit contrast, and offsets of the responses."""
    n, channels, height, width = pixels.shape
    which = torch.randint(n, (_N_PATCHES, 1, 1), generator=generator).to(pixels.device)
    top = torch.randint(height - size + 1, (_N_PATCHES, 1, 1), generator=generator).to(pixels.device)
    left = torch.randint(width - size + 1, (_N_PATCHES, 1, 1), generator=generator).to(pixels.device)
    step = torch.arange(size, device=pixels.device)
    patches = pixels[which, :, top + step[:, None], left + step].movedim(3, 1).flatten(1)  # (20000, C · size²)
    variance, mean = torch.var_mean(patches, 1, correction=0, keepdim=True)
    patches = (patches - mean) / (variance + CONTRAST).sqrt()
    mean_patch = patches.mean(0)
    centred = patches - mean_patch
    values, vectors = torch.linalg.eigh((centred.T @ centred / _N_PATCHES).double())
    whiten = ((vectors / (values.clamp(min=0) + _WHITENING).sqrt()) @ vectors.T).float()
    filters = F.normalize(centred[:_N_FILTERS] @ whiten) @ whiten
    return filters.view(-1, channels, size, size), filters @ mean_patch


def responses(pixels: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    """Return the averaged responses of each image, (n, 2 · 256 · 4)."""
    return torch.cat([_responses(some, filters, offset) for some in torch.split(pixels, _at_once(pixels))])


def _at_once(images: Tensor) -> int:
    return _BATCH if images.is_cuda else _CPU_BATCH


def _responses(pixels: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    size = filters.shape[-1]
    mean = F.avg_pool2d(pixels.mean(1, keepdim=True), size, 1)
    square = F.avg_pool2d(pixels.square().mean(1, keepdim=True), size, 1)
    contrast = ((square - mean.square()).clamp(min=0) + CONTRAST).sqrt()
    whole, offset = filters.sum((1, 2, 3)).view(-1, 1, 1), offset.view(-1, 1, 1)
    response = F.conv2d(pixels, filters).addcmul_(mean, whole, value=-1).div_(contrast).sub_(offset)
    negative = F.relu_(-response - THRESHOLD)  # in place: on a CPU new memory costs more than the arithmetic
    pooled = [F.adaptive_avg_pool2d(part, GRID) for part in (F.relu_(response.sub_(THRESHOLD)), negative)]
    return torch.cat(pooled, 1).flatten(1)
