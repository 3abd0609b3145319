"""A folder whose files the program writes, although somebody else may have prepared it: no link in it is followed.

Used by run directories. The user names the folder, so it may be a link itself. A link where one of its files or
subfolders should be is refused by name. Files are opened relative to their open folder, so a link that appears
meanwhile is not followed either; nothing is written or deleted outside.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from purereplay.data.files import disk_errors, folder_below, part_name
from purereplay.errors import UserError

_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))


class OwnFolder:
    """A folder that the program writes to; `name` in its methods is a relative path such as "a" or "a/b"."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self, name: str) -> None:
        """Create a subfolder unless it exists."""
        with self._place(name) as (folder, own), suppress(FileExistsError):
            os.mkdir(own, dir_fd=folder)
        refuse_links([self.path / name])

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file beside its destination and rename it; an error leaves nothing behind."""
        with self._place(name) as (folder, own):
            _check_regular(self.path / name, own, folder)
            part = own.with_name(part_name(own.name))
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(part, own, src_dir_fd=folder, dst_dir_fd=folder)  # replaces a link instead of following it
                if folder is not None:
                    os.fsync(folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder)
                raise

    def append(self, name: str, content: bytes) -> None:
        """Append to a file, which is created if need be."""
        with self._place(name) as (folder, own):
            _check_regular(self.path / name, own, folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FLAGS
            with os.fdopen(os.open(own, flags, 0o666, dir_fd=folder), "ab") as file:
                file.write(content)

    def sync(self, name: str) -> None:
        """Wait until the contents of a file are on the disk."""
        with self._place(name) as (folder, own):
            _check_regular(self.path / name, own, folder)
            with os.fdopen(os.open(own, os.O_RDWR | _FLAGS, dir_fd=folder), "rb+") as file:
                os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Delete a file, or a link itself, if it exists."""
        with self._place(name) as (folder, own), suppress(FileNotFoundError):
            os.unlink(own, dir_fd=folder)

    @contextmanager
    def _place(self, name: str) -> Iterator[tuple[int | None, Path]]:
        """Yield the open folder of a file, and the file's path relative to it; an OSError becomes a WriteError."""
        path = self.path / name
        *folders, last = PurePosixPath(name).parts
        refuse_links(self.path.joinpath(*folders[: i + 1]) for i in range(len(folders)))
        with disk_errors(path), folder_below(self.path, folders) as folder:
            yield folder, path if folder is None else Path(last)


def refuse_links(paths: Iterable[Path]) -> None:
    """Raise UserError, with its name, if one of the files or folders is a link."""
    for path in paths:
        with disk_errors(path):
            is_link = path.is_symlink()
        if is_link:
            raise _link(path)


def _check_regular(path: Path, own: Path, folder: int | None) -> None:
    """Raise UserError if something that is not a regular file has the file's name."""
    try:
        mode = os.stat(own, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise _link(path)
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a regular file: remove it.")


def _link(path: Path) -> UserError:
    return UserError(f"{path} is a link, which is not followed here: replace it by what it points to, or remove it.")
