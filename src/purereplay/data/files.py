"""Files that are complete or absent: written beside the destination, then renamed.

Used for all output: downloads, members of archives, decoded images, run directories and state folders.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from purereplay.errors import BusyError, UserError, WriteError

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
_FOLDER = sum(getattr(os, name, 0) for name in ("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
_TOKEN = 8  # random bytes in the name of a partly written file
_NAME = 50  # characters of the destination in that name; file systems allow 255 bytes


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
    """Turn an OSError, such as a full or read-only disk, into a WriteError."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}.") from error


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a path to write to; the file is renamed to `path` at the end, or removed on an error.

    A link is followed. A device or a pipe cannot be replaced by a rename, so it is written into directly. With
    `private` only the owner may read the file, and a link is replaced.
    """
    with disk_errors(path):
        target = path if private else _followed(path)
        if not private and _is_special(target):
            yield target
            return
        part = _new_part(target, 0o600 if private else 0o666)
        try:
            yield part
            move_into_place(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file beside its destination and rename it; an error leaves nothing behind. See `whole_file`."""
    with whole_file(path, private=private) as part:
        part.write_bytes(content)


def open_regular(path: Path, *, write: bool = False, follow: bool = False) -> int:
    """Open a file and return its descriptor; OSError if it is not a regular file, or a link unless `follow` is set.

    O_NONBLOCK: opening a FIFO that nobody writes to returns at once.
    """
    kinds = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", *(() if follow else ("O_NOFOLLOW",)))
    if not follow and path.is_symlink():  # Windows has no O_NOFOLLOW
        raise OSError(errno.ELOOP, "it is a link")
    descriptor = os.open(path, sum((getattr(os, kind, 0) for kind in kinds), os.O_RDWR if write else os.O_RDONLY))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def parts_of(names: str) -> re.Pattern[str]:
    """Return a pattern of file names that match the expression `names`, and of their partly written files."""
    return re.compile(rf"(?:{names})(?:(?:\.[0-9a-f]{{{2 * _TOKEN}}})?\.part)?", re.ASCII)


def part_name(name: str) -> str:
    """Return a name for the partly written file `name`; nobody can guess it, and no two writers share one."""
    return f"{name[:_NAME]}.{secrets.token_hex(_TOKEN)}.part"


@contextmanager
def folder_below(root: Path, folders: Sequence[str]) -> Iterator[int | None]:
    """Yield the descriptor of a folder below `root`, opened part by part; links below `root` are an OSError.

    None: the system has no such descriptors (Windows).
    """
    if os.open not in os.supports_dir_fd:
        yield None
        return
    folder = os.open(root, _FOLDER)
    try:
        for part in folders:
            below = os.open(part, _FOLDER | _NO_FOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _new_part(target: Path, mode: int) -> Path:
    """Create an empty file beside `target`."""
    part = target.with_name(part_name(target.name))
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode))
    return part


def _followed(path: Path) -> Path:
    """Return the file that a link points to, also if it is missing; other paths unchanged."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_special(path: Path) -> bool:
    """Return whether `path` is a device, a pipe or a socket."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def wait_for_lock(lock: Path) -> Iterator[None]:
    """Wait for an exclusive lock; it ends with the process. Without support by the file system there is no lock."""
    with _opened_lock(lock, 0o666) as file:
        with suppress(OSError):
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def held(lock: Path, busy: str, *, private: bool = False) -> Iterator[None]:
    """Hold an exclusive lock, or raise BusyError(busy) if another process has it; it ends with the process.

    With `private` only the owner may open a new lock file.
    """
    with _opened_lock(lock, 0o600 if private else 0o666) as file:
        if not _try_lock(file.fileno()):
            raise BusyError(busy)
        yield


def _opened_lock(lock: Path, mode: int) -> IO[bytes]:
    """Open or create a lock file; a link is an error, and a pipe does not block."""
    with disk_errors(lock):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
        return os.fdopen(os.open(lock, flags, mode), "ab")


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
