"""The plan of many runs: groups that train in lockstep. A pure function of the runs, made before anything starts.

Runs of a group share data, learner and settings; they differ by noise, episode and seed, and by how the filter scores.
So their networks have equal shapes and train side by side. Runs that differ only by the scores share their experts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from purereplay.evaluate.settings import RunSettings, to_json

_BY_NOISE = ("jocor_forget",)  # settings that depend on the noise of the run
_SHARED = ("dataset", "validation", "device", "precision", "lookahead", "learner", "features_file", "encoder")


class Group(NamedTuple):
    """Runs that train in lockstep, by folder."""

    number: int
    runs: dict[Path, RunSettings]


def plan_groups(runs: Mapping[Path, RunSettings], group_size: int | None = None) -> list[Group]:
    """Split runs into groups of at most `group_size`, in their order; None: one group of everything.

    Runs with the same experts follow each other, so that as many as possible are in one group.
    """
    if group_size is None:
        return [Group(0, dict(runs))] if runs else []
    alike: dict[str, dict[str, list[Path]]] = {}
    for path, settings in runs.items():
        alike.setdefault(_shape(settings), {}).setdefault(same_experts(settings), []).append(path)
    parts = []
    for by_experts in alike.values():
        paths = [path for together in by_experts.values() for path in together]
        parts += [paths[i : i + group_size] for i in range(0, len(paths), group_size)]
    return [Group(number, {path: runs[path] for path in part}) for number, part in enumerate(parts)]


def plan_json(groups: list[Group], root: Path) -> dict[str, Any]:
    """Return the plan as it is written: the folders of every group, relative to `root`, with their settings."""
    listed = [
        {"group": group.number, "runs": {_relative(path, root): to_json(s) for path, s in group.runs.items()}}
        for group in groups
    ]
    return {"groups": listed}


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _shape(settings: RunSettings) -> str:
    """Return what runs of one group share."""
    return _key(settings, _SHARED, _BY_NOISE)


def same_experts(settings: RunSettings) -> str:
    """Return what runs share that train the same experts on the same delayed buffers, if their learner has any."""
    return _key(settings, (*_SHARED, "noise", "noise_rate", "episode", "seed"))


def _key(settings: RunSettings, names: tuple[str, ...], ignored: tuple[str, ...] = ()) -> str:
    """Return some settings of a run and the options of its learner, without those of the filter's scores."""
    ignored += getattr(settings.options, "of_the_scores", ())
    options = {name: value for name, value in asdict(settings.options).items() if name not in ignored}
    return json.dumps([*(getattr(settings, name) for name in names), options], sort_keys=True)
