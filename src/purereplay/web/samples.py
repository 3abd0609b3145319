"""Samples to be reviewed: those of a state, or the rows of an audit file with a folder of images.

Samples have numbers, which the page uses: the position in a state, or the row of an audit. Ids are never part of a path
on the disk here; they are looked up by number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.csv_files import BadRow, open_csv
from purereplay.data.text import spreadsheet_raw
from purereplay.errors import UserError
from purereplay.live.encoding import inputs
from purereplay.live.items import Refused, checked_id, checked_label
from purereplay.live.lists import readable
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.originals import THUMBNAIL, Shown, copy_of, read_file, read_shown
from purereplay.live.reviewed import absorbed, audit_log, log_path
from purereplay.live.store import Store
from purereplay.live.verdicts import unjudged

Whole = NDArray[np.int64]
_SCORED = (
    "SELECT d.position, s.label, iif(u.position IS NULL, d.probability, NULL), d.selected, d.buffer"
    " FROM decisions d JOIN samples s USING (position) LEFT JOIN ({unjudged}) u USING (position)"
)
_TABLES = "('classes', 'corrections', 'decisions', 'likely')"  # on which the verdicts depend
_COLUMNS = ("id", "given_label", "clean_probability", "decision")  # of an audit, those that are needed
_MAX_ROWS = 10_000_000


class Table(NamedTuple):
    """Scored samples, one entry each, sorted by doubt: the lowest clean probability first, unjudged samples last."""

    number: Whole  # of the sample
    label: Whole  # number of the given label
    probability: NDArray[np.float64]  # of being clean, high = clean; NaN: the sample could not be judged
    accepted: NDArray[np.bool_]  # whether the sample passed the filter; False: rejected, or not judged
    buffer: Whole

    @classmethod
    def sorted_by_doubt(cls, columns: list[Any]) -> Table:
        """Return a table from five columns in any order of rows."""
        number, label, given, selected, buffer = columns
        probability = np.asarray(given, np.float64)  # None becomes NaN, which is sorted last
        order = np.lexsort((number, probability))
        kinds = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        values = (number, label, probability, np.asarray(selected, np.bool_) & ~np.isnan(probability), buffer)
        return cls(*(np.asarray(v, kind)[order] for v, kind in zip(values, kinds, strict=True)))


class Scores(NamedTuple):
    """All verdicts of a state at one moment."""

    version: object  # differs if any verdict or label does
    labels: list[str]
    table: Table


def read_scores(store: Store, known: Scores | None = None) -> Scores:
    """Return the verdicts of a state; `known` itself if they are the same. Call within a snapshot."""
    version = store.query(f"SELECT name, n, digest FROM digests WHERE name IN {_TABLES} ORDER BY name")
    if known is not None and known.version == version:
        return known
    rows = store.query(_SCORED.format(unjudged=unjudged(store)))
    return Scores(version, store.labels(), Table.sorted_by_doubt(list(zip(*rows, strict=True)) if rows else [[]] * 5))


class Samples(ABC):
    """Scored samples with their images; read-only."""

    labels: list[str]
    table: Table
    log: Path  # of the decisions
    floor: int = 0  # number of the last entry of the log that a state has absorbed
    has_buffers: bool = True  # False: all samples were judged together

    def refresh(self) -> bool:
        """Read what another process has changed; returns whether anything was."""
        return False

    @abstractmethod
    def names(self, numbers: list[int]) -> list[str]:
        """Return the ids of samples."""

    @abstractmethod
    def find(self, name: str) -> int | None:
        """Return the number of a scored sample by its id, or None."""

    @abstractmethod
    def image(self, number: int, size: int) -> Shown | Callable[[], Shown]:
        """Return an image of at most `size` pixels, or the function that reads it from a file, in any thread.

        The function raises Refused if the file cannot be read.
        """

    def input(self, number: int) -> Tensor:
        """Return a sample as a classifier takes it, (1, …); Refused if it cannot be read."""
        raise Refused("has no classifier")


class StateSamples(Samples):
    """Samples of a state, which another process may be writing."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log = log_path(store.folder)
        self.has_buffers = store.settings.learner != FULL_MEMORY
        self.newest: Scores | None = None  # read by another thread, to be used from the next request on
        with store.snapshot():
            self.scores = read_scores(store)
            self.floor = absorbed(store).number
        self._use(self.scores)

    def _use(self, scores: Scores) -> None:
        self.scores, self.labels, self.table = scores, scores.labels, scores.table

    def refresh(self) -> bool:
        newest = self.newest
        if newest is None or newest is self.scores:
            return False
        self._use(newest)
        return True

    def names(self, numbers: list[int]) -> list[str]:
        found = [self.store.one("SELECT id FROM samples WHERE position = ?", [n]) for n in numbers]
        return [str(row[0]) for row in found]

    def find(self, name: str) -> int | None:
        sql = "SELECT d.position FROM samples s JOIN decisions d USING (position) WHERE s.id = ?"
        row = self.store.one(sql, [name])
        return None if row is None else int(row[0])

    def image(self, number: int, size: int) -> Shown | Callable[[], Shown]:
        copy = copy_of(self.store, number)
        read = partial(read_shown, copy, size)
        return read if size > THUMBNAIL and copy.places else read()

    def input(self, number: int) -> Tensor:
        return inputs(self.store, np.array([number]))


class AuditSamples(Samples):
    """Rows of an audit file, with the images below a folder."""

    def __init__(self, audit: Path, images: Path) -> None:
        if not images.is_dir():
            raise UserError(f"--images needs a folder; {images} is not one.")
        self.images = images
        self.log = audit_log(audit)
        self._names: list[str] = []
        self.suggested: list[int] = []  # number of the likely other label, -1: none
        self.chance: list[float] = []
        codes: dict[str, int] = {}
        lines = _audit_rows(audit)
        self.has_buffers = any(row.get("centrality") for _, row in lines)  # the learner full-memory has none
        rows = [self._row(audit, line, n, row, codes) for n, (line, row) in enumerate(lines)]
        self.labels = list(codes)
        self._found = {name: n for n, name in enumerate(self._names)}
        self.table = Table.sorted_by_doubt(list(zip(*rows, strict=True)) if rows else [[]] * 5)

    def _row(self, audit: Path, line: int, n: int, row: dict[str, str], codes: dict[str, int]) -> tuple[float, ...]:
        try:
            name, label = (checked_id(row["id"]), checked_label(row["given_label"]))
            other = row.get("likely_other_label")
            code = codes.setdefault(label, len(codes))
            self._names.append(name)
            self.suggested.append(codes.setdefault(checked_label(other), len(codes)) if other else -1)
            self.chance.append(float(row.get("likely_other_probability") or "nan"))
            probability = math.nan if row["decision"] == "unjudged" else float(row["clean_probability"])
            if math.isnan(probability) and row["decision"] != "unjudged":
                raise ValueError("its clean probability is not a number")
            return n, code, probability, row["decision"] == "accepted", int(row.get("buffer") or 0)
        except (Refused, ValueError) as reason:
            raise UserError(f"Line {line} of {audit} cannot be used: {reason}.") from None

    def names(self, numbers: list[int]) -> list[str]:
        return [self._names[n] for n in numbers]

    def find(self, name: str) -> int | None:
        return self._found.get(name)

    def image(self, number: int, size: int) -> Shown | Callable[[], Shown]:
        return partial(read_file, self.images, self._names[number], size)


def _audit_rows(audit: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of an audit file, each with its line; UserError if it is another kind of file."""
    with readable(audit), open_csv(audit, errors="surrogateescape") as table:
        rows = iter(table)
        header = next(rows, [])
        if isinstance(header, BadRow) or not set(_COLUMNS) <= set(header):
            raise UserError(f"{audit} is not an audit: it needs the columns {', '.join(_COLUMNS)}.")
        found = []
        for row in rows:
            if isinstance(row, BadRow):
                raise UserError(f"Line {row.first} of {audit} is not CSV: {row.reason}.")
            if not any(row):
                continue
            if len(row) < len(header):
                raise UserError(f"Line {table.line} of {audit} has {len(row)} cells, but the header has {len(header)}.")
            cells = {name: spreadsheet_raw(cell) for name, cell in zip(header, row, strict=False)}
            found.append((table.line, cells))
            if len(found) > _MAX_ROWS:
                raise UserError(f"{audit} has more than {_MAX_ROWS:,} rows.")
    return found
