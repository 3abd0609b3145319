"""Greedy balancing sampler of GDumb (Prabhu et al. 2020): the classes held are balanced, whatever the stream.

While there is room every sample is kept. A full memory takes a new sample if its class holds less than capacity /
number of classes seen; a random sample of the largest class is then removed. Two departures from the paper's algorithm
1: it has the same bound while there is room, which leaves slots empty until later classes arrive, and of several
largest classes it takes the first, while here each is equally likely.
"""

from __future__ import annotations

from bisect import insort

import numpy as np
import torch
from torch import Tensor

from purereplay.memory.replay import Real, ReplayMemory, Whole, slots_by_class


class GreedyBalanced(ReplayMemory):
    """Greedy balanced memory. Sequential by nature: one Python step per new sample, on plain lists."""

    n_draws = 1  # the sample to remove, among all samples of the largest classes

    def __init__(
        self, capacity: int, image_shape: tuple[int, int, int], n_classes: int, *, device: torch.device
    ) -> None:
        super().__init__(capacity, image_shape, n_classes, device=device)
        self._held = slots_by_class(self.labels, n_classes)

    def _place(self, labels: Whole, draws: Real) -> Whole:
        n, slots = self.n, []
        classes = set(np.flatnonzero(self.seen).tolist())
        for label, removal in zip(labels.tolist(), draws[:, 0].tolist(), strict=True):
            classes.add(label)
            if n < self.capacity:
                slot = n
                n += 1
            elif len(self._held[label]) * len(classes) < self.capacity:
                slot = self._evict(removal)
            else:
                slots.append(-1)
                continue
            insort(self._held[label], slot)
            slots.append(slot)
        return np.array(slots, np.int64)

    def _evict(self, removal: float) -> int:
        """Remove a sample by a uniform draw and return its slot."""
        largest = max(map(len, self._held))
        crowded = [slots for slots in self._held if len(slots) == largest]
        which, sample = divmod(int(removal * len(crowded) * largest), largest)
        return crowded[which].pop(sample)

    def grow(self, n_classes: int) -> None:
        super().grow(n_classes)
        self._held = slots_by_class(self.labels, self.n_classes)

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self._held = slots_by_class(self.labels, self.n_classes)
