"""Files that are complete or absent: written beside the destination, then renamed.

Used for all output: downloads, members of archives, decoded images, run directories and state folders.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from purereplay.errors import UserError


def verify(path: Path, checksum: str, *, name: str) -> None:
    """Delete `path` and raise UserError unless it has `checksum`."""
    found = file_checksum(path, checksum.partition(":")[0])
    if found != checksum:
        path.unlink(missing_ok=True)
        raise UserError(f"{name} is damaged and was deleted: expected {checksum}, found {found}.")


def file_checksum(path: Path, kind: str) -> str:
    """Return the checksum of a file as "kind:hex"."""
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def move_into_place(part: Path, destination: Path) -> None:
    """Rename a finished file; it is visible complete or not at all, also after a power failure."""
    with disk_errors(destination):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(destination)
        if sys.platform != "win32":  # Windows cannot open a folder; its journal keeps the rename
            folder = os.open(destination.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError, such as a full or read-only disk, into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; the file is renamed to `path` at the end, or removed on an error."""
    part = path.with_name(path.name + ".part")
    with disk_errors(path):
        try:
            yield part
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    move_into_place(part, path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its destination and rename it; an error leaves nothing behind."""
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def wait_for_lock(lock: Path) -> Iterator[None]:
    """Wait for an exclusive lock; it ends with the process. Without support by the file system there is no lock."""
    with disk_errors(lock):
        file = lock.open("ab")
    with file:
        with suppress(OSError):
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def held(lock: Path, busy: str) -> Iterator[None]:
    """Hold an exclusive lock, or raise UserError(busy) if another process has it; it ends with the process."""
    with disk_errors(lock):
        file = lock.open("ab")
    with file:
        if not _try_lock(file.fileno()):
            raise UserError(busy)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no flock, so a second process is not excluded
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
