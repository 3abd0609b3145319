"""The mark of a state: the newest commit that was acknowledged, in a file of its own beside the database.

SQLite ends a damaged write-ahead log at the last commit before the damage, without an error, and the digests in the
database go back with it. The mark does not. It is on the disk before a sample is acknowledged, and a database that is
behind it has lost commits. A database ahead of it is whole: the process was killed between a commit and its mark.

The file has two slots, each with a digest of its own, which are written in turn. So a write that is cut off, or a
damaged slot, leaves the commit before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, NamedTuple

from purereplay.data.files import disk_errors, open_regular, write_whole
from purereplay.errors import UserError

MARK = "state.mark"
_SLOT = 4096  # bytes; a block of the file system, so that a write that is cut off damages one slot
_LINE = re.compile(rb"(commit (\d{1,19}) digest ([0-9a-f]{32}) samples (\d{1,19})) ([0-9a-f]{32})\n", re.ASCII)


class Commit(NamedTuple):
    """One commit of a state."""

    number: int = 0  # from 1; 0: the state has none
    digest: str = ""  # of all tables
    n_samples: int = 0


class Mark:
    """The open file of a writer."""

    def __init__(self, path: Path, file: IO[bytes], marked: Commit) -> None:
        self.path = path
        self._file = file
        self._marked = marked

    @classmethod
    @contextmanager
    def writing(cls, path: Path, newest: Commit) -> Iterator[Mark]:
        """Open the mark, created if it is missing, and raise it to the newest commit of the database."""
        marked = read_mark(path)
        if marked is None:
            write_whole(path, 2 * _slot(newest), private=True)
            marked = newest
        with disk_errors(path):
            file = os.fdopen(open_regular(path, write=True), "r+b", buffering=0)
        with file:
            mark = cls(path, file, marked)
            mark.write(newest)
            yield mark

    def write(self, commit: Commit) -> None:
        """Put a commit on the disk before it is acknowledged."""
        if commit == self._marked:
            return
        with disk_errors(self.path):
            self._file.seek(commit.number % 2 * _SLOT)
            slot = _slot(commit)
            if self._file.write(slot) != len(slot):
                raise OSError("the disk is full")
            getattr(os, "fdatasync", os.fsync)(self._file.fileno())
        self._marked = commit


def read_mark(path: Path) -> Commit | None:
    """Return the newest commit of the mark; None if there is no file. UserError if no slot is whole."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            content = file.read(2 * _SLOT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    found = [commit for start in (0, _SLOT) if (commit := _commit(content[start : start + _SLOT])) is not None]
    if not found:
        raise UserError(
            f"{path} is damaged, so that a loss of samples would not be noticed: restore the folder from a copy, or "
            "delete the file to continue with what the database holds."
        )
    return max(found)


def check_mark(path: Path, marked: Commit | None, newest: Commit) -> None:
    """Raise UserError if the database at `path`, whose newest commit is given, is behind the mark beside it."""
    if marked is None or newest.number > marked.number or newest == marked:
        return
    if newest.number == marked.number:
        lost = f"it does not match {MARK}"
    else:
        n, m = marked.number - newest.number, marked.n_samples - newest.n_samples
        lost = f"its newest {n:,} of {marked.number:,} commits are missing, with {m:,} of {marked.n_samples:,} samples"
    raise UserError(
        f"{path} is damaged: {lost}; restore the folder from a copy, or delete {MARK} to continue with what is left."
    )


def _slot(commit: Commit) -> bytes:
    line = f"commit {commit.number} digest {commit.digest} samples {commit.n_samples}"
    return f"{line} {_digest(line.encode())}\n".encode().ljust(_SLOT, b"\0")


def _commit(slot: bytes) -> Commit | None:
    """Return the commit of a slot; None if it is damaged."""
    found = _LINE.match(slot)
    if found is None or _digest(found[1]) != found[5].decode():
        return None
    return Commit(int(found[2]), found[3].decode(), int(found[4]))


def _digest(line: bytes) -> str:
    return blake2b(line, digest_size=16).hexdigest()
