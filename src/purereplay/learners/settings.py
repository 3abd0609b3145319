"""Settings of learners: frozen dataclasses whose fields carry their meaning, unit, source and range.

A settings class declares each field with `setting`. Fields without a default depend on the data: the class method
`fill` computes them from `DataFacts`. `resolve` turns a preset and the user's choices into a settings object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from purereplay.errors import UserError
from purereplay.learners.registry import PRESETS

NetworkName = Literal["mlp", "resnet18"]
_LARGEST = 10**15  # more than any memory holds and any machine computes; far larger ones overflow in float32


class DataFacts(NamedTuple):
    """Facts about the data that decide settings which have no fixed default."""

    image_shape: tuple[int, int, int]
    buffer_size: int = 500  # samples in D and in P, or in a replay memory
    noise_rate: float = 0.0  # expected share of wrong labels, for methods that need to know it
    is_vectors: bool = False  # feature vectors instead of images


def setting(
    meaning: str,
    default: Any = MISSING,
    *,
    unit: str = "",
    source: str = "",
    by_data: str = "",
    least: float | None = None,
    most: float = math.inf,
    scaled: bool = False,
) -> Any:
    """Declare a field of a settings class.

    `by_data` says how the value is chosen when there is no default. Numbers must be above 0, or at least `least`.
    `scaled` marks epochs that the option --budget multiplies.
    """
    metadata = {
        "meaning": meaning,
        "unit": unit,
        "source": source,
        "by_data": by_data,
        "least": least,
        "most": most,
        "scaled": scaled,
    }
    return field(default=default, metadata=metadata, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings classes."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # preset: the values that it changes
    # settings of this class that saved files of earlier versions lack, at the value that stands for what those did
    added: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        """Return a value for every field without a default: the user's choice, the preset's, or one by the data."""
        return preset_values(cls, preset) | chosen

    def check(self) -> None:
        """Raise UserError for values that do not fit together."""

    def ineffective(self) -> set[str]:
        """Return the names of settings that change nothing, given the other ones."""
        return set()


SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings):
    """The network of a learner."""

    network: NetworkName = setting("network architecture", by_data="mlp for grey images, resnet18 for colour")
    hidden: int = setting(
        "width of the two hidden layers of the mlp", 512, unit="units", source="released code; not in the paper"
    )
    stem: Literal["imagenet", "small"] = setting(
        "first layer of the resnet18: 7×7 with pooling, or 3×3", "imagenet", source="released code"
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        grey = facts.image_shape[0] == 1 or facts.is_vectors
        return {"network": "mlp" if grey else "resnet18"} | super().fill(chosen, facts, preset)


def resolve(
    cls: type[SettingsT],
    chosen: Mapping[str, Any],
    facts: DataFacts,
    *,
    preset: str = "default",
    budget: float = 1.0,
) -> SettingsT:
    """Return the settings of a preset with some values changed; UserError for an unknown name or a bad value."""
    by_data = {name for name in chosen if field_of(cls, name).metadata["by_data"]}
    given = {name: value for name, value in chosen.items() if value is not None or name not in by_data}
    settings = validated(cls(**cls.fill(given, facts, preset)))
    settings.check()
    return scaled(settings, budget)


def preset_values(cls: type[Settings], preset: str) -> dict[str, Any]:
    """Return the values that a preset changes; UserError for an unknown preset."""
    known = PRESETS | dict.fromkeys(cls.presets, "")
    if preset not in known:
        raise UserError(f"The preset {preset!r} is unknown: choose one of {', '.join(known)}.")
    return dict(cls.presets.get(preset, {}))


def scaled(settings: SettingsT, budget: float) -> SettingsT:
    """Return the settings with the epochs that --budget concerns multiplied by it."""
    if not (math.isfinite(budget) and budget > 0):
        raise UserError(f"The budget must be a positive number, not {budget}.")
    names = [f.name for f in fields(settings) if f.metadata["scaled"]]
    return replace(settings, **{name: max(1, round(min(getattr(settings, name) * budget, 1e12))) for name in names})


def takes_budget(cls: type[Settings]) -> bool:
    """Return whether --budget changes anything."""
    return any(f.metadata["scaled"] for f in fields(cls))


def field_of(cls: type[Settings], name: str) -> Field[Any]:
    """Return a field by its name; UserError if there is none."""
    check_name(cls, name)
    return next(f for f in fields(cls) if f.name == name)


def choices(cls: type[Settings], name: str) -> list[str]:
    """Return the values that a setting can have, if it is one of a few words; otherwise an empty list."""
    check_name(cls, name)
    return [kind for kind in _kinds(get_type_hints(cls)[name]) if isinstance(kind, str)]


def check_name(cls: type[Settings], name: str) -> None:
    """Raise UserError if the class has no such setting."""
    known = [f.name for f in fields(cls)]
    if name not in known:
        raise UserError(f"The setting {name!r} is unknown: the settings here are {', '.join(known)}.")


def validated(settings: SettingsT) -> SettingsT:
    """Return the same settings, or raise a UserError that names the first bad value."""
    hints = get_type_hints(type(settings))
    for f in fields(settings):
        _check_value(f, getattr(settings, f.name), _kinds(hints[f.name]))
    return settings


def _check_value(f: Field[Any], value: Any, kinds: list[Any]) -> None:
    if value is None and type(None) in kinds:
        return
    choices = [kind for kind in kinds if isinstance(kind, str)]
    if choices:
        if value not in choices:
            raise UserError(f"The setting {f.name} must be one of {', '.join(choices)}, not {value!r}.")
        return
    if bool in kinds:
        if not isinstance(value, bool):
            raise UserError(f"The setting {f.name} must be true or false, not {value!r}.")
        return
    number = (int, float) if float in kinds else int
    is_huge = isinstance(value, int) and abs(value) > _LARGEST  # it may be no float
    if isinstance(value, bool) or not isinstance(value, number) or not (is_huge or math.isfinite(value)):
        wanted = "a number" if float in kinds else "a whole number"
        raise UserError(f"The setting {f.name} must be {wanted}, not {value!r}.")
    if abs(value) > _LARGEST:
        raise UserError(f"The setting {f.name} must be at most {_LARGEST:g}.")
    least, most = f.metadata["least"], f.metadata["most"]
    too_low = value <= 0 if least is None else value < least
    if too_low or value > most:
        low = "more than 0" if least is None else f"at least {least:g}"
        high = "" if most == math.inf else f" and at most {most:g}"
        raise UserError(f"The setting {f.name} must be {low}{high}, not {value}.")


def parse(cls: type[Settings], name: str, text: str) -> Any:
    """Return the value of a setting given as text, by its declared type; `validated` checks the value."""
    check_name(cls, name)
    kinds = _kinds(get_type_hints(cls)[name])
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


def completed(cls: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """Return saved settings with those that came later, at the value that stands for what earlier versions did."""
    added = [getattr(base, "added", {}) for base in cls.__mro__]
    return {name: value for own in added for name, value in own.items()} | values


def from_json(cls: type[SettingsT], values: dict[str, Any]) -> SettingsT:
    """Return settings that were saved with a run; an unknown or missing key is an error.

    A setting that came after the run has the value that stands for what the run did.
    """
    values = completed(cls, values)
    odd = set(values) ^ {f.name for f in fields(cls)}
    if odd:
        raise UserError(f"The saved settings do not fit this version: {', '.join(sorted(odd))}.")
    return validated(cls(**values))


def _kinds(declared: Any) -> list[Any]:
    """Return what a type hint allows: types, None's type, and the values of literals."""
    parts = get_args(declared) if not isinstance(declared, type) else (declared,)
    return [kind for part in parts for kind in (get_args(part) or (part,))]
