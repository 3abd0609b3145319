"""The reviewers' desk: the samples that come next, decisions on them, undo, pairs of labels and the export.

Samples come in the order of doubt. A page reserves a few samples at a time, and what it got keeps its order: new scores
change only what comes after. All methods are called by one thread.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from purereplay.live.decisions import KINDS, Decision, DecisionLog, InEffect, Kind
from purereplay.live.items import Refused, checked_label
from purereplay.live.reviewed import decisions_csv
from purereplay.web.opinions import Opinion
from purereplay.web.samples import Samples
from purereplay.web.statistics import Statistics, statistics

LEASE_SECONDS = 120.0
MAX_AT_ONCE = 60  # samples of one request or action
_NEAR = 4  # similar images of each label
Item = dict[str, Any]
Rows = NDArray[np.int64]
Choice = tuple[int, Kind, str | None]  # number of a sample, decision, label


class Filter(NamedTuple):
    """Choice of the samples that come next; None: any."""

    label: str | None = None  # given label
    suggested: str | None = None
    buffer: int | None = None
    decision: str = "open"  # open, decided, keep, label, unsure or drop
    verdict: str | None = None  # accepted, rejected or unjudged


class Desk:
    """Samples, the log of decisions, and the opinion of the classifier."""

    def __init__(self, samples: Samples, log: DecisionLog, opinion: Opinion) -> None:
        self.samples = samples
        self.log = log
        self.opinion = opinion  # replaced when there is a new classifier
        self.in_effect = InEffect(log.entries())
        self._given: dict[str, str] = {}  # given labels of decided samples, by id
        self._decided = np.zeros(0, np.int64)  # numbers of samples with a decision
        self._place = np.zeros(0, np.int64)  # row of the table by number, -1: none
        self._numbers: dict[str, int] = {}  # of decided samples, by id
        self._index()

    def follow(self) -> None:
        """Read new scores, and decisions of other processes."""
        if self.samples.refresh():
            self._index()
        entries = self.log.entries(self.in_effect.last)
        if entries:
            self.in_effect.add(entries)
            self._index_decided()

    def _index(self) -> None:
        numbers = self.samples.table.number
        self._place = np.full(int(numbers.max()) + 1 if len(numbers) else 0, -1, np.int64)
        self._place[numbers] = np.arange(len(numbers))
        self._index_decided()

    def _index_decided(self) -> None:
        known = {e.sample: n for e in self.in_effect.all() if (n := self._find(e.sample)) is not None}
        self._decided = np.array(sorted(known.values()), np.int64)
        self._given = {name: self._label(self.samples.table.label[self._place[n]]) for name, n in known.items()}

    def has(self, number: int) -> bool:
        """Return whether a scored sample has this number."""
        return 0 <= number < len(self._place) and bool(self._place[number] >= 0)

    def _find(self, name: str) -> int | None:
        """Return the number of a scored sample by its id, or None."""
        if name not in self._numbers and (found := self.samples.find(name)) is not None and self.has(found):
            self._numbers[name] = found
        return self._numbers.get(name)

    def _label(self, code: int) -> str:
        return self.samples.labels[int(code)]

    # ---------------------------------------------------------------- what comes next

    def next(self, page: str, wanted: Filter, n: int, held: list[int]) -> list[Item]:
        """Reserve the next n samples for a page, besides those that it holds already, and return them."""
        self.follow()
        rows = self._rows(wanted)
        rows = rows[~np.isin(self.samples.table.number[rows], held)]
        chosen: list[int] = []
        for start in range(0, len(rows), 4 * MAX_AT_ONCE):  # others may hold some of them
            numbers = [int(number) for number in self.samples.table.number[rows[start : start + 4 * MAX_AT_ONCE]]]
            names = dict(zip(self.samples.names(numbers), numbers, strict=True))
            found = self.log.lease(names, page, min(n, MAX_AT_ONCE) - len(chosen), LEASE_SECONDS)
            chosen += [names[name] for name in found]
            if len(chosen) >= min(n, MAX_AT_ONCE):
                break
        return [self.item(number) for number in chosen]

    def _rows(self, wanted: Filter) -> Rows:
        """Return the rows of the table that pass a filter, by doubt."""
        table, labels = self.samples.table, self.samples.labels
        mask = np.isin(table.number, self._decided, invert=wanted.decision == "open")
        if wanted.decision in KINDS:
            kind = [e.sample for e in self.in_effect.all() if e.kind == wanted.decision]
            mask &= np.isin(table.number, [n for name in kind if (n := self._find(name)) is not None])
        if wanted.label is not None:
            mask &= table.label == (labels.index(wanted.label) if wanted.label in labels else -1)
        if wanted.buffer is not None:
            mask &= table.buffer == wanted.buffer
        if wanted.verdict is not None:
            mask &= np.isnan(table.probability) == (wanted.verdict == "unjudged")
            mask &= table.accepted == (wanted.verdict == "accepted")
        if wanted.suggested is not None:
            code = labels.index(wanted.suggested) if wanted.suggested in labels else -2
            mask &= self._suggested(table.number) == code
        return np.flatnonzero(mask)

    def _suggested(self, numbers: Rows) -> NDArray[np.int32]:
        known = self.opinion.suggested
        inside = numbers < len(known)
        return np.where(inside, known[np.where(inside, numbers, 0)] if len(known) else -1, -1).astype(np.int32)

    def pairs(self) -> list[dict[str, Any]]:
        """Return the pairs of given and suggested label of open samples, the most frequent first."""
        self.follow()
        table = self.samples.table
        rows = self._rows(Filter())
        suggested, given = self._suggested(table.number[rows]), table.label[rows]
        doubted = (suggested >= 0) & (suggested != given)
        counted = Counter(zip(given[doubted].tolist(), suggested[doubted].tolist(), strict=True))
        return [
            {"given": self._label(a), "suggested": self._label(b), "n": n} for (a, b), n in counted.most_common(200)
        ]

    def item(self, number: int) -> Item:
        """Return everything the page shows of a sample."""
        row = self._place[number]
        table, opinion = self.samples.table, self.opinion  # a thread may replace the opinion meanwhile
        code, [name] = int(table.label[row]), self.samples.names([number])
        given = self._input(number, opinion)
        likely, is_judged = opinion.suggest(number, given), not np.isnan(table.probability[row])
        if likely is not None and likely[0] == code and not is_judged:
            likely = None  # the classifier has learned the label from this sample, and perhaps one more
        other = None if likely is None or likely[0] == code or likely[0] >= len(self.samples.labels) else likely[0]
        own = None if given is None else opinion.features(given)
        near = {"given": opinion.near(own, code, _NEAR, number)}
        near["suggested"] = [] if other is None else opinion.near(own, other, _NEAR, number)
        entry = self.in_effect.get(name)
        return {
            "sample": number,
            "name": name,
            "given": self._label(code),
            "suggested": None if other is None else self._label(other),
            "chance": None if likely is None else round(likely[1], 4),
            "agrees": likely is not None and likely[0] == code,
            "clean": round(float(table.probability[row]), 4) if is_judged else None,
            "accepted": bool(table.accepted[row]),
            "buffer": int(table.buffer[row]) if self.samples.has_buffers else None,
            "decision": None if entry is None else {"kind": entry.kind, "label": entry.label},
            "near": near,
        }

    def _input(self, number: int, opinion: Opinion) -> Tensor | None:
        """Return a sample as the classifier of an opinion takes it, (1, …)."""
        if opinion.classifier is None:
            return None
        try:
            return self.samples.input(number)
        except Refused:
            return None

    # ---------------------------------------------------------------- decisions

    def decide(self, reviewer: str, page: str, action: str, decisions: list[Choice]) -> list[Item]:
        """Record decisions on samples by number; they are on the disk when this returns. Refused if one is no decision.

        A sample that another reviewer has decided meanwhile gets this decision too; the later one is in effect.
        """
        names = self.samples.names([number for number, _, _ in decisions])
        checked = []
        for name, (number, kind, label) in zip(names, decisions, strict=True):
            given = self._label(self.samples.table.label[self._place[number]])
            if kind == "label":
                label = checked_label(label)
            checked.append(Decision(name, "keep" if label == given else kind, given if kind == "keep" else label))
        if len({d.sample for d in checked}) < len(checked):
            raise Refused("is decided twice")
        self.log.record(checked, reviewer, action)
        self.log.release(page, names)
        self.follow()
        return [self.item(number) for number, _, _ in decisions]

    def undo(self, reviewer: str, page: str, action: str) -> list[Item]:
        """Undo the reviewer's last action; returns the samples that it concerned, reserved for the page again."""
        undone = self.log.undo(reviewer, action)
        self.follow()
        names = [entry.sample for entry in undone]
        self.log.lease(names, page, len(names), LEASE_SECONDS)
        return [self.item(number) for name in names if (number := self._find(name)) is not None]

    def statistics(self) -> Statistics:
        """Return the statistics of the review."""
        self.follow()
        n_unjudged = int(np.isnan(self.samples.table.probability).sum())
        n_scored = len(self.samples.table.number)
        return statistics(self.in_effect.all(), self._given, n_scored, self.opinion.noise, n_unjudged)

    def export(self) -> str:
        """Return the labels in effect as the CSV file that `correct` takes."""
        self.follow()
        return decisions_csv(self.in_effect.all())
