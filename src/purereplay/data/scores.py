"""File of the filter's scores: one row per sample, as CSV or parquet, complete or absent."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from purereplay.data.files import whole_file
from purereplay.data.parquet import pyarrow_for, write_parquet
from purereplay.data.text import spreadsheet_safe
from purereplay.errors import UserError

SUFFIXES = (".csv", ".parquet")
_LINES = 65536  # lines written at a time


def check_destination(path: Path, source: Path) -> None:
    """Raise UserError if scores of `source` cannot be written to `path`; called before the long computation."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} cannot be written: its suffix must be one of {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: the folder {path.parent} does not exist.")
    if path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder.")
    sources = source.iterdir() if source.is_dir() else [source]
    if path.exists() and any(one.exists() and path.samefile(one) for one in sources):
        raise UserError(f"{path} holds features: choose another file for the scores.")
    if path.suffix.lower() == ".parquet":
        pyarrow_for(path)


def write_scores(path: Path, columns: Mapping[str, Any]) -> None:
    """Write equally long columns (arrays or lists) by name; numbers keep all digits, bool becomes true and false.

    In CSV, a text that a spreadsheet would read as a formula gets a leading '; parquet keeps it as it is.
    """
    with whole_file(path) as part:
        if path.suffix.lower() == ".parquet":
            write_parquet(path, columns, to=part)
            return
        n = len(next(iter(columns.values())))
        with part.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns)
            for start in range(0, n, _LINES):
                table.writerows(zip(*(_cells(own[start : start + _LINES]) for own in columns.values()), strict=True))


def _cells(values: Any) -> list[Any]:
    cells = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if isinstance(values, np.ndarray) and values.dtype == bool:
        return ["true" if cell else "false" for cell in cells]
    return [spreadsheet_safe(cell) if isinstance(cell, str) else cell for cell in cells]
