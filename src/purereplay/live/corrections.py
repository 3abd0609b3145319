"""Labels that a person gave: they go into the purified buffer with probability 1, and on the record."""

from __future__ import annotations

from pathlib import Path

import torch

from purereplay.data.batch import Batch
from purereplay.live.items import Outcome, Refusal, Refused, checked_id, checked_label
from purereplay.live.learning import Session
from purereplay.live.lists import csv_rows

_JUDGED = "SELECT s.position, d.position IS NOT NULL FROM samples s LEFT JOIN decisions d USING (position) WHERE id = ?"
_LAST = "SELECT c.label FROM corrections k JOIN classes c ON c.code = k.label WHERE position = ? ORDER BY number DESC"


def correct(session: Session, path: Path) -> list[Outcome]:
    """Apply a CSV file of `id` and `label`; a row that is no good is refused and the others are applied together."""
    outcomes: list[Outcome] = []
    labels: dict[int, str] = {}  # by position
    for number, row in csv_rows(path, ("id", "label")):
        name = None
        try:
            if isinstance(row, Refusal):
                raise Refused(row.reason)
            name = checked_id(row.get("id"))
            label = checked_label(row.get("label"))
            position = _judged(session, name)
            if labels.setdefault(position, label) != label:
                raise Refused(f"is corrected to {labels[position]!r} by an earlier line already")
            outcomes.append(Outcome(name, number, new=_last(session, position) != label))
        except Refused as reason:
            outcomes.append(Outcome(name, number, new=False, error=str(reason)))
    fresh = {position: label for position, label in labels.items() if _last(session, position) != label}
    if fresh:
        _apply(session, fresh)
    return outcomes


def _apply(session: Session, labels: dict[int, str]) -> None:
    learner, store = session.learner, session.store
    assert learner is not None  # somebody was judged
    with store.transaction():
        codes = torch.tensor([store.code(label) for label in labels.values()])
        rows = store.rows(list(labels))
        images = torch.stack([torch.from_numpy(row.pixels.copy()) for row in rows])
        learner.grow(int(codes.max()) + 1)
        learner.correct(Batch(images, codes, torch.tensor(list(labels))))
        for position, code in zip(labels, codes.tolist(), strict=True):
            store.query("INSERT INTO corrections (position, label) VALUES (?, ?)", [position, code])
        current = session.write(None)
    store.tidy(current)


def _judged(session: Session, identity: str) -> int:
    """The position of a sample that was judged, or Refused."""
    found = session.store.one(_JUDGED, [identity])
    if found is None:
        raise Refused("is not the id of a sample here")
    if not found[1]:
        raise Refused("is not judged yet: correct it when it stands in the audit")
    return int(found[0])


def _last(session: Session, position: int) -> str | None:
    """What it was corrected to before."""
    found = session.store.one(_LAST, [position])
    return None if found is None else str(found[0])
