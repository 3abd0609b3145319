"""Tables of a small database beside a state: the inbox of a server, the log of decisions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from purereplay.errors import UserError
from purereplay.live import schema


class OwnTables(NamedTuple):
    """The tables that a file must have, and no others."""

    owner: str  # as in "those of an inbox"
    version: int
    script: str

    def version_in(self, database: sqlite3.Connection, path: Path) -> int:
        """Return the version of the tables in a file, 0 for an empty file; UserError if they are others."""
        [[version]] = schema.query(database, path, "PRAGMA user_version")
        found = schema.declarations(database)
        if version > self.version:
            raise UserError(f"{path} was written by a newer purereplay: upgrade it.")
        with closing(sqlite3.connect(":memory:")) as own:
            own.executescript(self.script if version else "")
            if found != schema.declarations(own):
                raise UserError(f"{path} is damaged: its tables are not those of {self.owner}.")
        return int(version)

    def create(self, database: sqlite3.Connection, path: Path) -> bool:
        """Create the tables within a transaction; returns False if they are there already."""
        if self.version_in(database, path):
            return False
        for statement in schema.statements(self.script):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {self.version}")
        return True
