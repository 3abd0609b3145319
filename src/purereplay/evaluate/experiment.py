"""One run from its settings to its result: the stream, the learner, the judge and the run directory in one loop.

The loop is a series of small moves. Each is determined by the state alone, so a run that was killed and resumed makes
the same moves as one that was not. A checkpoint may be written after any move.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import purereplay
from purereplay.data.datasets import Dataset
from purereplay.data.episodes import tasks_version
from purereplay.data.forms import Limits
from purereplay.data.streams import Stream
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.estimate import count_steps
from purereplay.evaluate.judge import Judge, Line, summary
from purereplay.evaluate.kinds import COUNT, FLAG, NUMBER, OBJECT, TEXT, Kind, check_values, object_of, or_null
from purereplay.evaluate.preparation import (
    FEATURES,
    data_digests,
    features_encoder,
    load,
    make_data_spec,
    make_learner,
    make_stream,
)
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings, changed_options, decisive_settings
from purereplay.learners import registry
from purereplay.learners.base import Learner, Report, Workload
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Asks
from purereplay.nets.lockstep import Account
from purereplay.nets.networks import State

_FIRST_CHECKPOINT = 1.0  # seconds until a process writes its first one: a run that is often killed still advances
_CHECKPOINT_SECONDS = 10.0  # least time between two of them
_CHECKPOINT_SHARE = 50  # checkpoints may take 1 / 50 of the run's own time
_FACTS: dict[str, Kind] = {  # in every checkpoint; "data" and "settings" are new
    "position": COUNT,
    "finished": FLAG,
    "n_ended": COUNT,
    "seconds": object_of(NUMBER),
    "steps": object_of(COUNT),
    "stream": TEXT,
    "features": or_null(TEXT),
}


@dataclass(kw_only=True)
class Experiment:
    """A run in progress."""

    settings: RunSettings
    run: RunDirectory
    stream: Stream
    judge: Judge
    learner: Learner[Report]
    engine: Engine
    workload: Workload
    data_digests: dict[str, str | None]  # of all data that enter the numbers; None: there are none of this kind
    limits: Limits  # of labels and indices in the learner's state
    features_encoder: dict[str, str] | None = None  # name and digest of what made the user's own features, if known
    position: int = 0  # samples of the stream taken so far
    finished: bool = False  # whether the end of the stream was passed to the learner
    n_ended: int = 0  # task ends passed to the learner, if it wants them
    account: Account = field(default_factory=Account)
    _saved_at: float = field(default_factory=time.perf_counter)
    _booked_at_save: float = 0.0  # seconds of the run's own time at the last checkpoint
    _save_cost: float | None = None  # seconds; None: this process has written no checkpoint

    def running(self, on_line: Callable[[Line], None] | None = None) -> Asks[Line]:
        """Run to the end and return the result; `on_line` is called with every line of metrics.jsonl.

        The work requests its training, so that many runs can be driven together.
        """
        try:
            while (line := (yield from self._move())) is not None:
                if line:
                    self.run.record(line)
                    if on_line:
                        on_line(line)
                self._maybe_save()
        except Interrupted:
            self._save()
            raise
        self._record_memory()
        result = self._result()
        self._save()
        self.run.finish(result)
        return result

    def _move(self) -> Asks[Line | None]:
        """Make the next move; returns a line for metrics.jsonl, {} if there is none, or None at the end."""
        learner, ends = self.learner, self.stream.task_ends
        n_evaluated = sum(line["event"] == "task" for line in self.run.lines)
        if learner.pending:
            report = yield from learner.work()
            return {} if report is None else self.judge.buffer_line(report)
        n_ended = sum(self.position >= end for end in ends[:-1]) + (self.finished and self.position >= ends[-1])
        if learner.wants_task_ends and self.n_ended < n_ended:
            learner.end_task()
            self.n_ended += 1
            return {}
        only_end = learner.is_offline or self.settings.evaluate == "end"
        to_evaluate = range(len(ends))[-1:] if only_end else range(len(ends))
        if n_evaluated < len(to_evaluate) and to_evaluate[n_evaluated] < n_ended:
            return self.judge.task_line(to_evaluate[n_evaluated], (yield from learner.classify()))
        if self.position < len(self.stream):
            wanted = learner.n_to_take(self.settings.lookahead)
            stop = min(self.position + wanted, next(end for end in ends if end > self.position))
            learner.take(self.stream.batch(self.position, stop))
            self.position = stop
            return {}
        if not self.finished:
            learner.finish()
            self.finished = True
            return {}
        return None

    def _record_memory(self) -> None:
        """Append the samples held at the end to metrics.jsonl; an offline learner holds the whole stream."""
        recorded = any(line["event"] == "memory" for line in self.run.lines)  # before a kill
        if not recorded and not self.learner.is_offline:
            self.run.record({"event": "memory", "index": self.learner.held_index().tolist()})

    def _maybe_save(self) -> None:
        cost, since = self._save_cost, time.perf_counter() - self._saved_at
        own = sum(self.account.seconds.values()) - self._booked_at_save
        if (cost is None and since > _FIRST_CHECKPOINT) or (
            cost is not None and since > _CHECKPOINT_SECONDS and own > _CHECKPOINT_SHARE * cost
        ):
            self._save()

    def _save(self) -> None:
        began = time.perf_counter()
        facts = {
            "position": self.position,
            "finished": self.finished,
            "n_ended": self.n_ended,
            "seconds": self.account.seconds,
            "steps": self.account.steps,
            "stream": self.stream.fingerprint(),
            "features": self.data_digests[FEATURES],
            "data": self.data_digests,
            "settings": decisive_settings(self.settings),
        }
        self.run.save(self.learner.state(), facts)
        self._saved_at = time.perf_counter()
        self._save_cost = self._saved_at - began
        self._booked_at_save = sum(self.account.seconds.values())

    def _restore(self) -> None:
        restored: dict[str, Any] = {}

        def check(facts: dict[str, Any]) -> None:
            self._check_facts(facts)
            restored.update(facts)

        tensors = self.run.restore(check)
        if tensors is None:
            return
        self._load(tensors)
        self.position, self.finished, self.n_ended = (restored[key] for key in ("position", "finished", "n_ended"))
        self.account.seconds, self.account.steps = restored["seconds"], restored["steps"]

    def _check_facts(self, facts: dict[str, Any]) -> None:
        """Raise UserError if a checkpoint was made with other data or settings.

        Earlier versions recorded the stream's labels and the user's features only.
        """
        path = self.run.path
        try:
            check_values(facts, _FACTS | {"data": OBJECT, "settings": OBJECT}, _FACTS)
            if facts["position"] > len(self.stream) or facts["n_ended"] > len(self.stream.tasks):
                raise UserError("it is beyond the end of the stream.")
        except UserError as error:
            raise UserError(f"The checkpoint in {path} cannot be used: {error}") from None
        for name, digest in facts.get("data", {}).items():
            if name in self.data_digests and self.data_digests[name] != digest:
                what = self.settings.features_file if name == FEATURES else f"The {name} of {self.settings.dataset}"
                raise UserError(f"{what} changed since {path} began: restore them, or start another run.")
        if facts["features"] != self.data_digests[FEATURES]:
            raise UserError(f"{self.settings.features_file} changed since {path} began.")
        if facts["stream"] != self.stream.fingerprint():
            raise UserError(f"The stream differs from the one that {path} began with: check the data files.")
        own = decisive_settings(self.settings)
        for name, value in facts.get("settings", {}).items():
            if name in own and own[name] != value:
                raise UserError(
                    f"{path / 'settings.json'} changed since the run began: {name} was {value}, and is {own[name]}."
                )

    def _load(self, tensors: State) -> None:
        """Restore the learner; UserError if it is not one of this run."""
        try:
            self.learner.restore(tensors, self.limits)
        except ValueError as error:
            where = self.run.path / "checkpoints"
            raise UserError(f"The newest checkpoint in {where} cannot be used: {error}; delete it.") from None

    def _result(self) -> Line:
        s, seconds = self.settings, self.account.seconds
        return {
            "dataset": s.dataset,
            "noise": s.noise,
            "noise_rate": s.noise_rate,
            "episode": s.episode,
            "learner": s.learner,
            **_named_options(s),
            "options": asdict(s.options),
            "features_digest": self.data_digests[FEATURES],
            "features_encoder": self.features_encoder,
            "encoder": None if s.encoder is None else s.encoder._replace(text=s.encoder.name)._asdict(),
            "numbers_version": tasks_version(s.dataset, s.noise, s.episode),
            "preset": s.preset,
            "budget": s.budget,
            "seed": s.seed,
            "judged_on": "validation" if s.validation else "test",
            **summary(self.run.lines, self.judge.stream_noise, s.noise_rate),
            "steps": self.account.steps,
            "seconds": {phase: round(v, 3) for phase, v in (seconds | {"total": sum(seconds.values())}).items()},
            "device": device_name(self.engine.device),
            "precision": s.precision,
            "versions": versions(),
        }


def prepare(
    settings: RunSettings,
    path: Path,
    *,
    resume: bool = False,
    engine: Engine | None = None,
    dataset: Dataset | None = None,
    locks: ExitStack | None = None,
) -> Experiment:
    """Load the data, build the learner and open the run directory; nothing is trained yet.

    Runs that are driven together share an engine, and may share a dataset that is already loaded. With `locks` the
    folder is locked before anything is written, until `locks` is closed.
    """
    dataset = dataset or load(settings)
    given, stream = make_stream(settings, dataset)
    engine = engine or Engine(torch.device(settings.device), precision=settings.precision)
    judge = Judge(
        given_labels=given,
        true_labels=dataset.true_labels,
        stream_order=stream.order,
        test_images=torch.from_numpy(np.ascontiguousarray(dataset.test_images)).to(engine.device),
        test_labels=torch.from_numpy(dataset.test_labels),
        tasks=stream.tasks,
    )
    data = make_data_spec(settings, dataset)
    experiment = Experiment(
        settings=settings,
        run=RunDirectory(path),
        stream=stream,
        judge=judge,
        learner=make_learner(settings, data, engine),
        engine=engine,
        workload=count_steps(settings, stream.task_ends),
        data_digests=data_digests(dataset, data.features),
        limits=Limits(data.n_classes, data.n_samples),
        features_encoder=features_encoder(settings),
    )
    if locks is not None:
        locks.enter_context(experiment.run.locked())
    if resume:
        experiment._restore()
    else:
        experiment.run.create(settings)
    return experiment


def _named_options(settings: RunSettings) -> Line:
    """Return the options that result.json always states, and those that are not the usual ones."""
    named = {name: getattr(settings.options, name, "none") for name in registry.entry(settings.learner).named}
    changed = {name: value for name, value in changed_options(settings).items() if name not in named}
    return named | {"changed": changed}


def device_name(device: torch.device) -> str:
    """Return a description of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads, {platform.machine()}"


def versions() -> dict[str, Any]:
    """Return the versions of the software that computed the numbers."""
    own = {"purereplay": purereplay.__version__, "python": platform.python_version(), "torch": torch.__version__}
    return own | {name: version(name) for name in ("numpy", "scikit-learn", "safetensors")}
