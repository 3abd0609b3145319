"""The paper's numbers: every cell of every table, as printed there (in %)."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from purereplay.errors import UserError


class Column(NamedTuple):
    """One column of a table: a noise, or a class of WebVision."""

    noise: str  # as in a run's settings
    rate: float
    name: str = ""  # of a column that the noise does not name

    def __str__(self) -> str:
        return self.name or ("clean" if self.noise == "none" else f"{self.noise} {100 * self.rate:g}")


class PaperTable(NamedTuple):
    """One of the paper's tables, for one dataset; methods and columns in the paper's order."""

    name: str
    dataset: str  # as in a run's settings
    measure: str  # as in a run's result
    methods: list[str]
    columns: list[Column]
    values: dict[tuple[str, Column], float]  # %


_NOISES = {"random_symmetric": "symmetric", "superclass_symmetric": "superclass", "real": "none"}
_DATASETS = {"webvision": "webvision14"}
WEBVISION_COLUMNS = {"Cinema": "cinema", "Spiral": "spiral", "ATM": "cash machine", "Frog": "frog"}  # paper: our class


def paper_table(name: str, dataset: str) -> PaperTable:
    """Return a table of the paper; UserError if there is none of this name and dataset."""
    dataset = _DATASETS.get(dataset, dataset)
    rows = [row for row in _rows() if (row["table"], row["dataset"]) == (name, dataset)]
    if not rows:
        known = sorted(f"{table} of {data}" for table, data in _table_keys())
        raise UserError(f"The paper has no table {name} of {dataset}: it has {', '.join(known)}.")
    values = {}
    for row in rows:
        noise = _NOISES.get(row["noise"], row["noise"])
        own_name = row["class"] or ("real noise" if row["noise"] == "real" else "")
        column = Column(noise, 0.0 if noise == "none" else float(row["noise_rate"]), own_name)
        values[row["method"], column] = float(row["value"])
    methods, columns = list(dict.fromkeys(m for m, _ in values)), list(dict.fromkeys(c for _, c in values))
    return PaperTable(name, dataset, rows[0]["metric"], methods, columns, values)


def paper_tables() -> list[PaperTable]:
    """Return all tables of the paper."""
    return [paper_table(name, dataset) for name, dataset in _table_keys()]


def _table_keys() -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["table"], row["dataset"]) for row in _rows()))


@cache
def _rows() -> list[dict[str, str]]:
    """Return every number; the dataset of a class of WebVision is split into dataset and class."""
    text = files("purereplay.paper").joinpath("numbers.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    for row in rows:
        dataset, _, row["class"] = row["dataset"].partition(":")
        row["dataset"] = _DATASETS.get(dataset, dataset)
    return rows
