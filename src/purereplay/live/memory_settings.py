"""Settings of the learner `full-memory`, which has no delayed and no purified buffer: the state is its memory."""

from __future__ import annotations

from dataclasses import dataclass

from purereplay.learners.full_memory import NAME as FULL_MEMORY
from purereplay.learners.settings import Settings, setting

__all__ = ["FULL_MEMORY", "FullMemorySettings"]


@dataclass(frozen=True, kw_only=True)
class FullMemorySettings(Settings):
    """Schedule of judging samples, and the largest number that are compared with each other."""

    first: int = setting("samples before any is judged", 100, unit="samples", least=2)
    growth: float = setting("new samples after which all are judged again, as a share of the others", 0.5, most=10.0)
    piece: int = setting("new samples that the classifier judges at once, in between", 100, unit="samples")
    capacity: int = setting(
        "samples that are compared with each other and teach; the classifier judges the others",
        20_000,
        unit="samples",
        least=2,
    )

    def next_revision(self, n_samples: int) -> int:
        """Return the number of samples at which all are judged again, after it was done with `n_samples`; 0: never."""
        return self.first if not n_samples else max(n_samples + 1, round(n_samples * (1 + self.growth)))
