"""Reviewers' decisions: absorbed by a session, or exported as a CSV file.

Kept and corrected labels enter a session as corrections, and dropped samples leave P.

`learn` absorbs new decisions between two steps; `correct` and `review` do so if no other process holds the state. The
state records the last entry of the log that it has absorbed. A kill between the two steps of `absorb` repeats the first
one, which then changes nothing.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import secrets
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from purereplay.data.files import write_whole
from purereplay.data.text import spreadsheet_safe
from purereplay.errors import UserError
from purereplay.live.buffers import check_scored
from purereplay.live.corrections import Correction, apply, check, read_corrections
from purereplay.live.decisions import Decision, DecisionLog, Entry, InEffect
from purereplay.live.items import Outcome
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.own_tables import files_of
from purereplay.live.session import Session
from purereplay.live.store import DECISIONS, Store

IMPORTED = "correct"  # reviewer of the labels that `correct` reads from a file
_FACT = "reviewed"
_logger = logging.getLogger(__name__)


class Absorbed(NamedTuple):
    """The entries of the log that a state has absorbed."""

    number: int = 0  # of the last one
    digest: str = ""  # of the last one
    dropped: frozenset[int] = frozenset()  # positions of samples that a person dropped


def absorbed(store: Store) -> Absorbed:
    """Return what a state has absorbed of its log."""
    text = store.fact(_FACT)
    if text is None:
        return Absorbed()
    try:
        values: dict[str, Any] = json.loads(text)
        return Absorbed(int(values["number"]), str(values["digest"]), frozenset(map(int, values["dropped"])))
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{store.path} is damaged: its record of reviewed samples cannot be read.") from None


def log_path(state: Path) -> Path:
    """Return the path of the log of a state."""
    return state / DECISIONS


def audit_log(audit: Path) -> Path:
    """Return the path of the log of decisions on an audit file."""
    return audit.with_name(audit.name + ".decisions.sqlite")


class Reviewed:
    """The decisions that a session absorbs; nothing is read while the log has not changed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.path = log_path(session.store.folder)
        self._seen: object = None  # sizes and times of the log's files when it was read

    def absorb(self) -> int:
        """Apply all new decisions; returns the number of entries that were new."""
        marks = _marks(self.path)
        if marks == self._seen:
            return 0
        with DecisionLog.reading(self.path) as log:
            n = 0 if log is None else _absorb(self.session, log)
        self._seen = marks
        return n


def _absorb(session: Session, log: DecisionLog) -> int:
    store = session.store
    before = absorbed(store)
    number, digest = log.newest()
    check_log(log, before)
    if number <= before.number:
        return 0
    entries = log.entries()
    in_effect = InEffect(entries)
    touched = dict.fromkeys(entry.sample for entry in entries if entry.number > before.number)
    found = {sample: in_effect.get(sample) for sample in touched}
    labels = {s: e.label for s, e in found.items() if e is not None and e.label is not None}
    apply(
        session, [Correction(s, label) for s, label in labels.items()]
    )  # an id that is not of this state is refused, and stays in the log
    withdrawn = [s for s, e in found.items() if e is None or e.label is None]
    dropped = {s for s, e in found.items() if e is not None and e.kind == "drop"}
    _withdraw(session, withdrawn, dropped, set(labels), before, Absorbed(number, digest))
    return sum(entry.number > before.number for entry in entries)


def record_corrections(state: Path, fixes: Path) -> tuple[list[Outcome], list[str]]:
    """Record a CSV file of `id` and `label` in the log, for the process that holds the state; all rows or none.

    Returns the outcomes, and the labels that no sample had before.
    """
    with Store.reading(state) as store:
        any_time = store.settings.learner == FULL_MEMORY
        correctable = (lambda position: None) if any_time else partial(check_scored, store)
        outcomes, labels = check(store, read_corrections(fixes), correctable)
        names = {row.position: row.id for row in store.rows(list(labels))}
        new_labels = sorted(set(labels.values()) - set(store.labels()))
        known = absorbed(store)
    warn_of_new_log(log_path(state), known)
    decisions = [Decision(names[position], "label", label) for position, label in labels.items()]
    with DecisionLog.writing(log_path(state), known.number) as log:
        check_log(log, known)
        log.record(decisions, IMPORTED, secrets.token_hex(8))
    return outcomes, new_labels


def check_log(log: DecisionLog, known: Absorbed) -> None:
    """Raise UserError if a log has lost entries that its state has absorbed; one that was deleted starts anew."""
    entries = log.entries()
    starts_anew = entries[0].number > known.number if entries else log.begins_after() == known.number
    if known.number and not starts_anew and log.digest_of(known.number) != known.digest:
        raise lost_decisions(log.path)


def lost_decisions(path: Path) -> UserError:
    """Return the error that a log has lost entries."""
    return UserError(
        f"{path} has lost decisions that the state has learned from: restore the folder from a copy, or delete the "
        "file to begin a new log."
    )


def warn_of_new_log(path: Path, known: Absorbed) -> None:
    """Say that a new log begins, if the one that the state has learned from is gone."""
    if known.number and not path.exists():
        _logger.warning(
            "%s is missing: a new log begins. What the state has learned from earlier decisions stays, but they can no "
            "longer be undone or exported.",
            path,
        )


def decisions_csv(entries: Iterable[Entry]) -> str:
    """Return the labels in effect as the CSV file that `correct` takes, with the columns id and label."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "label"])
    writer.writerows([spreadsheet_safe(e.sample), spreadsheet_safe(e.label)] for e in entries if e.label is not None)
    return text.getvalue()


def export_decisions(state: Path | None, audit: Path | None, out: Path) -> int:
    """Write the labels that reviewers decided on; returns their number."""
    known = Absorbed()
    if state is not None:
        path = log_path(state)
        with Store.reading(state) as store:
            store.check_destination(out)
            known = absorbed(store)
    else:
        audit = audit or Path()
        path = audit_log(audit)
        _check_destination(audit, out)
    with DecisionLog.reading(path) as log:
        if log is not None:
            check_log(log, known)
        elif known.number and path.exists():
            raise lost_decisions(path)
        entries = [] if log is None else InEffect(log.entries()).all()
    if not entries:
        raise UserError(f"{path} holds no decisions yet: make some with `purereplay review`.")
    write_whole(out, decisions_csv(entries).encode())
    return sum(e.label is not None for e in entries)


def _check_destination(audit: Path, out: Path) -> None:
    """Raise UserError if `out` is the audit or a file of its log, also under another name."""
    log = audit_log(audit)
    own = [audit, *files_of(log)]
    same = out.exists() and any(path.exists() and path.samefile(out) for path in own)
    if same or os.path.realpath(out) in map(os.path.realpath, own):
        raise UserError(f"{out} belongs to the audit {audit}: choose another file.")


def _withdraw(
    session: Session, samples: list[str], dropped: set[str], labelled: set[str], before: Absorbed, now: Absorbed
) -> None:
    """Take samples without a label in effect out of P and of the corrections, and record what was absorbed.

    "Not sure" and an undone decision leave a sample that the filter accepted where it is.
    """
    store = session.store
    places = {s: _position(store, s) for s in {*samples, *labelled}}
    corrected = {p for (p,) in store.query("SELECT DISTINCT position FROM corrections")}
    gone = {p for s in samples if (p := places[s]) is not None and (p in corrected or s in dropped)}
    out = {p for s in dropped if (p := places[s]) is not None}
    again = {p for p in places.values() if p is not None} - out
    facts = {"number": now.number, "digest": now.digest, "dropped": sorted((before.dropped - again) | out)}
    with store.transaction():
        current = None
        if gone:
            rows = store.query("SELECT number, position, label FROM corrections ORDER BY number")
            store.replace("corrections", [row for row in rows if row[1] not in gone])
            current = session.withdraw(sorted(gone))
        store.write_fact(_FACT, json.dumps(facts))
    store.tidy(current)


def _position(store: Store, sample: str) -> int | None:
    found = store.one("SELECT position FROM samples WHERE id = ?", [sample])
    return None if found is None else int(found[0])


def _marks(path: Path) -> object:
    """Return sizes and times of the log's files, by which a change is noticed."""
    marks: list[tuple[int, int, int] | None] = []
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            found = file.stat()
            marks.append((found.st_size, found.st_mtime_ns, found.st_ino))
        except OSError:
            marks.append(None)
    return marks
