"""The loop of runs: start or resume them, train them together, return their results.

Nothing is printed here. An `Observer` receives the progress; its `training` may raise Interrupted to stop.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from purereplay.data.datasets import Dataset
from purereplay.data.encoders import EncoderFacts
from purereplay.data.own_folder import refuse_links
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.experiment import Experiment, prepare
from purereplay.evaluate.json_files import read_json
from purereplay.evaluate.judge import Line
from purereplay.evaluate.preparation import load
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings
from purereplay.nets.engine import Engine, TrainingProgress
from purereplay.nets.lockstep import drive_together


class Observer:
    """Receives the progress of runs; this one ignores it."""

    def loading(self, name: str, done: int, total: int | None) -> None:
        """Data are downloaded or decoded."""

    def started(self, path: Path, settings: RunSettings, *, resumed: bool) -> None:
        """A run starts or continues."""

    def prepared(self, experiments: list[Experiment]) -> None:
        """All runs are ready to be trained."""

    def training(self, now: TrainingProgress) -> None:
        """The engine trains; called a few times a second."""

    def measured(self, experiment: Experiment, line: Line) -> None:
        """A run appended a line to metrics.jsonl."""

    def grouped(self, done: int, total: int) -> None:
        """A group of runs is done."""

    def waiting(self) -> None:
        """Runs are computed elsewhere; called a few times a second, and may raise Interrupted to stop."""


def run(settings: RunSettings, path: Path, observer: Observer | None = None, *, resume: bool = False) -> Line:
    """Run or resume one experiment and return its result."""
    if not resume:
        RunDirectory.check_free(path)
    [result] = run_together({path: settings}, observer or Observer(), resumed=resume)
    return result


def unfinished_runs(runs: Mapping[Path, RunSettings]) -> dict[Path, RunSettings]:
    """Return the runs without a result; UserError if a folder holds another run, or anything that one left."""
    refuse_links(runs)  # the user names the folder that holds them
    for path, wanted in runs.items():
        if not RunDirectory(path).exists:
            RunDirectory.check_free(path)
        elif RunDirectory.open(path)[1] != wanted:
            raise UserError(f"{path} holds a run with other settings: choose another --out.")
    return {path: settings for path, settings in runs.items() if RunDirectory(path).result() is None}


def run_together(runs: Mapping[Path, RunSettings], observer: Observer, *, resumed: bool | None = None) -> list[Line]:
    """Start or resume runs on one device and train them together; returns their results.

    `resumed` says whether all folders hold a run or all are free; None: each may be either.
    """
    first = next(iter(runs.values()))
    engine = Engine(torch.device(first.device), precision=first.precision, watch=observer.training)
    datasets: dict[tuple[str, bool, EncoderFacts | None], Dataset] = {}
    experiments: list[Experiment] = []
    with ExitStack() as locks:
        for path, settings in runs.items():
            resume = RunDirectory(path).exists if resumed is None else resumed
            observer.started(path, settings, resumed=resume)
            key = settings.dataset, settings.validation, settings.encoder
            if key not in datasets:
                datasets[key] = load(settings, observer.loading)
            experiments.append(
                prepare(settings, path, resume=resume, engine=engine, dataset=datasets[key], locks=locks)
            )
        observer.prepared(experiments)
        works = [e.running(lambda line, e=e: observer.measured(e, line)) for e in experiments]  # type: ignore[misc]
        try:
            return drive_together(works, engine, [e.account for e in experiments])
        except Interrupted:
            paths = list(runs)
            how = f"`purereplay resume {paths[0]}`" if len(paths) == 1 else "the same command"
            raise Interrupted(f"Stopped after a checkpoint: {how} continues from here.") from None


def clear_demo(paths: list[Path]) -> None:
    """Remove the files of an earlier demo; UserError if a folder holds another run.

    The user names the first folder, which may be a link; the others are in it.
    """
    refuse_links(paths[1:])
    for path in paths:
        if not RunDirectory(path).exists:
            continue
        earlier = read_json(path / "settings.json", "")  # may be of another version, so it is not parsed
        if (earlier.get("dataset"), earlier.get("preset")) != ("digits", "demo"):
            raise UserError(f"{path} holds a run that is not a demo: choose another --out.")
        directory = RunDirectory(path)
        with directory.locked():
            directory.remove()
