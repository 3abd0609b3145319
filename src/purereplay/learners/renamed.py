"""Former names of settings and presets, and how saved settings of an earlier version are read.

This is the only place that knows former names. Runs (format 3 and 4), states and saved estimators (format 1) of version
0.1.0 pass through `upgrade`; a dict of changed settings in a result file passes through `upgrade_names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from purereplay.learners.registry import entry

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


def upgrade_preset(name: str) -> str:
    """Return the present name of a preset."""
    return _PRESETS.get(name, name)


def upgrade_names(learner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their present names."""
    names = _BY_LEARNER.get(learner, {})
    # a baseline's former `rate` or `batch_size` that belonged to another baseline gives way to its own
    own = {new: values[old] for old, new in names.items() if old in values}
    return {name: value for name, value in values.items() if name not in names and name not in own} | own


def upgrade(learner: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a learner that version 0.1.0 saved, without those of other learners.

    All baselines shared one set of settings then. A setting that depends on the data may be None in a state without
    images; it is left out.
    """
    declared = {f.name: f for f in fields(entry(learner).settings)}
    return {
        name: value
        for name, value in upgrade_names(learner, values).items()
        if name in declared and not (value is None and declared[name].metadata["by_data"])
    }
