"""The database of a state folder: its tables, the upgrade of older versions, and its errors.

The version is SQLite's `user_version`. A new database passes through the same scripts as an old one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from purereplay.data.files import disk_errors
from purereplay.errors import UserError

# script i upgrades version i to version i + 1
SCRIPTS = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    -- given labels, numbered in order of first appearance
    CREATE TABLE classes (code INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE);
    -- a sample is acknowledged once its row is on the disk
    CREATE TABLE samples (
        position INTEGER PRIMARY KEY,  -- in order of arrival, from 0
        id TEXT NOT NULL UNIQUE,
        label INTEGER NOT NULL REFERENCES classes (code),  -- the given label
        pixels BLOB NOT NULL,  -- uint8 (channels, height, width)
        digest BLOB NOT NULL  -- of id, label and pixels
    );
    CREATE TABLE decisions (
        position INTEGER PRIMARY KEY REFERENCES samples (position),
        buffer INTEGER NOT NULL,  -- number of the delayed buffer, from 0
        probability REAL NOT NULL,  -- of being clean, high = clean
        centrality REAL NOT NULL,
        selected INTEGER NOT NULL  -- 1: passed the filter
    );
    CREATE TABLE purified (position INTEGER PRIMARY KEY REFERENCES samples (position));
    -- the only row names the file with the networks and buffers
    CREATE TABLE learner (
        only INTEGER PRIMARY KEY CHECK (only = 0),
        file TEXT NOT NULL,
        digest TEXT NOT NULL,
        taken INTEGER NOT NULL  -- samples before this position were given to the learner
    );
    """,
    """
    -- labels that a person gave to scored samples; the last correction of a sample is in effect
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
    """Open a database, or create it if `write` is set; every commit is on the disk when it returns."""
    mode = "rwc" if write else "ro"
    if write:
        with disk_errors(path), suppress(FileExistsError):
            # readable by its owner only; SQLite gives the files beside it the same rights
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with database_errors(path):
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
        try:
            if write:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()  # fails here if the file is damaged
        except BaseException:
            database.close()
            raise
    return database


def version_of(database: sqlite3.Connection, path: Path) -> int:
    """Return the version of the schema; UserError if it is newer than this program."""
    with database_errors(path):
        [version] = database.execute("PRAGMA user_version").fetchone()
        [n_tables] = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version > VERSION:
        raise UserError(
            f"{path} was written by a newer purereplay (schema {version}, this one reads up to {VERSION}): upgrade it."
        )
    if version == 0 and n_tables:
        raise UserError(f"{path} is not the database of a state.")
    return int(version)


def migrate(database: sqlite3.Connection, path: Path) -> None:
    """Upgrade a database to this version, each script in a transaction of its own."""
    for version in range(version_of(database, path), VERSION):
        with transaction(database, path):
            for statement in _statements(SCRIPTS[version]):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {version + 1}")


def query(database: sqlite3.Connection, path: Path, sql: str, values: Iterable[object] = ()) -> list[Any]:
    """Return the rows of a statement; UserError if the database is damaged."""
    with database_errors(path):
        return database.execute(sql, tuple(values)).fetchall()


@contextmanager
def transaction(database: sqlite3.Connection, path: Path, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit everything within the block, or nothing; DEFERRED: read a snapshot while another process writes."""
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
    """Turn errors of SQLite, such as a full disk or a damaged file, into UserError."""
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
    """Yield the statements of a script; `executescript` would commit before the first one."""
    part = ""
    for line in script.splitlines():
        part += line + "\n"
        if sqlite3.complete_statement(part) and part.strip():
            yield part
            part = ""
