"""Features that nobody has to train: how images answer to random patches of themselves.

Some patches of a buffer's images, freed of brightness and contrast and whitened, are filters that look at every place
of an image (Coates, Lee & Ng 2011, where k-means chooses them). How strongly it answers to each, and to its opposite,
is summed up in quarters of the image; the buffer's main directions of that (see `directions`) are the features. No
labels take part, and no image from elsewhere.

In: images uint8 (n, C, H, W) and a seed. Out: features float32 (n, d) for the Self-Centered filter.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.errors import InputError
from purereplay.purify.directions import main_directions

_LONGEST = 32  # pixels; larger images are averaged down
_PATCH = 6 / 32  # a patch's side as a share of the image's
_DRAWN = 20_000  # patches that whitening is learned from
_FILTERS = 256
_CONTRAST = 0.01  # of pixels in [0, 1]: variance below which a patch is nearly blank
_BLUR = 0.1  # added to the variances in whitening, so that noise is not blown up
_QUIET = 0.25  # an answer below it counts as none
_QUARTERS = 2  # the image is summed up in 2 × 2 parts
_AT_ONCE, _AT_ONCE_ON_A_CPU = 100, 5  # images: a GPU is kept busy, a cache is not left; the answers are the same


def patch_features(images: Tensor, seed: int) -> Tensor:
    """Features (n, at most 32) of a buffer's images, on their device; a function of the buffer and the seed alone."""
    if images.dtype != torch.uint8 or images.ndim != 4 or not images.numel():
        shape = tuple(images.shape)
        raise InputError(f"Images must be uint8 (n, channels, height, width), not {images.dtype} of shape {shape}.")
    height, width = images.shape[-2:]
    shrunk = min(height, _LONGEST), min(width, _LONGEST)
    size = min(*shrunk, max(3, round(_PATCH * min(shrunk))))
    pixels = [
        F.adaptive_avg_pool2d(some.float() / 255, shrunk)
        for some in torch.split(images, _AT_ONCE if images.is_cuda else _AT_ONCE_ON_A_CPU)
    ]
    filters, offset = _learned_filters(torch.cat(pixels), size, torch.Generator().manual_seed(seed))
    return main_directions(torch.cat([_answers(some, filters, offset) for some in pixels]))


def _learned_filters(pixels: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Filters (256, C, size, size) for patches of no mean and unit contrast, and what to subtract from the answers."""
    n, channels, height, width = pixels.shape
    which = torch.randint(n, (_DRAWN, 1, 1), generator=generator).to(pixels.device)
    top = torch.randint(height - size + 1, (_DRAWN, 1, 1), generator=generator).to(pixels.device)
    left = torch.randint(width - size + 1, (_DRAWN, 1, 1), generator=generator).to(pixels.device)
    step = torch.arange(size, device=pixels.device)
    patches = pixels[which, :, top + step[:, None], left + step].movedim(3, 1).flatten(1)  # (20000, C · size²)
    variance, mean = torch.var_mean(patches, 1, correction=0, keepdim=True)
    patches = (patches - mean) / (variance + _CONTRAST).sqrt()
    usual = patches.mean(0)
    centred = patches - usual
    values, vectors = torch.linalg.eigh((centred.T @ centred / _DRAWN).double())
    whiten = ((vectors / (values.clamp(min=0) + _BLUR).sqrt()) @ vectors.T).float()
    filters = F.normalize(centred[:_FILTERS] @ whiten) @ whiten
    return filters.view(-1, channels, size, size), filters @ usual


def _answers(pixels: Tensor, filters: Tensor, offset: Tensor) -> Tensor:
    """How each image answers, (n, 2 · 256 · 4)."""
    size = filters.shape[-1]
    mean = F.avg_pool2d(pixels.mean(1, keepdim=True), size, 1)
    square = F.avg_pool2d(pixels.square().mean(1, keepdim=True), size, 1)
    contrast = ((square - mean.square()).clamp(min=0) + _CONTRAST).sqrt()
    whole, offset = filters.sum((1, 2, 3)).view(-1, 1, 1), offset.view(-1, 1, 1)
    answer = F.conv2d(pixels, filters).addcmul_(mean, whole, value=-1).div_(contrast).sub_(offset)
    against = F.relu_(-answer - _QUIET)  # in place: on a CPU new memory costs more than the sums
    loud = [F.adaptive_avg_pool2d(one, _QUARTERS) for one in (F.relu_(answer.sub_(_QUIET)), against)]
    return torch.cat(loud, 1).flatten(1)
