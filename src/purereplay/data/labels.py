"""Labels from Python objects: any hashable value, in lists or arrays, and their form in JSON.

Two labels are one class if Python considers them equal, as 1, 1.0 and True.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.arrays import tensor_array
from purereplay.errors import InputError, InputTypeError, UserError

_DTYPES: dict[type, str] = {int: "i", float: "f", bool: "b", str: "U"}  # kinds of numpy
_JSON = (str, int, float, bool, type(None))


def read_labels(labels: Any) -> list[Hashable]:
    """Return labels as plain Python values, one per sample; an error names the first sample with an invalid label."""
    if np.ma.is_masked(labels):
        raise InputError("y is a masked array with masked entries: leave their samples out.")
    if isinstance(labels, Tensor):
        labels = tensor_array(labels, "y")
    if not isinstance(labels, Sequence) or isinstance(labels, str | bytes):
        kind = type(labels).__name__
        try:
            labels = np.asarray(labels)
        except (TypeError, ValueError, RuntimeError):
            raise InputError("y cannot be read as an array of labels.") from None
        if not labels.ndim:
            raise InputError(f"y should be a 1d array with one label per sample, not of type {kind}: give a list.")
        if labels.ndim != 1:
            raise InputError(f"y should be a 1d array with one label per sample, but has shape {labels.shape}.")
        labels = labels.tolist() if labels.dtype.kind not in "mM" else list(labels)
    plain = [plain_value(label) for label in labels]
    for i, label in enumerate(plain):
        _check(label, i)
    return plain


def plain_value(label: Any) -> Any:
    """Return a numpy scalar as a value of Python; NaT, and dates and times that Python lacks, are unchanged."""
    if not isinstance(label, np.generic):
        return label
    value = label.item()
    if isinstance(value, np.floating):  # longdouble
        return float(value)
    is_time = isinstance(label, np.datetime64 | np.timedelta64)
    return label if is_time and isinstance(value, int | None) else value  # a count of its unit; None for NaT


def is_missing(label: Any) -> bool:
    """Return whether a hashable label means that there is none: None, NaN, NaT, pandas.NA, or a tuple with one."""
    if label is None or (isinstance(label, tuple) and any(is_missing(part) for part in label)):
        return True
    try:
        return not label == label  # noqa: SIM201  # NaN differs from itself
    except (TypeError, ValueError, ArithmeticError):  # pandas.NA is neither equal nor unequal to itself
        return True


def _check(label: Any, position: int) -> None:
    try:
        hash(label)
    except (TypeError, ValueError):  # a time without a unit is a ValueError
        raise InputTypeError(
            f"Sample {position} has a label of type {type(label).__name__}, which cannot be hashed: "
            "y should be a 1d array."
        ) from None
    if is_missing(label):
        raise InputError(f"Sample {position} has no label: y holds {label} there; leave the sample out.")
    if isinstance(label, float) and not label.is_integer():
        if math.isfinite(label):
            why = f"the continuous label {label!r}: Unknown label type for a classifier"
        else:
            why = "infinity as its label"
        raise InputError(f"Sample {position} has {why}.")


def in_order(labels: Iterable[Hashable]) -> list[Hashable]:
    """Return each label once: sorted if Python can compare them all, else in order of first appearance."""
    once = list(dict.fromkeys(labels))
    try:
        return sorted(once)  # type: ignore[type-var]
    except TypeError:
        return once


def label_array(labels: Sequence[Hashable]) -> NDArray[Any]:
    """Return a numpy array of these labels: of their own dtype if that preserves them, else of objects."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 and (letter := _DTYPES.get(*kinds)):
        array = np.array(labels)
        if array.dtype.kind == letter and array.tolist() == list(labels):  # dtype U drops trailing NULs of a string
            return array
    objects = np.empty(len(labels), object)
    for i, label in enumerate(labels):  # assigning a slice would turn tuples into another axis
        objects[i] = label
    return objects


class LabelBook:
    """Class numbers of labels, assigned in the order in which the labels become known."""

    def __init__(self) -> None:
        self.labels: list[Hashable] = []  # by class number
        self.columns: list[int] = []  # class numbers in the order of `classes`
        self.classes: NDArray[Any] = label_array([])  # see `in_order`
        self._numbers: dict[Hashable, int] = {}

    def copy(self) -> Self:
        """Return a book to which labels can be added while this one stays as it is."""
        own = copy.copy(self)
        own.labels, own._numbers = self.labels.copy(), self._numbers.copy()
        return own

    def know(self, labels: Iterable[Hashable]) -> None:
        """Assign class numbers to new labels."""
        for label in labels:
            if label not in self._numbers:
                self._numbers[label] = len(self.labels)
                self.labels.append(label)
        if len(self.labels) > len(self.columns):
            ordered = in_order(self.labels)
            self.classes = label_array(ordered)
            self.columns = [self._numbers[label] for label in ordered]

    def numbers(self, labels: Iterable[Hashable]) -> Tensor:
        """Return class numbers int64 (n,) of known labels."""
        return torch.tensor([self._numbers[label] for label in labels], dtype=torch.int64)

    def given(self, numbers: Tensor, *, objects: bool = False) -> NDArray[Any]:
        """Return the labels of class numbers int64 (n,)."""
        array = label_array(self.labels)
        found: NDArray[Any] = (array.astype(object) if objects else array)[numbers.cpu().numpy()]
        return found


def label_to_json(label: Hashable) -> Any:
    """Return the label as a JSON value: text, numbers, true and false unchanged, tuples as {"tuple": [...]}."""
    if type(label) is tuple:
        return {"tuple": [label_to_json(part) for part in label]}
    if type(label) not in _JSON:
        raise UserError(f"Labels of type {type(label).__name__} cannot be saved: use text, numbers or tuples of them.")
    return label


def label_from_json(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(label_from_json(part) for part in value["tuple"])
    return cast("Hashable", value)
