"""GDumb: hold a balanced memory, and train a fresh network on it whenever a classifier is wanted (Prabhu et al. 2020).

Who is held: `memory/greedy.py`. The network is trained by stochastic gradient descent with warm restarts and CutMix.

Choices where the papers leave them open: with a technique against wrong labels there is no CutMix, as the techniques'
losses are for one label a sample; with L2R there is no momentum, as its virtual step is one of plain descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.scratch import FromScratch, Training
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.greedy import GreedyBalanced


@dataclass(frozen=True)
class WarmRestarts(Training):
    """A cosine that restarts after 1, 2, 4, … epochs (SGDR: T_0 = 1, T_mult = 2)."""

    least_rate: float = 0.0  # where each cosine ends

    def rates(self, steps_per_epoch: int) -> torch.Tensor:
        rates, period, begin = [], 1, 0
        for epoch in range(self.epochs):
            if epoch == begin + period:
                begin, period = epoch, 2 * period
            for step in range(steps_per_epoch):
                share = (epoch - begin + step / steps_per_epoch) / period
                height = (1 + math.cos(math.pi * share)) / 2
                rates.append(self.least_rate + (self.learning_rate - self.least_rate) * height)
        return torch.tensor(rates)


def gdumb(s: RivalSettings, ground: Ground) -> FromScratch:
    how = WarmRestarts(
        epochs=s.gdumb_epochs,
        batch_size=s.scratch_batch,
        learning_rate=s.gdumb_rate,
        least_rate=s.gdumb_least_rate,
        momentum=0.0 if s.robust == "l2r" else s.gdumb_momentum,
        weight_decay=s.gdumb_decay,
        clip_norm=s.gdumb_clip,
        cutmix=s.gdumb_cutmix if s.robust == "none" else 0.0,
    )
    return FromScratch(ground, memory=ground.memory(GreedyBalanced, s), how=how)
