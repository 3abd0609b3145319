"""The filter's answer as a file: a row a sample, as CSV or parquet, there whole or not at all."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from purereplay.data.files import whole_file
from purereplay.data.parquet import pyarrow_for, write_parquet
from purereplay.errors import UserError

SUFFIXES = (".csv", ".parquet")
_LINES = 65536  # written at a time


def check_place(path: Path, source: Path) -> None:
    """UserError if scores of `source` could not be written to `path`; so that nobody waits for that."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path} is none of the kinds of file that can be written: {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}.")
    if path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder.")
    if path.exists() and source.exists() and path.samefile(source):
        raise UserError(f"{path} holds the features: choose another file for the scores.")
    if path.suffix.lower() == ".parquet":
        pyarrow_for(path)


def write_scores(path: Path, columns: Mapping[str, Any]) -> None:
    """Equally long columns by name: arrays or lists. Numbers keep every digit; bool is written true and false."""
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
    return cells
