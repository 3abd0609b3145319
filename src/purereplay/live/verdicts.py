"""Verdicts of the learner `full-memory` in the tables of a state, with their history.

`decisions` and `likely` have the current verdict on every sample. A sample that is not in `likely` could not be judged:
too few samples had its label when all were judged, or all had the same. Its probability is only the share of right
labels in all.
`verdicts` has the first verdict, every later one that changed a decision, and those of a person. `revisions` has each
time that all samples were judged, and `noise` the estimate of the last time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.store import Store
from purereplay.purify.beta_mixture import MIN_SAMPLES

_ROWS = 5000  # written at once
_UNCORRECTED = "position NOT IN (SELECT position FROM corrections)"
ALL = -1  # in the table `noise`: of all given labels, or to all others
UNKNOWN = -1  # most likely label of a sample that could not be judged
FIRST = "first judged"
ARRIVED = "judged by the classifier when it arrived"
PERSON = "corrected by a person"
CONFIRMED = "confirmed by a person"  # shown for PERSON if the label is the given one
TOO_FEW = "not judged: too few samples had this label when all were judged"
ONE_LABEL = "not judged: all samples had the same label when all were judged"
_NOT_JUDGED = "not judged: "  # begins this reason, and that of earlier versions


class Judgements(NamedTuple):
    """Verdicts on samples at consecutive positions."""

    start: int  # position of the first one
    probability: NDArray[np.float64]  # of being clean, high = clean
    selected: NDArray[np.bool_]  # accepted
    likely: NDArray[np.int64]  # most likely true label; UNKNOWN: too few samples have the given one
    likely_probability: NDArray[np.float64]


def empty_judgements(start: int, n: int) -> Judgements:
    """Return verdicts on n samples that are still to be filled in."""
    return Judgements(start, np.zeros(n), np.zeros(n, bool), np.zeros(n, np.int64), np.zeros(n))


def fill(judged: Judgements, rows: NDArray[np.int64], part: Judgements) -> None:
    """Fill in some rows."""
    for whole, own in zip(judged[1:], part[1:], strict=True):
        whole[rows] = own


class Estimate(NamedTuple):
    """Estimated share of wrong labels among n samples, with an interval."""

    n: int
    rate: float
    low: float
    high: float


Noise = Mapping[tuple[int, int], Estimate]  # by given and likely label; see ALL


class Revision(NamedTuple):
    """One time that all samples were judged."""

    number: int
    n_samples: int
    n_corrections: int
    opinions: Mapping[str, float]


class Written(NamedTuple):
    """Numbers of verdicts."""

    n_new: int  # first verdicts
    n_changed: int  # changed decisions


def last_revision(store: Store) -> Revision | None:
    """Return the last time that all samples were judged."""
    found = store.one("SELECT number, n_samples, n_corrections, opinions FROM revisions ORDER BY number DESC")
    if found is None:
        return None
    number, n_samples, n_corrections, opinions = found
    return Revision(number, n_samples, n_corrections, json.loads(opinions))


def write_revision(store: Store, revision: Revision, noise: Noise, judged: Judgements, reason: str) -> Written:
    """Replace all verdicts within a transaction; all samples before are among those judged."""
    opinions = json.dumps(dict(revision.opinions))
    store.insert("revisions", [(revision.number, revision.n_samples, revision.n_corrections, opinions)])
    store.replace("noise", sorted((*key, e.n, *_floats(e.rate, e.low, e.high)) for key, e in noise.items()))
    for table in ("decisions", "likely"):
        store.start_over(table)
    return _write(store, revision.number, revision.n_samples, judged, FIRST, reason)


def write_arrived(store: Store, revision: int, judged: Judgements) -> Written:
    """Add verdicts on new samples within a transaction."""
    return _write(store, revision, judged.start + len(judged.probability), judged, ARRIVED, "")


def write_person(store: Store, decision: tuple[Any, ...], n_samples: int, *, is_right: bool) -> None:
    """Replace a decision, given as its row, by what a person has said of the given label; within a transaction."""
    position, revision, _, centrality, _ = decision
    store.remove("decisions", "position", decision)
    store.insert("decisions", [(position, revision, float(is_right), centrality, int(is_right))])
    [last] = store.one("SELECT coalesce(max(number), 0) FROM verdicts")
    store.insert("verdicts", [(last + 1, position, revision, n_samples, float(is_right), int(is_right), PERSON)])


def _write(store: Store, revision: int, n_samples: int, judged: Judgements, first: str, reason: str) -> Written:
    [last] = store.one("SELECT coalesce(max(number), 0) FROM verdicts")
    numbers, n_new, n_changed = count(last + 1), 0, 0
    for positions in _pieces(judged):
        before = _decisions(store, positions)
        rows = list(_rows(judged, positions))
        store.put("decisions", [(p, revision, chance, 0.0, selected) for p, chance, selected, _, _ in rows])
        store.delete("likely", "position", [(p,) for p, _, _, label, _ in rows if label == UNKNOWN])
        store.put("likely", [(p, label, chance) for p, _, _, label, chance in rows if label != UNKNOWN])
        history, end = [], judged.start + len(judged.probability)
        why_not = ONE_LABEL if UNKNOWN in judged.likely[positions - judged.start] and one_label(store, end) else TOO_FEW
        for p, chance, selected, label, _ in rows:
            if before.get(p) != (selected, label != UNKNOWN):
                n_new, n_changed = n_new + (p not in before), n_changed + (p in before)
                why = why_not if label == UNKNOWN else reason if p in before else first
                history.append((next(numbers), p, revision, n_samples, chance, selected, why))
        store.insert("verdicts", history)
    return Written(n_new, n_changed)


def is_unjudged(reason: str) -> bool:
    """Return whether a verdict with this reason says that the sample could not be judged."""
    return reason.startswith(_NOT_JUDGED)


def one_label(store: Store, stop: int | None = None) -> bool:
    """Return whether all samples before a position have the same label, so that none of them can be judged.

    A label that a person gave counts as another one.
    """
    end = store.n_samples if stop is None else stop
    sql = "SELECT label FROM samples WHERE position < ? UNION SELECT label FROM corrections WHERE position < ? LIMIT 2"
    return len(store.query(sql, [end, end])) == 1


def why_unjudged(store: Store) -> str:
    """Return why samples could not be judged, with the remedy if there is one."""
    if store.settings.learner == FULL_MEMORY and one_label(store):
        return "all samples have the same label: add samples of another label"
    return "too few samples have the label"


def _pieces(judged: Judgements) -> Iterator[NDArray[np.int64]]:
    positions = judged.start + np.arange(len(judged.probability))
    for start in range(0, len(positions), _ROWS):
        yield positions[start : start + _ROWS]


def _decisions(store: Store, positions: NDArray[np.int64]) -> dict[int, tuple[int, bool]]:
    """Return the current decisions by position, and whether the sample could be judged."""
    sql = (
        "SELECT d.position, d.selected, l.position FROM decisions d LEFT JOIN likely l USING (position)"
        " WHERE d.position BETWEEN ? AND ?"
    )
    ends = [int(positions[0]), int(positions[-1])]
    return {position: (selected, likely is not None) for position, selected, likely in store.query(sql, ends)}


def unjudged(store: Store) -> str:
    """Return the query for the positions of samples that could not be judged, and that no person has corrected.

    A learner with buffers could not judge a label with too few samples in its buffer.
    """
    if store.settings.learner == FULL_MEMORY:
        return f"SELECT position FROM decisions WHERE position NOT IN (SELECT position FROM likely) AND {_UNCORRECTED}"
    options = getattr(store.settings, "options", None)
    alone = store.settings.learner == "spr" or getattr(options, "small_class", None) == "drop"  # no other opinion
    n = MIN_SAMPLES if alone and getattr(options, "filter", None) == "self-centered" else 0
    few = (
        "SELECT d.buffer, s.label FROM decisions d JOIN samples s USING (position)"
        f" GROUP BY d.buffer, s.label HAVING count(*) < {n}"
    )
    return (
        "SELECT position FROM decisions d JOIN samples s USING (position)"
        f" WHERE (d.buffer, s.label) IN ({few}) AND {_UNCORRECTED}"
    )


def rejected(store: Store) -> str:
    """Return the query for the positions of samples that are rejected, and that no person has corrected."""
    return (
        f"SELECT position FROM decisions WHERE selected = 0 AND {_UNCORRECTED} AND position NOT IN ({unjudged(store)})"
    )


def _rows(judged: Judgements, positions: NDArray[np.int64]) -> Iterator[tuple[int, float, int, int, float]]:
    at = positions - judged.start
    columns = (judged.probability, judged.selected, judged.likely, judged.likely_probability)
    for p, chance, selected, label, other in zip(
        positions.tolist(), *(column[at].tolist() for column in columns), strict=True
    ):
        yield p, chance + 0.0, int(selected), label, other + 0.0  # SQLite has no -0.0


def _floats(*values: float) -> tuple[float, ...]:
    return tuple(float(value) + 0.0 for value in values)


def read_noise(store: Store) -> dict[tuple[int, int], Estimate]:
    """Return the last estimate of the noise."""
    rows = store.query("SELECT given, likely, n, rate, low, high FROM noise")
    return {(given, likely): Estimate(n, rate, low, high) for given, likely, n, rate, low, high in rows}
