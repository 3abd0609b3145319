"""CRS: reservoir sampling, which holds every sample seen so far with equal probability (Vitter 1985, algorithm R)."""

from __future__ import annotations

import numpy as np

from purereplay.memory.replay import Real, ReplayMemory, Whole


class Reservoir(ReplayMemory):
    """Reservoir: sample t of a stream draws a number below t, and takes that slot if it exists."""

    n_draws = 1

    def _place(self, labels: Whole, draws: Real) -> Whole:
        position = int(self.seen.sum()) + np.arange(len(labels))
        slots = (draws[:, 0] * (position + 1)).astype(np.int64)
        slots[slots >= self.capacity] = -1
        n_free = self.capacity - self.n
        slots[:n_free] = position[:n_free]
        return slots
