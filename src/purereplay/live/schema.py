"""The database of a state folder: its tables, the upgrade of older versions, and its errors.

The version is SQLite's `user_version`. A new database passes through the same scripts as an old one.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from purereplay.errors import UserError
from purereplay.live import digests
from purereplay.live.mark import Commit

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
    """
    -- of every other table and of their declarations; see digests.py
    CREATE TABLE digests (name TEXT PRIMARY KEY, n INTEGER NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID;
    """,
    """
    -- from here on the digests have a row that counts the commits, and declarations are compared with these scripts
    DELETE FROM digests WHERE name = 'schema';
    """,
    """
    -- samples whose file was moved to the folder of another label, and where it is now
    CREATE TABLE moves (position INTEGER PRIMARY KEY REFERENCES samples (position), id TEXT NOT NULL UNIQUE);
    -- the learner full-memory: each time that it has judged all samples
    CREATE TABLE revisions (
        number INTEGER PRIMARY KEY,  -- from 1
        n_samples INTEGER NOT NULL,  -- known then
        n_corrections INTEGER NOT NULL,
        opinions TEXT NOT NULL  -- JSON: weight of each opinion by name
    );
    -- the first verdict on a sample, and those that changed its decision; `decisions` has the current one
    CREATE TABLE verdicts (
        number INTEGER PRIMARY KEY,
        position INTEGER NOT NULL REFERENCES samples (position),
        revision INTEGER NOT NULL,  -- by which the sample was judged
        n_samples INTEGER NOT NULL,  -- known then
        probability REAL NOT NULL,
        selected INTEGER NOT NULL,
        reason TEXT NOT NULL
    );
    CREATE INDEX verdicts_position ON verdicts (position);
    -- the most likely true label of a sample, by models that were not trained on it
    CREATE TABLE likely (
        position INTEGER PRIMARY KEY REFERENCES samples (position),
        label INTEGER NOT NULL REFERENCES classes (code),
        probability REAL NOT NULL
    );
    -- estimated share of wrong labels, with an interval; given -1: of all samples, likely -1: of all that are given
    CREATE TABLE noise (
        given INTEGER NOT NULL,
        likely INTEGER NOT NULL,
        n INTEGER NOT NULL,  -- samples with the given label
        rate REAL NOT NULL,
        low REAL NOT NULL,
        high REAL NOT NULL,
        PRIMARY KEY (given, likely)
    ) WITHOUT ROWID;
    """,
    """
    -- a state with an encoder: the features of every sample, which are compared instead of its pixels
    CREATE TABLE features (
        position INTEGER PRIMARY KEY REFERENCES samples (position),
        digest BLOB NOT NULL,  -- of position and features
        features BLOB NOT NULL  -- float32 (dim,)
    );
    """,
)
VERSION = len(SCRIPTS)
DIGESTS = 3  # version from which on the tables have digests
COMMITS = 4  # version from which on the commits are counted
# primary codes of SQLite if it cannot create the files that readers and a writer share
_NO_ROOM = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_SHARED = 2**15  # bytes of the smallest shared file in use; an attempt on a full disk leaves one of a few bytes
_MAX_VALUE = 2**28  # bytes of a value; those of the largest image are fewer
_COMMENT = re.compile(r"--[^\n]*")


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open a database, or create it if `write` is set; every commit is on the disk when it returns.

    On a medium that is full or cannot be written, SQLite cannot create the files that readers and a writer share. The
    database is then read as a file that nobody changes.
    """
    if write:
        return _open(path, "mode=rwc", write=True)
    try:
        return _open(path, "mode=ro", write=False)
    except UserError as error:
        journal, shared = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
        if _code(error.__cause__) not in _NO_ROOM or _size(shared) >= _SHARED:
            raise
        if _size(journal):
            raise UserError(
                f"{path} has changes in {journal.name} that a full or read-only disk cannot show: copy the folder to "
                "another disk."
            ) from None
        return _open(path, "mode=ro&immutable=1", write=False)


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _open(path: Path, options: str, *, write: bool) -> sqlite3.Connection:
    with database_errors(path), _any_is_damage(path):
        database = sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True, isolation_level=None, timeout=30)
        try:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
            database.execute("PRAGMA trusted_schema = OFF")
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
    """Return the version of the schema; UserError if it is newer than this program, or if the tables are not its own.

    To be called before anything else is read: a view or trigger in a file from somebody else would run its SQL.
    """
    with database_errors(path), _any_is_damage(path):
        [version] = database.execute("PRAGMA user_version").fetchone()
        found = declarations(database)
    if version > VERSION:
        raise UserError(
            f"{path} was written by a newer purereplay (schema {version}, this one reads up to {VERSION}): upgrade it."
        )
    if version == 0 and found:
        raise UserError(f"{path} is not the database of a state.")
    if version < 0 or found != _known_declarations(version):
        raise UserError(f"{path} is damaged: its tables are not a state's.")
    return int(version)


def declarations(database: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return the declarations of all tables, indexes, views and triggers, without comments."""
    rows = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE type <> 'index' OR sql NOT NULL")
    return {(*names, " ".join(_COMMENT.sub("", str(sql)).split())) for *names, sql in rows}


def _known_declarations(version: int) -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as database:
        for script in SCRIPTS[:version]:
            database.executescript(script)
        return declarations(database)


def newest_commit(database: sqlite3.Connection, path: Path) -> Commit:
    """Return the newest commit; that of an older version has the number 0."""
    if version_of(database, path) < COMMITS:
        return Commit()
    with database_errors(path), _any_is_damage(path):
        return digests.newest_commit(database)


def migrate(database: sqlite3.Connection, path: Path) -> None:
    """Upgrade a database to this version, each script in a transaction of its own."""
    for version in range(version_of(database, path), VERSION):
        with transaction(database, path), _any_is_damage(path):
            if version >= DIGESTS and (found := digests.damage(database, digests.tables_of(version))) is not None:
                raise UserError(f"{path} is damaged: {found}.")
            for statement in statements(SCRIPTS[version]):
                database.execute(statement)
            if version + 1 >= DIGESTS:
                digests.record_all(database, version + 1)
            database.execute(f"PRAGMA user_version = {version + 1}")


def upgraded_copy(database: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return an upgraded copy in memory of a database that cannot be written."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    with database_errors(path):
        database.backup(copy)
        copy.execute("PRAGMA journal_mode = MEMORY")
    migrate(copy, path)
    return copy


def check(database: sqlite3.Connection, path: Path, tables: Iterable[str] | None = None) -> None:
    """Raise UserError if tables, by default all, do not match their indexes or digests; digests.py has the cost."""
    version_of(database, path)
    with database_errors(path), _any_is_damage(path):
        found = digests.damage(database, digests.COLUMNS if tables is None else tables)
        if found is None and tables is None:
            found = digests.damaged_commit(database)
    if found is not None:
        raise UserError(f"{path} is damaged: {found}.")


def check_structure(database: sqlite3.Connection, path: Path) -> None:
    """Raise UserError if pages are damaged, or if tables do not match their indexes."""
    [[found]] = query(database, path, "PRAGMA integrity_check(1)")
    if found != "ok":
        raise UserError(f"{path} is damaged: {str(found).splitlines()[-1]}.")


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
        code = _code(error)
        # None: a value that is not valid UTF-8; SQLITE_TOOBIG: one that no state holds
        if code in (None, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG):
            raise UserError(f"{path} is damaged: {error}.") from error
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY):
            raise UserError(f"{path} cannot be written: {error}.") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM):
            raise UserError(f"{path} cannot be opened: {error}.") from error
        raise
    except UnicodeDecodeError as error:  # an error message of SQLite that quotes damaged text
        raise UserError(f"{path} is damaged: it has text that is not UTF-8.") from error


@contextmanager
def _any_is_damage(path: Path) -> Iterator[None]:
    """Turn an error of a statement into UserError, where only the file can be the reason."""
    try:
        yield
    except sqlite3.Error as error:
        if _code(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT):
            raise UserError(f"{path} is damaged: {error}.") from error
        raise


def _code(error: BaseException | None) -> int | None:
    """Return the primary error code of SQLite; None if the error has none."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; `executescript` would commit before the first one."""
    part = ""
    for line in script.splitlines():
        part += line + "\n"
        if sqlite3.complete_statement(part) and part.strip():
            yield part
            part = ""
