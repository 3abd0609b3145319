"""Overall share of the work of judging all samples: its stages weighted by their usual cost.

The stages tell their own steps: features, two rounds of opinions, and the classifier. Alone, each of them says little
about the remaining time.
"""

from __future__ import annotations

# shares of the processor time of 300 and 1,500 digits; the map is fitted before the first step of `features`
_STAGES = {"features": 0.25, "opinions": 0.55, "classifier": 0.20}


class JudgingShare:
    """Share of all the work that is done, from the progress that `judge_labels` and `choose_model` report."""

    def __init__(self) -> None:
        self.n = 0  # samples, once the features of some are computed; 0: not known

    def __call__(self, work: str, done: int, total: int | None) -> float | None:
        """Return the share in [0, 1]; None if the work is no stage of judging."""
        stage = work.partition(":")[0]
        if stage not in _STAGES:
            return None
        if stage == "features" and total:
            self.n = total
        before = sum(list(_STAGES.values())[: list(_STAGES).index(stage)])
        return before + _STAGES[stage] * (done / total if total else 0)

    def text(self, share: float) -> str:
        """Return the work in words, without the remaining time."""
        return f"judging {f'{self.n:,} samples' if self.n else 'the samples'}: {share:.0%}".replace("%", " %")
