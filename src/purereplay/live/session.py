"""The work of one process on a state: samples are stored, fill delayed buffers, and every finished step is committed.

The learner gets exactly one delayed buffer at a time, by the positions of the samples. So the result depends neither on
the pieces in which the samples arrived nor on where a process was killed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from purereplay.data.forms import Limits, n_bytes, n_rows
from purereplay.errors import UserError
from purereplay.learners import own_data
from purereplay.learners.base import DataSpec, FilterReport
from purereplay.learners.spr.learner import SPR
from purereplay.live.images import Shape, read_pixels
from purereplay.live.items import Item, Offer, Outcome, Refused
from purereplay.live.settings import NewSettings, StateSettings, Wanted, buffer_sizes, with_shape
from purereplay.live.store import Current, Store
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine, flush_denormals
from purereplay.nets.lockstep import Account, drive


def make_engine(device: str) -> Engine:
    """Return an engine for a command of the command line; see `flush_denormals`."""
    flush_denormals()
    chosen = pick_device(device)
    return Engine(torch.device(chosen), precision=pick_precision("auto", chosen))


def make_learner(settings: StateSettings, engine: Engine) -> SPR:
    """Return a learner that has seen nothing; it grows with the labels."""
    data = DataSpec(image_shape=settings.shape, n_classes=1)
    return own_data.build(settings.learner, settings.options, data, engine=engine, seed=settings.seed)


def load_learner(store: Store, current: Current, engine: Engine) -> SPR:
    """Return the learner of a state."""
    learner = make_learner(store.image_settings, engine)
    tensors = store.tensors(current, _most_bytes(learner, store, current))
    n_classes = min(max(1, n_rows(tensors, "purified.seen")), len(store.labels()))
    try:
        learner.restore(tensors, Limits(n_classes, current.taken))
    except ValueError as error:
        raise UserError(f"{current.path} does not fit its state: {error}; restore the folder from a copy.") from None
    return learner


def _most_bytes(learner: SPR, store: Store, current: Current) -> int:
    """Return a limit of the size of a learner file, several times what the buffers and the networks take."""
    n_held = min(current.taken, sum(buffer_sizes(store.settings)))
    sample = math.prod(store.image_settings.shape) + 1024  # image, label, position, clean probability and others
    return 2**26 + 8 * n_bytes(learner.state()) + 4 * n_held * sample + 2**14 * len(store.labels())


@dataclass
class Session:
    """One process's work on a state."""

    store: Store
    engine: Engine
    learner: SPR | None = None  # None: no buffer was filled yet
    taken: int = 0  # samples before this position were given to the learner
    account: Account = field(default_factory=Account)  # training time of this process

    @classmethod
    @contextmanager
    def open(cls, folder: Path, wanted: Wanted | None, engine: Engine) -> Iterator[Session]:
        """Create or continue a state; see `Store.writing`."""
        with Store.writing(folder, wanted) as store:
            session = cls(store, engine)
            current = store.current()
            if current is not None:
                session.learner, session.taken = load_learner(store, current, engine), current.taken
                store.tidy(current)
            yield session

    def take(self, offers: list[Offer]) -> list[Outcome]:
        """Store samples in one transaction; unusable ones are refused and the others stored."""
        if not offers:
            return []
        with self.store.transaction():
            return [self._take(offer) for offer in offers]

    def _take(self, offer: Offer) -> Outcome:
        if not isinstance(offer, Item):
            return Outcome(offer.name, offer.line, new=False, error=offer.reason)
        s = self.store.settings
        try:
            if isinstance(s, NewSettings):
                pixels = read_pixels(offer.image, size=s.size, channels=s.channels, shape=None, root=offer.root)
                channels, height, width = pixels.shape
                self._fix_shape(s, (channels, height, width), offer.id)
            else:
                pixels = read_pixels(offer.image, size=s.size, channels=s.channels, shape=s.shape, root=offer.root)
            return Outcome(offer.id, offer.line, new=self.store.add(offer.id, offer.label, pixels))
        except Refused as reason:
            return Outcome(offer.id, offer.line, new=False, error=str(reason))

    def _fix_shape(self, new: NewSettings, shape: Shape, identity: str) -> None:
        """Fix the shape of all images by the first one."""
        try:
            self.store.write_settings(with_shape(new, shape))
        except UserError as error:
            raise UserError(f"{identity} cannot be the first image of a state: {error} Use --size.") from None

    def work(self, *, rest: bool = False, hear: Callable[[FilterReport], None] | None = None) -> None:
        """Score and learn every full buffer; `rest`: also the samples that do not fill one."""
        while (learner := self._next_work(rest)) is not None:
            report = drive(learner.work(), self.engine, self.account)
            self._save(learner, report)
            if report is not None and hear:
                hear(report)

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

    def _save(self, learner: SPR, report: FilterReport | None) -> None:
        with self.store.transaction():
            current = self.write(learner, report)
        self.store.tidy(current)

    def withdraw(self, positions: list[int]) -> Current | None:
        """Take samples out of the memory within a transaction of the caller; returns the new learner file."""
        if self.learner is None:
            return None
        self.learner.withdraw(torch.tensor(positions, dtype=torch.int64))
        return self.write(self.learner, None)

    def write(self, learner: SPR, report: FilterReport | None) -> Current:
        """Save the learner and its decisions within a transaction of the caller."""
        return self.store.write_learner(learner.state(), self.taken, learner.purified.index, report)
