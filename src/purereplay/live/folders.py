"""A folder of images with one subfolder per label, read once or watched.

The label of DATA/label/name.png is the name of the first folder below DATA; deeper folders are searched too. The id is
the path relative to DATA, and files are read in the order of their names. Files that are no images, such as readme.txt
or Thumbs.db, are skipped and named. Links out of DATA and links to folders are refused. The state may be inside DATA,
but not in a folder with other files, which would not be read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from purereplay.errors import UserError
from purereplay.live.images import is_other_file
from purereplay.live.items import Chunks, Item, Offer, Refusal, in_chunks, short
from purereplay.live.lists import offer_from
from purereplay.live.store import is_own


class ImageFolder:
    """A folder with one subfolder per label."""

    def __init__(self, root: Path, skipped: Path) -> None:
        if not root.is_dir():
            raise UserError(f"{root} is not a folder.")
        self.root = root
        self.skipped = skipped.resolve()  # the state folder, which may be inside
        if root.resolve() in self.skipped.parents and (others := _others(self.skipped)):
            raise UserError(
                f"{skipped} cannot be the state of {root}: {short(others[0])} is in it and would be skipped; "
                "use another --state."
            )
        self.others: list[str] = []  # files that the last listing skipped, because they are not images
        self._read: dict[str, tuple[int, int]] = {}  # path -> size and time of the file when it was read

    def listing(self) -> list[Offer]:
        """Return every image, by name; hidden files, other files and the state folder are skipped."""
        self.others = []
        return list(self._walk(self.root, None))

    def _walk(self, folder: Path, label: str | None) -> Iterator[Offer]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            yield Refusal(self._name(folder), f"cannot be read: {error.strerror or error}")
            return
        for entry in entries:
            path = folder / entry.name
            name = self._name(path)
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and path.is_dir():
                yield Refusal(name, "is a link to a folder; such links are not followed")
            elif entry.is_dir(follow_symlinks=False):
                if path.resolve() != self.skipped:
                    yield from self._walk(path, label or entry.name)
                else:
                    yield from (Refusal(f"{name}/{other}", "is in the state folder") for other in _others(path))
            elif _is_other(path):
                self.others.append(name)
            else:
                yield offer_from(name, {"path": name, "label": label}, self.root)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def follow(self, pause: float = 1.0) -> Chunks:
        """Yield files that did not change during a pause, and again after a change; an empty chunk if none."""
        before: dict[str, tuple[int, int]] = {}
        while True:
            now, settled = {}, []
            for offer in self.listing():
                name = offer.id if isinstance(offer, Item) else offer.name or ""
                now[name] = mark = _mark(self.root / name)
                if mark == before.get(name) and mark != self._read.get(name):
                    self._read[name] = mark
                    settled.append(offer)
            before = now
            yield from in_chunks(iter(settled))
            if not settled:
                yield []
            time.sleep(pause)  # also after a batch: a file that is being written may stay the same for milliseconds


def _is_other(path: Path) -> bool:
    try:
        return is_other_file(path)
    except OSError:  # gone, or the reason is told when it is read
        return False


def _others(state: Path) -> list[str]:
    """Return the names of what is in a state folder, but does not belong to the state; hidden files are left out."""
    try:
        names = [path.name for path in state.iterdir()]
    except OSError:  # missing, or opening the state fails with the reason
        return []
    return sorted(name for name in names if not name.startswith(".") and not is_own(name))


def _mark(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
