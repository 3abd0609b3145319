"""CRS: beside every batch a random part of a reservoir is replayed (Vitter 1985; Riemer et al. 2019).

The reservoir (`memory/reservoir.py`) holds every sample of the stream so far with the same probability, and so wrong
labels in the proportion in which they come.
"""

from __future__ import annotations

from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.online import Online, training
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.reservoir import Reservoir


def crs(s: RivalSettings, ground: Ground) -> Online:
    return Online(ground, memory=ground.memory(Reservoir, s), how=training(s))
