"""A small database of its own beside a state: the inbox of a server, the log of decisions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from purereplay.errors import UserError
from purereplay.live import schema
from purereplay.live.same_file import SameFile, check_regular

JOURNALS = ("-wal", "-shm", "-journal")  # files of SQLite beside a database


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


class OwnDatabase:
    """An open file with such tables."""

    def __init__(self, path: Path, database: sqlite3.Connection, file: SameFile | None) -> None:
        self.path = path
        self.database = database
        self._file = file  # None: opened for reading

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with schema.transaction(self.database, self.path):
            yield
        if self._file is not None:
            self._file.check()  # what was committed to a deleted file is lost

    def _query(self, sql: str, *values: object) -> list[Any]:
        return schema.query(self.database, self.path, sql, values)


@contextmanager
def opened(path: Path) -> Iterator[tuple[sqlite3.Connection, SameFile]]:
    """Open a database for writing, created empty if it is missing."""
    check_regular(files_of(path))
    file = SameFile.create(path)
    with closing(schema.connect(path, write=True)) as database:
        yield database, file


def files_of(path: Path) -> list[Path]:
    """Return the paths of a database and of the files of SQLite beside it."""
    return [path, *(path.with_name(path.name + suffix) for suffix in JOURNALS)]
