"""Learning in delayed buffers: the learners `spr` and `pure-replay` in a state.

The learner gets exactly one delayed buffer at a time, by the positions of the samples. So the result depends neither on
the pieces in which the samples arrived nor on where a process was killed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from purereplay.data.batch import Batch
from purereplay.data.forms import Limits, n_bytes, n_rows
from purereplay.errors import UserError
from purereplay.learners import own_data
from purereplay.learners.base import DataSpec, FilterReport
from purereplay.learners.spr.learner import SPR
from purereplay.live.encoding import inputs
from purereplay.live.items import Refused
from purereplay.live.settings import StateSettings, buffer_sizes
from purereplay.live.store import Current, Store
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import Account, drive


def make_learner(settings: StateSettings, engine: Engine) -> SPR:
    """Return a learner that has seen nothing; it grows with the labels."""
    data = DataSpec(image_shape=settings.shape, n_classes=1)
    return own_data.build(settings.learner, settings.spr_options, data, engine=engine, seed=settings.seed)


def load_learner(store: Store, current: Current, engine: Engine) -> SPR:
    """Return the learner of a state."""
    learner = make_learner(store.image_settings, engine)
    tensors = store.packed(current, _most_bytes(learner, store, current)).tensors
    n_classes = min(max(1, n_rows(tensors, "purified.seen")), len(store.labels()))
    try:
        learner.restore(tensors, Limits(n_classes, current.taken))
    except ValueError as error:
        raise UserError(f"{current.path} does not fit its state: {error}; restore the folder from a copy.") from None
    return learner


def _most_bytes(learner: SPR, store: Store, current: Current) -> int:
    """Return a limit of the size of a learner file, several times what the buffers and the networks take."""
    n_held = min(current.taken, sum(buffer_sizes(store.settings) or ()))
    sample = math.prod(store.image_settings.shape) + 1024  # image, label, position, clean probability and others
    return 2**26 + 8 * n_bytes(learner.state()) + 4 * n_held * sample + 2**14 * len(store.labels())


class Buffers:
    """The learner of a state, and the samples that were given to it."""

    def __init__(self, store: Store, engine: Engine, account: Account) -> None:
        self.store = store
        self.engine = engine
        self.account = account
        self.learner: SPR | None = None  # None: no buffer was filled yet
        self.taken = 0  # samples before this position were given to the learner

    def load(self, current: Current) -> None:
        """Continue with a saved learner."""
        self.learner, self.taken = load_learner(self.store, current, self.engine), current.taken

    def work(self, *, rest: bool = False, on_report: Callable[[FilterReport], None] | None = None) -> None:
        """Score and learn every full buffer; `rest`: also the samples that do not fill one."""
        while (learner := self._next_work(rest)) is not None:
            report = drive(learner.work(), self.engine, self.account)
            with self.store.transaction():
                current = self._write(learner, report)
            self.store.tidy(current)
            if report is not None and on_report:
                on_report(report)

    def _next_work(self, rest: bool) -> SPR | None:
        """Return the learner with a buffer to work on, or None if nothing is left to do."""
        if self.learner is not None and self.learner.pending:
            return self.learner
        waiting = self.store.n_samples - self.taken
        if not waiting:
            return None
        learner = self.learner or make_learner(self.store.image_settings, self.engine)
        capacity = learner.delayed.capacity
        if waiting < capacity and not (rest and learner.tail == "process"):
            return None
        batch = self.store.batch(self.taken, self.taken + min(waiting, capacity))
        learner.grow(int(batch.labels.max()) + 1)
        learner.take(batch)
        if batch.n < capacity:
            learner.finish()
        self.learner, self.taken = learner, self.taken + batch.n
        return learner

    def check_correctable(self, position: int) -> None:
        """Raise Refused if the sample is not scored yet: it would be scored again later."""
        check_scored(self.store, position)

    def correct(self, codes: dict[int, int]) -> Current:
        """Learn corrected labels, given as numbers by position, and save the learner in a transaction of the caller."""
        if self.learner is None:
            raise UserError(f"{self.store.path} is damaged: it has decisions, but no learner.")
        labels = torch.tensor(list(codes.values()))
        images = inputs(self.store, np.array(list(codes)))
        self.learner.grow(int(labels.max()) + 1)
        self.learner.correct(Batch(images, labels, torch.tensor(list(codes))))
        return self._write(self.learner, None)

    def withdraw(self, positions: list[int]) -> Current | None:
        """Take samples out of the purified buffer, and save the learner in a transaction of the caller."""
        if self.learner is None:
            return None
        self.learner.withdraw(torch.tensor(positions, dtype=torch.int64))
        return self._write(self.learner, None)

    def teaching(self) -> set[int]:
        """Return the positions of the samples in the purified buffer."""
        return set() if self.learner is None else set(self.learner.purified.index.tolist())

    def _write(self, learner: SPR, report: FilterReport | None) -> Current:
        return self.store.write_learner(learner.state(), self.taken, learner.purified.index, report)


def check_scored(store: Store, position: int) -> None:
    """Raise Refused if a sample is not scored yet."""
    if store.one("SELECT 1 FROM decisions WHERE position = ?", [position]) is None:
        raise Refused("is not scored yet: correct it once the audit lists it")
