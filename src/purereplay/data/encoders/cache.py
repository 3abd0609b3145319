"""Features that were computed before, by the content of an image file and the digest of the encoder.

One SQLite file per encoder in the cache folder, which may be deleted at any time. It only saves time: a cache that
cannot be read or written is ignored, a damaged one begins anew, and an entry that does not match its digest is computed
again. The files together have a largest size. Beyond it the encoders that were not used for the longest time leave
first, and then the entries of this encoder that were not.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from purereplay.data.encoders.base import CheckedEncoder, Features
from purereplay.data.sources import cache_root
from purereplay.errors import UserError

LIMIT = "PUREREPLAY_CACHE_MIB"  # the variable that sets the largest size
_DEFAULT = 4096  # MiB
_CREATE = (
    "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS uses (key BLOB PRIMARY KEY, hour INTEGER NOT NULL) WITHOUT ROWID",
)
_USED = "INSERT INTO uses VALUES (?, ?) ON CONFLICT DO UPDATE SET hour = excluded.hour WHERE hour < excluded.hour"
_OLDEST = "SELECT key FROM features LEFT JOIN uses USING (key) ORDER BY coalesce(hour, 0), key LIMIT ?"
_PARTS = ("", "-wal", "-shm")  # files of a database
_SEAL = 8  # bytes of an entry's digest
_SHARE = 16  # the size is looked at whenever 1 / 16 of the largest was written; then 1 / 16 is made free


class FeatureCache:
    """Kept features of one encoder."""

    def __init__(self, encoder: CheckedEncoder, folder: Path | None = None) -> None:
        self.path = (folder or cache_root() / "features") / f"{encoder.digest[:32]}.sqlite"
        self._dim, self._limit, self._written = encoder.dim, _limit(), 0
        self._database: sqlite3.Connection | None = None
        if self._limit:
            self._open()
        if self._database is None and self._limit:  # once more, if a damaged file was removed
            self._open()
        self._shrink()

    def _open(self) -> None:
        with suppress(OSError):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._database = sqlite3.connect(self.path, isolation_level=None, timeout=10, check_same_thread=False)
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = NORMAL")
                for statement in _CREATE:
                    self._database.execute(statement)
                os.utime(self.path)  # it is in use
            except sqlite3.Error as error:
                self._give_up(error)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Features]:
        """Return the kept features (dim,) by key."""
        found: dict[bytes, Features] = {}
        for key in keys:
            if self._database is None:
                break
            try:
                row = self._database.execute("SELECT value FROM features WHERE key = ?", [key]).fetchone()
            except sqlite3.Error as error:
                if type(error) is sqlite3.DatabaseError:
                    self._give_up(error)
                continue  # such as text that is not UTF-8
            if row is not None and (features := self._opened(key, row[0])) is not None:
                found[key] = features
        self._write([(_USED, [(key, _hour()) for key in found])])
        return found

    def keep(self, features: Mapping[bytes, Features]) -> None:
        """Keep features (dim,) by key."""
        rows = [(key, _sealed(key, own.tobytes())) for key, own in features.items()]
        used = [(key, _hour()) for key in features]
        self._write([("INSERT OR REPLACE INTO features VALUES (?, ?)", rows), (_USED, used)])
        self._written += sum(len(value) for _, value in rows)
        if self._written > self._limit // _SHARE:
            self._shrink()

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _write(self, statements: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        """Write rows in one transaction; a full disk, or another process that writes for long, is no error."""
        if self._database is None or not any(rows for _, rows in statements):
            return
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    self._database.executemany(statement, rows)
                self._database.execute("COMMIT")
            except sqlite3.Error:
                self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if type(error) is sqlite3.DatabaseError:
                self._give_up(error)

    def _give_up(self, error: sqlite3.Error) -> None:
        """Stop using the cache; a damaged file is removed."""
        self.close()
        if type(error) is sqlite3.DatabaseError:  # not one of its subclasses: locked, read-only, full
            _remove(self.path)

    def _shrink(self) -> None:
        """Remove what was not used for the longest time, until the files have the largest size again."""
        self._written = 0
        if self._database is None:
            return
        with suppress(OSError, sqlite3.Error):
            sizes = {path: _size(path) for path in self.path.parent.glob("*.sqlite") if path != self.path}
            own = self._own_size()
            for path in sorted(sizes, key=lambda path: (path.stat().st_mtime, path.name)):
                if own + sum(sizes.values()) <= self._limit:
                    return
                _remove(path)
                del sizes[path]
            if own > self._limit:
                # pages become free and are used again: the file does not grow
                [n] = self._database.execute("SELECT count(*) FROM features").fetchone()
                share = 1 - self._limit * (1 - 1 / _SHARE) / own
                oldest = self._database.execute(_OLDEST, [int(n * share) + 1]).fetchall()
                self._write([(f"DELETE FROM {table} WHERE key = ?", oldest) for table in ("features", "uses")])

    def _own_size(self) -> int:
        """Return the bytes of this encoder's entries."""
        assert self._database is not None
        pages, free, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _opened(self, key: bytes, value: object) -> Features | None:
        if not isinstance(value, bytes) or len(value) != _SEAL + 4 * self._dim or value != _sealed(key, value[_SEAL:]):
            return None
        return np.frombuffer(value, "<f4", offset=_SEAL).astype(np.float32)


def _limit() -> int:
    """Return the largest size of all files in bytes; 0: nothing is kept."""
    text = os.environ.get(LIMIT, "") or str(_DEFAULT)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UserError(f"The variable {LIMIT} is {text!r}: use a whole number of MiB, or 0 for no cache.")
    return int(text) * 2**20


def _size(path: Path) -> int:
    return sum(part.stat().st_size for end in _PARTS if (part := Path(f"{path}{end}")).exists())


def _remove(path: Path) -> None:
    for end in _PARTS:
        with suppress(OSError):
            Path(f"{path}{end}").unlink()


def _hour() -> int:
    return int(time.time()) // 3600


def _sealed(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(key + content, digest_size=_SEAL).digest() + content
