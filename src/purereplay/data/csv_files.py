"""Rows of CSV files in UTF-8 or UTF-16, in bounded memory whatever a file holds.

Used by the filter's tables, by lists of samples and by corrections. A row may be quoted and take several lines. A quote
that is not closed is an error instead of a cell that holds the rest of the file. Cells are separated by commas, or by
the semicolons or tabs that some spreadsheets write, if the header has them and no comma. A first line `sep=;`, as Excel
writes it, names the separator.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from purereplay.errors import UserError

MAX_ROW = 16 * 2**20  # bytes of a row
_BUFFER = 2**16  # bytes read ahead


class BadRow(NamedTuple):
    """A row that cannot be read."""

    reason: str  # the end of a sentence that starts with its line
    first: int  # line on which it begins, from 1
    last: int  # last line that was read


class _TooLong(Exception):
    pass


class _Source(io.RawIOBase):
    """Bytes of a file, of which at most MAX_ROW and some more are read until `n` is set back to 0."""

    def __init__(self, file: io.FileIO) -> None:
        self.n = 0  # bytes read
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        n = self._file.readinto(buffer)
        self.n += n or 0
        if self.n > MAX_ROW + _BUFFER:
            raise _TooLong
        return n

    def tell(self) -> int:
        return self._file.tell()


class CsvRows:
    """The rows of an open CSV file, one after the other; a row that cannot be read is a BadRow."""

    def __init__(self, file: io.FileIO, errors: str, form: _Form) -> None:
        self.size = os.fstat(file.fileno()).st_size
        self._source = _Source(file)
        buffered = io.BufferedReader(self._source, _BUFFER)
        text = io.TextIOWrapper(buffered, encoding=form.encoding, errors=form.errors or errors, newline="")
        self._reader = csv.reader(text, strict=True, delimiter=form.delimiter)
        if form.names_delimiter:
            next(self._reader)

    def __iter__(self) -> Iterator[list[str] | BadRow]:
        source, reader = self._source, self._reader
        line = reader.line_num
        while True:
            try:
                for row in reader:
                    source.n = 0
                    line = reader.line_num
                    yield row
                return
            except csv.Error as error:
                is_end = str(error) == "unexpected end of data"
                yield BadRow(f"{error}{': a quote is not closed' if is_end else ''}", line + 1, reader.line_num)
                source.n, line = 0, reader.line_num
            except UnicodeDecodeError as error:
                if error.encoding.startswith("utf-8"):
                    raise
                yield BadRow("it is not valid UTF-16; nothing after it is read", line + 1, reader.line_num + 1)
                return
            except _TooLong:
                reason = f"it has more than {MAX_ROW:,} bytes; nothing after it is read"
                yield BadRow(reason, line + 1, reader.line_num + 1)
                return

    @property
    def line(self) -> int:
        """The line on which the last row ends, from 1."""
        return self._reader.line_num

    @property
    def done(self) -> int:
        """Bytes read so far, of `size`."""
        return self._source.tell()


@contextmanager
def open_csv(path: Path, *, errors: str = "strict") -> Iterator[CsvRows]:
    """Open a CSV file; UserError if it is a pipe or a device, which may have no end."""
    # a pipe that nobody writes to would block
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with io.FileIO(descriptor) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"{path} is not a regular file: save the table as a file first.")
        form = _form(path, file.read(_BUFFER))
        file.seek(0)
        yield CsvRows(file, errors, form)


class _Form(NamedTuple):
    """Encoding and separator of a file."""

    encoding: str
    errors: str | None  # None: as the caller says
    delimiter: str
    names_delimiter: bool  # whether the first line does


def _form(path: Path, start: bytes) -> _Form:
    """Tell the form of a file by its first bytes; UserError if it is UTF-16 without a mark."""
    is_wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding, errors = ("utf-16", "surrogatepass") if is_wide else ("utf-8-sig", None)
    first = start.decode(encoding, "replace").partition("\n")[0].rstrip("\r")
    if len(start) > 1 and (start[0] == 0) != (start[1] == 0):
        raise UserError(f"{path} is not text in UTF-8: save the table as CSV in UTF-8.")
    named = re.fullmatch(r'"?sep=([,;\t|])"?', first, re.IGNORECASE)
    delimiter = named[1] if named else next((d for d in ",;\t" if d in first), ",")
    return _Form(encoding, errors, delimiter, named is not None)
