"""Review statistics: wrong labels found, an estimate of those left, speed, and a hint when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from purereplay.live.decisions import Entry
from purereplay.live.reviewed import IMPORTED
from purereplay.purify.noise_rate import NoiseRate, wilson

RECENT = 50  # decisions by which the hint is given
_FEW = 2  # wrong labels among them
_PAUSE = 60.0  # seconds; a longer time between two decisions is a pause
_SPEED_OVER = 100  # decisions
Rate = dict[str, float]


class Statistics(TypedDict):
    """Numbers that the page shows; shares are in [0, 1]."""

    scored: int
    unjudged: int  # of these could not be judged, and no person has corrected them
    decided: int  # with any decision
    judged: int  # of these kept or given another label
    wrong: int  # of these given another label
    unsure: int
    dropped: int
    wrong_share: Rate | None  # rate, low, high: of wrong labels among the judged
    left: Rate | None  # expected number of wrong labels that are left, with its 95 % interval
    per_minute: float | None
    hint: str | None


def statistics(
    entries: Sequence[Entry], given: dict[str, str], n_scored: int, noise: NoiseRate | None, n_unjudged: int = 0
) -> Statistics:
    """Return the statistics of the decisions in effect, oldest first; `given` are the given labels of scored samples.

    Decisions on other samples do not count, and labels of a file, read by `correct`, have no speed and no order.
    """
    entries = [e for e in entries if e.sample in given]
    reviewed = [e for e in entries if e.reviewer != IMPORTED]
    judged = [e for e in entries if e.label is not None]
    n_wrong = sum(e.label != given[e.sample] for e in judged)
    share = wilson(n_wrong, len(judged)) if judged else None
    n_decided = len(entries)
    left = None if noise is None or not noise.n else _left(noise, n_scored - n_unjudged, n_decided, n_wrong)
    return {
        "scored": n_scored,
        "unjudged": n_unjudged,
        "decided": n_decided,
        "judged": len(judged),
        "wrong": n_wrong,
        "unsure": sum(e.kind == "unsure" for e in entries),
        "dropped": sum(e.kind == "drop" for e in entries),
        "wrong_share": None if share is None else {"rate": share.rate, "low": share.low, "high": share.high},
        "left": left,
        "per_minute": per_minute([e.time for e in reviewed]),
        "hint": _hint([e.label != given[e.sample] for e in reviewed if e.label is not None], n_scored - n_decided),
    }


def _left(noise: NoiseRate, n_judged: int, n_decided: int, n_wrong: int) -> Rate:
    """Return the expected number of wrong labels that are left: those estimated before reviewing, less those found."""

    def less_found(rate: float) -> float:
        return min(max(rate * n_judged - n_wrong, 0.0), float(max(0, n_judged - n_decided)))

    return {"rate": less_found(noise.rate), "low": less_found(noise.low), "high": less_found(noise.high)}


def per_minute(times: Sequence[float]) -> float | None:
    """Return the decisions per minute over the last ones, pauses left out; None for fewer than three."""
    recent = sorted(times)[-_SPEED_OVER:]
    gaps = [b - a for a, b in pairwise(recent) if b - a <= _PAUSE]
    return 60 * len(gaps) / sum(gaps) if len(gaps) >= 2 and sum(gaps) > 0 else None


def _hint(is_wrong: list[bool], n_left: int) -> str | None:
    if not n_left:
        return "Every scored sample has a decision."
    recent = is_wrong[-RECENT:]
    if len(recent) == RECENT and sum(recent) <= _FEW:
        return (
            f"Of the last {RECENT} labels, {sum(recent)} were wrong. "
            "The rest of the list is more certain: this is a good time to stop."
        )
    return None
