"""Reviewers' decisions as the CSV file that `correct` takes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from purereplay.data.files import write_whole
from purereplay.data.text import spreadsheet_safe
from purereplay.errors import UserError
from purereplay.live.decisions import DecisionLog, Entry, InEffect
from purereplay.live.reviewed import Absorbed, absorbed, check_log, log_path, lost_decisions
from purereplay.live.store import Store


def audit_log(audit: Path) -> Path:
    """Return the path of the log of decisions on an audit file."""
    return audit.with_name(audit.name + ".decisions.sqlite")


def decisions_csv(entries: Iterable[Entry]) -> str:
    """Return the labels among decisions in effect, as CSV with the columns id and label."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "label"])
    writer.writerows([spreadsheet_safe(e.sample), spreadsheet_safe(e.label)] for e in entries if e.label is not None)
    return text.getvalue()


def export_decisions(state: Path | None, audit: Path | None, out: Path) -> int:
    """Write the labels that reviewers decided on; returns their number."""
    if state is not None:
        with Store.reading(state) as store:
            store.check_destination(out)
            known = absorbed(store)
    else:
        known = Absorbed()
    path = log_path(state) if state is not None else audit_log(audit or Path())
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
