"""The verdicts of a state in their order, numbered so that a reader can go on where it stopped."""

from __future__ import annotations

from typing import NamedTuple

from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.store import Store
from purereplay.live.verdicts import is_unjudged

_COLUMNS = "s.id, c.label, v.probability, v.selected"
_JOINED = "JOIN samples s USING (position) JOIN classes c ON c.code = s.label"
_HISTORY = (
    f"SELECT v.number, {_COLUMNS}, v.n_samples, v.reason FROM verdicts v {_JOINED} WHERE v.number > ?"
    " ORDER BY v.number LIMIT ?"
)
# a learner with buffers judges every sample once, in the order of arrival
_ONCE = (
    f"SELECT v.position + 1, {_COLUMNS}, NULL, '' FROM decisions v {_JOINED} WHERE v.position >= ?"
    " ORDER BY v.position LIMIT ?"
)


class Judgement(NamedTuple):
    """One verdict on a sample: the first one, or a later one that changed the decision."""

    number: int
    id: str
    given_label: str
    clean_probability: float | None  # None: not judged
    decision: str  # accepted or rejected; unjudged: too few samples had the label
    n_samples: int | None  # known then; None: the learner judges every sample once
    reason: str


def judgements(store: Store, since: int, limit: int) -> list[Judgement]:
    """Return verdicts with greater numbers than `since`, at most `limit`."""
    sql = _HISTORY if store.settings.learner == FULL_MEMORY else _ONCE
    return [
        Judgement(number, name, label, *_decision(probability, selected, reason), n_samples, reason)
        for number, name, label, probability, selected, n_samples, reason in store.query(sql, [since, limit])
    ]


def _decision(probability: float, selected: int, reason: str) -> tuple[float | None, str]:
    if is_unjudged(reason):
        return None, "unjudged"
    return probability, "accepted" if selected else "rejected"
