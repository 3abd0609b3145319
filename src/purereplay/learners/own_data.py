"""Learners for users' own data: those of the registry that score samples with a filter.

`learn` and the scikit-learn interface ask this module for the settings and the construction of a learner by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purereplay.errors import UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.full_memory import NAME
from purereplay.learners.registry import Entry, entries, entry, names
from purereplay.learners.settings import DataFacts, resolve
from purereplay.learners.spr.learner import SPR
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine

DEFAULT = "spr"
UNNAMED = "spr"  # the learner of states and saved estimators that name none


def own_entry(name: str) -> Entry:
    """Return the entry of a learner; UserError unless it scores samples."""
    found = entry(name) if name in names() else None
    if found is None or not _scores(found):
        fault = "is unknown" if found is None else "does not score samples"
        known = ", ".join([NAME, *(each.name for each in entries() if _scores(each))])
        raise UserError(f"The learner {name!r} {fault}: choose one of {known}.")
    return found


def _scores(found: Entry) -> bool:
    return issubclass(found.settings, SprSettings) and found.fixed.get("filter") != "none"


def settings_class(name: str) -> type[SprSettings]:
    """Return the class of a learner's settings."""
    found = own_entry(name).settings
    assert issubclass(found, SprSettings)
    return found


def resolved(name: str, chosen: Mapping[str, Any], facts: DataFacts, *, preset: str) -> SprSettings:
    """Return a learner's settings with some values chosen; UserError for an unknown name or a bad value."""
    fixed = own_entry(name).fixed
    for own, value in fixed.items():
        if chosen.get(own, value) != value:
            raise UserError(f"The learner {name} has {own}={value}: leave the setting {own} out.")
    return resolve(settings_class(name), {**chosen, **fixed}, facts, preset=preset)


def build(name: str, options: SprSettings, data: DataSpec, *, engine: Engine, seed: int) -> SPR:
    """Return a learner that has seen nothing."""
    learner = own_entry(name).build(options, data, engine=engine, seed=seed)
    assert isinstance(learner, SPR)
    return learner
