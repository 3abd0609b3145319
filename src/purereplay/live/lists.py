"""Lists of samples: CSV files and JSON lines, from a file or a pipe; unusable lines are refused by number.

    CSV      a header with `path` and `label`, optionally `id`
    JSONL    one object per line with the same names, or with `image` (base64 of an image file) instead of `path`

The default id is the path. Paths are relative to one folder; a path that leads out of it is refused. A list has no more
than `csv_files.MAX_ROW` bytes per CSV row, or MAX_LINE per JSON line.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NoReturn

from purereplay.data.csv_files import BadRow, open_csv
from purereplay.errors import UserError
from purereplay.live.items import Item, Offer, Refusal, Refused, checked_id, checked_label, short

NOT_FOUND = "was not found in "  # begins the reason for refusing a path; the folder follows
MAX_LINE = 16 * 2**20  # bytes of a JSON line
_OPTIONAL = ("id", "image")  # columns that are read if they are there


def read_csv(path: Path, root: Path) -> Iterator[Offer]:
    """Yield the rows of a list of files."""
    for number, row in csv_rows(path, ("path", "label")):
        yield row if isinstance(row, Refusal) else offer_from(None, row, root, number)


def csv_rows(
    path: Path, columns: tuple[str, ...], *, one_of: tuple[str, ...] = ()
) -> Iterator[tuple[int, dict[str, Any] | Refusal]]:
    """Yield the lines of a CSV file as number and named fields; unusable lines are refused.

    Fields that are empty or missing are None. The header must have all of `columns`, and exactly one of the columns
    `one_of`.
    """
    # invalid UTF-8 is detected when a label or id is checked
    with readable(path), open_csv(path, errors="surrogateescape") as table:
        rows = iter(table)
        header = _header(path, next(rows, []), columns, one_of)
        for row in rows:
            if isinstance(row, BadRow):
                until = f" (lines {row.first} to {row.last})" if row.last > row.first else ""
                yield row.first, Refusal(None, f"is not CSV{until}: {row.reason}", row.first)
            elif len(row) > len(header):
                reason = f"has {len(row):,} cells, but the header {len(header):,}"
                yield table.line, Refusal(None, reason, table.line)
            elif row:
                cells = zip_longest(header, row)  # a spreadsheet may leave out empty cells at the end
                yield table.line, {name: text or None for name, text in cells}


def _header(path: Path, row: list[str] | BadRow, columns: tuple[str, ...], one_of: tuple[str, ...]) -> list[str]:
    """Return the names of the columns; UserError unless each that is needed is there, and none that is read twice."""
    if isinstance(row, BadRow):
        raise UserError(f"The header of {path} cannot be read: {row.reason}.")
    header = [name.strip().lower() for name in row]
    found = [name for name in one_of if name in header]
    if not set(columns) <= set(header) or (one_of and not found):
        has = short(", ".join(name.strip() for name in row)) if row else "nothing"
        needed = " and ".join((*columns, *one_of[:1]))
        raise UserError(f"{path} needs a header with the columns {needed}; it has: {has}.")
    if len(found) > 1:
        raise UserError(f"{path} has the columns {' and '.join(found)}: remove one of them.")
    for name in (*columns, *one_of, *_OPTIONAL):
        if header.count(name) > 1:
            raise UserError(f"{path} has two columns named {name!r}.")
    return header


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an error while reading a file into UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_jsonl(path: Path, root: Path) -> Iterator[Offer]:
    """Yield the JSON lines of a file."""
    with readable(path), path.open("rb") as file:
        yield from read_lines(file, root)


def read_lines(file: IO[bytes], root: Path) -> Iterator[Offer]:
    """Yield the JSON lines of an open file or pipe; unusable lines are refused by number."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE)
            yield Refusal(None, f"has more than {MAX_LINE:,} bytes", number)
        elif line.strip():
            yield read_line(line, number, root)


def read_line(line: bytes, number: int, root: Path) -> Offer:
    """Read one JSON line."""
    try:
        fields = json.loads(line.strip(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        return Refusal(None, f"is not JSON: {short(str(error))}", number)
    if not isinstance(fields, dict):
        return Refusal(None, "is not a JSON object", number)
    return offer_from(None, fields, root, number)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def offer_from(name: str | None, fields: dict[str, Any], root: Path, line: int | None = None) -> Offer:
    """Make an item from named fields."""
    try:
        path = fields.get("path")
        identity = checked_id(path if fields.get("id") is None else fields["id"])
        name = identity
        label = checked_label(fields.get("label"))
        if path is not None and fields.get("image") is not None:
            raise Refused("has both a path and an image")
        if path is None:
            return Item(identity, label, _embedded(fields.get("image")), line)
        image, real_root = within(path, root)
        return Item(identity, label, image, line, real_root)
    except Refused as reason:
        return Refusal(name, str(reason), line)


def within(path: object, root: Path) -> tuple[Path, Path]:
    """Return a path below `root` and `root` itself, both absolute and without links, or raise Refused."""
    if not isinstance(path, str) or not path:
        raise Refused("has a path that is not text")
    try:
        found, real_root = (root / path).resolve(strict=True), root.resolve()
        inside = found.is_relative_to(real_root)
    except FileNotFoundError:
        raise Refused(f"{NOT_FOUND}{root}") from None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise Refused(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not inside:
        raise Refused(f"leads out of the folder {root}")
    return found, real_root


def _embedded(text: object) -> bytes:
    if text is None:
        raise Refused("has neither a path nor an image")
    if not isinstance(text, str):
        raise Refused("has an image that is not base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(f"has an image that is not base64: {error}") from None
