"""The audit of a state: every decision of the filter as a CSV file for people, or as JSON lines for programs.

In CSV, an id or label that a spreadsheet would read as a formula has a leading '; `correct` removes it again. JSON
lines have the raw text.

The likely other label is the most likely true one, if it differs from the given label. The learner full-memory finds it
by models that were not trained on the sample. With other learners it is the prediction of the current classifier, which
has learned more than the one at the time when the sample was scored.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from purereplay.data.files import whole_file
from purereplay.data.text import spreadsheet_safe
from purereplay.live.encoding import inputs
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.predict import Predictor, current_classifier, with_current
from purereplay.live.store import Current, Store
from purereplay.live.verdicts import ALL, CONFIRMED, PERSON, Estimate, read_noise, unjudged, why_unjudged
from purereplay.nets.engine import Engine

_CHUNK = 500  # samples
_SCORED = """
    SELECT d.position, coalesce(m.id, s.id), c.label, d.probability, d.selected, d.centrality, d.buffer,
        p.position IS NOT NULL,
        (SELECT l.label FROM corrections k JOIN classes l ON l.code = k.label WHERE k.position = d.position
         ORDER BY k.number DESC LIMIT 1),
        l.label, l.probability, v.n_samples, v.reason, u.position IS NOT NULL
    FROM decisions d JOIN samples s ON s.position = d.position JOIN classes c ON c.code = s.label
    LEFT JOIN moves m ON m.position = d.position
    LEFT JOIN purified p ON p.position = d.position
    LEFT JOIN likely l ON l.position = d.position
    LEFT JOIN ({unjudged}) u ON u.position = d.position
    LEFT JOIN verdicts v ON v.number = (SELECT max(number) FROM verdicts w WHERE w.position = d.position)
    ORDER BY EXISTS (SELECT 1 FROM corrections k WHERE k.position = d.position), u.position IS NOT NULL, d.probability,
        d.position
"""


class Line(NamedTuple):
    """One scored sample; the fields are the columns of the file."""

    id: str  # with which it was added, or the path that its file was moved to
    given_label: str
    clean_probability: float | None  # high = clean; 1 if a person has checked the label; None: not judged
    # accepted or rejected, which spr and pure-replay draw; unjudged: too few samples have the label, or all have it;
    # corrected or confirmed by a person
    decision: str
    likely_other_label: str | None  # None: the given label is the most likely one, or there is no classifier yet
    likely_other_probability: float | None
    corrected_label: str | None  # None: not corrected
    in_purified: bool  # in the purified buffer now; full-memory: its label is believed
    centrality: float | None  # None: the learner full-memory has none
    buffer: int  # in which it was scored; full-memory: number of the last time that it was judged
    changed_at: int | None  # number of samples when the decision was made or changed; only full-memory revises it
    reason: str | None  # why it was made or changed


COLUMNS = Line._fields


class Audited(NamedTuple):
    """Number of samples in an audit."""

    scored: int
    rejected: int
    disputed: int  # rejected, and another label is more likely
    unjudged: int
    unjudged_reason: str | None  # why; None: all could be judged
    waiting: int  # samples that wait to be judged, and are not listed
    noise: Estimate | None  # share of wrong labels; None: unknown


def audit(store: Store, engine: Engine, out: Path, progress: Callable[[int, int], None] | None = None) -> Audited:
    """Write every scored sample, lowest clean probability first; the file is written whole or not at all.

    Samples that could not be judged come after all others, and those that a person has corrected last. A file that ends
    in .jsonl has JSON lines, any other one CSV.
    `progress` is called with the number of samples written and their total.
    """
    store.check_destination(out)
    write = _write_jsonl if out.suffix.lower() == ".jsonl" else _write_csv

    def use(current: Current | None) -> Audited:
        store.check()
        full = store.settings.learner == FULL_MEMORY
        classifier = None if current is None or full else current_classifier(store, current, engine)
        [total] = store.one("SELECT count(*) FROM decisions")
        counts = Counter[str]()

        def counted() -> Iterator[Line]:
            for line in _lines(store, classifier):
                yield line
                counts["scored"] += 1
                counts["rejected"] += line.decision == "rejected"
                counts["unjudged"] += line.decision == "unjudged"
                counts["disputed"] += line.decision == "rejected" and line.likely_other_label is not None
                if progress and counts["scored"] % _CHUNK == 0:
                    progress(counts["scored"], total)

        with whole_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
            write(file, counted())
        noise = read_noise(store).get((ALL, ALL))
        reason = why_unjudged(store) if counts["unjudged"] else None
        return Audited(
            counts["scored"],
            counts["rejected"],
            counts["disputed"],
            counts["unjudged"],
            reason,
            store.n_samples - counts["scored"],
            noise,
        )

    return with_current(store, use)


def _write_csv(file: IO[str], lines: Iterable[Line]) -> None:
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for line in lines:
        writer.writerow([_cell(value) for value in line])


def _write_jsonl(file: IO[str], lines: Iterable[Line]) -> None:
    for line in lines:
        file.write(json.dumps(line._asdict()) + "\n")


def _cell(value: str | float | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return spreadsheet_safe(value)
    return f"{value:.6f}" if isinstance(value, float) else str(int(value))


def _lines(store: Store, classifier: Predictor | None) -> Iterator[Line]:
    """Yield the rows of the file."""
    labels, full = store.labels(), store.settings.learner == FULL_MEMORY
    scored = store.database.execute(_SCORED.format(unjudged=unjudged(store)))  # row by row: there may be millions
    while chunk := list(islice(scored, _CHUNK)):
        stored = [(row[9], row[10] or 0.0) for row in chunk]
        likely = stored if full else _predictions(store, classifier, [row[0] for row in chunk])
        for row, (code, chance) in zip(chunk, likely, strict=True):
            _, identity, given, clean, selected, centrality, number, in_purified, corrected, _, _, when, why, few = row
            probability: float | None = None if few else clean
            other = None if code is None or labels[code] == given else labels[code]
            decision = "unjudged" if few else "accepted" if selected else "rejected"
            if corrected is not None:  # what the filter said of the given label does not count any more
                probability, decision = 1.0, "confirmed" if corrected == given else "corrected"
                other, why = (None if full else other), why and (CONFIRMED if corrected == given else PERSON)
            yield Line(
                id=identity,
                given_label=given,
                clean_probability=probability,
                decision=decision,
                likely_other_label=other,
                likely_other_probability=None if other is None else chance,
                corrected_label=corrected,
                in_purified=bool(in_purified),
                centrality=None if full else centrality,
                buffer=number,
                changed_at=when,
                reason=why,
            )


def _predictions(store: Store, classifier: Predictor | None, positions: list[int]) -> list[tuple[int | None, float]]:
    """Return the number of the most likely label and its probability, for each position."""
    if classifier is None:
        return [(None, 0.0)] * len(positions)
    chances, codes = classifier.probabilities(inputs(store, np.array(positions))).cpu().max(1)
    return list(zip(codes.tolist(), chances.tolist(), strict=True))
