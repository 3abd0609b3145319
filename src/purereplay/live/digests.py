"""Digests of the tables of a state: a flipped bit in any row, or a row too few or too many, is detected.

The digest of a table is the number of its rows and the sum of their hashes, so that a new row costs one hash. Pixels
are not included: every sample has a digest of its own, which is checked when the sample is read.

`PRAGMA integrity_check` compares a table with its indexes. Both checks read the whole table; together they take about
10 s for a million scored samples. `learn` and `correct` check everything when they open a state, and `status` and
`audit` when they read it. `predict` checks only the small tables that it reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

_BYTES = 16
_SCHEMA = "schema"  # name of the digest of the tables' declarations
COLUMNS = {
    "facts": "name, value",
    "classes": "code, label",
    "samples": "position, id, label, digest",
    "decisions": "position, buffer, probability, centrality, selected",
    "purified": "position",
    "learner": "only, file, digest, taken",
    "corrections": "number, position, label",
}


class Tally(NamedTuple):
    """Number of rows and sum of their hashes."""

    n: int = 0
    total: int = 0

    def plus(self, rows: Iterable[tuple[Any, ...]]) -> Tally:
        """Return the tally with more rows."""
        n, total = self
        for row in rows:
            n += 1
            total += int.from_bytes(blake2b(repr(row).encode(), digest_size=_BYTES).digest(), "little")
        return Tally(n, total % 256**_BYTES)


def record(database: sqlite3.Connection, name: str, tally: Tally) -> None:
    """Save the digest of a table."""
    values = (name, tally.n, tally.total.to_bytes(_BYTES, "little"))
    database.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", values)


def record_all(database: sqlite3.Connection) -> None:
    """Save the digests of all tables as they are now."""
    for name in (_SCHEMA, *COLUMNS):
        record(database, name, _found(database, name))


def recorded(database: sqlite3.Connection, name: str) -> Tally | None:
    """Return the saved digest of a table; None if there is none."""
    row = database.execute("SELECT n, digest FROM digests WHERE name = ?", [name]).fetchone()
    return Tally(row[0], int.from_bytes(row[1], "little")) if row and isinstance(row[1], bytes) else None


def damage(database: sqlite3.Connection, tables: Iterable[str]) -> str | None:
    """Return what is wrong with the tables, as the end of a sentence; None if nothing is. Call within a transaction."""
    for name in (_SCHEMA, *tables):
        if name != _SCHEMA:
            [found] = database.execute(f"PRAGMA integrity_check({name})").fetchone()
            if found != "ok":
                return str(found).splitlines()[-1]
        if recorded(database, name) != _found(database, name):
            return f"the table {name} does not match its digest" if name in COLUMNS else "its tables are not a state's"
    return None


def _found(database: sqlite3.Connection, name: str) -> Tally:
    if name == _SCHEMA:
        rows = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
    else:
        rows = database.execute(f"SELECT {COLUMNS[name]} FROM {name} NOT INDEXED")
    return Tally().plus(rows)
