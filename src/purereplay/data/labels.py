"""Labels as people have them: any hashable Python value, in lists or arrays, and as JSON where they can be.

Two labels are one class when Python calls them equal, so 1, 1.0 and True are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.errors import InputError, InputTypeError, UserError

_JSON = (str, int, float, bool, type(None))


def read_labels(labels: Any) -> list[Hashable]:
    """Plain Python values, one a sample; an error names the first sample whose label cannot be one."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if not isinstance(labels, Sequence) or isinstance(labels, str | bytes):
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise InputError(f"y should be a 1d array with a label for each sample, but has shape {labels.shape}.")
        labels = labels.tolist()
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    for i, label in enumerate(plain):
        _check(label, i)
    return plain


def _check(label: Any, position: int) -> None:
    if label is None:
        raise InputError(f"Sample {position} has no label: y holds None there.")
    if isinstance(label, float) and not label.is_integer():
        if math.isfinite(label):
            why = f"the continuous label {label!r}: Unknown label type for a classifier"
        else:
            why = "NaN or infinity as its label"
        raise InputError(f"Sample {position} has {why}.")
    try:
        hash(label)
    except TypeError:
        raise InputTypeError(
            f"Sample {position} has a label of type {type(label).__name__}, which cannot be hashed: "
            "y should be a 1d array."
        ) from None


def in_order(labels: Iterable[Hashable]) -> list[Hashable]:
    """Each label once: sorted where Python can compare them all, else by first appearance."""
    once = list(dict.fromkeys(labels))
    try:
        return sorted(once)  # type: ignore[type-var]
    except TypeError:
        return once


def label_array(labels: Sequence[Hashable]) -> NDArray[Any]:
    """A numpy array of these labels: of their own dtype where that keeps them as they are, else of objects."""
    kinds = {type(label) for label in labels}
    if kinds in ({int}, {float}, {bool}, {str}):
        array = np.array(labels)
        if array.dtype.kind in "ifbU" and array.tolist() == list(labels):  # U drops zeros at a string's end
            return array
    objects = np.empty(len(labels), object)
    for i, label in enumerate(labels):  # a slice would spread tuples over an axis of their own
        objects[i] = label
    return objects


class LabelBook:
    """Which label is which class number; numbers are given in the order in which labels become known."""

    def __init__(self) -> None:
        self.labels: list[Hashable] = []  # by class number
        self.columns: list[int] = []  # class numbers in the order of `classes`
        self.classes: NDArray[Any] = label_array([])  # see `in_order`
        self._numbers: dict[Hashable, int] = {}

    def know(self, labels: Iterable[Hashable]) -> None:
        """Give new labels a number each."""
        for label in labels:
            if label not in self._numbers:
                self._numbers[label] = len(self.labels)
                self.labels.append(label)
        if len(self.labels) > len(self.columns):
            ordered = in_order(self.labels)
            self.classes = label_array(ordered)
            self.columns = [self._numbers[label] for label in ordered]

    def numbers(self, labels: Iterable[Hashable]) -> Tensor:
        """Class numbers int64 (n,) of known labels."""
        return torch.tensor([self._numbers[label] for label in labels], dtype=torch.int64)

    def given(self, numbers: Tensor, *, objects: bool = False) -> NDArray[Any]:
        """The labels of class numbers int64 (n,)."""
        array = label_array(self.labels)
        found: NDArray[Any] = (array.astype(object) if objects else array)[numbers.cpu().numpy()]
        return found


def label_to_json(label: Hashable) -> Any:
    """A value that JSON has: text, numbers, true and false as they are, tuples as {"tuple": [...]}."""
    if type(label) is tuple:
        return {"tuple": [label_to_json(part) for part in label]}
    if type(label) not in _JSON:
        raise UserError(f"Labels of type {type(label).__name__} cannot be saved: use text, numbers or tuples of them.")
    return label


def label_from_json(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(label_from_json(part) for part in value["tuple"])
    return cast("Hashable", value)
