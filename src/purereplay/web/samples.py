"""Samples to be reviewed: those of a state, or the rows of an audit file with a folder of images.

Samples have numbers, which the page uses: the position in a state, or the row of an audit. Ids are never part of a path
on the disk here; they are looked up by number.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.csv_files import BadRow, open_csv
from purereplay.data.text import spreadsheet_raw
from purereplay.errors import UserError
from purereplay.live.encoding import inputs
from purereplay.live.exporting import audit_log
from purereplay.live.images import Pixels, read_pixels
from purereplay.live.items import Refused, checked_id, checked_label
from purereplay.live.lists import readable, within
from purereplay.live.reviewed import absorbed, log_path
from purereplay.live.store import Store

Whole = NDArray[np.int64]
_SCORED = (
    "SELECT d.position, s.label, d.probability, d.selected, d.buffer FROM decisions d JOIN samples s USING (position)"
)
_COLUMNS = ("id", "given_label", "clean_probability", "decision")  # of an audit, those that are needed
_MAX_ROWS = 10_000_000


class Table(NamedTuple):
    """Scored samples, one entry each, sorted by doubt: the lowest clean probability first."""

    number: Whole  # of the sample
    label: Whole  # number of the given label
    probability: NDArray[np.float64]  # of being clean, high = clean
    accepted: NDArray[np.bool_]  # whether the sample passed the filter
    buffer: Whole

    @classmethod
    def sorted_by_doubt(cls, columns: list[Any]) -> Table:
        """Return a table from five columns in any order of rows."""
        number, label, probability, accepted, buffer = columns
        order = np.lexsort((number, probability))
        kinds = (np.int64, np.int64, np.float64, np.bool_, np.int64)
        values = (number, label, probability, accepted, buffer)
        return cls(*(np.asarray(v, kind)[order] for v, kind in zip(values, kinds, strict=True)))


class Scores(NamedTuple):
    """All verdicts of a state at one moment."""

    version: object  # differs if any verdict or label does
    labels: list[str]
    table: Table


def read_scores(store: Store, known: Scores | None = None) -> Scores:
    """Return the verdicts of a state; `known` itself if they are the same. Call within a snapshot."""
    version = store.query("SELECT name, n, digest FROM digests WHERE name IN ('decisions', 'classes') ORDER BY name")
    if known is not None and known.version == version:
        return known
    rows = store.query(_SCORED)
    return Scores(version, store.labels(), Table.sorted_by_doubt(list(zip(*rows, strict=True)) if rows else [[]] * 5))


class Samples(ABC):
    """Scored samples with their images; read-only."""

    labels: list[str]
    table: Table
    log: Path  # of the decisions
    floor: int = 0  # number of the last entry of the log that a state has absorbed

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
    def pixels(self, number: int) -> Pixels:
        """Return an image uint8 (channels, height, width); Refused if it cannot be read."""

    def input(self, number: int) -> Tensor:
        """Return a sample as a classifier takes it, (1, …); Refused if it cannot be read."""
        return torch.from_numpy(self.pixels(number).copy())[None]


class StateSamples(Samples):
    """Samples of a state, which another process may be writing."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log = log_path(store.folder)
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

    def pixels(self, number: int) -> Pixels:
        return self.store.rows([number])[0].pixels

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
        rows = [self._row(audit, n, row, codes) for n, row in enumerate(_audit_rows(audit))]
        self.labels = list(codes)
        self._found = {name: n for n, name in enumerate(self._names)}
        self.table = Table.sorted_by_doubt(list(zip(*rows, strict=True)) if rows else [[]] * 5)

    def _row(self, audit: Path, n: int, row: dict[str, str], codes: dict[str, int]) -> tuple[float, ...]:
        try:
            name, label = (checked_id(row["id"]), checked_label(row["given_label"]))
            other = row.get("likely_other_label")
            code = codes.setdefault(label, len(codes))
            self._names.append(name)
            self.suggested.append(codes.setdefault(checked_label(other), len(codes)) if other else -1)
            self.chance.append(float(row.get("likely_other_probability") or "nan"))
            probability = float(row["clean_probability"])
            if math.isnan(probability):
                raise ValueError("its clean probability is not a number")
            return n, code, probability, row["decision"] == "accepted", int(row.get("buffer") or 0)
        except (Refused, ValueError) as reason:
            raise UserError(f"Row {n + 1} of {audit} cannot be used: {reason}.") from None

    def names(self, numbers: list[int]) -> list[str]:
        return [self._names[n] for n in numbers]

    def find(self, name: str) -> int | None:
        return self._found.get(name)

    def pixels(self, number: int) -> Pixels:
        path, root = within(self._names[number], self.images)
        return read_pixels(path, size=None, channels=None, shape=None, root=root)


def _audit_rows(audit: Path) -> list[dict[str, str]]:
    """Return the rows of an audit file; UserError if it is none."""
    with readable(audit), open_csv(audit, errors="surrogateescape") as table:
        rows = iter(table)
        header = next(rows, [])
        if isinstance(header, BadRow) or not set(_COLUMNS) <= set(header):
            raise UserError(f"{audit} is not an audit: it needs the columns {', '.join(_COLUMNS)}.")
        found = []
        for row in rows:
            if isinstance(row, BadRow):
                raise UserError(f"Line {row.first} of {audit} is not CSV: {row.reason}.")
            found.append({name: spreadsheet_raw(cell) for name, cell in zip(header, row, strict=False)})
            if len(found) > _MAX_ROWS:
                raise UserError(f"{audit} has more than {_MAX_ROWS:,} rows.")
    return found
