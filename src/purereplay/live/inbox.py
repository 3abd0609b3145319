"""Samples that a server has acknowledged and the state does not hold yet: a database of its own beside the state.

    inbox.sqlite    one row per sample, with the image file as it was sent; the label may come later

Training holds the lock of a state for a long time, so a server does not write into the state itself. It records samples
here, and the process that trains moves them into the state between two steps (`absorb`). A sample is on the disk when
`add` returns. A row is removed after the state has committed its sample, so a kill in between moves it again, which
changes nothing. A label that comes later gives its sample a place at the end. A sample that the state refuses after all
stays with the reason, without its image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from purereplay.errors import UserError
from purereplay.live import schema
from purereplay.live.items import CHUNK, CHUNK_BYTES, Item, Refused
from purereplay.live.own_tables import OwnDatabase, OwnTables, opened
from purereplay.live.session import Session
from purereplay.live.store import INBOX

_TABLES = OwnTables(
    "an inbox",
    1,
    """
    CREATE TABLE samples (
        number INTEGER PRIMARY KEY,  -- in the order in which the samples enter the state
        id TEXT NOT NULL UNIQUE,
        label TEXT,  -- NULL: it comes later
        image BLOB NOT NULL,  -- an image file; empty if it is refused
        digest BLOB NOT NULL,  -- of id, label and image
        refusal TEXT  -- why the state does not take it; such a sample stays here
    );
    CREATE INDEX samples_label ON samples (label, refusal, number);
    """,
)
_MAX_WAITING = 200_000  # samples
_MAX_BYTES = 4 * 2**30  # of images


class Sample(NamedTuple):
    """A sample as it was sent; a label without an image belongs to an image that came before."""

    id: str
    label: str | None
    image: bytes | None


class Receipt(NamedTuple):
    """The answer to one sample."""

    id: str
    result: str  # stored, labelled, waits for a label, known
    error: str | None = None  # the reason for refusing it
    new_label: bool = False  # no sample had its label before


class _Row(NamedTuple):
    number: int
    sample: Sample
    refusal: str | None


class Counts(NamedTuple):
    """Samples in the inbox."""

    waiting: int  # for the process that trains
    unlabelled: int
    refused: int  # by the state


# Sample as it was sent -> whether the state holds it; Refused if the state has another one of this id
Known = Callable[[Sample], bool]
HasLabel = Callable[[str], bool]  # whether the state knows a label


class FullInbox(UserError):
    """More samples wait than the inbox takes."""


class Inbox(OwnDatabase):
    """An inbox, opened by `opened`."""

    _most: tuple[int, int] | None = None  # samples and bytes for which room is taken, at most; None: unknown

    @classmethod
    @contextmanager
    def opened(cls, state: Path) -> Iterator[Inbox]:
        """Open the inbox of a state, created if it is missing; several processes may."""
        path = inbox_path(state)
        with opened(path) as (database, file):
            with schema.transaction(database, path):
                _TABLES.create(database, path)
            yield cls(path, database, file)

    def add(self, samples: Sequence[Sample], known: Known, has_label: HasLabel = lambda label: True) -> list[Receipt]:
        """Record samples in one transaction; they are on the disk when this returns. Unusable ones are refused.

        FullInbox if there is no room for their images; labels of images that are here need none.
        """
        with self._transaction():
            if images := [s.image for s in samples if s.image is not None]:
                self._take_room(len(images), sum(map(len, images)))
            return [self._add(sample, known, has_label) for sample in samples]

    def _add(self, sample: Sample, known: Known, has_label: HasLabel) -> Receipt:
        # a sample leaves the inbox after the state has it, so the state is asked second
        is_new = sample.label is not None and not self._has_label(sample.label) and not has_label(sample.label)
        try:
            result = self._result(sample, known)
        except Refused as reason:
            return Receipt(sample.id, "refused", str(reason))
        return Receipt(sample.id, result, new_label=is_new and result in ("stored", "labelled"))

    def _has_label(self, label: str) -> bool:
        return bool(self._query("SELECT 1 FROM samples WHERE label = ? AND refusal IS NULL LIMIT 1", label))

    def _result(self, sample: Sample, known: Known) -> str:
        row = self._row(sample.id)
        if known(sample):  # also if it came into the state by another way
            if row is not None and row.refusal is None and row.sample.label is None and sample.label is not None:
                self._give_label(row, sample.label)  # so that the state takes or refuses its image
            return "known"
        if row is None:
            if sample.image is None:
                raise Refused("is unknown: send its image")
            self._insert(sample)
            return "waits for a label" if sample.label is None else "stored"
        if row.refusal is not None:
            raise Refused(row.refusal)  # by the state, after it was acknowledged
        if sample.image is not None and sample.image != row.sample.image:
            raise Refused("was sent before with another image: use a new id")
        if sample.label is None or sample.label == row.sample.label:
            return "waits for a label" if row.sample.label is None else "known"
        if row.sample.label is not None:
            raise Refused(f"was sent before with the label {row.sample.label!r}: change it with `purereplay correct`")
        self._give_label(row, sample.label)
        return "labelled"

    def _row(self, identity: str) -> _Row | None:
        found = self._query("SELECT number, label, image, digest, refusal FROM samples WHERE id = ?", identity)
        if not found:
            return None
        [[number, *values, refusal]] = found
        return _Row(number, _checked(self.path, identity, *values), refusal)

    def _give_label(self, row: _Row, label: str) -> None:
        self._query("DELETE FROM samples WHERE number = ?", row.number)
        self._insert(row.sample._replace(label=label))

    def _insert(self, sample: Sample) -> None:
        [[last]] = self._query("SELECT coalesce(max(number), 0) FROM samples")
        values = (last + 1, sample.id, sample.label, sample.image, _digest(sample))
        self._query("INSERT INTO samples VALUES (?, ?, ?, ?, ?, NULL)", *values)

    def _take_room(self, n: int, n_bytes: int) -> None:
        """Raise FullInbox if there is no room for images.

        Other processes only remove samples, so all images are counted only if those taken since then would not fit.
        """
        if self._most is None or not _fits(self._most, n_bytes):
            self._most = self._taken()
            if not _fits(self._most, n_bytes):
                raise FullInbox("The inbox is full: send new images later.")
        self._most = (self._most[0] + n, self._most[1] + n_bytes)

    def _taken(self) -> tuple[int, int]:
        """Return how many samples are not refused, and the bytes of their images; this reads all rows."""
        [[n, n_bytes]] = self._query(
            "SELECT count(*), coalesce(sum(length(image)), 0) FROM samples WHERE refusal IS NULL"
        )
        return int(n), int(n_bytes)

    def counts(self) -> Counts:
        """Return how many samples are here; this reads an index only."""
        [found] = self._query(
            "SELECT coalesce(sum(label NOT NULL AND refusal IS NULL), 0), coalesce(sum(label IS NULL), 0),"
            " coalesce(sum(refusal NOT NULL), 0) FROM samples"
        )
        return Counts(*map(int, found))

    def next(self) -> list[tuple[int, Item]]:
        """Return labelled samples with their numbers, as many as one transaction of a state takes."""
        rows = self._query(
            "SELECT number, id, label, length(image) FROM samples WHERE label NOT NULL AND refusal IS NULL"
            " ORDER BY number LIMIT ?",
            CHUNK,
        )
        found: list[tuple[int, Item]] = []
        total = 0
        for number, identity, label, size in rows:
            total += size
            if found and total > CHUNK_BYTES:
                break
            [[image, digest]] = self._query("SELECT image, digest FROM samples WHERE number = ?", number)
            _checked(self.path, identity, label, image, digest)
            found.append((number, Item(identity, label, image)))
        return found

    def settle(self, taken: Sequence[int], refused: dict[int, str]) -> None:
        """Remove samples that the state has committed, and the images of others; note why it does not take these."""
        with self._transaction(), schema.database_errors(self.path):
            self.database.executemany("DELETE FROM samples WHERE number = ?", [(number,) for number in taken])
            for number, reason in refused.items():
                [[identity, label]] = self._query("SELECT id, label FROM samples WHERE number = ?", number)
                values = (b"", _digest(Sample(identity, label, None)), reason, number)
                self._query("UPDATE samples SET image = ?, digest = ?, refusal = ? WHERE number = ?", *values)


def _fits(taken: tuple[int, int], n_bytes: int) -> bool:
    return taken[0] <= _MAX_WAITING and taken[1] + n_bytes <= _MAX_BYTES


def inbox_path(state: Path) -> Path:
    """Return the path of the inbox of a state."""
    return state / INBOX


def absorb(session: Session, inbox: Inbox) -> int:
    """Move all labelled samples into the state; returns their number."""
    n = 0
    while chunk := inbox.next():
        outcomes = session.take([item for _, item in chunk])
        errors = {number: o.error for (number, _), o in zip(chunk, outcomes, strict=True) if o.error is not None}
        inbox.settle([number for number, _ in chunk if number not in errors], errors)
        n += len(chunk)
    return n


def absorb_left(session: Session) -> int:
    """Move the samples that a server left behind into the state; returns their number."""
    if not inbox_path(session.store.folder).exists():
        return 0
    with Inbox.opened(session.store.folder) as inbox:
        return absorb(session, inbox)


def _checked(path: Path, identity: str, label: str | None, image: bytes, digest: bytes) -> Sample:
    sample = Sample(identity, label, image)
    if _digest(sample) != digest:
        raise UserError(f"{path} is damaged: sample {identity} does not match its digest.")
    return sample


def _digest(sample: Sample) -> bytes:
    digest = hashlib.blake2b(json.dumps([sample.id, sample.label]).encode(), digest_size=16)
    digest.update(sample.image or b"")
    return digest.digest()
