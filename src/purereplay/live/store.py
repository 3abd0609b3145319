"""The state folder: every sample, decision and correction in SQLite; networks and buffers beside it.

    state.sqlite                what is known, and which of the files below is the one that counts
    learner-DIGEST.safetensors  base, optimizer, purified buffer and a buffer under way
    classifier-DIGEST.…         the classifier finetuned from that learner, once somebody asked for it
    .lock                       held by the one process that writes

A file is written whole before the database names it, in the transaction that records what it stands for; the one
before it goes after that. So whatever happens when, the database and the file that it names belong together.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.files import disk_errors, held, write_whole
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import UserError
from purereplay.learners.base import Report
from purereplay.live import schema
from purereplay.live.images import Pixels
from purereplay.live.items import Refused
from purereplay.live.settings import StateSettings, Wanted, check_same, from_text, new_settings, to_text

DATABASE = "state.sqlite"


class Row(NamedTuple):
    """A sample as it is kept."""

    position: int
    id: str
    label: str
    pixels: Pixels


class Current(NamedTuple):
    """Which learner counts."""

    path: Path
    digest: str
    taken: int  # samples before this position were given to it


class Store:
    """One state folder, opened by `writing` or `reading`."""

    def __init__(self, folder: Path, database: sqlite3.Connection) -> None:
        self.folder = folder
        self.path = folder / DATABASE
        self.database = database
        self.settings: StateSettings | None = None

    # ---------------------------------------------------------------- opening

    @classmethod
    @contextmanager
    def writing(cls, folder: Path, wanted: Wanted | None) -> Iterator[Store]:
        """The only one to change the state; a new one is begun with what is `wanted`, None: there has to be one."""
        new = new_settings(wanted) if wanted is not None else None
        if wanted is None:
            _check_there(folder)
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with held(folder / ".lock", f"Another process is working on {folder}."):
            if not (folder / DATABASE).exists() and any(folder.glob("learner-*")):
                raise UserError(f"{folder / DATABASE} is missing, but a learner lies beside its place.")
            with closing(schema.connect(folder / DATABASE, write=True)) as database:
                store = cls(folder, database)
                schema.migrate(database, store.path)
                store._check_whole()
                store._read_settings()
                if store.settings is None:
                    if new is None:
                        raise UserError(f"{folder} holds no state: begin one with `purereplay learn`.")
                    with store.transaction():
                        store.write_settings(new)
                elif wanted is not None:
                    check_same(store.settings, wanted, folder)
                yield store

    @classmethod
    @contextmanager
    def reading(cls, folder: Path) -> Iterator[Store]:
        """For any number of readers, also while another process writes."""
        _check_there(folder)
        with closing(schema.connect(folder / DATABASE, write=False)) as database:
            if schema.version_of(database, folder / DATABASE) < schema.VERSION:
                with cls.writing(folder, None):
                    pass  # it is brought up to date
            store = cls(folder, database)
            store._read_settings()
            if store.settings is None:
                raise UserError(f"{folder} holds no state: begin one with `purereplay learn`.")
            yield store

    def transaction(self) -> AbstractContextManager[None]:
        """All that is written within, or nothing."""
        return schema.transaction(self.database, self.path)

    def snapshot(self) -> AbstractContextManager[None]:
        """All that is read within is of one moment."""
        return schema.transaction(self.database, self.path, "DEFERRED")

    def _check_whole(self) -> None:
        """Complain of a file whose structure is broken; the samples' own digests are checked when they are read."""
        with schema.database_errors(self.path):
            [found] = self.database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise UserError(f"{self.path} is damaged: {found.splitlines()[-1]}.")

    def _read_settings(self) -> None:
        found = self.one("SELECT value FROM facts WHERE name = 'settings'")
        try:
            self.settings = from_text(found[0]) if found else None
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{self.path} is damaged: its settings cannot be read ({error}).") from None

    def query(self, sql: str, values: Iterable[object] = ()) -> list[Any]:
        """The rows that a statement gives; damage that is met on the way is a sentence."""
        with schema.database_errors(self.path):
            return self.database.execute(sql, tuple(values)).fetchall()

    def one(self, sql: str, values: Iterable[object] = ()) -> Any:
        """The first row; None where there is none."""
        return next(iter(self.query(sql, values)), None)

    # ---------------------------------------------------------------- samples; to be called within a transaction

    def write_settings(self, settings: StateSettings) -> None:
        self.query("INSERT OR REPLACE INTO facts VALUES ('settings', ?)", [to_text(settings)])
        self.settings = settings

    def add(self, identity: str, label: str, pixels: Pixels) -> bool:
        """Keep a sample; False where it is there already, Refused where another one has its id."""
        digest = _digest(identity, label, pixels)
        found = self.one(
            "SELECT digest, c.label FROM samples s JOIN classes c ON c.code = s.label WHERE id = ?", [identity]
        )
        if found:
            if found[0] != digest:
                what = "another image" if found[1] == label else f"the label {found[1]!r}"
                raise Refused(f"was given before with {what}; `purereplay correct` changes labels")
            return False
        values = (self.n_samples, identity, self.code(label), pixels.tobytes(), digest)
        self.query("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", values)
        return True

    def code(self, label: str) -> int:
        """The number of a label; a new one gets the next."""
        found = self.one("SELECT code FROM classes WHERE label = ?", [label])
        if found:
            return int(found[0])
        [n] = self.one("SELECT count(*) FROM classes")
        self.query("INSERT INTO classes VALUES (?, ?)", [n, label])
        return int(n)

    @property
    def n_samples(self) -> int:
        [last] = self.one("SELECT max(position) FROM samples")
        return 0 if last is None else int(last) + 1

    def labels(self) -> list[str]:
        """The labels by their numbers."""
        return [label for (label,) in self.query("SELECT label FROM classes ORDER BY code")]

    def rows(self, positions: list[int]) -> list[Row]:
        """Samples by position, each checked against its digest."""
        assert self.settings is not None and self.settings.shape is not None
        found = []
        for position in positions:
            row = self.one(
                "SELECT id, c.label, pixels, digest FROM samples s JOIN classes c ON c.code = s.label"
                " WHERE position = ?",
                [position],
            )
            if row is None:
                raise UserError(f"{self.path} is damaged: sample {position} is missing.")
            identity, label, content, digest = row
            pixels = np.frombuffer(content, np.uint8)
            if digest != _digest(identity, label, pixels):
                raise UserError(f"{self.path} is damaged: sample {identity} is not what was written.")
            found.append(Row(position, identity, label, pixels.reshape(self.settings.shape)))
        return found

    def batch(self, start: int, stop: int) -> Batch:
        """The samples of positions start … stop - 1 as a learner sees them."""
        rows = self.rows(list(range(start, stop)))
        codes = {label: code for code, label in enumerate(self.labels())}
        images = torch.from_numpy(np.stack([row.pixels for row in rows]))
        labels = torch.tensor([codes[row.label] for row in rows], dtype=torch.int64)
        return Batch(images, labels, torch.arange(start, stop))

    # ---------------------------------------------------------------- the learner

    def current(self) -> Current | None:
        """The learner that counts; None: nothing was learned yet."""
        found = self.one("SELECT file, digest, taken FROM learner")
        return Current(self.folder / found[0], found[1], found[2]) if found else None

    def tensors(self, current: Current) -> dict[str, Tensor]:
        """The learner's state, checked."""
        try:
            saved = unpack_tensors(current.path)
        except ValueError as error:
            raise UserError(f"{current.path} {error}.") from None
        if saved.digest != current.digest:
            raise UserError(f"{current.path} is damaged: it is not the one that {DATABASE} names.")
        return saved.tensors

    def write_learner(
        self, tensors: dict[str, Tensor], taken: int, purified_index: Tensor, report: Report | None
    ) -> Current:
        """Keep a learner and what it decided; within a transaction. `tidy` follows once that is over."""
        content, digest = pack_tensors(tensors, {"taken": taken})
        path = self.folder / f"learner-{digest[:16]}.safetensors"
        write_whole(path, content)
        self.query("INSERT OR REPLACE INTO learner VALUES (0, ?, ?, ?)", [path.name, digest, taken])
        self.query("DELETE FROM purified")
        held_now = [(position,) for position in purified_index.tolist()]
        with schema.database_errors(self.path):
            self.database.executemany("INSERT INTO purified VALUES (?)", held_now)
            if report is not None:
                self.database.executemany("INSERT INTO decisions VALUES (?, ?, ?, ?, ?)", _decisions(report))
        return Current(path, digest, taken)

    def classifier_path(self, current: Current) -> Path:
        """Where the classifier of this learner is kept."""
        return self.folder / f"classifier-{current.digest[:16]}.safetensors"

    def tidy(self, current: Current) -> None:
        """Remove the files of earlier learners, and what a kill left half-written."""
        keep = {current.path, self.classifier_path(current)}
        with disk_errors(self.folder):
            for path in [*self.folder.glob("learner-*"), *self.folder.glob("classifier-*")]:
                if path not in keep:
                    path.unlink(missing_ok=True)


def _check_there(folder: Path) -> None:
    if not (folder / DATABASE).exists():
        raise UserError(f"{folder} holds no state: begin one with `purereplay learn`.")


def _digest(identity: str, label: str, pixels: Pixels) -> bytes:
    digest = hashlib.blake2b(json.dumps([identity, label]).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _decisions(report: Report) -> Iterator[tuple[int, int, float, float, int]]:
    assert report.clean_probability is not None and report.centrality is not None
    assert report.selected_mask is not None
    columns = (report.index, report.clean_probability, report.centrality, report.selected_mask)
    for position, probability, centrality, selected in zip(*(c.tolist() for c in columns), strict=True):
        yield position, report.buffer, probability, centrality, int(selected)
