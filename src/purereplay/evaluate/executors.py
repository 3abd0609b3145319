"""Where groups of runs are computed: in this process, or on a cluster (`ray_cluster`).

An executor takes the groups of a plan and reports each group when it is done. Runs write their own folders, so a group
that is interrupted continues from its checkpoints when it is executed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.plan import Group
from purereplay.evaluate.running import Observer, run_together, unfinished_runs


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
        for group in groups:
            try:
                left = unfinished_runs(group.runs)
                if left:
                    run_together(left, self.observer)
            except Interrupted:
                raise
            except UserError as error:  # of one run; the others continued
                failures.append(error)
            on_done(group)
        return failures
