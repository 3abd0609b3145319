"""Forms of saved tensors: names, dtypes, shapes and ranges, checked before a saved state replaces anything.

Every part of a learner states the forms of its own tensors. Sizes that vary are read from the saved tensors and limited
to the possible ones, so a wrong size is a mismatch. A file with a right digest and impossible contents is found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
_V = TypeVar("_V")
MOST = 2**31 - 1  # of a count that has no smaller limit


class Form(NamedTuple):
    """Required form of one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    least: float | None = None  # of its values
    most: float | None = None
    finite: bool = False  # whether NaN and infinity are impossible


Forms = dict[str, Form]
COUNT = Form(torch.int64, (), 0, MOST)
FLAG = Form(torch.bool, ())


class Limits(NamedTuple):
    """Bounds of the labels and indices in a saved state."""

    n_classes: int
    n_samples: int  # indices of samples are below this


def check_forms(tensors: Tensors, forms: Mapping[str, Form]) -> None:
    """Raise ValueError with the reason unless there is exactly one tensor of each form."""
    for name in sorted(forms.keys() ^ tensors.keys()):
        raise ValueError(f"it lacks {name}" if name in forms else f"it holds {name}, which does not belong there")
    for name, form in forms.items():
        _check(name, tensors[name], form)


def _check(name: str, t: Tensor, form: Form) -> None:
    if t.dtype != form.dtype or tuple(t.shape) != form.shape:
        raise ValueError(f"{name} is {_described(t.dtype, t.shape)}, not {_described(form.dtype, form.shape)}")
    if not t.numel():
        return
    if form.finite and not bool(t.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity")
    if form.least is not None and bool((t < form.least).any()):
        raise ValueError(f"{name} holds {t.min().item():g}, which is below {form.least:g}")
    if form.most is not None and bool((t > form.most).any()):
        raise ValueError(f"{name} holds {t.max().item():g}, which is above {form.most:g}")


def forms_like(tensors: Tensors) -> Forms:
    """Return the forms of existing tensors, without ranges."""
    return {name: Form(t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def prefixed(prefix: str, values: Mapping[str, _V]) -> dict[str, _V]:
    """Add a prefix to all names, of tensors or of forms."""
    return {prefix + name: value for name, value in values.items()}


def batch_forms(n: int, image_shape: tuple[int, ...], dtype: torch.dtype, limits: Limits) -> Forms:
    """Return the forms of a `Batch` of n samples."""
    return {
        "images": Form(dtype, (n, *image_shape), finite=dtype.is_floating_point),
        "labels": Form(torch.int64, (n,), 0, limits.n_classes - 1),
        "index": Form(torch.int64, (n,), 0, limits.n_samples - 1),
    }


def n_rows(tensors: Tensors, name: str, most: int = MOST) -> int:
    """Return the length of a tensor, at most `most`; 0 if it is missing or has no rows."""
    t = tensors.get(name)
    return 0 if t is None or t.ndim == 0 else min(t.shape[0], most)


def n_bytes(tensors: Tensors) -> int:
    """Return the size of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def total(tensors: Tensors, name: str) -> int:
    """Return the sum of whole numbers; 0 if the tensor is missing, of another dtype, or beyond all counts."""
    t = tensors.get(name)
    if t is None or t.dtype != torch.int64 or not t.numel() or not 0 <= int(t.min()) <= int(t.max()) <= MOST:
        return 0
    return int(t.sum())


def n_parts(tensors: Tensors, prefix: str) -> int:
    """Return how many numbered parts "PREFIX0.", "PREFIX1.", … have tensors, counted up to the first gap."""
    numbers = {name.removeprefix(prefix).partition(".")[0] for name in tensors if name.startswith(prefix)}
    return next(i for i in range(len(numbers) + 1) if str(i) not in numbers)


def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
