"""Former names of settings and presets, and how saved settings of an earlier version are read.

This is the only place that knows former names. Runs (format 3 and 4), states and saved estimators (format 1) of version
0.1.0 pass through `upgrade`; a dict of changed settings in a result file passes through `upgrade_names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from purereplay.learners.registry import entry
from purereplay.learners.settings import Settings

_PRESETS = {"daily": "live"}
_SPR = {"learning_rate": "lr", "finetune_rate": "finetune_lr"}
_BASELINES = {"rate": "lr", "pencil_rate": "pencil_lr"}
_BY_LEARNER: dict[str, dict[str, str]] = {
    "spr": _SPR,
    "self-replay": _SPR,
    "self-centered-filter": _SPR,
    "finetune": _BASELINES,
    "ewc": _BASELINES | {"ewc_strength": "strength"},
    "crs": _BASELINES,
    "prs": _BASELINES,
    "mir": _BASELINES,
    "gdumb": {
        "gdumb_epochs": "epochs",
        "gdumb_rate": "lr",
        "gdumb_least_rate": "min_lr",
        "gdumb_momentum": "momentum",
        "gdumb_decay": "weight_decay",
        "gdumb_clip": "clip_norm",
        "gdumb_cutmix": "cutmix",
        "scratch_batch": "batch_size",
        "pencil_rate": "pencil_lr",
    },
    "multitask": {"multitask_epochs": "epochs", "multitask_rate": "lr", "scratch_batch": "batch_size"},
}

_FORMER_DEFAULTS: dict[str, dict[str, Any]] = {  # learner: defaults of version 0.1.0 that have changed since
    "crs": {"pencil_epoch": "memory"},
    "prs": {"pencil_epoch": "memory"},
    "mir": {"pencil_epoch": "memory"},
}


def upgrade_preset(name: str) -> str:
    """Return the present name of a preset."""
    return _PRESETS.get(name, name)


def upgrade_names(learner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their present names, without settings that only other baselines use.

    All baselines shared one set of settings in version 0.1.0.
    """
    names = _BY_LEARNER.get(learner, {})
    own = {new: values[old] for old, new in names.items() if old in values}
    kept = {name: value for name, value in values.items() if name not in names and name not in own} | own
    if learner not in _BY_LEARNER:
        return kept
    declared = {f.name for f in fields(entry(learner).settings)}
    return {name: value for name, value in kept.items() if name in declared}


def former_defaults(learner: str, usual: Settings) -> dict[str, Any]:
    """Return the defaults of version 0.1.0 that have changed since, if the learner of a result has them.

    `usual` are the present defaults. A result of that version names only the options that differed from its defaults.
    """
    known = {f.name for f in fields(usual)}
    return {name: value for name, value in _FORMER_DEFAULTS.get(learner, {}).items() if name in known}


def upgrade(learner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a learner that version 0.1.0 saved.

    A setting that depends on the data may be None in a state without images; it is left out.
    """
    by_data = {f.name for f in fields(entry(learner).settings) if f.metadata["by_data"]}
    upgraded = upgrade_names(learner, values)
    return {name: value for name, value in upgraded.items() if value is not None or name not in by_data}
