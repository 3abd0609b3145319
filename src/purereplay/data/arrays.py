"""Samples from Python objects: arrays, tensors, lists of pictures, feature vectors.

In: any input of the table. Out: one tensor that owns its memory: uint8 images (n, C, H, W), or feature vectors as
images of one pixel, float64 (n, D, 1, 1). Invalid input raises an error that names the sample, before anything changes.

    two axes             feature vectors (n, D), any real numbers
    array, three axes    grey images (n, H, W)
    array, four axes     images (n, H, W, C): channels last, one or three
    tensor, three axes   grey images (n, H, W)
    tensor, four axes    images (n, C, H, W): channels first, as in PyTorch
    list of pictures     PIL images of one size, all grey (mode L) or all colour (mode RGB)

Images are uint8, or floats in [0, 1], which are multiplied by 255 and rounded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import sparse
from torch import Tensor

from purereplay.errors import InputError, InputTypeError

Shape = tuple[int, int, int]

_LARGEST = float(np.finfo(np.float32).max)


def read_samples(samples: Any) -> Tensor:
    """Return a copy as images uint8 (n, C, H, W) or feature vectors float64 (n, D, 1, 1); errors name the sample."""
    if sparse.issparse(samples):
        raise InputTypeError("Sparse data is not supported: give X as a dense array.")
    if np.ma.is_masked(samples):
        raise InputError("X is a masked array with masked entries: fill them or leave their samples out.")
    if isinstance(samples, Sequence) and len(samples) and isinstance(samples[0], Image.Image):
        return _from_pictures(samples)
    if isinstance(samples, Sequence) and len(samples) and isinstance(samples[0], str | os.PathLike):
        raise InputError("X holds names of files: open them, as in [PIL.Image.open(name) for name in names].")
    if isinstance(samples, Sequence) and len(samples) and isinstance(samples[0], Tensor):
        samples = _stacked(samples)
    channels_first = isinstance(samples, Tensor)
    array = _as_array(samples)
    if np.iscomplexobj(array):
        raise InputError("Complex data not supported: X must hold real numbers.")
    if array.ndim == 2:
        return _from_vectors(array)
    if array.ndim not in (3, 4):
        raise InputError(
            f"X has shape {array.shape}, but must be feature vectors (n, D) or images (n, H, W) or (n, H, W, C): "
            "Reshape your data, also a single sample."
        )
    if array.ndim == 3:
        array = array[:, None]
    elif not channels_first:
        array = np.moveaxis(array, 3, 1)
    return torch.from_numpy(_pixels(array))


def is_vectors(samples: Tensor) -> bool:
    """Return whether these samples from `read_samples` are feature vectors."""
    return samples.dtype != torch.uint8


def as_given(samples: Tensor) -> NDArray[Any]:
    """Return samples in the layout of arrays: vectors (n, D), grey images (n, H, W), colour (n, H, W, 3)."""
    array: NDArray[Any] = samples.cpu().numpy()
    if is_vectors(samples):
        return array[:, :, 0, 0]
    return array[:, 0] if array.shape[1] == 1 else np.moveaxis(array, 1, 3)


def describe(shape: Shape, vectors: bool) -> str:
    """Return a shape in words."""
    channels, height, width = shape
    return f"vectors of {channels} features" if vectors else f"images of {height}×{width}×{channels}"


def tensor_array(tensor: Tensor, what: str) -> NDArray[Any]:
    """Return a dense tensor as an array; `what` names it in the error."""
    try:
        own = tensor.detach().cpu()
        array: NDArray[Any] = (own.float() if own.dtype == torch.bfloat16 else own).numpy()
        return array
    except (TypeError, RuntimeError) as error:  # sparse, quantized or without contents
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputTypeError(f"{what} is a tensor that cannot be converted to an array: {reason}.") from error


def _as_array(samples: Any) -> NDArray[Any]:
    if isinstance(samples, Tensor):
        return tensor_array(samples, "X")
    try:
        return np.asarray(samples)
    except (TypeError, ValueError, RuntimeError):
        if not isinstance(samples, Sequence):
            raise InputError("X cannot be read as an array of numbers.") from None
        raise InputError(_shape_message([np.shape(_row(s, i)) for i, s in enumerate(samples)])) from None


def _row(sample: Any, position: int) -> NDArray[Any]:
    try:
        return np.asarray(sample)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"Sample {position} of X has rows of different lengths.") from None


def _shape_message(shapes: list[tuple[int, ...]]) -> str:
    at = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
    return f"Sample {at} of X has shape {shapes[at]}, but the first one has {shapes[0]}: all must have one shape."


def _stacked(samples: Sequence[Any]) -> Tensor:
    for i, sample in enumerate(samples):
        if not isinstance(sample, Tensor):
            raise InputTypeError(f"Sample {i} of X is a {type(sample).__name__}, but the first one is a tensor.")
    shapes = [tuple(sample.shape) for sample in samples]
    if len(set(shapes)) > 1:
        raise InputError(_shape_message(shapes))
    try:
        return torch.stack(list(samples))
    except (TypeError, RuntimeError) as error:  # for example on two devices
        raise InputTypeError(f"X is a list of tensors that cannot be stacked: {error}.") from error


def _from_pictures(pictures: Sequence[Any]) -> Tensor:
    first = pictures[0]
    for i, picture in enumerate(pictures):
        if not isinstance(picture, Image.Image):
            raise InputTypeError(f"Sample {i} of X is a {type(picture).__name__}, but the first one is a PIL image.")
        if picture.mode not in ("L", "RGB"):
            raise InputError(f"Sample {i} of X has mode {picture.mode}: call convert('L') or convert('RGB') on it.")
        if (picture.mode, picture.size) != (first.mode, first.size):
            theirs, ours = (f"{p.mode} of {p.width}×{p.height}" for p in (picture, first))
            raise InputError(f"Sample {i} of X is {theirs}, but the first one is {ours}: use one mode and size.")
    array = np.stack([_opened(picture, i) for i, picture in enumerate(pictures)])
    return torch.from_numpy(_pixels(array[:, None] if array.ndim == 3 else np.moveaxis(array, 3, 1)))


def _opened(picture: Image.Image, position: int) -> NDArray[np.uint8]:
    try:
        return np.asarray(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # PIL reads the file only now
        raise InputError(f"Sample {position} of X cannot be read: {str(error).rstrip('.')}.") from error


def _pixels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return (n, C, H, W) of any dtype as uint8."""
    n, channels, height, width = array.shape
    if channels not in (1, 3) or not height or not width:
        raise InputError(
            f"X holds images of {height}×{width} with {channels} channels, but they need 1 or 3: arrays have "
            "channels last (n, H, W, C), tensors first (n, C, H, W)."
        )
    if array.dtype == np.uint8:
        return np.array(array, order="C")
    if array.dtype.kind != "f":
        raise InputError(
            f"Images must be uint8 or floats in [0, 1], not {array.dtype}: use astype(np.uint8) for values up to 255, "
            "or divide by the largest value."
        )
    flat = array.reshape(n, channels * height * width)  # -1 is ambiguous for 0 samples
    _refuse(~np.isfinite(flat), "holds NaN or infinity")
    outside = (flat < 0) | (flat > 1)
    if outside.any():
        value = flat[outside][0]
        remedy = "Divide them by their largest value" if value > 1 else "Scale them"
        _refuse(outside, f"holds {value:g}: images of floats must lie in [0, 1]. {remedy}, or give uint8")
    return np.ascontiguousarray(np.rint(array.astype(np.float64) * 255).astype(np.uint8))


def _from_vectors(array: NDArray[Any]) -> Tensor:
    if array.shape[1] == 0:
        raise InputError(f"Found array with 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.dtype.kind not in "biufO":
        raise InputError(f"Feature vectors must be numbers, not {array.dtype}.")
    if array.dtype.kind == "O":
        array = np.stack([_numbers(row, i) for i, row in enumerate(array)]) if len(array) else array
    vectors = np.array(array, np.float64, order="C")
    with np.errstate(invalid="ignore"):
        _refuse(~(np.abs(vectors) <= _LARGEST), f"holds NaN, infinity or a number beyond ±{_LARGEST:.2g}")
    return torch.from_numpy(vectors)[:, :, None, None]


def _numbers(row: NDArray[Any], position: int) -> NDArray[np.float64]:
    try:
        return row.astype(np.float64)
    except TypeError as error:
        raise InputTypeError(f"Sample {position} of X does not hold numbers: {error}.") from error
    except (ValueError, OverflowError) as error:
        raise InputError(f"Sample {position} of X does not hold numbers: {error}.") from error


def _refuse(wrong: NDArray[np.bool_], why: str) -> None:
    """Raise InputError for the first row with an entry that is wrong."""
    rows = np.flatnonzero(wrong.any(1))
    if len(rows):
        raise InputError(f"Sample {rows[0]} of X {why}.")
