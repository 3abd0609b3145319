"""Numbers of a tensor that was sent as JSON: a flat list, or lists that are nested as the shape says.

Every value is checked before numpy sees the list: an array of texts has room for the longest one in each place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray


def flat(data: object, shape: Sequence[int]) -> list[object]:
    """Return the values of a list in order; ValueError if it is neither flat nor nested as `shape` says."""
    is_nested = isinstance(data, list) and bool(data) and isinstance(data[0], list)
    parts: list[object] = [data]
    for n in shape if is_nested else (math.prod(shape),):
        parts = list(chain.from_iterable(_list_of(part, n) for part in parts))
    return parts


def _list_of(part: object, n: int) -> list[object]:
    if not isinstance(part, list) or len(part) != n:
        raise ValueError("the shape is another one")
    return part


def bytes_of(values: list[object]) -> NDArray[np.uint8]:
    """Return whole numbers from 0 to 255 as an array; ValueError if there is any other value."""
    if not all(type(value) is int and 0 <= value <= 255 for value in values):
        raise ValueError("a value is not a whole number from 0 to 255")
    return np.array(values, np.uint8)


def floats_of(values: list[object]) -> NDArray[np.float32]:
    """Return numbers as an array, infinite if they are too large for it; ValueError if there is any other value."""
    if not all(type(value) is int or type(value) is float for value in values):
        raise ValueError("a value is not a number")
    try:
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(np.float32)
    except OverflowError:  # a whole number above 1e308
        raise ValueError("a number is too large") from None
