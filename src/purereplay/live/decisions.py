"""The log of reviewers' decisions: a database of its own beside the state, which any number of processes may write.

    decisions.sqlite    one entry per decision; an undo is an entry too, so nothing is ever changed or removed

`learn` holds the lock of a state as long as it runs, so decisions do not go into the state itself. They are recorded
here and absorbed between two steps of learning (reviewed.py). An entry is on the disk when `record` returns. Every
entry has a digest of itself and of the entry before it, so a changed or missing one is detected.

A lease reserves a sample for one page for some time. Leases are no decisions and are not covered by the digests.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from purereplay.errors import UserError
from purereplay.live import schema
from purereplay.live.items import Refused
from purereplay.live.own_tables import OwnDatabase, OwnTables, files_of, opened
from purereplay.live.same_file import SameFile, check_regular

Kind = Literal["keep", "label", "unsure", "drop", "undo"]
KINDS = ("keep", "label", "unsure", "drop")  # decisions of a reviewer
_TABLES = OwnTables(
    "a log of decisions",
    1,
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY,
        sample TEXT NOT NULL,  -- its id
        kind TEXT NOT NULL,  -- keep, label, unsure, drop or undo
        label TEXT,  -- of keep and label
        undoes INTEGER,  -- of undo: number of the entry that is no longer in effect
        reviewer TEXT NOT NULL,
        action TEXT NOT NULL,  -- entries of one action were made and are undone together
        time REAL NOT NULL,  -- seconds since 1970
        digest BLOB NOT NULL,
        UNIQUE (action, sample)
    );
    CREATE INDEX entries_reviewer ON entries (reviewer, number);
    CREATE INDEX entries_undoes ON entries (undoes);
    CREATE TABLE leases (sample TEXT PRIMARY KEY, owner TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
    """,
)
_COLUMNS = "number, sample, kind, label, undoes, reviewer, action, time"


class Decision(NamedTuple):
    """A decision on one sample."""

    sample: str  # id
    kind: Kind
    label: str | None = None  # of keep and label


class Entry(NamedTuple):
    """One line of the log."""

    number: int
    sample: str
    kind: str
    label: str | None
    undoes: int | None
    reviewer: str
    action: str
    time: float

    def digest(self, before: bytes) -> bytes:
        """Return the digest of this entry and of all before it."""
        return hashlib.blake2b(before + repr(tuple(self)).encode(), digest_size=16).digest()


class InEffect:
    """Decisions in effect by sample, from the entries of a log in their order."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._by_sample: dict[str, list[Entry]] = {}
        self.last = 0  # number of the newest entry
        self.add(entries)

    def add(self, entries: Iterable[Entry]) -> None:
        """Follow the log."""
        for entry in entries:
            self.last = entry.number
            if entry.kind != "undo":
                self._by_sample.setdefault(entry.sample, []).append(entry)
                continue
            left = [e for e in self._by_sample.get(entry.sample, []) if e.number != entry.undoes]
            if left:
                self._by_sample[entry.sample] = left
            else:
                self._by_sample.pop(entry.sample, None)

    def __contains__(self, sample: str) -> bool:
        return sample in self._by_sample

    def get(self, sample: str) -> Entry | None:
        """Return the decision on a sample that is in effect, or None."""
        found = self._by_sample.get(sample)
        return found[-1] if found else None

    def all(self) -> list[Entry]:
        """Return the decisions in effect, oldest first."""
        return sorted(found[-1] for found in self._by_sample.values())


class DecisionLog(OwnDatabase):
    """A log, opened by `writing` or `reading`."""

    def __init__(self, path: Path, database: sqlite3.Connection, file: SameFile | None, floor: int) -> None:
        super().__init__(path, database, file)
        self._floor = floor  # numbers of entries are greater

    @classmethod
    @contextmanager
    def writing(cls, path: Path, floor: int = 0) -> Iterator[DecisionLog]:
        """Open or create a log; `floor`: number of the last entry that was absorbed from a log that is gone."""
        is_new = not path.exists()
        with opened(path) as (database, file):
            with schema.transaction(database, path):
                if _TABLES.create(database, path) and is_new:  # a file that was emptied is not: its entries are lost
                    database.execute(f"PRAGMA application_id = {min(floor, 2**31 - 1)}")
            log = cls(path, database, file, floor)
            log.check()
            yield log

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> Iterator[DecisionLog | None]:
        """Open a log for reading; None if there is none yet."""
        check_regular(files_of(path))
        if not path.exists() or path.stat().st_size == 0:
            yield None
            return
        with closing(schema.connect(path, write=False)) as database:
            if _TABLES.version_in(database, path) == 0:
                yield None
                return
            log = cls(path, database, None, 0)
            log.check()
            yield log

    def check(self) -> None:
        """Raise UserError if an entry was changed or is missing."""
        before = b""
        for *values, digest in self._query(f"SELECT {_COLUMNS}, digest FROM entries ORDER BY number"):
            entry = Entry(*values)
            before = entry.digest(before)
            if digest != before:
                raise UserError(f"{self.path} is damaged: entry {entry.number} does not match its digest.")

    def entries(self, after: int = 0) -> list[Entry]:
        """Return the entries with greater numbers, in their order."""
        return [
            Entry(*row) for row in self._query(f"SELECT {_COLUMNS} FROM entries WHERE number > ? ORDER BY 1", after)
        ]

    def newest(self) -> tuple[int, str]:
        """Return number and digest of the newest entry; 0 and "" if there is none."""
        found = self._query("SELECT number, digest FROM entries ORDER BY number DESC LIMIT 1")
        return (int(found[0][0]), found[0][1].hex()) if found else (0, "")

    def begins_after(self) -> int:
        """Return the number of the last entry of a former log that was gone when this one was created; 0: none."""
        return int(self._query("PRAGMA application_id")[0][0])

    def digest_of(self, number: int) -> str | None:
        """Return the digest of an entry, or None if there is no such entry."""
        found = self._query("SELECT digest FROM entries WHERE number = ?", number)
        return found[0][0].hex() if found else None

    def record(self, decisions: Iterable[Decision], reviewer: str, action: str) -> list[Entry]:
        """Append decisions; they are on the disk when this returns. An action that was recorded before stays.

        So a page that got no answer may send the same action again; Refused if it has other decisions.
        """
        with self._transaction():
            rows = [(d.sample, d.kind, d.label, None) for d in decisions]
            known = self._of_action(action)
            if known and [(e.sample, e.kind, e.label, e.undoes) for e in known] != rows:
                raise Refused("reuses the name of an earlier action with other decisions")
            if known:
                return known
            return self._append(rows, reviewer, action)

    def undo(self, reviewer: str, action: str) -> list[Entry]:
        """Undo the reviewer's last action that is not undone yet; returns the entries that are no longer in effect."""
        own = (
            f"SELECT {_COLUMNS} FROM entries e WHERE kind <> 'undo' AND reviewer = ?"
            " AND NOT EXISTS (SELECT 1 FROM entries u WHERE u.undoes = e.number)"
        )
        with self._transaction():
            known = self._of_action(action)
            if known:
                numbers = [entry.undoes for entry in known]
                places = ", ".join("?" * len(numbers))
                return [
                    Entry(*row)
                    for row in self._query(f"SELECT {_COLUMNS} FROM entries WHERE number IN ({places})", *numbers)
                ]
            last = self._query(f"{own} ORDER BY number DESC LIMIT 1", reviewer)
            if not last:
                return []
            undone = [Entry(*row) for row in self._query(f"{own} AND action = ?", reviewer, Entry(*last[0]).action)]
            self._append([(e.sample, "undo", None, e.number) for e in undone], reviewer, action)
            return undone

    def lease(self, samples: Iterable[str], owner: str, n: int, seconds: float, now: float | None = None) -> list[str]:
        """Reserve the first n of these samples that no other page has reserved; returns them."""
        now = time.time() if now is None else now
        with self._transaction():
            self._query("DELETE FROM leases WHERE until < ?", now)
            others = {s for (s,) in self._query("SELECT sample FROM leases WHERE owner <> ?", owner)}
            chosen: list[str] = []
            for sample in samples:
                if len(chosen) == n:
                    break
                if sample not in others:
                    chosen.append(sample)
            with schema.database_errors(self.path):
                rows = [(sample, owner, now + seconds) for sample in chosen]
                self.database.executemany("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", rows)
        return chosen

    def renew(self, owner: str, seconds: float) -> None:
        """Keep the leases of a page that is still open."""
        with self._transaction():
            self._query("UPDATE leases SET until = ? WHERE owner = ?", time.time() + seconds, owner)

    def release(self, owner: str, samples: Iterable[str] | None = None) -> None:
        """End leases of a page, by default all of them."""
        with self._transaction():
            if samples is None:
                self._query("DELETE FROM leases WHERE owner = ?", owner)
            for sample in samples or ():
                self._query("DELETE FROM leases WHERE owner = ? AND sample = ?", owner, sample)

    def n_pages(self) -> int:
        """Return the number of pages that hold leases now."""
        return int(self._query("SELECT count(DISTINCT owner) FROM leases WHERE until >= ?", time.time())[0][0])

    def _of_action(self, action: str) -> list[Entry]:
        return [
            Entry(*row)
            for row in self._query(f"SELECT {_COLUMNS} FROM entries WHERE action = ? ORDER BY number", action)
        ]

    def _append(
        self, rows: Sequence[tuple[str, str, str | None, int | None]], reviewer: str, action: str
    ) -> list[Entry]:
        number, last = self.newest()
        number, digest, now = max(number, self._floor), bytes.fromhex(last), time.time()
        added = []
        for sample, kind, label, undoes in rows:
            number += 1
            entry = Entry(number, sample, kind, label, undoes, reviewer, action, now)
            digest = entry.digest(digest)
            added.append(entry)
            with schema.database_errors(self.path):
                self.database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*entry, digest))
        return added
