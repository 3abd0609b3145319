"""Finished runs grouped by learner and data: within a group only the seed differs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from purereplay.data.episodes import tasks_version
from purereplay.errors import UserError
from purereplay.evaluate.identity import settings_of
from purereplay.evaluate.records import Found, Result, gpu_first, results_in, warn_of_conflicts
from purereplay.evaluate.results import RunDirectory, file_exists
from purereplay.evaluate.settings import RunSettings, changed_options
from purereplay.learners.settings import takes_budget

MEASURES = {  # in result.json: in words
    "accuracy": "accuracy",
    "purity": "purity of the memory",
    "filtered_noise": "filtered noise",
    "auroc": "AUROC of the clean probability",
    "average_incremental_accuracy": "average incremental accuracy",
    "forgetting": "forgetting",
    "forgetting_max": "forgetting from the maximum",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}
_DIGITS = 8  # of a digest, behind a name that several encoders may have


class Cell(NamedTuple):
    """One measure, in %, of runs that differ by their seed alone."""

    values: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def spread(self) -> float | None:
        """Standard deviation; None for a single run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def text(self) -> str:
        """Return mean ± standard deviation."""
        return f"{self.mean:.1f}" + ("" if self.spread is None else f" ± {self.spread:.1f}")


Cells = dict[tuple[str, str], Cell]  # by learner and by data


def collect(paths: list[Path], measure: str) -> Cells:
    """Return a measure of the finished runs in folders of runs, stores and files of results.

    Of several results of a run the one that `records.by_key` takes counts.
    """
    if measure not in MEASURES:
        raise UserError(f"The measure {measure!r} is unknown: choose one of {', '.join(MEASURES)}.")
    chosen: dict[tuple[str, str], dict[int, Result]] = defaultdict(dict)
    finished = finished_runs(paths)
    for settings, result in finished:
        if measured(result, measure) is not None:
            by_seed = chosen[describe_learner(settings, result), describe_data(settings, result)]
            by_seed[settings.seed] = min(by_seed.get(settings.seed, result), result, key=gpu_first)
    if not finished:
        raise UserError("None of these holds a finished run.")
    if not chosen:
        raise UserError(f"None of these runs has measured its {MEASURES[measure]}.")
    return {row: Cell([100 * result[measure] for result in by_seed.values()]) for row, by_seed in chosen.items()}


def measured(result: Result, measure: str) -> float | None:
    """Return a measure of a run, a share; None if it is not known.

    Version 0.1.0 called the final accuracy of a run that was evaluated once its average incremental accuracy.
    """
    if measure == "average_incremental_accuracy" and not has_each_task(result):
        return None
    value: float | None = result.get(measure)
    return value


def has_each_task(result: Result) -> bool:
    """Return whether a run was evaluated after each of its tasks."""
    return len(result.get("accuracy_after_task") or []) == len(result.get("task_accuracies") or [])


def finished_runs(paths: list[Path]) -> list[tuple[RunSettings, Result]]:
    """Return the finished runs in folders of runs, stores and files of results, with their settings.

    Results of learners or settings that this version does not have are left out.
    """
    finished: list[tuple[RunSettings, Result]] = []
    found: list[Found] = []
    for path in paths:
        if file_exists(path / "settings.json"):
            directory, settings = RunDirectory.open(path)
            if (result := directory.result()) is not None:
                finished.append((settings, result))
                found.append(Found(result, str(path / "result.json")))
            continue
        there = results_in(path)
        finished += [(own, each.result) for each in there if (own := settings_of(each.result)) is not None]
        found += there
    warn_of_conflicts(found)
    return finished


def describe_learner(settings: RunSettings, result: Result | None = None) -> str:
    """Return the learner with all options that are not at their defaults; `result` says which features of the user."""
    robust = getattr(settings.options, "robust", "none")
    parts = [settings.learner + ("" if robust == "none" else f" + {robust}")]
    parts += [] if settings.preset == "default" else [settings.preset]
    if settings.budget != 1 and takes_budget(type(settings.options)):
        parts.append(f"budget {settings.budget:g}")
    changed = changed_options(settings)
    if result is not None and (digest := result.get("features_digest")) is not None:
        encoder = result.get("features_encoder") or {}
        changed["features"] = f"{encoder.get('name', 'file')} {digest[:_DIGITS]}"
    parts += [f"{name}={own}" for name, own in changed.items() if name != "robust"]
    return ", ".join(parts)


def describe_data(settings: RunSettings, result: Result | None = None) -> str:
    """Return the dataset with its noise, episode and split; `result` says whether its tasks are the present ones."""
    noise = "own labels" if settings.noise == "none" else f"{settings.noise} {100 * settings.noise_rate:g} %"
    more = [] if settings.episode == "A" else [f"episode {settings.episode}"]
    version = tasks_version(settings.dataset, settings.noise, settings.episode)
    if result is not None and result.get("numbers_version", 1) != version:
        more.append("tasks of an earlier version")
    if settings.encoder is not None:
        more.append(f"features of {settings.encoder.name} {settings.encoder.digest[:_DIGITS]}")
    return ", ".join([settings.dataset, noise, *more, *(["validation"] if settings.validation else [])])
