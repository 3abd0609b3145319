"""The work of one process on a state: samples are stored, judged and learned, and every finished step is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from purereplay.errors import BusyError, UserError
from purereplay.learners.base import FilterReport
from purereplay.live.buffers import Buffers
from purereplay.live.encoding import Encoded, Encoding, write_features
from purereplay.live.full_memory import FullMemory, Judged
from purereplay.live.images import Look, look_at, read_pixels
from purereplay.live.items import Item, Offer, Outcome, Refused
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.moves import Moves
from purereplay.live.settings import NewSettings, Opened, Wanted, with_shape
from purereplay.live.shapes import Chosen, choose, look_at_some
from purereplay.live.store import Current, Store
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine, flush_denormals
from purereplay.nets.lockstep import Account

_PATIENCE = 10.0  # seconds to wait for another process to leave the state


def make_engine(device: str) -> Engine:
    """Return an engine for a command of the command line; see `flush_denormals`."""
    flush_denormals()
    chosen = pick_device(device)
    return Engine(torch.device(chosen), precision=pick_precision("auto", chosen))


@dataclass
class Session:
    """One process's work on a state."""

    store: Store
    engine: Engine
    account: Account = field(default_factory=Account)  # training time of this process
    chosen: Chosen | None = None  # the shape of all images, if this process has chosen it
    encoding: Encoding | None = None  # opened when the first image needs it, unless the user named the encoder
    learning: FullMemory | Buffers = field(init=False)

    def __post_init__(self) -> None:
        full = self.store.settings.learner == FULL_MEMORY
        self.learning = FullMemory(self.store) if full else Buffers(self.store, self.engine, self.account)
        self.moves = Moves(self.store)

    @classmethod
    @contextmanager
    def open(cls, folder: Path, wanted: Wanted | None, engine: Engine) -> Iterator[Session]:
        """Create or continue a state; see `Store.writing`."""
        with Store.writing(folder, wanted) as store:
            session = cls(store, engine)
            if wanted is not None and wanted.encoder is not None and not isinstance(wanted.encoder, str):
                session._use(wanted.encoder)
            current = store.current()
            if current is not None:
                session.learning.load(current)
                store.tidy(current)
            yield session

    @classmethod
    @contextmanager
    def open_waiting(
        cls, folder: Path, wanted: Wanted | None, engine: Engine, *, give_up: Callable[[], bool]
    ) -> Iterator[Session]:
        """Open a state that another process may leave soon; BusyError after 10 s, or once `give_up` returns True."""
        end = time.monotonic() + _PATIENCE
        with ExitStack() as stack:
            while True:
                try:
                    session = stack.enter_context(cls.open(folder, wanted, engine))
                    break
                except BusyError:
                    if time.monotonic() > end or give_up():
                        raise
                    time.sleep(0.2)
            yield session

    @property
    def taken(self) -> int:
        """Samples before this position were given to the learner."""
        return self.learning.taken

    # ---------------------------------------------------------------- samples

    def take(self, offers: Sequence[Offer]) -> list[Outcome]:
        """Store samples in one transaction; unusable ones are refused and the others stored.

        A file that was moved to the folder of another label is not a new sample: its label is corrected.
        """
        if not offers:
            return []
        current, moved = None, dict[int, str]()
        encoded = self._encoded(offers) if self.store.settings.encoder else {}
        with self.store.transaction():
            outcomes = [self._take(offer, moved, encoded.get(row)) for row, offer in enumerate(offers)]
            if moved:
                current = self._correct(moved)
        self.store.tidy(current)
        return outcomes

    def _use(self, encoder: Opened) -> None:
        """Use the encoder that the user named, and save its name if its file was moved."""
        self.encoding = Encoding.of_state(self.store, encoder)
        settings = self.store.settings
        if settings.encoder is not None and settings.encoder.text != encoder.text:
            with self.store.transaction():
                self.store.write_settings(replace(settings, encoder=settings.encoder._replace(text=encoder.text)))

    def _encoded(self, offers: Sequence[Offer]) -> dict[int, Encoded]:
        """Return the images of offers that can be read, and the features of those whose id is new, by place."""
        for offer in offers:  # the first image of a pipe fixes the shape, however many have arrived
            if isinstance(self.store.settings, NewSettings):
                self.look([offer])
        if isinstance(self.store.settings, NewSettings):
            return {}  # none of them can be read
        if self.encoding is None:
            self.encoding = Encoding.of_state(self.store)
        assert self.encoding is not None
        return self.encoding.prepared(offers, self.store)

    def _take(self, offer: Offer, moved: dict[int, str], encoded: Encoded | None = None) -> Outcome:
        if not isinstance(offer, Item):
            return Outcome(offer.name, offer.line, new=False, error=offer.reason)
        s = self.store.settings
        try:
            if isinstance(s, NewSettings):
                self._fix_shape_by(s, offer)
                s = self.store.image_settings
            if encoded is not None and isinstance(encoded.features, Refused):
                raise encoded.features
            pixels = (
                read_pixels(offer.image, size=s.size, channels=s.channels, shape=s.shape, root=offer.root, fit=s.fit)
                if encoded is None
                else encoded.pixels
            )
            position = self.moves.find(offer, pixels)
            if position is None:
                new = self.store.add(offer.id, offer.label, pixels)
                if new and encoded is not None:
                    assert isinstance(encoded.features, np.ndarray)
                    write_features(self.store, self.store.n_samples - 1, encoded.features)
                if new:
                    self.moves.added(self.store.n_samples - 1, pixels, offer.root)
                return Outcome(offer.id, offer.line, new=new)
            changed = self.store.label_of(position) != offer.label
            if changed:
                self.learning.check_correctable(position)
                moved[position] = offer.label
            self.moves.record(position, offer.id)
            return Outcome(offer.id, offer.line, new=False, corrected=changed)
        except Refused as reason:
            return Outcome(offer.id, offer.line, new=False, error=str(reason))

    def look(self, offers: Sequence[Offer]) -> None:
        """Fix the shape of all images by some of them, unless it is fixed already or none of them can be read."""
        new = self.store.settings
        if isinstance(new, NewSettings) and new.fit == "pad" and (looks := look_at_some(offers)):
            with self.store.transaction():
                self._choose(new, looks)

    def _fix_shape_by(self, new: NewSettings, first: Item) -> None:
        """Fix the shape of all images by the first one, or raise Refused if it is damaged."""
        pixels = read_pixels(first.image, size=new.size, channels=new.channels, shape=None, root=first.root)
        channels, height, width = pixels.shape
        try:
            if new.fit == "pad":
                self._choose(new, [look_at(first.image, first.root)])
            else:
                self.store.write_settings(with_shape(new, (channels, height, width)))
        except UserError as error:
            raise UserError(f"{first.id} cannot be the first image of a state: {error} Use --size.") from None

    def _choose(self, new: NewSettings, looks: list[Look]) -> None:
        chosen = choose(looks, new.size, new.channels)
        self.store.write_settings(with_shape(new, chosen.shape))
        self.chosen = chosen._replace(encoder_size=self.encoding.encoder.size if self.encoding else 0)

    # ---------------------------------------------------------------- learning

    def work(self, *, rest: bool = False, on_report: Callable[[FilterReport | Judged], None] | None = None) -> None:
        """Judge and learn the samples that are due; `rest`: also the others."""
        self.learning.work(rest=rest, on_report=on_report)

    def correct(self, labels: Mapping[int, str]) -> None:
        """Record labels that a person gave, by position: all in one transaction, or none.

        Every correction of a state comes through here. Labels are trusted, and may be new. A learner with buffers
        learns them at once, `full-memory` in `settle` or when all samples are judged again.
        """
        with self.store.transaction():
            current = self._correct(labels)
        self.store.tidy(current)

    def settle(self) -> Judged | None:
        """Learn corrections that were recorded: `full-memory` judges all samples again, unless it did so already."""
        return self.learning.settle() if isinstance(self.learning, FullMemory) else None

    def _correct(self, labels: Mapping[int, str]) -> Current | None:
        codes = {position: self.store.code(label) for position, label in labels.items()}
        [last] = self.store.one("SELECT coalesce(max(number), 0) FROM corrections")
        self.store.insert("corrections", list(zip(count(last + 1), codes, codes.values(), strict=False)))
        return self.learning.correct(codes)

    def withdraw(self, positions: list[int]) -> Current | None:
        """Take samples out of the memory within a transaction of the caller; returns the new learner file, if any."""
        return self.learning.withdraw(positions)
