"""Places where groups of runs are computed: this process, or a cluster (`ray_cluster`).

An executor takes the groups of a plan and reports each group when it is done. Runs write their own folders, so a group
that is interrupted continues from its checkpoints when it is executed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from purereplay.data.files import disk_errors
from purereplay.data.own_folder import OwnFolder
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.json_files import json_bytes
from purereplay.evaluate.judge import Line
from purereplay.evaluate.plan import Group, plan_groups, plan_json
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.running import Observer, run_together, unfinished_runs
from purereplay.evaluate.settings import RunSettings

CLUSTER_GROUP = 20  # runs of one task, unless the user says otherwise


class SweepOutcome(NamedTuple):
    """The results of a sweep."""

    results: dict[Path, Line | None]  # None: the run failed
    failure: UserError | None  # of the first run that failed


class Executor(Protocol):
    """Computes groups of runs."""

    def execute(self, groups: Sequence[Group], on_done: Callable[[Group], None]) -> list[UserError]:
        """Compute the unfinished runs of every group; returns the errors of runs that failed.

        `on_done` is called when all runs of a group are finished or have failed.
        """
        ...


class Local:
    """Computes one group after the other in this process."""

    def __init__(self, observer: Observer | None = None) -> None:
        self.observer = observer or Observer()

    def execute(self, groups: Sequence[Group], on_done: Callable[[Group], None]) -> list[UserError]:
        failures: list[UserError] = []
        for number, group in enumerate(groups, 1):
            try:
                left = unfinished_runs(group.runs)
                if left:
                    run_together(left, self.observer)
            except Interrupted:
                raise
            except UserError as error:  # of one run; the others continued
                failures.append(error)
            on_done(group)
            self.observer.grouped(number, len(groups))
        return failures


def execute_sweep(
    runs: Mapping[Path, RunSettings],
    folder: Path,
    observer: Observer,
    *,
    group_size: int | None = None,
    cluster: str | None = None,
) -> SweepOutcome:
    """Compute the runs of a sweep in groups; finished ones are skipped, stopped ones continue.

    Without a group size all runs are one group; on a cluster, groups have 20 runs. A plan of groups is written to the
    folder before the first one starts.
    """
    groups = plan_groups(runs, CLUSTER_GROUP if cluster is not None and group_size is None else group_size)
    if cluster is not None or group_size is not None:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        OwnFolder(folder).write("plan.json", json_bytes(plan_json(groups, folder)))
    executor: Executor = Local(observer)
    if cluster is not None:
        from purereplay.evaluate.ray_cluster import ray_executor

        executor = ray_executor(cluster, observer, folder / "plan.json")
    failures = executor.execute([g for g in groups if unfinished_runs(g.runs)], lambda group: None)
    return SweepOutcome({path: RunDirectory(path).result() for path in runs}, failures[0] if failures else None)
