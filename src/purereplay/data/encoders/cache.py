"""Features that were computed before, by the content of an image file and the digest of the encoder.

One SQLite file per encoder in the cache folder, which may be deleted at any time. It only saves time: a cache that
cannot be read or written is ignored, and an entry that does not match its digest is computed again.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from purereplay.data.encoders.base import CheckedEncoder, Features
from purereplay.data.sources import cache_root

_CREATE = "CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
_SEAL = 8  # bytes of an entry's digest


class FeatureCache:
    """Kept features of one encoder."""

    def __init__(self, encoder: CheckedEncoder, folder: Path | None = None) -> None:
        self.path = (folder or cache_root() / "features") / f"{encoder.digest[:32]}.sqlite"
        self._dim = encoder.dim
        self._database: sqlite3.Connection | None = None
        with suppress(OSError, sqlite3.Error):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, isolation_level=None, timeout=10, check_same_thread=False)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(_CREATE)
            self._database = database

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Features]:
        """Return the kept features (dim,) by key."""
        found: dict[bytes, Features] = {}
        database = self._database
        for key in () if database is None else keys:
            assert database is not None
            with suppress(sqlite3.Error):  # such as text that is not UTF-8
                row = database.execute("SELECT value FROM features WHERE key = ?", [key]).fetchone()
                if row is not None and (features := self._opened(key, row[0])) is not None:
                    found[key] = features
        return found

    def keep(self, features: Mapping[bytes, Features]) -> None:
        """Keep features (dim,) by key."""
        if self._database is None or not features:
            return
        rows = [(key, _sealed(key, own.tobytes())) for key, own in features.items()]
        with suppress(sqlite3.Error):  # a full disk, or another process that writes
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?)", rows)
                self._database.execute("COMMIT")
            except sqlite3.Error:
                self._database.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self, key: bytes, value: object) -> Features | None:
        if not isinstance(value, bytes) or len(value) != _SEAL + 4 * self._dim or value != _sealed(key, value[_SEAL:]):
            return None
        return np.frombuffer(value, "<f4", offset=_SEAL).astype(np.float32)


def _sealed(key: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(key + content, digest_size=_SEAL).digest() + content
