"""The loop of `learn`: samples are stored, full buffers scored and learned, until the source ends.

An observer receives every step and may stop the loop between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from purereplay.errors import Interrupted
from purereplay.learners.base import FilterReport
from purereplay.learners.own_data import own_entry
from purereplay.learners.spr.settings import SprSettings
from purereplay.live.encoding import PIECE
from purereplay.live.full_memory import FullMemory, Judged
from purereplay.live.inbox import absorb_left
from purereplay.live.intake import Source, open_source
from purereplay.live.items import Chunks, Outcome
from purereplay.live.pipe import acknowledge
from purereplay.live.plan import estimate, expensive
from purereplay.live.reviewed import Reviewed, log_path
from purereplay.live.session import Session, make_engine
from purereplay.live.settings import StateSettings, Wanted
from purereplay.live.shapes import Chosen
from purereplay.live.verdicts import rejected
from purereplay.nets.engine import TrainingProgress
from purereplay.nets.lockstep import Account

_MANY = 2000  # new samples from which on the time is estimated before the work begins


@dataclass
class LearnProgress:
    """Counts of one call of `learn`."""

    total: int | None  # items of the source; None: unknown
    n_seen: int = 0  # items so far
    n_new: int = 0  # of these stored
    n_refused: int = 0  # of these refused; the rest was stored by an earlier call
    n_corrected: int = 0  # files that were moved to another label
    n_to_score: int = 0  # samples to be scored, as far as known
    n_scored: int = 0
    # of these rejected by the filter, as `status` counts them; full-memory: of all samples of the state
    n_rejected: int = 0
    others: Sequence[str] = ()  # files of a folder that were skipped, because they are not images
    new_labels: Sequence[str] = ()  # labels that no sample had before this call; none for a state without samples
    judged: Judged | None = None  # the last judgement of full-memory
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

    def chose(self, chosen: Chosen) -> None:
        """Receive the shape of all images, once it is chosen."""

    def warned(self, sentence: str) -> None:
        """Receive a warning before work that takes long or much memory."""

    def took(self, progress: LearnProgress, outcomes: list[Outcome]) -> None:
        """Receive items that were stored or refused."""

    def training(self, progress: LearnProgress, now: TrainingProgress) -> None:
        """Receive the progress of the training, a few times per second."""

    def judging(self, progress: LearnProgress, work: str, done: int, total: int | None) -> None:
        """Receive the progress of full-memory while it judges all samples, a few times per second."""

    def scored(self, progress: LearnProgress, report: FilterReport | Judged) -> None:
        """Receive the report of samples that were scored and learned."""


def learn(
    data: str,
    state: Path,
    wanted: Wanted,
    *,
    device: str = "auto",
    follow: bool = False,
    root: Path | None = None,
    labels: str | None = None,
    rest: bool | None = None,
    answers: IO[str] | None = None,
    observer: LearnObserver | None = None,
) -> LearnProgress:
    """Store the samples of a source and learn from them; raises Interrupted if the observer stops it.

    `labels`: column of labels in a table of images. `rest`: whether samples that do not fill a buffer are scored at the
    end; None: only if the source has an end. `answers`: where every item of a pipe is acknowledged.
    """
    source = open_source(data, state=state, root=root, follow=follow, labels=labels)

    def is_not_reviewed() -> bool:  # a review page holds a state only for a few seconds, while it absorbs decisions
        return not log_path(state).exists()

    with Session.open_waiting(state, wanted, make_engine(device), give_up=is_not_reviewed) as session:
        loop = _Loop(session, source, observer or LearnObserver(), answers)
        loop.run(rest=source.ends if rest is None else rest)
    return loop.progress


class _Loop:
    def __init__(self, session: Session, source: Source, observer: LearnObserver, answers: IO[str] | None) -> None:
        self.session = session
        self.source = source
        self.observer = observer
        self.answers = answers
        self.progress = LearnProgress(total=source.total, others=source.others, account=session.account)
        self.first = session.taken  # position of the first sample that this call scores
        self.n_labels = len(session.store.labels()) if session.store.n_samples else None
        self.reviewed = Reviewed(session)
        session.engine.watch = self._training
        # the verdicts on all samples of a folder or list are wanted at its end, and not before
        self.waits = source.ends and isinstance(session.learning, FullMemory)
        if isinstance(session.learning, FullMemory):
            session.learning.watch = self._judging

    def run(self, *, rest: bool) -> None:
        self._expect()
        self.session.look(self.source.first)
        self._tell_shape()
        self._warn()
        absorb_left(self.session)
        self.reviewed.absorb()
        for chunk in self._chunks():
            self._check_stop()
            outcomes = self.session.take(chunk)
            self._tell_shape()
            if self.answers is not None:
                acknowledge(outcomes, self.answers)
            self._count(outcomes)
            self.observer.took(self.progress, outcomes)
            self.reviewed.absorb()
            if not self.waits:
                self.session.work(on_report=self._scored)
        self.reviewed.absorb()
        if not self.waits:
            self.session.work(on_report=self._scored)
        self.session.work(rest=rest, on_report=self._scored)

    def _chunks(self) -> Chunks:
        """Yield the items of the source; fewer at once if they are encoded, which takes longer."""
        for chunk in self.source.chunks:
            step = PIECE if self.session.store.settings.encoder else max(1, len(chunk))
            for start in range(0, max(1, len(chunk)), step):  # an empty chunk is a pause
                yield chunk[start : start + step]

    def _warn(self) -> None:
        """Warn of work that takes long, once the images and their number are known."""
        settings, store = self.session.store.settings, self.session.store
        if not isinstance(settings, StateSettings):
            return
        n_new = max(0, (self.source.total or 0) - store.n_samples)
        n_all, encoding = store.n_samples + n_new, self.session.encoding
        seconds = estimate(self.source.first, settings, n_new, n_all, encoding) if n_new > _MANY else None
        for sentence in expensive(settings, seconds):
            self.observer.warned(sentence)

    def _tell_shape(self) -> None:
        if self.session.chosen is not None:
            self.observer.chose(self.session.chosen)
            self.session.chosen = None

    def _check_stop(self) -> None:
        if self.observer.should_stop():
            raise Interrupted("Stopped: nothing is lost, and the same command continues from here.")

    def _training(self, now: TrainingProgress) -> None:
        self._check_stop()
        self.observer.training(self.progress, now)

    def _judging(self, work: str, done: int, total: int | None) -> None:
        self._check_stop()
        self.observer.judging(self.progress, work, done, total)

    def _count(self, outcomes: list[Outcome]) -> None:
        p = self.progress
        p.n_seen += len(outcomes)
        p.n_new += sum(outcome.new for outcome in outcomes)
        p.n_refused += sum(outcome.error is not None for outcome in outcomes)
        p.n_corrected += sum(outcome.corrected for outcome in outcomes)
        if self.n_labels is not None:
            p.new_labels = self.session.store.labels()[self.n_labels :]
        if outcomes:
            self._expect()

    def _expect(self) -> None:
        """Update the number of samples to score and the training steps that they need."""
        p, settings = self.progress, self.session.store.settings
        waiting = self.session.store.n_samples - self.first
        p.n_to_score = max(waiting, (p.total or 0) - p.n_seen + waiting)
        if isinstance(settings, StateSettings) and isinstance(settings.options, SprSettings) and p.n_to_score:
            steps = own_entry(settings.learner).count_steps(settings.options, (p.n_to_score,)).steps
            p.steps = {phase: n for phase, n in steps.items() if phase != "finetune"}  # only `predict` finetunes

    def _scored(self, report: FilterReport | Judged) -> None:
        self.reviewed.absorb()  # between two steps
        p = self.progress
        if isinstance(report, Judged):
            p.n_scored, p.n_rejected, p.judged = p.n_scored + report.n_new, report.n_rejected, report
        else:
            p.n_scored += len(report.selected_mask)
            sql = f"SELECT count(*) FROM ({rejected(self.session.store)}) WHERE position BETWEEN ? AND ?"
            [n_rejected] = self.session.store.one(sql, [int(report.index.min()), int(report.index.max())])
            p.n_rejected += n_rejected
        self.observer.scored(p, report)
