"""Kinds of values in the JSON files of runs, and checks that a file holds them: settings, results, measurements.

A value of the wrong kind is a UserError in one sentence; the caller adds the name of the file.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from purereplay.errors import UserError

_EXACT = 2**53  # whole numbers below it are exact as floats


class Kind(NamedTuple):
    """A kind of value."""

    words: str  # follow "must be"
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _EXACT if isinstance(value, int) else math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT = Kind("text", lambda v: isinstance(v, str))
FLAG = Kind("true or false", lambda v: isinstance(v, bool))
WHOLE = Kind("a whole number", _is_whole)
COUNT = Kind("a whole number of at least 0", lambda v: _is_whole(v) and 0 <= v < _EXACT)
POSITIVE_COUNT = Kind("a whole number of at least 1", lambda v: _is_whole(v) and 0 < v < _EXACT)
NUMBER = Kind("a number", _is_number)
POSITIVE = Kind("a number above 0", lambda v: _is_number(v) and v > 0)
SHARE = Kind("a number in [0, 1]", lambda v: _is_number(v) and 0 <= v <= 1)
AT_MOST_ONE = Kind("a number of at most 1", lambda v: _is_number(v) and v <= 1)
OBJECT = Kind("a JSON object", lambda v: isinstance(v, dict))


def or_null(kind: Kind) -> Kind:
    """Return the kind with null."""
    return Kind(f"{kind.words} or null", lambda v: v is None or kind.fits(v))


def either(first: Kind, second: Kind) -> Kind:
    """Return the kind of both kinds' values."""
    return Kind(f"{first.words} or {second.words}", lambda v: first.fits(v) or second.fits(v))


def list_of(kind: Kind) -> Kind:
    """Return the kind of lists of such values."""
    return Kind(f"a list, each item {kind.words}", lambda v: isinstance(v, list) and all(map(kind.fits, v)))


def object_of(kind: Kind) -> Kind:
    """Return the kind of JSON objects with such values."""
    return Kind(
        f"a JSON object, each value {kind.words}", lambda v: isinstance(v, dict) and all(map(kind.fits, v.values()))
    )


def one_of(*choices: str) -> Kind:
    """Return the kind of a choice."""
    return Kind(f"one of {', '.join(choices)}", lambda v: isinstance(v, str) and v in choices)


def check_values(values: Mapping[str, Any], kinds: Mapping[str, Kind], needed: Collection[str] = ()) -> None:
    """Raise UserError if a needed value is missing, or a value is not of its kind; values without a kind may be any."""
    for name in needed:
        if name not in values:
            raise UserError(f"{name} is missing.")
    for name, kind in kinds.items():
        if name in values and not kind.fits(values[name]):
            raise UserError(f"{name} must be {kind.words}, not {_short(values[name])}.")


def _short(value: Any) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return short.repr(value)
