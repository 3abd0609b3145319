"""Groups of runs on a Ray cluster: one task is one group, on one GPU or one core of any node.

Where the folder of the runs is on storage that all nodes share, a task works in it: the group of a lost worker or node
is submitted again and continues from its checkpoints. Otherwise a task works in a folder of its own and sends back the
files of finished runs. Out of memory halves the group. Tasks return what happened as plain values; Ray's own retries
are off, so that one lost worker cannot fail the others.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from purereplay.data.own_folder import OwnFolder
from purereplay.errors import BusyError, Interrupted, UserError, is_out_of_memory
from purereplay.evaluate.plan import Group
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.running import Observer, run_together, unfinished_runs
from purereplay.evaluate.settings import RunSettings, read_settings, to_json
from purereplay.nets.device import pick_precision
from purereplay.nets.engine import flush_denormals

_ATTEMPTS = 5  # of a group whose worker or node was lost, before it counts as failed
_LOCK_SECONDS = 120.0  # a worker of a killed driver may hold a run's folder until Ray ends it
_SENT = ("settings.json", "metrics.jsonl", "result.json")

Task = dict[str, dict[str, Any]]  # settings.json of every run, by its folder


class Outcome(NamedTuple):
    """Outcome of a task."""

    failure: str = ""  # of one of its runs; the others continued
    no_memory: bool = False
    files: dict[str, dict[str, bytes]] = {}  # noqa: RUF012  # of finished runs, if the folder is not shared


class RayExecutor:
    """Computes groups as tasks of a Ray cluster."""

    def __init__(self, ray: Any, observer: Observer, plan: Path, *, cores: float = 1.0) -> None:
        self.ray = ray
        self.observer = observer
        self.plan = plan  # the file of the plan: a node that sees the same file shares the storage
        self.cores = cores  # of a group without a GPU

    def execute(self, groups: Sequence[Group], on_done: Callable[[Group], None]) -> list[UserError]:
        """See `executors.Executor`."""
        waiting = [(group, 1) for group in groups]
        running: dict[Any, tuple[Group, int]] = {}
        failures: list[UserError] = []
        n_done, total = 0, len(groups)
        try:
            while waiting or running:
                for group, attempt in waiting:
                    if left := unfinished_runs(group.runs):
                        running[self._submit(left)] = group, attempt
                    else:  # finished before its worker was lost
                        n_done += 1
                        on_done(group)
                waiting = []
                self.observer.waiting()
                ready, _ = self.ray.wait(list(running), num_returns=1, timeout=0.5) if running else ([], [])
                for reference in ready:
                    group, attempt = running.pop(reference)
                    again, failure = self._settled(reference, group, attempt)
                    waiting += again
                    total += max(0, len(again) - 1)
                    failures += [] if failure is None else [failure]
                    if not again:
                        n_done += 1
                        on_done(group)
                    self.observer.grouped(n_done, total)
        except BaseException:
            for reference in running:
                self.ray.cancel(reference, force=True)
            raise
        return failures

    def _submit(self, left: dict[Path, RunSettings]) -> Any:
        first = next(iter(left.values()))
        needs = {"num_gpus": 1, "num_cpus": 1} if first.device == "cuda" else {"num_cpus": self.cores}
        remote = self.ray.remote(compute_group).options(max_retries=0, **needs)
        task = {str(path.absolute()): to_json(settings) for path, settings in left.items()}
        return remote.remote(task, str(self.plan.absolute()), _digest(self.plan), max(1, int(self.cores)))

    def _settled(self, reference: Any, group: Group, attempt: int) -> tuple[list[tuple[Group, int]], UserError | None]:
        """Return the groups to submit again, with their attempts, and an error that is final."""
        lost = f"group {group.number}"
        try:
            outcome: Outcome = self.ray.get(reference)
        except self.ray.exceptions.OutOfMemoryError:
            outcome = Outcome(no_memory=True)
        except self.ray.exceptions.RayTaskError as error:
            return [], UserError(f"The task of {lost} failed: {_first_line(error.cause)}.")
        except self.ray.exceptions.RayError as error:
            if attempt < _ATTEMPTS:
                return [(group, attempt + 1)], None
            return [], UserError(f"The worker of {lost} was lost {attempt} times: {_first_line(error)}.")
        if outcome.no_memory:
            halves = _halves(group)
            if not halves:
                return [], UserError(f"There is not enough memory for the run of {lost}: choose smaller sizes.")
            return [(half, attempt) for half in halves], None
        for path, files in outcome.files.items():
            _receive(Path(path), files)
        return [], UserError(outcome.failure) if outcome.failure else None


def ray_executor(text: str, observer: Observer, plan: Path) -> RayExecutor:
    """Return an executor on the cluster that an option names; `plan` is the file of the plan."""
    return RayExecutor(connected(text), observer, plan)


def connected(text: str) -> Any:
    """Connect to the cluster that an option `ray` or `ray=ADDRESS` names, and return the module ray."""
    name, _, address = text.partition("=")
    if name != "ray":
        raise UserError(f"The cluster {text!r} is unknown: use ray, or ray=ADDRESS.")
    try:
        import ray
    except ImportError:
        raise UserError("--cluster ray needs Ray: install purereplay[cluster].") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address or None, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"The cluster {address or 'on this machine'} cannot be used: {error}.") from None
    return ray


def on_gpus(settings: RunSettings) -> RunSettings:
    """Return the same run for the GPUs of a cluster, which this machine need not have."""
    return replace(settings, device="cuda", precision=pick_precision("auto", "cuda"), lookahead=64)


def compute_group(task: Task, plan: str, digest: str, n_threads: int) -> Outcome:
    """Compute the runs of a group on a worker; a plan with this digest shows that the folder is shared."""
    torch.set_num_threads(n_threads)
    flush_denormals()
    runs = {Path(path): read_settings(values) for path, values in task.items()}
    if digest and _digest(Path(plan)) == digest:
        return _compute(runs)
    with tempfile.TemporaryDirectory() as own:
        places = {Path(own) / str(i): path for i, path in enumerate(runs)}
        outcome = _compute({place: runs[path] for place, path in places.items()})
        files = {str(path): _files(place) for place, path in places.items() if (place / "result.json").exists()}
        return outcome._replace(files=files)


def _compute(runs: dict[Path, RunSettings]) -> Outcome:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        left = {path: settings for path, settings in runs.items() if RunDirectory(path).result() is None}
        try:
            if left:
                run_together(left, Observer())
            return Outcome()
        except BusyError as error:
            if time.monotonic() > until:
                return Outcome(failure=str(error))
            time.sleep(0.5)
        except Interrupted:
            raise
        except UserError as error:
            return Outcome(failure=str(error))
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                return Outcome(no_memory=True)
            raise


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _digest(path: Path) -> str:
    """Return the digest of a file; "" if it cannot be read."""
    try:
        return hashlib.blake2b(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _halves(group: Group) -> list[Group]:
    """Return the unfinished runs as two groups; none if there is one run."""
    left = list(unfinished_runs(group.runs))
    if len(left) < 2:
        return []
    middle = len(left) // 2
    return [Group(group.number, {path: group.runs[path] for path in part}) for part in (left[:middle], left[middle:])]


def _files(place: Path) -> dict[str, bytes]:
    return {name: (place / name).read_bytes() for name in _SENT if (place / name).exists()}


def _receive(path: Path, files: dict[str, bytes]) -> None:
    """Write the files of a finished run, its result last."""
    directory = RunDirectory(path)
    with directory.locked():
        if directory.result() is None:
            own = OwnFolder(path)
            own.make("checkpoints")
            for name in _SENT:
                if name in files:
                    own.write(name, files[name])
