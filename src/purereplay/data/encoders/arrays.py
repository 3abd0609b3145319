"""Features of images that are in memory: those of the scikit-learn interface."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from purereplay.data.arrays import is_vectors, read_samples
from purereplay.data.encoders.base import CheckedEncoder, Features
from purereplay.data.encoders.cache import FeatureCache
from purereplay.data.encoders.pictures import Pixels, as_inputs, plain
from purereplay.data.progress import Progress
from purereplay.errors import InputError, InputTypeError

_PIECE = 64  # images resized and encoded at once
_DEEP = ("PNG", "PPM")  # formats whose images of mode I have 16 bits, in all or in former versions of Pillow


def encoded_samples(encoder: CheckedEncoder, samples: Any, watch: Progress | None = None) -> Tensor:
    """Return the features float64 (n, dim, 1, 1) of images in any form that `read_samples` takes.

    PIL images may have any size, and any mode whose range is known; their EXIF orientation is applied.
    """
    if isinstance(samples, Sequence) and len(samples) and isinstance(samples[0], Image.Image):
        images = [_colour(picture, row) for row, picture in enumerate(samples)]
    else:
        found = read_samples(samples)
        if is_vectors(found):
            raise InputError(
                f"The encoder {encoder.name} takes images, and X holds vectors of {found.shape[1]} features."
            )
        images = list(found.numpy())
    return embedded(encoder, images, watch).double()[:, :, None, None]


def _colour(picture: Any, row: int) -> Pixels:
    if not isinstance(picture, Image.Image):
        raise InputTypeError(f"Sample {row} of X is a {type(picture).__name__}, but the first one is a PIL image.")
    if picture.mode == "F" or (picture.mode == "I" and picture.format not in _DEEP):
        kind = "floats" if picture.mode == "F" else "integers of 32 bits"
        raise InputError(f"Sample {row} of X is a PIL image of {kind}: convert it to RGB, with values of 0 to 255.")
    try:
        if picture.mode.startswith("I;16") and picture.format is None and 0 < np.asarray(picture).max() < 256:
            raise InputError(
                f"Sample {row} of X is a PIL image of 16 bits with values below 256, as of a conversion from 8 bits: "
                "convert it to RGB from its first mode."
            )
        return np.asarray(plain(ImageOps.exif_transpose(picture)).convert("RGB")).transpose(2, 0, 1)
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # PIL reads the file only now
        raise InputError(f"Sample {row} of X cannot be read: {str(error).rstrip('.')}.") from error


def embedded(encoder: CheckedEncoder, images: Sequence[Pixels], watch: Progress | None = None) -> Tensor:
    """Return the features float32 (n, dim) of images uint8 (C, H, W); InputError names an image that has none."""
    found = np.empty((len(images), encoder.dim), np.float32)
    # an encoder without a digest may be another one tomorrow
    cache = FeatureCache(encoder) if encoder.text else None
    try:
        for start in range(0, len(images), _PIECE):
            if watch:
                watch("encoding", start, len(images))
            found[start : start + _PIECE] = _rows(encoder, images[start : start + _PIECE], cache, start)
    finally:
        if cache is not None:
            cache.close()
    return torch.from_numpy(found)


def _rows(encoder: CheckedEncoder, images: Sequence[Pixels], cache: FeatureCache | None, first: int) -> Features:
    keys = [_key(own) for own in images]
    kept = cache.find(keys) if cache is not None else {}
    new = [row for row, key in enumerate(keys) if key not in kept]
    if new:
        made = encoder.embed(as_inputs((images[row] for row in new), encoder.size))
        for row, reason in sorted(made.reasons.items()):
            raise InputError(f"Sample {first + new[row]} of X {reason}.")
        fresh = {keys[row]: made.features[i] for i, row in enumerate(new)}
        if cache is not None:
            cache.keep(fresh)
        kept |= fresh
    return np.stack([kept[key] for key in keys])


def _key(image: Pixels) -> bytes:
    content = np.ascontiguousarray(image).tobytes()
    return hashlib.blake2b(content, digest_size=32, person=f"{image.shape}".encode()[:16]).digest()
