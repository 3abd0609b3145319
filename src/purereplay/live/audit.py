"""The audit of a state: every decision of the filter as a CSV file.

The likely other label is the prediction of the current classifier for the stored pixels, if it differs from the given
label. The current classifier has learned more than the one at the time when the sample was scored.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from purereplay.data.files import whole_file
from purereplay.live.predict import current_classifier, with_current
from purereplay.live.store import Current, Store
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier

_CHUNK = 500  # samples
COLUMNS = (
    "id",
    "given_label",
    "clean_probability",  # high = clean
    "decision",  # accepted or rejected: drawn with the clean probability, as in the paper
    "likely_other_label",  # empty: the classifier agrees with the given label, or there is no classifier yet
    "likely_other_probability",
    "corrected_label",  # empty: not corrected
    "in_purified",  # 1: in the purified buffer now
    "centrality",
    "buffer",
)
_SCORED = """
    SELECT d.position, s.id, c.label, d.probability, d.selected, d.centrality, d.buffer, p.position IS NOT NULL,
        (SELECT l.label FROM corrections k JOIN classes l ON l.code = k.label WHERE k.position = d.position
         ORDER BY k.number DESC LIMIT 1)
    FROM decisions d JOIN samples s ON s.position = d.position JOIN classes c ON c.code = s.label
    LEFT JOIN purified p ON p.position = d.position
    ORDER BY d.probability, d.position
"""


class Audited(NamedTuple):
    """Number of samples in an audit."""

    scored: int
    rejected: int
    disputed: int  # rejected, and the classifier predicts another label


def audit(store: Store, engine: Engine, out: Path, progress: Callable[[int, int], None] | None = None) -> Audited:
    """Write every scored sample to a CSV file, lowest clean probability first; the file is written whole or not at all.

    `progress` is called with the number of samples written and their total.
    """
    store.check_destination(out)

    def use(current: Current | None) -> Audited:
        classifier = None if current is None else current_classifier(store, current, engine)
        [total] = store.one("SELECT count(*) FROM decisions")
        n_scored = n_rejected = n_disputed = 0
        with whole_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for line in _lines(store, classifier):
                writer.writerow(line)
                n_scored += 1
                n_rejected += line[3] == "rejected"
                n_disputed += line[3] == "rejected" and line[4] != ""
                if progress and n_scored % _CHUNK == 0:
                    progress(n_scored, total)
        return Audited(n_scored, n_rejected, n_disputed)

    return with_current(store, use)


def _lines(store: Store, classifier: Classifier | None) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the file."""
    labels = store.labels()
    scored = store.database.execute(_SCORED)  # row by row: there may be millions
    while chunk := list(islice(scored, _CHUNK)):
        likely = _predictions(store, classifier, [row[0] for row in chunk])
        for row, (code, chance) in zip(chunk, likely, strict=True):
            _, identity, given, probability, selected, centrality, buffer, in_purified, corrected = row
            other = "" if code is None or labels[code] == given else labels[code]
            yield (
                identity,
                given,
                f"{probability:.6f}",
                "accepted" if selected else "rejected",
                other,
                f"{chance:.6f}" if other else "",
                corrected or "",
                int(in_purified),
                f"{centrality:.6f}",
                buffer,
            )


def _predictions(store: Store, classifier: Classifier | None, positions: list[int]) -> list[tuple[int | None, float]]:
    """Return the number of the most likely label and its probability, for each position."""
    if classifier is None:
        return [(None, 0.0)] * len(positions)
    pixels = np.stack([row.pixels for row in store.rows(positions)])
    chances, codes = classifier.probabilities(torch.from_numpy(pixels)).cpu().max(1)
    return list(zip(codes.tolist(), chances.tolist(), strict=True))
