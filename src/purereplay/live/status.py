"""A state in a few numbers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from purereplay.live.images import Shape
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.settings import StateSettings, buffer_sizes
from purereplay.live.store import Store
from purereplay.live.verdicts import ALL, last_revision, read_noise, rejected, unjudged, why_unjudged

# labels that people gave and that are in effect: those of the last correction of each sample
_OF_PEOPLE = "SELECT label FROM corrections WHERE number IN (SELECT max(number) FROM corrections GROUP BY position)"


class ClassStatus(TypedDict):
    """One label of a state that samples have, as given or by a person."""

    label: str
    samples: int
    scored: int
    rejected: int
    unjudged: int


class NoiseStatus(TypedDict):
    """Estimated share of wrong labels, with an interval."""

    given: str | None  # None: of all samples
    likely: str | None  # None: wrong in any way
    n: int
    rate: float
    low: float
    high: float


class Status(TypedDict):
    """A state in a few numbers; the keys are those of `status --format json`."""

    samples: int
    scored: int
    waiting: int
    accepted: int  # with those that a person has corrected
    rejected: int
    unjudged: int  # scored, but nothing could be said of the label; neither accepted nor rejected
    unjudged_reason: str | None  # why; None: all could be judged
    buffers: int
    delayed_size: int | None  # None: the learner full-memory has no buffers
    purified: int  # samples in the purified buffer; full-memory: those whose label is believed
    purified_size: int | None
    revisions: int  # times that full-memory has judged all samples
    next_revision: int | None  # number of samples at which it does so again
    noise: list[NoiseStatus]  # overall, by label and by pair; empty if unknown
    corrected: int
    corrected_in_purified: int  # of these in the purified buffer now, with the corrected label
    image_shape: Shape | None  # None: no images yet
    learner: str
    preset: str
    seed: int
    encoder: str | None  # None: the pixels themselves are compared
    bytes: int
    classes: list[ClassStatus]


def status(store: Store) -> Status:
    """Return the numbers of a state."""
    with store.snapshot():
        store.check()

        def count(sql: str) -> int:
            return int(store.one(sql)[0])

        samples, scored = store.n_samples, count("SELECT count(*) FROM decisions")
        classes = store.query(
            "SELECT c.label, count(s.position), count(d.position), count(r.position), count(u.position) FROM classes c"
            " LEFT JOIN samples s ON s.label = c.code LEFT JOIN decisions d ON d.position = s.position"
            f" LEFT JOIN ({unjudged(store)}) u ON u.position = s.position"
            f" LEFT JOIN ({rejected(store)}) r ON r.position = s.position"
            f" GROUP BY c.code HAVING count(s.position) OR c.code IN ({_OF_PEOPLE}) ORDER BY c.code"
        )
        n_rejected, n_unjudged = (sum(row[column] for row in classes) for column in (3, 4))
        settings = store.settings
        delayed_size, purified_size = buffer_sizes(settings) or (None, None)
        return {
            "samples": samples,
            "scored": scored,
            "waiting": samples - scored,
            "accepted": scored - n_rejected - n_unjudged,
            "rejected": n_rejected,
            "unjudged": n_unjudged,
            "unjudged_reason": why_unjudged(store) if n_unjudged else None,
            "buffers": count("SELECT coalesce(max(buffer) + 1, 0) FROM decisions") if delayed_size else 0,
            "delayed_size": delayed_size,
            "purified": count("SELECT count(*) FROM purified"),
            "purified_size": purified_size,
            "revisions": count("SELECT count(*) FROM revisions"),
            "next_revision": _next_revision(store),
            "noise": _noise(store),
            "corrected": count("SELECT count(DISTINCT position) FROM corrections"),
            "corrected_in_purified": count(
                "SELECT count(DISTINCT position) FROM corrections JOIN purified USING (position)"
            ),
            "image_shape": settings.shape if isinstance(settings, StateSettings) else None,
            "learner": settings.learner,
            "preset": settings.preset,
            "seed": settings.seed,
            "encoder": None if settings.encoder is None else settings.encoder.text,
            "bytes": _bytes(store.folder),
            "classes": [
                {"label": label, "samples": n, "scored": m, "rejected": r, "unjudged": u}
                for label, n, m, r, u in classes
            ],
        }


def _next_revision(store: Store) -> int | None:
    settings = store.settings
    if not isinstance(settings, StateSettings) or settings.learner != FULL_MEMORY:
        return None
    last = last_revision(store)
    return settings.memory_options.next_revision(0 if last is None else last.n_samples)


def _noise(store: Store) -> list[NoiseStatus]:
    """Return the estimates: overall, by label, and by pair with the most samples first."""
    labels: list[str | None] = [*store.labels(), None]  # ALL is -1
    found = sorted(
        read_noise(store).items(), key=lambda item: (item[0][0] != ALL, item[0][1] != ALL, -item[1].n * item[1].rate)
    )
    return [
        {"given": labels[given], "likely": labels[likely], "n": e.n, "rate": e.rate, "low": e.low, "high": e.high}
        for (given, likely), e in found
    ]


def _bytes(folder: Path) -> int:
    """Return the size of all files; a file may disappear meanwhile."""
    total = 0
    for path in folder.iterdir():
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
