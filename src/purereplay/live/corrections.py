"""Labels corrected by a person, from a file: all are recorded, trusted and learned.

The file is a CSV table with the columns `id` and `label`, or the audit with its column `corrected_label` filled in.
Rows of the audit without a corrected label are skipped. A corrected label that is the given one confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from purereplay.data.text import spreadsheet_raw
from purereplay.live.items import Outcome, Refusal, Refused, checked_id, checked_label
from purereplay.live.lists import csv_rows
from purereplay.live.session import Session
from purereplay.live.store import Store

_POSITION = "SELECT position FROM samples WHERE id = ? UNION ALL SELECT position FROM moves WHERE id = ?"


class Correction(NamedTuple):
    """The label that a person gives to a sample."""

    id: str | None
    label: str | None
    line: int | None = None  # of a file


def correct(session: Session, path: Path) -> list[Outcome]:
    """Apply the corrections of a CSV file; see `apply`."""
    return apply(session, read_corrections(path))


def read_corrections(path: Path) -> Iterator[Correction | Refusal]:
    """Yield the corrections of a CSV file."""
    for number, row in csv_rows(path, ("id",), one_of=("label", "corrected_label")):
        if isinstance(row, Refusal):
            yield row
        elif "label" in row or row.get("corrected_label") is not None:
            yield Correction(_raw(row.get("id")), _raw(row.get("label", row.get("corrected_label"))), number)


def apply(session: Session, corrections: Iterable[Correction | Refusal]) -> list[Outcome]:
    """Apply corrections in one transaction; unusable ones are refused and the others applied.

    The id of a sample is the one that it was added with, or the path that its file was moved to.
    """
    outcomes, new = check(session.store, corrections, session.learning.check_correctable)
    if new:
        session.correct(new)
    return outcomes


def check(
    store: Store, corrections: Iterable[Correction | Refusal], check_correctable: Callable[[int], None]
) -> tuple[list[Outcome], dict[int, str]]:
    """Return the outcome of each correction, and the labels by position that were not recorded before.

    `check_correctable` raises Refused for the position of a sample that cannot be corrected yet.
    """
    outcomes: list[Outcome] = []
    labels: dict[int, str] = {}  # by position
    new: dict[int, str] = {}
    for found in corrections:
        name = None
        try:
            if isinstance(found, Refusal):
                raise Refused(found.reason)
            name = checked_id(found.id)
            label = checked_label(found.label)
            position = position_of(store, name)
            check_correctable(position)
            if labels.setdefault(position, label) != label:
                raise Refused(f"was corrected to {labels[position]!r} by an earlier line")
            if store.last_correction(position) != label:
                new[position] = label
            outcomes.append(Outcome(name, found.line, new=position in new))
        except Refused as reason:
            outcomes.append(Outcome(name, found.line, new=False, error=str(reason)))
    return outcomes, new


def n_teaching(session: Session, outcomes: list[Outcome]) -> int:
    """Return how many of the corrected samples the learner learns from, under their corrected labels."""
    corrected = {position_of(session.store, o.name) for o in outcomes if o.name and o.error is None}
    return len(corrected & session.learning.teaching())


def position_of(store: Store, identity: str) -> int:
    """Return the position of a sample, or raise Refused."""
    found = store.one(_POSITION, [identity, identity])
    if found is None:
        raise Refused("is not the id of a sample in this state")
    return int(found[0])


def _raw(cell: str | None) -> str | None:
    """Return a cell without the mark that the audit puts before formulas."""
    return cell and spreadsheet_raw(cell)
