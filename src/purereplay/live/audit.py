"""What a state knows, for people: every judgement ever made as a CSV file, and the state in a few numbers.

The likely other label is what the present classifier says of the kept pixels, where that is not the given label: it
knows more than the one of the day on which the sample was judged.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from purereplay.data.files import disk_errors, move_into_place
from purereplay.live.classifying import classifier_of, with_current
from purereplay.live.store import Current, Store
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier

_AT_ONCE = 500  # samples
COLUMNS = (
    "id",
    "given_label",
    "clean_probability",  # high = the label is believed
    "decision",  # accepted or rejected: a coin thrown with the clean probability, as the method has it
    "likely_other_label",  # empty: the classifier agrees with the given label, or there is none yet
    "likely_other_probability",
    "corrected_label",  # empty: nobody corrected it
    "in_purified",  # 1: in the purified buffer now
    "centrality",
    "buffer",
)
_JUDGED = """
    SELECT d.position, s.id, c.label, d.probability, d.selected, d.centrality, d.buffer, p.position IS NOT NULL,
        (SELECT l.label FROM corrections k JOIN classes l ON l.code = k.label WHERE k.position = d.position
         ORDER BY k.number DESC LIMIT 1)
    FROM decisions d JOIN samples s ON s.position = d.position JOIN classes c ON c.code = s.label
    LEFT JOIN purified p ON p.position = d.position
    ORDER BY d.probability, d.position
"""


class Audited(NamedTuple):
    """How many samples an audit lists."""

    judged: int
    rejected: int
    doubted: int  # rejected, and the classifier says something else


def audit(store: Store, engine: Engine, out: Path, progress: Callable[[int, int], None] | None = None) -> Audited:
    """Write every sample ever judged to a CSV file, the least believed first; the file is there whole or not at all."""

    def use(current: Current | None) -> Audited:
        classifier = None if current is None else classifier_of(store, current, engine)
        [total] = store.one("SELECT count(*) FROM decisions")
        counts = [0, 0, 0]
        part = out.with_name(out.name + ".part")
        with disk_errors(out):
            try:
                with part.open("w", encoding="utf-8", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(COLUMNS)
                    for line in _lines(store, classifier):
                        writer.writerow(line)
                        rejected = line[3] == "rejected"
                        counts = [
                            n + bool(one) for n, one in zip(counts, (1, rejected, rejected and line[4]), strict=True)
                        ]
                        if progress and counts[0] % _AT_ONCE == 0:
                            progress(counts[0], total)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        move_into_place(part, out)
        return Audited(*counts)

    return with_current(store, use)


def _lines(store: Store, classifier: Classifier | None) -> Iterator[tuple[Any, ...]]:
    """The rows of the file."""
    labels = store.labels()
    judged = store.database.execute(_JUDGED)  # row by row: there may be millions
    while chunk := list(islice(judged, _AT_ONCE)):
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
    """The most likely label's number and its probability."""
    if classifier is None:
        return [(None, 0.0)] * len(positions)
    pixels = np.stack([row.pixels for row in store.rows(positions)])
    chances, codes = classifier.probabilities(torch.from_numpy(pixels)).cpu().max(1)
    return list(zip(codes.tolist(), chances.tolist(), strict=True))


def status(store: Store) -> dict[str, Any]:
    """A state in a few numbers."""
    with store.snapshot():
        assert store.settings is not None

        def count(sql: str) -> int:
            return int(store.one(sql)[0])

        samples, judged = store.n_samples, count("SELECT count(*) FROM decisions")
        classes = store.query(
            "SELECT c.label, count(s.position), count(d.position), coalesce(sum(d.selected), 0) FROM classes c"
            " LEFT JOIN samples s ON s.label = c.code LEFT JOIN decisions d ON d.position = s.position"
            " GROUP BY c.code ORDER BY c.code"
        )
        accepted = count("SELECT coalesce(sum(selected), 0) FROM decisions")
        settings = store.settings
        return {
            "samples": samples,
            "judged": judged,
            "waiting": samples - judged,
            "accepted": accepted,
            "rejected": judged - accepted,
            "buffers": count("SELECT coalesce(max(buffer) + 1, 0) FROM decisions"),
            "delayed_size": settings.options.delayed_size,
            "purified": count("SELECT count(*) FROM purified"),
            "purified_size": settings.options.purified_size,
            "corrected": count("SELECT count(DISTINCT position) FROM corrections"),
            "image_shape": settings.shape,
            "preset": settings.preset,
            "seed": settings.seed,
            "bytes": _bytes(store.folder),
            "classes": [
                {"label": label, "samples": n, "judged": m, "rejected": m - passed} for label, n, m, passed in classes
            ],
        }


def _bytes(folder: Path) -> int:
    """What the files take; one may go while it is looked at."""
    total = 0
    for path in folder.iterdir():
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
