"""The only list of learners: name, title, settings, construction and step count of each.

The command line, help texts, comparisons, estimates and contract tests ask this module. A built-in learner is imported
when it is first used, so that listing names loads no learner. A learner of your own needs one call of `register`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from purereplay.errors import UserError

if TYPE_CHECKING:
    from purereplay.learners.base import DataSpec, Learner, Report, Workload
    from purereplay.learners.settings import Settings
    from purereplay.nets.engine import Engine


class Build(Protocol):
    """Makes a learner from its settings."""

    def __call__(self, settings: Any, data: DataSpec, *, engine: Engine, seed: int) -> Learner[Report]: ...


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One learner."""

    name: str  # on the command line
    title: str  # in tables, as in the paper
    summary: str  # one line for lists
    settings: type[Settings]
    build: Build
    count_steps: Callable[[Any, tuple[int, ...]], Workload]  # of a stream whose tasks end at these positions
    takes_robust_loss: bool = False  # whether the settings include `robust`
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that define this learner and cannot be changed
    named: tuple[str, ...] = ()  # settings that result.json always states


PRESETS: dict[str, str] = {  # name: description; `Settings.presets` has the values that one changes for a learner
    "default": "the settings that measure best so far, at the paper's epochs",
    "paper": "the text of the paper",
    "reference": "the authors' released code where it differs from the text",
    "published": "the training of the learner's own paper: er-ace, der++, scr and er-mkd",
    "quick": "MNIST in ten minutes on two cores",
    "demo": "the digits of `purereplay demo`",
    "live": "small images of your own on a CPU; the default of `learn` and of the estimator",
}

_BUILT_IN = {  # name: module and attribute of the entry
    "spr": "purereplay.learners.spr.build:SPR_ENTRY",
    "pure-replay": "purereplay.learners.pure_replay:ENTRY",
    "self-replay": "purereplay.learners.spr.build:SELF_REPLAY_ENTRY",
    "self-centered-filter": "purereplay.learners.spr.build:SELF_CENTERED_FILTER_ENTRY",
    "supervised-base": "purereplay.learners.supervised_base:ENTRY",
    "finetune": "purereplay.learners.baselines.finetune:ENTRY",
    "ewc": "purereplay.learners.baselines.ewc:ENTRY",
    "crs": "purereplay.learners.baselines.crs:ENTRY",
    "prs": "purereplay.learners.baselines.prs:ENTRY",
    "mir": "purereplay.learners.baselines.mir:ENTRY",
    "er-ace": "purereplay.learners.baselines.er_ace:ENTRY",
    "der++": "purereplay.learners.baselines.der:ENTRY",
    "scr": "purereplay.learners.baselines.scr:ENTRY",
    "er-mkd": "purereplay.learners.baselines.er_mkd:ENTRY",
    "gdumb": "purereplay.learners.baselines.gdumb:ENTRY",
    "puridiver": "purereplay.learners.baselines.puridiver:ENTRY",
    "cnll": "purereplay.learners.baselines.cnll:ENTRY",
    "aer": "purereplay.learners.baselines.aer:ENTRY",
    "multitask": "purereplay.learners.baselines.multitask:ENTRY",
}
_registered: dict[str, Entry] = {}


def names() -> list[str]:
    """Return the names of all learners; loads none of them."""
    return [*_BUILT_IN, *_registered]


def entry(name: str) -> Entry:
    """Return the entry of a learner; UserError if there is none of this name."""
    if name in _registered:
        return _registered[name]
    if name not in _BUILT_IN:
        raise UserError(f"The learner {name!r} is unknown: choose one of {', '.join(names())}.")
    module, _, attribute = _BUILT_IN[name].partition(":")
    found: Entry = getattr(import_module(module), attribute)
    return found


def entries() -> list[Entry]:
    """Return all entries; imports every learner."""
    return [entry(name) for name in names()]


def register(new: Entry) -> None:
    """Add a learner of your own."""
    if new.name in names():
        raise UserError(f"There is already a learner named {new.name!r}.")
    _registered[new.name] = new


@contextmanager
def registered(new: Entry) -> Iterator[Entry]:
    """Add a learner within a `with` block only."""
    register(new)
    try:
        yield new
    finally:
        del _registered[new.name]
