"""The learner `full-memory` in a state: the samples of the state are its memory, and every verdict is revised.

All samples are judged again whenever their number has grown by half, and at the end of a source. So the time per
new sample is bounded, and the order of arrival hardly matters. In between, the classifier judges new samples in pieces.
Both happen at fixed numbers of samples. So the result depends neither on the pieces in which the samples arrived nor on
where a process was killed.

At most `capacity` samples are compared with each other and teach the classifier; it judges the others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.live import digests
from purereplay.live.encoding import inputs
from purereplay.live.opinion import Known, Opinion, form_opinion, load_opinion
from purereplay.live.store import Current, Store
from purereplay.live.verdicts import (
    ALL,
    Estimate,
    Judgements,
    Revision,
    Written,
    empty_judgements,
    fill,
    last_revision,
    read_noise,
    rejected,
    write_arrived,
    write_person,
    write_revision,
)

_logger = logging.getLogger(__name__)
REST = 0.1  # at the end of a source all samples are judged again if there are new ones by this share of `growth`
_READ = 500  # samples read at once
_JUDGED = "judged"  # fact: samples before this position have a verdict


class Judged(NamedTuple):
    """Outcome of judging samples."""

    n_samples: int  # known then
    n_new: int  # judged for the first time
    n_changed: int  # decisions that changed
    n_rejected: int  # of all samples, now; without those that could not be judged
    is_revision: bool  # whether all samples were judged
    noise: Estimate | None  # share of wrong labels; None: unknown


class FullMemory:
    """The opinion of a state about its samples, and the samples that it has judged."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.opinion: Opinion | None = None  # None: nothing was judged yet
        self.revised = 0  # samples that were judged together last
        self.taken = 0  # samples before this position have a verdict
        self.watch: Progress | None = None  # may raise to stop the work

    def load(self, current: Current) -> None:
        """Continue with a saved opinion; one that cannot be read is formed anew, since the samples are all there."""
        try:
            self.opinion = load_opinion(self.store, current)
        except UserError as error:
            reason = str(error).partition(";")[0]
            _logger.warning("%s; it will be recomputed from the samples.", reason)
        self.revised = current.taken
        self.taken = max(current.taken, int(self.store.fact(_JUDGED) or 0))

    # ---------------------------------------------------------------- schedule

    def work(self, *, rest: bool = False, on_report: Callable[[Judged], None] | None = None) -> None:
        """Judge the samples that are due; `rest`: judge all that are known."""
        options = self.store.image_settings.memory_options if self.store.n_samples else None
        if options is None:
            return
        on_report = on_report or (lambda judged: None)
        n = self.store.n_samples
        if self.opinion is None and self.revised and not rest:  # its file was lost
            on_report(self._revise(self.taken))
        if rest:
            if n > self.revised + REST * options.growth * self.revised or self._opinion_is_old():
                on_report(self._revise(n))
            elif n > self.taken:
                on_report(self._judge_new(n))
            return
        while True:
            due, piece = options.next_revision(self.revised), self.taken + options.piece
            if self.opinion is not None and piece <= n and piece < due:
                on_report(self._judge_new(piece))
            elif due <= n:
                on_report(self._revise(due))
            else:
                return

    def judge_waiting(self) -> Judged | None:
        """Judge samples that are not due yet by the classifier, if there is one; the next revision judges them again.

        Revisions come at the same numbers of samples as without this.
        """
        if self.opinion is None or self.store.n_samples <= self.taken:
            return None
        return self._judge_new(self.store.n_samples)

    def settle(self) -> Judged | None:
        """Judge all samples again if corrections were made since the last time, or if the opinion was lost."""
        if not self.revised or not self._opinion_is_old():
            return None
        return self._revise(self.store.n_samples)

    def _opinion_is_old(self) -> bool:
        return self.opinion is None or self.opinion.basis != self._basis()

    def _basis(self) -> str:
        """Return a text that changes with the corrections and with the samples that a person has dropped."""
        found = digests.recorded(self.store.database, "corrections") or digests.Tally()
        return json.dumps([found.n, f"{found.total:x}", sorted(self._dropped())])

    # ---------------------------------------------------------------- judging

    def _revise(self, n: int) -> Judged:
        """Judge the first n samples together."""
        before, basis, known = last_revision(self.store), self._basis(), self.known(0, n)
        number = 1 if before is None else before.number + 1
        # the same every time, so that verdicts change by what is known and not by chance
        seed = derive_seed(self.store.image_settings.seed, "full-memory")
        rows = self._memory(known, seed)
        opinion, found = form_opinion(
            lambda some: self.inputs(rows[some]),
            known.part(rows),
            known.n_classes,
            self.store.image_settings.shape,
            seed=seed,
            number=number,
            basis=basis,
            watch=self.watch,
        )
        judged = empty_judgements(0, n)
        fill(judged, rows, found)
        others = np.setdiff1d(np.arange(n), rows)
        for some in np.array_split(others, -(-len(others) // _READ)) if len(others) else []:
            if self.watch:
                self.watch("judging", int(some[-1]), n)
            fill(judged, some, opinion.judge(self.inputs(some), known.labels[some]))
        _trust(judged, known)
        revision = Revision(number, n, int(known.trusted.sum()), opinion.weights)
        teaching = np.flatnonzero((judged.selected | known.trusted) & ~known.dropped)
        with self.store.transaction():
            written = write_revision(self.store, revision, opinion.noise, judged, _reason(before, revision))
            current = self.store.write_tensors(opinion.tensors(), n, opinion.facts())
            self.store.replace("purified", [(position,) for position in teaching.tolist()])
            self.store.write_fact(_JUDGED, str(n))
        self.store.tidy(current)
        self.opinion, self.revised, self.taken = opinion, n, n
        return self._judged(n, written, is_revision=True)

    def _judge_new(self, stop: int) -> Judged:
        """Judge new samples up to a position by the classifier."""
        assert self.opinion is not None
        start = self.taken
        known, judged = self.known(start, stop), empty_judgements(start, stop - start)
        for first in range(start, stop, _READ):
            some = np.arange(first, min(stop, first + _READ))
            fill(judged, some - start, self.opinion.judge(self.inputs(some), known.labels[some - start]))
        _trust(judged, known)
        with self.store.transaction():
            written = write_arrived(self.store, self.opinion.number, judged)
            self.store.write_fact(_JUDGED, str(stop))
        self.taken = stop
        return self._judged(stop, written, is_revision=False)

    def _judged(self, n: int, written: Written, *, is_revision: bool) -> Judged:
        [n_rejected] = self.store.one(f"SELECT count(*) FROM ({rejected(self.store)})")
        noise = read_noise(self.store).get((ALL, ALL))
        return Judged(n, written.n_new, written.n_changed, int(n_rejected), is_revision, noise)

    def _memory(self, known: Known, seed: int) -> NDArray[np.int64]:
        """Return the ascending positions that are compared: all, or corrected ones and a random part of every label."""
        labels, trusted = known.labels, known.trusted
        n, capacity = len(labels), self.store.image_settings.memory_options.capacity
        if n <= capacity:
            return np.arange(n)
        order = np.random.default_rng(derive_seed(seed, "memory")).permutation(n)
        order = order[np.argsort(~trusted[order], kind="stable")]
        rank = np.empty(n, np.int64)  # of a sample among those of its label
        present = np.unique(labels)
        for code in present:
            own = order[labels[order] == code]
            rank[own] = np.arange(len(own))
        least = max(1, capacity // (4 * len(present)))  # of each label
        order = order[np.argsort((rank[order] >= least) & ~trusted[order], kind="stable")]
        return np.sort(order[:capacity])

    # ---------------------------------------------------------------- what the state holds

    def known(self, start: int, stop: int) -> Known:
        """Return what is known of the labels of samples."""
        ends = [start, stop]
        rows = self.store.query(
            "SELECT label FROM samples WHERE position >= ? AND position < ? ORDER BY position", ends
        )
        given = np.array([code for (code,) in rows], np.int64)
        labels, trusted = given.copy(), np.zeros(stop - start, bool)
        for position, code in self.store.query(
            "SELECT position, label FROM corrections WHERE position >= ? AND position < ? ORDER BY number", ends
        ):
            labels[position - start], trusted[position - start] = code, True
        dropped = np.zeros(stop - start, bool)
        dropped[[position - start for position in self._dropped() if start <= position < stop]] = True
        return Known(given, labels, trusted, dropped)

    def _dropped(self) -> set[int]:
        """Return the positions of samples that a person has dropped: nothing is learned from them."""
        return set(json.loads(self.store.fact("reviewed") or "{}").get("dropped", []))

    def inputs(self, positions: NDArray[np.int64]) -> Tensor:
        """Return the images of samples, or their features by the encoder."""
        return inputs(self.store, positions)

    # ---------------------------------------------------------------- corrections

    def check_correctable(self, position: int) -> None:
        """Accept every sample: one that is not judged yet is judged with its corrected label."""

    def correct(self, codes: dict[int, int]) -> None:
        """Take note of corrected labels within a transaction; `settle` or the next revision learns them."""
        n_samples = self.store.n_samples
        for position, code in codes.items():
            row = self.store.one("SELECT * FROM decisions WHERE position = ?", [position])
            if row is not None:
                [given] = self.store.one("SELECT label FROM samples WHERE position = ?", [position])
                write_person(self.store, row, n_samples, is_right=given == code)

    def withdraw(self, positions: list[int]) -> None:
        """Forget nothing yet: `settle` or the next revision leaves out what a person has dropped."""

    def teaching(self) -> set[int]:
        """Return the positions of the samples that the classifier learned from."""
        return {position for (position,) in self.store.query("SELECT position FROM purified")}


def _reason(before: Revision | None, now: Revision) -> str:
    if before is None:
        return ""
    n, m = now.n_samples - before.n_samples, now.n_corrections - before.n_corrections
    counts = ((n, "sample"), (m, "correction"))
    parts = [f"{k:,} more {what}{'' if k == 1 else 's'}" for k, what in counts if k > 0]
    return " and ".join(parts) or "changed corrections"


def _trust(judged: Judgements, known: Known) -> None:
    """Replace the verdicts on corrected samples by what a person has said."""
    right = (known.labels == known.given)[known.trusted]
    judged.probability[known.trusted] = judged.selected[known.trusted] = right
    judged.likely[known.trusted] = known.labels[known.trusted]
    judged.likely_probability[known.trusted] = 1.0
