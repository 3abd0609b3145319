"""Labels corrected by a person: all are recorded, and the samples enter the purified buffer with clean probability 1.

The purified buffer stays balanced over the labels and within its capacity. If there are more corrections than a label's
share, the newest stay in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

from purereplay.data.batch import Batch
from purereplay.data.text import spreadsheet_raw
from purereplay.errors import UserError
from purereplay.live.items import Outcome, Refusal, Refused, checked_id, checked_label
from purereplay.live.lists import csv_rows
from purereplay.live.session import Session
from purereplay.live.store import Store

_SCORED = "SELECT s.position, d.position IS NOT NULL FROM samples s LEFT JOIN decisions d USING (position) WHERE id = ?"
_LAST = "SELECT c.label FROM corrections k JOIN classes c ON c.code = k.label WHERE position = ? ORDER BY number DESC"


class Correction(NamedTuple):
    """A label that a person gave to a sample."""

    id: str
    label: str
    line: int | None = None  # of a file


def correct(session: Session, path: Path) -> list[Outcome]:
    """Apply a CSV file of `id` and `label`; see `apply`."""
    return apply(session, read_corrections(path))


def read_corrections(path: Path) -> Iterator[Correction | Refusal]:
    """Yield the rows of a CSV file of `id` and `label`."""
    for number, row in csv_rows(path, ("id", "label")):
        name = None
        try:
            if isinstance(row, Refusal):
                raise Refused(row.reason)
            name = checked_id(_raw(row.get("id")))
            yield Correction(name, checked_label(_raw(row.get("label"))), number)
        except Refused as reason:
            yield Refusal(name, str(reason), number)


def apply(session: Session, corrections: Iterable[Correction | Refusal]) -> list[Outcome]:
    """Apply corrections in one transaction; unusable ones are refused and the others applied."""
    outcomes, new = check(session.store, corrections)
    if new:
        _apply(session, new)
    return outcomes


def check(store: Store, corrections: Iterable[Correction | Refusal]) -> tuple[list[Outcome], dict[int, str]]:
    """Return the outcome of each correction, and the new labels by position."""
    outcomes: list[Outcome] = []
    labels: dict[int, str] = {}  # by position
    for offer in corrections:
        if isinstance(offer, Refusal):
            outcomes.append(Outcome(offer.name, offer.line, new=False, error=offer.reason))
            continue
        try:
            position = _scored_position(store, offer.id)
            if labels.setdefault(position, offer.label) != offer.label:
                raise Refused(f"is corrected to {labels[position]!r} by an earlier line already")
            outcomes.append(Outcome(offer.id, offer.line, new=_last_label(store, position) != offer.label))
        except Refused as reason:
            outcomes.append(Outcome(offer.id, offer.line, new=False, error=str(reason)))
    return outcomes, {position: label for position, label in labels.items() if _last_label(store, position) != label}


def n_in_purified(session: Session, outcomes: list[Outcome]) -> int:
    """Return how many of the corrected samples are in the purified buffer, under their corrected labels."""
    if session.learner is None:
        return 0
    held = set(session.learner.purified.index.tolist())
    return len({_scored_position(session.store, o.name) for o in outcomes if o.name and o.error is None} & held)


def _apply(session: Session, labels: dict[int, str]) -> None:
    """Correct scored samples; `labels` are the new labels by position."""
    learner, store = session.learner, session.store
    if learner is None:
        raise UserError(f"{store.path} is damaged: it has decisions, but no learner.")
    with store.transaction():
        codes = torch.tensor([store.code(label) for label in labels.values()])
        rows = store.rows(list(labels))
        images = torch.stack([torch.from_numpy(row.pixels.copy()) for row in rows])
        learner.grow(int(codes.max()) + 1)
        learner.correct(Batch(images, codes, torch.tensor(list(labels))))
        [last] = store.one("SELECT coalesce(max(number), 0) FROM corrections")
        numbered = zip(count(last + 1), labels, codes.tolist(), strict=False)
        store.insert("corrections", list(numbered))
        current = session.write(learner, None)
    store.tidy(current)


def _raw(cell: str | None) -> str | None:
    """Return a cell without the mark that the audit puts before formulas."""
    return cell and spreadsheet_raw(cell)


def _scored_position(store: Store, identity: str) -> int:
    """Return the position of a scored sample, or raise Refused."""
    found = store.one(_SCORED, [identity])
    if found is None:
        raise Refused("is not the id of a sample in this state")
    if not found[1]:
        raise Refused("is not scored yet: correct it once the audit lists it")
    return int(found[0])


def _last_label(store: Store, position: int) -> str | None:
    """Return the last corrected label of a sample."""
    found = store.one(_LAST, [position])
    return None if found is None else str(found[0])
