"""Files that a person moved to the folder of another label: the same sample with a corrected label, found by content.

A new file is a moved one if its pixels are those of a sample whose own file is gone, and if it has the name of that
file or lies in the folder of this state's images. A copy beside the original is a second sample, and so is a copy in
another folder of images while the first one exists.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from purereplay.live.images import Pixels
from purereplay.live.items import Item, Refused
from purereplay.live.originals import add_root, first_root
from purereplay.live.store import Store

_N_FILES = 100  # files of the state that are searched for in a folder


class Moves:
    """Finds the samples of files that were moved; keeps a digest of every sample's pixels once it needs them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._contents: dict[bytes, list[int]] | None = None if store.n_samples else {}  # positions by digest

    def find(self, item: Item, pixels: Pixels) -> int | None:
        """Return the position of the sample whose file is here now and was elsewhere; None if it is none."""
        if item.root is None:
            return None
        moved = self.store.one("SELECT position FROM moves WHERE id = ?", [item.id])
        if moved is not None:
            [row] = self.store.rows([moved[0]])
            if row.pixels.tobytes() != pixels.tobytes():
                raise Refused("was added before with another image: use a new id")
            return int(moved[0])
        if not self._is_own(item.root):
            return None
        own = self.store.one("SELECT position FROM samples WHERE id = ?", [item.id])
        if own is not None:
            elsewhere = self._path(own[0])
            return None if elsewhere == item.id or _exists(item.root, elsewhere) else int(own[0])
        for position in self._with_content(pixels):
            before = self._path(position)
            if not _exists(item.root, before) and (_same_name(before, item.id) or self._holds_files(item.root)):
                return position
        return None

    def added(self, position: int, pixels: Pixels, root: Path | None) -> None:
        """Remember the content of a new sample, and its folder; call within a transaction."""
        if root is not None:
            add_root(self.store, root)
        if self._contents is not None:
            self._contents.setdefault(_digest(pixels.tobytes()), []).append(position)

    def record(self, position: int, identity: str) -> None:
        """Write where the file of a sample is now; call within a transaction."""
        before = self.store.one("SELECT position, id FROM moves WHERE position = ?", [position])
        if before is not None and before[1] != identity:
            self.store.remove("moves", "position", before)
        [own] = self.store.one("SELECT id FROM samples WHERE position = ?", [position])
        if identity != own and (before is None or before[1] != identity):
            self.store.insert("moves", [(position, identity)])

    def _is_own(self, root: Path) -> bool:
        """Return whether a folder is that of this state's images, or stands for it since that one is gone."""
        known = first_root(self.store)
        return known is None or known == str(root.resolve()) or not Path(known).exists()

    def _path(self, position: int) -> str:
        """Return where the file of a sample was seen last."""
        found = self.store.one(
            "SELECT coalesce(m.id, s.id) FROM samples s LEFT JOIN moves m USING (position) WHERE position = ?",
            [position],
        )
        return str(found[0])

    def _with_content(self, pixels: Pixels) -> list[int]:
        if self._contents is None:
            self._contents = {}
            for position, content in self.store.database.execute("SELECT position, pixels FROM samples"):
                self._contents.setdefault(_digest(content), []).append(position)
        return self._contents.get(_digest(pixels.tobytes()), [])

    def _holds_files(self, root: Path) -> bool:
        """Return whether most files of this state are in a folder."""
        step = max(1, self.store.n_samples // _N_FILES)
        names = [name for (name,) in self.store.query("SELECT id FROM samples WHERE position % ? = 0", [step])]
        return 2 * sum(_exists(root, name) for name in names) > len(names)


def _exists(root: Path, name: str) -> bool:
    try:
        return os.path.lexists(root / name)
    except ValueError:  # a name that no file can have
        return False


def _same_name(one: str, other: str) -> bool:
    return one.rpartition("/")[2] == other.rpartition("/")[2]


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
