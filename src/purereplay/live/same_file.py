"""The only writer of a state folder, and the files that it has open: a folder that was moved or deleted is detected.

The folder itself is locked as well as the file `.lock` in it, so that deleting the file lets nobody in. The lock file
stays, since version 0.1.0 locks only that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from purereplay.data.files import disk_errors, held
from purereplay.errors import BusyError, UserError


class SameFile(NamedTuple):
    """A file that is open, and the path where it must stay."""

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> SameFile:
        """Remember the file at `path`; UserError if there is none."""
        try:
            found = path.lstat()
        except OSError:
            raise _gone(path) from None
        return cls(path, found.st_dev, found.st_ino)

    @classmethod
    def create(cls, path: Path) -> SameFile:
        """Remember the file at `path`, created empty if there is none."""
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return cls.of(path)

    def check(self) -> None:
        """Raise UserError if the path leads to another file now, or to none."""
        if SameFile.of(self.path) != self:
            raise _gone(self.path)


def check_regular(paths: Iterable[Path]) -> None:
    """Raise UserError if a file of a state is a link, a folder, a pipe or a device; a missing file is accepted.

    SQLite follows links, and waits for the writer of a pipe.
    """
    for path in paths:
        try:
            mode = path.lstat().st_mode
        except OSError:  # missing, or opening it fails with the reason
            continue
        if not stat.S_ISREG(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
            raise UserError(f"{path} is {kind}, but the files of a state are regular files: restore the file.")


def _gone(path: Path) -> UserError:
    return UserError(
        f"{path} was deleted, moved or replaced while it was in use, so no more samples are acknowledged: "
        "restore the folder and run the command again."
    )


@contextmanager
def only_writer(folder: Path) -> Iterator[SameFile]:
    """Exclude other writers; yields the lock file. BusyError if another process writes."""
    busy = f"Another process is working on {folder}: wait until it has finished."
    lock = folder / ".lock"
    with _locked_folder(folder, busy), held(lock, busy, private=True):
        yield SameFile.of(lock)


@contextmanager
def _locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Lock a folder, if the system and the file system can."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with disk_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(busy) from None
        except OSError:
            pass  # some network file systems lock no folders
        yield
    finally:
        os.close(descriptor)
