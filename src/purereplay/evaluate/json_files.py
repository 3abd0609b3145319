"""JSON files: whole objects and files of one object per line, each of at most a fixed size."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from purereplay.data.own_folder import refuse_links
from purereplay.errors import UserError

Line = dict[str, Any]
MAX_OBJECT = 16 << 20  # bytes; a result of a thousand classes takes some 50 KB
MAX_LINES = 256 << 20  # bytes of a file of lines


def json_bytes(values: Line) -> bytes:
    """Return the contents of a JSON file."""
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


def read_json(path: Path, missing: str) -> Line:
    """Read a JSON object of a run; `missing` is the error message if there is no such file. Links are not followed."""
    refuse_links([path])
    try:
        values = parse_object(read_text(path, MAX_OBJECT, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(missing) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    return values


def read_lines(path: Path, *, follow: bool = True) -> list[bytes]:
    """Return the lines of a file with their ends; OSError or ValueError if it cannot be read."""
    return io.BytesIO(_read(path, MAX_LINES, follow=follow)).readlines()


def without_torn(lines: list[bytes]) -> list[bytes]:
    """Return the lines without a last one that a kill cut short: it has no end and is not complete JSON."""
    if not lines or lines[-1].endswith(b"\n"):
        return lines
    try:
        json.loads(lines[-1].decode())
    except (json.JSONDecodeError, UnicodeDecodeError):
        return lines[:-1]
    except (ValueError, RecursionError):
        return lines
    return lines


def parse_line(line: bytes) -> Line:
    """Return the JSON object of a line of a file; ValueError if it holds anything else."""
    try:
        return parse_object(line.decode())
    except json.JSONDecodeError as error:  # its text names a line, which is always 1
        raise ValueError(f"{error.msg.removesuffix(' at')} at character {error.colno}") from None


def read_text(path: Path, most: int, *, follow: bool = True) -> str:
    """Return the text of a regular file of at most `most` bytes; OSError or ValueError if it is something else.

    `follow`: whether it may be a link.
    """
    return _read(path, most, follow=follow).decode("utf-8")


def _read(path: Path, most: int, *, follow: bool) -> bytes:
    with io.BufferedReader(io.FileIO(path, opener=_open if follow else _open_itself)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        content = b"" if found.st_size > most else file.read(most + 1)  # it may grow meanwhile
    if max(found.st_size, len(content)) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return content


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer would block


def _open_itself(path: str, flags: int) -> int:
    return _open(path, flags | getattr(os, "O_NOFOLLOW", 0))


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
