"""The loop of daily use: samples become durable, fill delayed buffers, and every piece of work ends in a commit.

The learner is given exactly one delayed buffer at a time, by the samples' positions, and never told how they came. So
the end does not depend on how the samples were cut into pieces, nor on where the process was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from purereplay.errors import UserError
from purereplay.learners.base import Report
from purereplay.learners.build import build_spr
from purereplay.learners.spr import SPR
from purereplay.live.images import Pixels, read_pixels
from purereplay.live.items import Item, Offer, Outcome, Refused
from purereplay.live.settings import StateSettings, Wanted, with_shape
from purereplay.live.store import Current, Store
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine, TrainingProgress, flush_denormals
from purereplay.nets.lockstep import Account, drive


def make_engine(device: str, watch: Callable[[TrainingProgress], None] | None = None) -> Engine:
    """For the commands: see `flush_denormals`."""
    flush_denormals()
    chosen = pick_device(device)
    return Engine(torch.device(chosen), precision=pick_precision("auto", chosen), watch=watch)


def make_learner(settings: StateSettings, engine: Engine) -> SPR:
    """A learner that has seen nothing; it grows with the labels that come."""
    assert settings.shape is not None
    return build_spr(settings.options, image_shape=settings.shape, n_classes=1, engine=engine, seed=settings.seed)


def load_learner(store: Store, current: Current, engine: Engine) -> SPR:
    """The learner of a state."""
    assert store.settings is not None
    learner = make_learner(store.settings, engine)
    tensors = store.tensors(current)
    try:
        learner.load(tensors)
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{current.path} does not fit the settings of its state: {error}.") from None
    return learner


@dataclass
class Session:
    """One process's work on a state."""

    store: Store
    engine: Engine
    learner: SPR | None = None  # None: nothing was given to it yet
    taken: int = 0  # samples before this position were given to the learner
    account: Account = field(default_factory=Account)  # of this process

    @classmethod
    @contextmanager
    def open(cls, folder: Path, wanted: Wanted | None, engine: Engine) -> Iterator[Session]:
        """Begin or go on with a state; see `Store.writing`."""
        with Store.writing(folder, wanted) as store:
            session = cls(store, engine)
            current = store.current()
            if current is not None:
                session.learner, session.taken = load_learner(store, current, engine), current.taken
                store.tidy(current)
            yield session

    @property
    def settings(self) -> StateSettings:
        assert self.store.settings is not None
        return self.store.settings

    def take(self, offers: list[Offer]) -> list[Outcome]:
        """Make samples durable, in one go; what is no good is refused and the rest is taken."""
        if not offers:
            return []
        with self.store.transaction():
            return [self._take(offer) for offer in offers]

    def _take(self, offer: Offer) -> Outcome:
        if not isinstance(offer, Item):
            return Outcome(offer.name, offer.line, new=False, error=offer.reason)
        s = self.settings
        try:
            pixels = read_pixels(offer.image, size=s.size, channels=s.channels, shape=s.shape)
            if s.shape is None:
                self._fix_shape(offer.id, pixels)
            return Outcome(offer.id, offer.line, new=self.store.add(offer.id, offer.label, pixels))
        except Refused as reason:
            return Outcome(offer.id, offer.line, new=False, error=str(reason))

    def _fix_shape(self, identity: str, pixels: Pixels) -> None:
        """The first image says what all images are like."""
        channels, height, width = pixels.shape
        try:
            self.store.write_settings(with_shape(self.settings, (channels, height, width)))
        except UserError as error:
            raise UserError(f"{identity} cannot begin a state: {error} Use --size.") from None

    def work(self, *, rest: bool = False, hear: Callable[[Report], None] | None = None) -> None:
        """Judge and learn every buffer that is full; with `rest` also what is left over."""
        while self._fill(rest):
            assert self.learner is not None
            report = drive(self.learner.work(), self.engine, self.account)
            self.save(report)
            if report is not None and hear:
                hear(report)

    def _fill(self, rest: bool) -> bool:
        """Give the learner its next buffer, unless it has one; whether there is work to do."""
        if self.learner is not None and self.learner.pending:
            return True
        waiting = self.store.n_samples - self.taken
        if not waiting:
            return False
        learner = self.learner or make_learner(self.settings, self.engine)
        capacity = learner.delayed.capacity
        if waiting < capacity and not (rest and learner.tail == "process"):
            return False
        batch = self.store.batch(self.taken, self.taken + min(waiting, capacity))
        learner.grow(int(batch.labels.max()) + 1)
        learner.take(batch)
        if batch.n < capacity:
            learner.finish()
        self.learner, self.taken = learner, self.taken + batch.n
        return True

    def save(self, report: Report | None) -> None:
        """Keep the learner as it is now, and what it decided."""
        with self.store.transaction():
            current = self.write(report)
        self.store.tidy(current)

    def write(self, report: Report | None) -> Current:
        """`save` as a part of a larger transaction."""
        assert self.learner is not None
        return self.store.write_learner(self.learner.state(), self.taken, self.learner.purified.index, report)
