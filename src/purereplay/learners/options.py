"""Settings as frozen dataclasses: read from text, checked, saved and read back, whatever the learner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args, get_type_hints

from purereplay.errors import UserError

Settings = TypeVar("Settings")
Ranges = Mapping[str, tuple[float, float]]  # of numbers that are not simply more than 0


def validated(settings: Settings, ranges: Ranges) -> Settings:
    """The same settings, or a UserError that names the first one that cannot be."""
    for name, declared in get_type_hints(type(settings)).items():
        value, kinds = getattr(settings, name), _kinds(declared)
        if value is None and type(None) in kinds:
            continue
        choices = [kind for kind in kinds if isinstance(kind, str)]
        if choices:
            if value not in choices:
                raise UserError(f"The setting {name} must be one of {', '.join(choices)}, not {value!r}.")
            continue
        if bool in kinds:
            if not isinstance(value, bool):
                raise UserError(f"The setting {name} must be true or false, not {value!r}.")
            continue
        number = (int, float) if float in kinds else int
        if isinstance(value, bool) or not isinstance(value, number) or not math.isfinite(value):
            wanted = "a number" if float in kinds else "a whole number"
            raise UserError(f"The setting {name} must be {wanted}, not {value!r}.")
        low, high = ranges.get(name, (0, math.inf))
        if not (low <= value <= high) or (value == 0 and name not in ranges):
            least = "more than 0" if name not in ranges else f"at least {low:g}"
            most = "" if high == math.inf else f" and at most {high:g}"
            raise UserError(f"The setting {name} must be {least}{most}, not {value}.")
    return settings


def parse(cls: type, key: str, text: str) -> Any:
    """A setting's value from text, by its declared type; `validated` checks it."""
    hints = get_type_hints(cls)
    if key not in hints:
        raise UserError(f"The setting {key!r} is unknown: there are {', '.join(hints)}.")
    kinds = _kinds(hints[key])
    if type(None) in kinds and text.lower() in ("none", "null"):
        return None
    if bool in kinds:
        return {"true": True, "false": False}.get(text.lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                break
    return text


def from_json(cls: type[Settings], values: dict[str, Any], ranges: Ranges) -> Settings:
    """Settings as they were saved with a run; an unknown key is an error."""
    odd = set(values) ^ {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if odd:
        raise UserError(f"The saved settings do not fit this version: {', '.join(sorted(odd))}.")
    return validated(cls(**values), ranges)


def _kinds(declared: Any) -> list[Any]:
    """What a type hint allows: types, None's type, and the values of literals."""
    parts = get_args(declared) if not isinstance(declared, type) else (declared,)
    return [kind for part in parts for kind in (get_args(part) or (part,))]
