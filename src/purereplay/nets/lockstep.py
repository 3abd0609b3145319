"""The scheduler: advances learners from one training request to the next, so that jobs of one shape train together.

`drive` runs the work of one learner, `drive_together` that of many. The engine does the training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from purereplay.errors import Interrupted, UserError
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Asks, Job, Result, Trained


@dataclass
class Account:
    """Time and training steps of one learner."""

    seconds: dict[str, float] = field(default_factory=dict)  # by phase; "other": everything but training
    steps: dict[str, int] = field(default_factory=dict)  # training steps by phase

    def book(self, phase: str, seconds: float, steps: int = 0) -> None:
        """Add time and steps to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        if steps:
            self.steps[phase] = self.steps.get(phase, 0) + steps


def diverged(phase: str) -> UserError:
    """Return the error for a network whose loss, or whose features after training, are not finite."""
    return UserError(f"The training of the {phase} network diverged: lower its learning rate.")


def drive(work: Asks[Result], engine: Engine, account: Account | None = None) -> Result:
    """Run the work of one learner to its end and train the jobs that it requests."""
    [result] = drive_together([work], engine, [account or Account()])
    return result


def drive_together(works: list[Asks[Result]], engine: Engine, accounts: list[Account]) -> list[Result]:
    """Run the work of many learners to their ends and train jobs of one shape side by side.

    The shortest request is trained first, together with all requests for jobs of the same group. So runs wait for each
    other at their longest jobs, which then form the largest groups. A learner that fails does not stop the others; its
    error is raised when they have finished.
    """
    results: dict[int, Result] = {}
    failures: dict[int, UserError] = {}
    requests: dict[int, Sequence[Job]] = {}

    def advance(i: int, answer: list[Trained] | None, asked: Sequence[Job] = ()) -> None:
        began = time.perf_counter()
        try:
            bad = [job.phase for job, t in zip(asked, answer or [], strict=True) if not math.isfinite(t.loss)]
            if bad:
                requests[i] = works[i].throw(diverged(bad[0]))
            else:
                requests[i] = next(works[i]) if answer is None else works[i].send(answer)
        except StopIteration as end:
            results[i] = end.value
        except Interrupted:
            raise
        except UserError as error:
            failures[i] = error
        accounts[i].book("other", time.perf_counter() - began)

    for i in range(len(works)):
        advance(i, None)
    try:
        while requests:
            first = min(requests, key=lambda i: min((job.n_steps, job.steps_before) for job in requests[i]))
            wanted = {engine.group(job) for job in requests[first]}
            chosen = [i for i, jobs in requests.items() if {engine.group(job) for job in jobs} == wanted]
            asked = {i: requests.pop(i) for i in chosen}
            answers = iter(engine.train([job for jobs in asked.values() for job in jobs]))
            for i, jobs in asked.items():
                answer = [next(answers) for _ in jobs]
                for job, trained in zip(jobs, answer, strict=True):
                    accounts[i].book(job.phase, trained.seconds, job.n_steps)
                advance(i, answer, jobs)
    except Exception as error:
        stop = error if isinstance(error, Interrupted) else Interrupted("Another run failed.")
        for i, work in enumerate(works):  # each may save its state
            if i not in results and i not in failures:
                with suppress(Exception):
                    work.throw(stop)
        raise
    if failures:
        earliest = next(iter(failures.values()))
        if len(works) == 1:
            raise earliest
        raise UserError(f"{len(failures)} of {len(works)} runs failed: {earliest}") from earliest
    return [results[i] for i in range(len(works))]
