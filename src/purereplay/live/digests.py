"""Digests of the tables of a state: a flipped bit in any row, or a row too few or too many, is detected.

The digest of a table is the number of its rows and the sum of their hashes, so that a new row costs one hash. Pixels
are not included: every sample has a digest of its own, which is checked when the sample is read. The row "commits"
counts the commits, and its digest is that of all other digests; `mark.py` compares it with a file beside the database.

`PRAGMA integrity_check` compares a table with its indexes. Both checks read the whole table; together they take about
10 s for a million scored samples. `learn` and `correct` check everything when they open a state, and `status` and
`audit` when they read it. `predict` checks only the small tables that it reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from purereplay.live.mark import Commit

_BYTES = 16
_COMMITS = "commits"  # name of the row with the number of commits and the digest of all other digests
COLUMNS = {
    "facts": "name, value",
    "classes": "code, label",
    "samples": "position, id, label, digest",
    "decisions": "position, buffer, probability, centrality, selected",
    "purified": "position",
    "learner": "only, file, digest, taken",
    "corrections": "number, position, label",
    "moves": "position, id",
    "revisions": "number, n_samples, n_corrections, opinions",
    "verdicts": "number, position, revision, n_samples, probability, selected, reason",
    "likely": "position, label, probability",
    "noise": "given, likely, n, rate, low, high",
    "features": "position, digest",
}
_SINCE = {"moves": 5, "revisions": 5, "verdicts": 5, "likely": 5, "noise": 5, "features": 6}  # version of the schema


class Tally(NamedTuple):
    """Number of rows and sum of their hashes."""

    n: int = 0
    total: int = 0

    def plus(self, rows: Iterable[tuple[Any, ...]]) -> Tally:
        """Return the tally with more rows."""
        n, total = self
        for row in rows:
            n += 1
            total += _hash(row)
        return Tally(n, total % 256**_BYTES)

    def minus(self, rows: Iterable[tuple[Any, ...]]) -> Tally:
        """Return the tally without some of its rows."""
        n, total = Tally().plus(rows)
        return Tally(self.n - n, (self.total - total) % 256**_BYTES)


def _hash(row: tuple[Any, ...]) -> int:
    return int.from_bytes(blake2b(repr(row).encode(), digest_size=_BYTES).digest(), "little")


def record(database: sqlite3.Connection, name: str, tally: Tally) -> None:
    """Save the digest of a table."""
    values = (name, tally.n, tally.total.to_bytes(_BYTES, "little"))
    database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", values)


def tables_of(version: int) -> list[str]:
    """Return the tables that a version of the schema has."""
    return [name for name in COLUMNS if _SINCE.get(name, 0) <= version]


def record_all(database: sqlite3.Connection, version: int) -> None:
    """Save the digests of all tables as they are now; a state that counts its commits has one more."""
    for name in tables_of(version):
        record(database, name, _found(database, name))
    before = recorded(database, _COMMITS) or Tally()
    record(database, _COMMITS, Tally(before.n + (before.n > 0), _of_digests(database)))


def record_commit(database: sqlite3.Connection) -> Commit:
    """Count one more commit, once the digests of the changed tables are saved."""
    before = recorded(database, _COMMITS) or Tally()
    record(database, _COMMITS, Tally(before.n + 1, _of_digests(database)))
    return newest_commit(database)


def newest_commit(database: sqlite3.Connection) -> Commit:
    """Return the newest commit as it is recorded; one statement, since another process may commit after it."""
    rows = database.execute("SELECT name, n, digest FROM digests WHERE name IN (?, 'samples')", [_COMMITS]).fetchall()
    found = {name: _tally(n, digest) for name, n, digest in rows}
    commits, samples = found.get(_COMMITS), found.get("samples")
    if commits is None or samples is None:
        return Commit()
    return Commit(commits.n, f"{commits.total:0{2 * _BYTES}x}", samples.n)


def recorded(database: sqlite3.Connection, name: str) -> Tally | None:
    """Return the saved digest of a table; None if there is none."""
    row = database.execute("SELECT n, digest FROM digests WHERE name = ?", [name]).fetchone()
    return None if row is None else _tally(*row)


def _tally(n: object, digest: object) -> Tally | None:
    """Return a saved digest; None if it is damaged."""
    if not isinstance(n, int) or not isinstance(digest, bytes):
        return None
    return Tally(n, int.from_bytes(digest, "little"))


def damage(database: sqlite3.Connection, tables: Iterable[str]) -> str | None:
    """Return what is wrong with the tables, as the end of a sentence; None if nothing is. Call within a transaction."""
    for name in tables:
        [found] = database.execute(f"PRAGMA integrity_check({name})").fetchone()
        if found != "ok":
            return str(found).splitlines()[-1]
        if recorded(database, name) != _found(database, name):
            return f"the table {name} does not match its digest"
    return None


def damaged_commit(database: sqlite3.Connection) -> str | None:
    """Return what is wrong with the newest commit, as the end of a sentence; None if nothing is."""
    found = recorded(database, _COMMITS)
    is_right = found is not None and found.total == _of_digests(database)
    return None if is_right else "its digests do not match its newest commit"


def _found(database: sqlite3.Connection, name: str) -> Tally:
    return Tally().plus(database.execute(f"SELECT {COLUMNS[name]} FROM {name} NOT INDEXED"))


def _of_digests(database: sqlite3.Connection) -> int:
    rows = database.execute("SELECT name, n, digest FROM digests WHERE name <> ? ORDER BY name", [_COMMITS])
    return Tally().plus(rows).total
