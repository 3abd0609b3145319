"""The loop of `learn`: samples are stored, full buffers scored and learned, until the source ends.

An observer receives every step and may stop the loop between two of them.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from purereplay.errors import BusyError, Interrupted
from purereplay.learners.base import FilterReport
from purereplay.learners.own_data import own_entry
from purereplay.live.intake import Source, open_source
from purereplay.live.items import Outcome
from purereplay.live.pipe import acknowledge
from purereplay.live.reviewed import Reviewed, log_path
from purereplay.live.session import Session, make_engine
from purereplay.live.settings import StateSettings, Wanted
from purereplay.nets.engine import TrainingProgress
from purereplay.nets.lockstep import Account

_PATIENCE = 10.0  # seconds to wait for a state that is being reviewed


@dataclass
class LearnProgress:
    """Counts of one call of `learn`."""

    total: int | None  # items of the source; None: unknown
    n_seen: int = 0  # items so far
    n_new: int = 0  # of these stored
    n_refused: int = 0  # of these refused; the rest was stored by an earlier call
    n_to_score: int = 0  # samples to be scored, as far as known
    n_scored: int = 0
    n_rejected: int = 0  # of these rejected by the filter
    steps: dict[str, int] = field(default_factory=dict)  # expected training steps for `n_to_score`, by phase
    account: Account = field(default_factory=Account)  # training time and steps so far

    @property
    def n_known(self) -> int:
        """Number of items that an earlier call has stored."""
        return self.n_seen - self.n_new - self.n_refused


class LearnObserver:
    """Callbacks of `learn`; a subclass overrides those it needs."""

    def should_stop(self) -> bool:
        """Return whether to stop; asked between two items and between two training steps."""
        return False

    def took(self, progress: LearnProgress, outcomes: list[Outcome]) -> None:
        """Receive items that were stored or refused."""

    def training(self, progress: LearnProgress, now: TrainingProgress) -> None:
        """Receive the progress of the training, a few times per second."""

    def scored(self, progress: LearnProgress, report: FilterReport) -> None:
        """Receive the report of a buffer that was scored and learned."""


def learn(
    data: str,
    state: Path,
    wanted: Wanted,
    *,
    device: str = "auto",
    follow: bool = False,
    root: Path | None = None,
    rest: bool | None = None,
    answers: IO[str] | None = None,
    observer: LearnObserver | None = None,
) -> LearnProgress:
    """Store the samples of a source and learn from them; raises Interrupted if the observer stops it.

    `rest`: whether samples that do not fill a buffer are scored at the end; None: only if the source has an end.
    `answers`: where every item of a pipe is acknowledged.
    """
    source = open_source(data, state=state, root=root, follow=follow)
    with ExitStack() as stack:
        session = _opened(stack, state, wanted, device)
        loop = _Loop(session, source, observer or LearnObserver(), answers)
        loop.run(rest=source.ends if rest is None else rest)
    return loop.progress


def _opened(stack: ExitStack, state: Path, wanted: Wanted, device: str) -> Session:
    """Open a state; a review page may hold it for a few seconds, while it absorbs decisions."""
    engine, end = make_engine(device), time.monotonic() + _PATIENCE
    while True:
        try:
            return stack.enter_context(Session.open(state, wanted, engine))
        except BusyError:
            if time.monotonic() > end or not log_path(state).exists():
                raise
            time.sleep(0.2)


class _Loop:
    def __init__(self, session: Session, source: Source, observer: LearnObserver, answers: IO[str] | None) -> None:
        self.session = session
        self.source = source
        self.observer = observer
        self.answers = answers
        self.progress = LearnProgress(total=source.total, account=session.account)
        self.first = session.taken  # position of the first sample that this call scores
        self.reviewed = Reviewed(session)
        session.engine.watch = self._training

    def run(self, *, rest: bool) -> None:
        self._expect()
        self.reviewed.absorb()
        for chunk in self.source.chunks:
            self._check_stop()
            outcomes = self.session.take(chunk)
            if self.answers is not None:
                acknowledge(outcomes, self.answers)
            self._count(outcomes)
            self.observer.took(self.progress, outcomes)
            self.reviewed.absorb()
            self.session.work(hear=self._scored)
        self.session.work(rest=rest, hear=self._scored)

    def _check_stop(self) -> None:
        if self.observer.should_stop():
            raise Interrupted("Stopped: nothing is lost, and the same command continues from here.")

    def _training(self, now: TrainingProgress) -> None:
        self._check_stop()
        self.observer.training(self.progress, now)

    def _count(self, outcomes: list[Outcome]) -> None:
        p = self.progress
        p.n_seen += len(outcomes)
        p.n_new += sum(outcome.new for outcome in outcomes)
        p.n_refused += sum(outcome.error is not None for outcome in outcomes)
        if outcomes:
            self._expect()

    def _expect(self) -> None:
        """Update the number of samples to score and the training steps that they need."""
        p, settings = self.progress, self.session.store.settings
        waiting = self.session.store.n_samples - self.first
        p.n_to_score = max(waiting, (p.total or 0) - p.n_seen + waiting)
        if isinstance(settings, StateSettings) and p.n_to_score:
            steps = own_entry(settings.learner).count_steps(settings.options, (p.n_to_score,)).steps
            p.steps = {phase: n for phase, n in steps.items() if phase != "finetune"}  # only `predict` finetunes

    def _scored(self, report: FilterReport) -> None:
        self.reviewed.absorb()  # between two buffers
        self.progress.n_scored += len(report.selected_mask)
        self.progress.n_rejected += int((~report.selected_mask).sum())
        self.observer.scored(self.progress, report)
