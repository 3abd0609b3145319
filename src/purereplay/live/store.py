"""The state folder: every sample, decision and correction in SQLite; networks and buffers in files beside it.

    state.sqlite                all records, and the name of the learner file in use
    decisions.sqlite            decisions of reviewers, which learning absorbs; see decisions.py
    inbox.sqlite                samples that a server has acknowledged, which learning absorbs; see inbox.py
    state.mark                  the newest commit that was acknowledged; see mark.py
    learner-DIGEST.safetensors  base network, optimizer, purified buffer and a delayed buffer in progress
    classifier-DIGEST.…         the classifier finetuned from that learner, once it was needed
    .lock                       held by the process that writes

A file is complete on the disk before the database names it, in the same transaction that records its results. The
previous file is removed after that. So the database and the file that it names always belong together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.files import disk_errors, parts_of, write_whole
from purereplay.data.packing import Packed, pack_tensors, unpack_tensors
from purereplay.errors import UserError
from purereplay.learners.base import FilterReport
from purereplay.live import digests, schema
from purereplay.live.images import Pixels
from purereplay.live.items import Refused, short
from purereplay.live.mark import MARK, Commit, Mark, check_mark, read_mark
from purereplay.live.own_tables import JOURNALS, files_of
from purereplay.live.same_file import SameFile, check_regular, only_writer
from purereplay.live.settings import (
    NewSettings,
    StateSettings,
    Wanted,
    check_same,
    from_text,
    new_settings,
    to_text,
)

DATABASE = "state.sqlite"
DECISIONS = "decisions.sqlite"  # see decisions.py
INBOX = "inbox.sqlite"  # see inbox.py
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WRITTEN = parts_of(rf"(?:learner|classifier)-[0-9a-f]{{16}}\.safetensors|{re.escape(MARK)}")  # with `write_whole`
_LAST = "SELECT c.label FROM corrections k JOIN classes c ON c.code = k.label WHERE position = ? ORDER BY number DESC"
_GIVEN = "SELECT c.label FROM samples s JOIN classes c ON c.code = s.label WHERE position = ?"
_OWN = re.compile(rf"{_WRITTEN.pattern}|(?:state|decisions|inbox)\.sqlite(?:{'|'.join(JOURNALS)})?|\.lock", re.ASCII)


class Row(NamedTuple):
    """A stored sample."""

    position: int
    id: str
    label: str
    pixels: Pixels


class Current(NamedTuple):
    """The learner file in use."""

    path: Path
    digest: str
    taken: int  # samples before this position were given to the learner


class Store:
    """One state folder, opened by `writing` or `reading`."""

    settings: NewSettings | StateSettings

    def __init__(self, folder: Path, database: sqlite3.Connection, opened: list[SameFile]) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self.database = database
        self._opened = opened  # the files of a writer
        self._mark: Mark | None = None  # of a writer
        self._newest = Commit()  # of a writer
        self._tallies: dict[str, digests.Tally] = {}  # of tables that the current transaction changed

    # ---------------------------------------------------------------- opening

    @classmethod
    @contextmanager
    def writing(cls, folder: Path, wanted: Wanted | None) -> Iterator[Store]:
        """Open a state as its only writer; a missing state is created with `wanted`, None: it must exist."""
        if not (folder / DATABASE).exists():
            if wanted is None:
                raise _no_state(folder)
            new_settings(wanted)  # settings that no state can have create no folder
        with disk_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / DATABASE
        with only_writer(folder) as lock, ExitStack() as stack:
            _check_whole(folder)
            with disk_errors(path):
                opened = [SameFile.create(path)]
            database = stack.enter_context(closing(schema.connect(path, write=True)))
            opened.append(lock)
            journal = path.with_name(path.name + "-wal")
            if journal.exists():  # a file system without shared memory has none
                opened.append(SameFile.of(journal))
            schema.version_of(database, path)
            schema.check_structure(database, path)
            schema.migrate(database, path)
            store = cls(folder, database, opened)
            with store.snapshot():
                store.check()
                settings = _read_settings(database, path)
                store._newest = schema.newest_commit(database, path)
            if settings is None and wanted is None:
                raise _no_state(folder)
            store._mark = stack.enter_context(Mark.writing(folder / MARK, store._newest))
            opened.append(SameFile.of(folder / MARK))
            if settings is not None:
                store.settings = settings
                if wanted is not None:
                    check_same(settings, wanted, folder)
            elif wanted is not None:
                with store.transaction():
                    store.write_settings(new_settings(wanted))
            yield store

    @classmethod
    @contextmanager
    def reading(cls, folder: Path, *, upgrade: bool = True) -> Iterator[Store]:
        """Open a state for reading; any number of processes may, also while another one writes.

        A state of an older version is upgraded if `upgrade` is set and it can be written; otherwise a copy is.
        """
        path = folder / DATABASE
        with ExitStack() as stack:
            database = stack.enter_context(_checked(folder))
            if schema.version_of(database, path) < schema.VERSION:
                if upgrade and _is_writable(folder) and _is_writable(path):
                    with cls.writing(folder, None):
                        pass  # opening it upgrades it
                else:
                    schema.check_structure(database, path)
                    database = stack.enter_context(closing(schema.upgraded_copy(database, path)))
            store = cls(folder, database, [])
            with store.snapshot():
                store.check("facts")
                settings = _read_settings(database, path)
            if settings is None:
                raise _no_state(folder)
            store.settings = settings
            yield store

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything that is written within the block, or nothing; UserError if the files were replaced."""
        with schema.transaction(self.database, self.path):
            self._tallies = {}
            yield
            for name, tally in self._tallies.items():
                digests.record(self.database, name, tally)
            newest = digests.record_commit(self.database) if self._tallies else self._newest
        self._newest = newest
        for file in self._opened:
            file.check()  # what was committed to a deleted file is lost
        if self._mark is not None:
            self._mark.write(newest)

    def check(self, *tables: str) -> None:
        """Raise UserError if tables, by default all, are damaged; call within `snapshot`."""
        schema.check(self.database, self.path, tables or None)

    def snapshot(self) -> AbstractContextManager[None]:
        """Read one consistent moment of the state within the block."""
        return schema.transaction(self.database, self.path, "DEFERRED")

    def query(self, sql: str, values: Iterable[object] = ()) -> list[Any]:
        """Return the rows of a statement; UserError if the database is damaged."""
        return schema.query(self.database, self.path, sql, values)

    def one(self, sql: str, values: Iterable[object] = ()) -> Any:
        """Return the first row of a statement, or None."""
        return next(iter(self.query(sql, values)), None)

    # ---------------------------------------------------------------- writing rows; call within a transaction

    def insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Add rows to a table and to its digest."""
        self._insert(table, rows)
        self._count(table, rows)

    def insert_sealed(self, table: str, row: tuple[Any, ...], counted: tuple[Any, ...]) -> None:
        """Add a row with a large value that has a digest in the row; only `counted` is part of the table's digest."""
        self._insert(table, [row])
        self._count(table, [counted])

    def replace(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Replace all rows of a table."""
        self.query(f"DELETE FROM {table}")
        self._tallies[table] = digests.Tally()
        self.insert(table, rows)

    def start_over(self, table: str) -> None:
        """Count the digest of a table from none; all its rows must then be replaced by `put`, or deleted."""
        self._tallies[table] = digests.Tally()

    def delete(self, table: str, key: str, values: list[tuple[Any, ...]]) -> None:
        """Delete rows by their key after `start_over`."""
        with schema.database_errors(self.path):
            self.database.executemany(f"DELETE FROM {table} WHERE {key} = ?", values)

    def put(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Add rows, or replace those of the same key after `start_over`."""
        self._insert(table, rows, "INSERT OR REPLACE")
        self._count(table, rows)

    def remove(self, table: str, key: str, row: tuple[Any, ...]) -> None:
        """Remove a row, given whole and with its key first."""
        self.query(f"DELETE FROM {table} WHERE {key} = ?", row[:1])
        self._tallies[table] = self._tally(table).minus([row])

    def _insert(self, table: str, rows: list[tuple[Any, ...]], verb: str = "INSERT") -> None:
        if rows:
            places = ", ".join("?" * len(rows[0]))
            with schema.database_errors(self.path):
                self.database.executemany(f"{verb} INTO {table} VALUES ({places})", rows)

    def _count(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        self._tallies[table] = self._tally(table).plus(rows)

    def _tally(self, table: str) -> digests.Tally:
        if table not in self._tallies:
            self._tallies[table] = digests.recorded(self.database, table) or digests.Tally()
        return self._tallies[table]

    # ---------------------------------------------------------------- settings

    @property
    def image_settings(self) -> StateSettings:
        """The settings of a state that has images; UserError before the first one."""
        if isinstance(self.settings, NewSettings):
            raise UserError(f"{self.folder} holds no images yet: add some with `purereplay learn`.")
        return self.settings

    def write_settings(self, settings: NewSettings | StateSettings) -> None:
        """Save the settings; call within a transaction."""
        self.write_fact("settings", to_text(settings))
        self.settings = settings

    def fact(self, name: str) -> str | None:
        """Return a saved text by its name."""
        found = self.one("SELECT value FROM facts WHERE name = ?", [name])
        return None if found is None else str(found[0])

    def write_fact(self, name: str, text: str) -> None:
        """Save a text under a name; call within a transaction."""
        others = self.query("SELECT name, value FROM facts WHERE name <> ?", [name])
        self.replace("facts", sorted([*others, (name, text)]))

    # ---------------------------------------------------------------- samples; call within a transaction

    def add(self, identity: str, label: str, pixels: Pixels) -> bool:
        """Store a sample; False if it is stored already, Refused if its id belongs to a different sample."""
        if self.knows(identity, label, pixels):
            return False
        digest = _digest(identity, label, pixels)
        position, code = self.n_samples, self.code(label)
        row = (position, identity, code, pixels.tobytes(), digest)
        self.insert_sealed("samples", row, (position, identity, code, digest))
        return True

    def knows(self, identity: str, label: str | None, pixels: Pixels | None) -> bool:
        """Return whether a sample is stored; Refused if its id belongs to another one. None: any label, or any image"""
        found = self.one(
            "SELECT digest, c.label FROM samples s JOIN classes c ON c.code = s.label WHERE id = ?", [identity]
        )
        if found is None:
            return False
        digest, own = found
        if label is not None and label != own:
            raise Refused(f"was added before with the label {own!r}: change it with `purereplay correct`")
        if pixels is not None and _digest(identity, own, pixels) != digest:
            raise Refused("was added before with another image: use a new id")
        return True

    def has_label(self, label: str) -> bool:
        """Return whether a label is known."""
        return self.one("SELECT 1 FROM classes WHERE label = ?", [label]) is not None

    def code(self, label: str) -> int:
        """Return the number of a label; a new label gets the next number."""
        found = self.one("SELECT code FROM classes WHERE label = ?", [label])
        if found:
            return int(found[0])
        [n] = self.one("SELECT count(*) FROM classes")
        self.insert("classes", [(int(n), label)])
        return int(n)

    def label_of(self, position: int) -> str:
        """Return the label that a person gave to a sample last, or else its given label."""
        corrected = self.last_correction(position)
        if corrected is not None:
            return corrected
        found = self.one(_GIVEN, [position])
        if found is None:
            raise UserError(f"{self.path} is damaged: sample {position} is missing.")
        return str(found[0])

    def last_correction(self, position: int) -> str | None:
        """Return the label that a person gave to a sample last."""
        found = self.one(_LAST, [position])
        return None if found is None else str(found[0])

    @property
    def n_samples(self) -> int:
        [last] = self.one("SELECT max(position) FROM samples")
        return 0 if last is None else int(last) + 1

    def labels(self) -> list[str]:
        """Return all labels in the order of their numbers."""
        return [label for (label,) in self.query("SELECT label FROM classes ORDER BY code")]

    def rows(self, positions: list[int]) -> list[Row]:
        """Return samples by position; each is checked against its digest."""
        return [row for position in positions for row in self.span(position, position + 1)]

    def span(self, start: int, stop: int) -> list[Row]:
        """Return the samples at positions start … stop - 1; each is checked against its digest."""
        shape = self.image_settings.shape
        rows = self.query(
            "SELECT position, id, c.label, pixels, digest FROM samples s JOIN classes c ON c.code = s.label"
            " WHERE position >= ? AND position < ? ORDER BY position",
            [start, stop],
        )
        if [row[0] for row in rows] != list(range(start, stop)):
            missing = next(p for p, row in zip_longest(range(start, stop), rows) if row is None or row[0] != p)
            raise UserError(f"{self.path} is damaged: sample {missing} is missing.")
        found = []
        for position, identity, label, content, digest in rows:
            pixels = np.frombuffer(content, np.uint8)
            if digest != _digest(identity, label, pixels):
                raise UserError(f"{self.path} is damaged: sample {identity} does not match its digest.")
            found.append(Row(position, identity, label, pixels.reshape(shape)))
        return found

    def batch(self, start: int, stop: int) -> Batch:
        """Return the samples at positions start … stop - 1 as a batch for the learner."""
        rows = self.span(start, stop)
        codes = {label: code for code, label in enumerate(self.labels())}
        images = torch.from_numpy(np.stack([row.pixels for row in rows]))
        labels = torch.tensor([codes[row.label] for row in rows], dtype=torch.int64)
        return Batch(images, labels, torch.arange(start, stop))

    # ---------------------------------------------------------------- the learner

    def current(self) -> Current | None:
        """Return the learner file in use; None: no buffer was filled yet."""
        found = self.one("SELECT file, digest, taken FROM learner")
        if found is None:
            return None
        name, digest, taken = found  # of any type, if the file comes from somebody else
        if not _DIGEST.fullmatch(str(digest)) or name != _learner_name(digest):
            raise UserError(f"{self.path} is damaged: its learner file is {short(str(name))!r}, which no state writes.")
        if not isinstance(taken, int) or not 0 <= taken <= self.n_samples:
            raise UserError(f"{self.path} is damaged: its learner has {short(str(taken))} samples.")
        return Current(self.folder / name, digest, taken)

    def packed(self, current: Current, most: int | None = None) -> Packed:
        """Return the contents of the learner file; UserError if it is damaged, or has more than `most` bytes."""
        try:
            saved = unpack_tensors(current.path, most=most, follow=False)
        except ValueError as error:
            raise UserError(f"{current.path} {error}.") from None
        if saved.digest != current.digest or saved.facts.get("taken") != current.taken:
            raise UserError(f"{current.path} is damaged: it is not the file that {DATABASE} names.")
        return saved

    def write_learner(
        self, tensors: dict[str, Tensor], taken: int, purified_index: Tensor, report: FilterReport | None
    ) -> Current:
        """Save a learner and its decisions within a transaction; call `tidy` after the commit."""
        current = self.write_tensors(tensors, taken, {})
        self.replace("purified", [(position,) for position in purified_index.tolist()])
        if report is not None:
            self.insert("decisions", list(_decisions(report)))
        return current

    def write_tensors(self, tensors: dict[str, Tensor], taken: int, facts: dict[str, Any]) -> Current:
        """Save the tensors and facts of a learner within a transaction; call `tidy` after the commit."""
        content, digest = pack_tensors(tensors, {"taken": taken} | facts)
        path = self.folder / _learner_name(digest)
        write_whole(path, content, private=True)
        self.replace("learner", [(0, path.name, digest, taken)])
        return Current(path, digest, taken)

    def classifier_path(self, current: Current) -> Path:
        """Return the path of the classifier of this learner."""
        return self.folder / f"classifier-{current.digest[:16]}.safetensors"

    def tidy(self, current: Current | None) -> None:
        """Remove the files of earlier learners, and partly written files of a killed process; None: nothing changed."""
        if current is None:
            return
        keep = {current.path, self.classifier_path(current), self.folder / MARK}
        with disk_errors(self.folder):
            for path in self.folder.iterdir():
                if path not in keep and _WRITTEN.fullmatch(path.name) and path.is_file():
                    path.unlink(missing_ok=True)

    def check_destination(self, out: Path) -> None:
        """Raise UserError if `out` is one of the state's own files, also under another name."""
        own = [path for path in self.folder.iterdir() if _OWN.fullmatch(path.name)]
        same = any(path.samefile(out) for path in own if path.exists()) if out.exists() else False
        target = Path(os.path.realpath(out))
        inside = target.parent == Path(os.path.realpath(self.folder)) and _OWN.fullmatch(target.name) is not None
        if same or inside:
            raise UserError(f"{out} belongs to the state {self.folder}: choose another file.")


def is_own(name: str) -> bool:
    """Return whether a file of this name in a state folder belongs to the state."""
    return _OWN.fullmatch(name) is not None


@contextmanager
def _checked(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a state for reading; UserError if it is none, or behind its mark. Nothing is changed."""
    path = folder / DATABASE
    check_regular([folder / MARK, *files_of(path)])
    if not path.exists():
        raise _no_state(folder)
    marked = read_mark(folder / MARK)  # before the database, to which another process may add commits meanwhile
    if path.stat().st_size == 0:  # SQLite would remove its journal
        check_mark(path, marked, Commit())
    with closing(schema.connect(path, write=False)) as database:
        check_mark(path, marked, schema.newest_commit(database, path))
        yield database


def _check_whole(folder: Path) -> None:
    """Raise UserError if a folder holds parts of a state, but not all of it; a folder without a state is accepted."""
    path = folder / DATABASE
    check_regular([path, folder / MARK])
    learners = [found.name for found in folder.glob("learner-*") if _WRITTEN.fullmatch(found.name)]
    if not path.exists():
        marked = read_mark(folder / MARK)
        if learners or (marked is not None and marked.number):
            others = "a learner" if learners else MARK
            raise UserError(f"{path} is missing, but {folder} holds {others}: restore the file.")
        return
    with _checked(folder) as database:
        is_new = schema.version_of(database, path) == 0 or _read_settings(database, path) is None
    if is_new and learners:
        raise UserError(f"{path} is damaged: it has no settings, but {folder} holds a learner; restore the file.")


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _no_state(folder: Path) -> UserError:
    return UserError(f"{folder} holds no state: create one with `purereplay learn`.")


def _read_settings(database: sqlite3.Connection, path: Path) -> NewSettings | StateSettings | None:
    """Return the saved settings, or None in a new database."""
    found = schema.query(database, path, "SELECT value FROM facts WHERE name = 'settings'")
    try:
        return from_text(found[0][0]) if found else None
    except (UserError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).rstrip(".")
        raise UserError(f"{path} is damaged or of another version: its settings cannot be read ({reason}).") from None


def _learner_name(digest: str) -> str:
    return f"learner-{digest[:16]}.safetensors"


def _digest(identity: str, label: str, pixels: Pixels) -> bytes:
    digest = hashlib.blake2b(json.dumps([identity, label]).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _decisions(report: FilterReport) -> Iterator[tuple[int, int, float, float, int]]:
    columns = (report.index, report.clean_probability, report.centrality, report.selected_mask)
    for position, probability, centrality, selected in zip(*(c.tolist() for c in columns), strict=True):
        # SQLite has no -0.0
        yield position, report.buffer, float(probability) + 0.0, float(centrality) + 0.0, int(selected)
