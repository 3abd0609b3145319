"""The database of a state folder: its tables, how older ones are brought up to date, and its errors as sentences.

The version is SQLite's `user_version`. A new database goes through the same scripts as an old one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from purereplay.errors import UserError

# what brings version i to version i + 1
SCRIPTS = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    -- labels as they were given, numbered in order of first appearance
    CREATE TABLE classes (code INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE);
    -- a row here is the acknowledgement: it is given once the row is durable
    CREATE TABLE samples (
        position INTEGER PRIMARY KEY,  -- in order of arrival, from 0
        id TEXT NOT NULL UNIQUE,
        label INTEGER NOT NULL REFERENCES classes (code),  -- the given one
        pixels BLOB NOT NULL,  -- uint8 (channels, height, width)
        digest BLOB NOT NULL  -- of id, label and pixels
    );
    CREATE TABLE decisions (
        position INTEGER PRIMARY KEY REFERENCES samples (position),
        buffer INTEGER NOT NULL,  -- the number of the delayed buffer, from 0
        probability REAL NOT NULL,  -- of being clean
        centrality REAL NOT NULL,
        selected INTEGER NOT NULL  -- 1: passed the filter
    );
    CREATE TABLE purified (position INTEGER PRIMARY KEY REFERENCES samples (position));
    -- the one row names the file with the networks and buffers
    CREATE TABLE learner (
        only INTEGER PRIMARY KEY CHECK (only = 0),
        file TEXT NOT NULL,
        digest TEXT NOT NULL,
        taken INTEGER NOT NULL  -- samples before this position were given to the learner
    );
    """,
    """
    -- labels that a person gave to samples that had been judged; the last one of a sample counts
    CREATE TABLE corrections (
        number INTEGER PRIMARY KEY,
        position INTEGER NOT NULL REFERENCES samples (position),
        label INTEGER NOT NULL REFERENCES classes (code)
    );
    CREATE INDEX corrections_position ON corrections (position);
    """,
)
VERSION = len(SCRIPTS)


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open a database, a new one only to write; every commit is on the disk when it returns."""
    mode = "rwc" if write else "ro"
    with database_errors(path):
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
        try:
            if write:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()  # a damaged one says so here
        except BaseException:
            database.close()
            raise
    return database


def version_of(database: sqlite3.Connection, path: Path) -> int:
    """The schema's version; UserError for one that is newer than this program."""
    with database_errors(path):
        [version] = database.execute("PRAGMA user_version").fetchone()
        [n_tables] = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version > VERSION:
        raise UserError(
            f"{path} was written by a newer purereplay (schema {version}, this one reads up to {VERSION}): update it."
        )
    if version == 0 and n_tables:
        raise UserError(f"{path} is not the database of a state.")
    return int(version)


def migrate(database: sqlite3.Connection, path: Path) -> None:
    """Bring a database to this version, one script after the other, each in one go."""
    for version in range(version_of(database, path), VERSION):
        with transaction(database, path):
            for statement in _statements(SCRIPTS[version]):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {version + 1}")


@contextmanager
def transaction(database: sqlite3.Connection, path: Path, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All of it or nothing; DEFERRED is for reading one moment's state while another process writes."""
    with database_errors(path):
        database.execute(f"BEGIN {kind}")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back already
                database.execute("ROLLBACK")
            raise


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn a full disk and a damaged file into sentences."""
    try:
        yield
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise UserError(f"{path} is damaged: {error}.") from error
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
            raise UserError(f"{path} cannot be written: {error}.") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM):
            raise UserError(f"{path} cannot be opened: {error}.") from error
        raise


def _statements(script: str) -> Iterator[str]:
    """A script's statements one by one: `executescript` would commit before it begins."""
    part = ""
    for line in script.splitlines():
        part += line + "\n"
        if sqlite3.complete_statement(part) and part.strip():
            yield part
            part = ""
