"""Labels from Python objects: any hashable value, in lists or arrays, and their form in JSON.

Two labels are one class if Python considers them equal, as 1, 1.0 and True.
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
    """Return labels as plain Python values, one per sample; an error names the first sample with an invalid label."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if not isinstance(labels, Sequence) or isinstance(labels, str | bytes):
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise InputError(f"y should be a 1d array with one label per sample, but has shape {labels.shape}.")
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
    """Return each label once: sorted if Python can compare them all, else in order of first appearance."""
    once = list(dict.fromkeys(labels))
    try:
        return sorted(once)  # type: ignore[type-var]
    except TypeError:
        return once


def label_array(labels: Sequence[Hashable]) -> NDArray[Any]:
    """Return a numpy array of these labels: of their own dtype if that preserves them, else of objects."""
    kinds = {type(label) for label in labels}
    if kinds in ({int}, {float}, {bool}, {str}):
        array = np.array(labels)
        if array.dtype.kind in "ifbU" and array.tolist() == list(labels):  # dtype U drops trailing NULs of a string
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
