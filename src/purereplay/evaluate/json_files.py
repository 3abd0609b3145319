"""JSON files: whole objects and files of one object per line, each of at most a fixed size."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from purereplay.data.files import write_whole
from purereplay.errors import UserError

Line = dict[str, Any]
MAX_OBJECT = 16 << 20  # bytes; a result of a thousand classes takes some 50 KB
MAX_LINES = 256 << 20  # bytes of a file of lines


def write_json(path: Path, values: Line) -> None:
    """Write a JSON file atomically."""
    write_whole(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, missing: str) -> Line:
    """Read a JSON object; `missing` is the error message if there is no such file."""
    try:
        values = parse_object(read_text(path, MAX_OBJECT))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(missing) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    return values


def read_text_lines(path: Path) -> list[str]:
    """Return the lines of a file without their ends; OSError or ValueError if it cannot be read."""
    lines = read_text(path, MAX_LINES).split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_text(path: Path, most: int) -> str:
    """Return the text of a regular file of at most `most` bytes; OSError or ValueError if it is something else."""
    with io.BufferedReader(io.FileIO(path, opener=_open)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        content = b"" if found.st_size > most else file.read(most + 1)  # it may grow meanwhile
    if max(found.st_size, len(content)) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return content.decode("utf-8")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer would block


def parse_object(text: str) -> Line:
    """Return a JSON object; ValueError if the text is something else, or holds NaN or infinity."""
    if len(text) > MAX_OBJECT:
        raise ValueError(f"a line is longer than {MAX_OBJECT >> 20} MiB")
    try:
        values = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it does not hold a JSON object")
    return values


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")
