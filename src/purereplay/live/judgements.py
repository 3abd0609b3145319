"""The verdicts of a state in their order, numbered so that a reader can go on where it stopped."""

from __future__ import annotations

from typing import NamedTuple

from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.store import Store
from purereplay.live.verdicts import CONFIRMED, PERSON, is_unjudged

MAX_JUDGEMENTS = 1000  # of one answer of a server
_COLUMNS = "s.id, c.label, v.probability, v.selected"
_JOINED = "JOIN samples s USING (position) JOIN classes c ON c.code = s.label"
_CORRECTED = (
    "(SELECT k.label FROM corrections l JOIN classes k ON k.code = l.label WHERE l.position = v.position"
    " ORDER BY l.number DESC LIMIT 1)"
)
_HISTORY = (
    f"SELECT v.number, {_COLUMNS}, v.n_samples, v.reason, {_CORRECTED} FROM verdicts v {_JOINED} WHERE v.number > ?"
    " ORDER BY v.number LIMIT ?"
)
# a learner with buffers judges every sample once, in the order of arrival
_ONCE = (
    f"SELECT v.position + 1, {_COLUMNS}, NULL, '', NULL FROM decisions v {_JOINED} WHERE v.position >= ?"
    " ORDER BY v.position LIMIT ?"
)


class Judgement(NamedTuple):
    """One verdict on a sample: the first one, or a later one that changed the decision."""

    number: int
    id: str
    given_label: str
    clean_probability: float | None  # None: not judged
    # accepted or rejected; corrected or confirmed by a person; unjudged: too few samples had the label
    decision: str
    n_samples: int | None  # known then; None: the learner judges every sample once
    reason: str
    corrected_label: str | None  # the last one that a person gave; None: not corrected


def judgements(store: Store, since: int, limit: int) -> list[Judgement]:
    """Return verdicts with greater numbers than `since`, at most `limit`."""
    sql = _HISTORY if store.settings.learner == FULL_MEMORY else _ONCE
    return [_judgement(*row) for row in store.query(sql, [since, limit])]


def _judgement(
    number: int, name: str, given: str, probability: float, selected: int, n: int | None, reason: str, label: str | None
) -> Judgement:
    chance: float | None = probability
    decision = "accepted" if selected else "rejected"
    if is_unjudged(reason):
        chance, decision = None, "unjudged"
    if reason == PERSON:  # what is in effect now, also in a verdict before a later correction
        chance, decision, reason = (1.0, "confirmed", CONFIRMED) if label == given else (0.0, "corrected", PERSON)
    else:
        label = None
    return Judgement(number, name, given, chance, decision, n, reason, label)
