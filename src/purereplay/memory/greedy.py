"""GDumb's greedy balancing sampler (Prabhu et al. 2020): what is held is balanced, whatever the stream is.

While there is room everything enters. A full memory takes a newcomer if its class holds less than capacity / number of
classes seen, and a random sample of the largest class leaves. (The paper's algorithm 1 has the same bound while there
is room too; it then leaves places empty until later classes come. Of several largest classes it takes the first, here
each has the same probability.)
"""

from __future__ import annotations

from bisect import insort

import numpy as np
import torch
from torch import Tensor

from purereplay.memory.replay import Real, ReplayMemory, Whole, slots_by_class


class GreedyBalanced(ReplayMemory):
    """Sequential by nature: a Python step per newcomer, on plain lists."""

    n_draws = 1  # who leaves, of all samples of the largest classes

    def __init__(
        self, capacity: int, image_shape: tuple[int, int, int], n_classes: int, *, device: torch.device
    ) -> None:
        super().__init__(capacity, image_shape, n_classes, device=device)
        self._held = slots_by_class(self.labels, n_classes)

    def _place(self, labels: Whole, draws: Real) -> Whole:
        n, slots = self.n, []
        classes = set(np.flatnonzero(self.seen).tolist())
        for label, leave in zip(labels.tolist(), draws[:, 0].tolist(), strict=True):
            classes.add(label)
            if n < self.capacity:
                slot = n
                n += 1
            elif len(self._held[label]) * len(classes) < self.capacity:
                slot = self._evict(leave)
            else:
                slots.append(-1)
                continue
            insort(self._held[label], slot)
            slots.append(slot)
        return np.array(slots, np.int64)

    def _evict(self, leave: float) -> int:
        """The slot of the sample that leaves, by a uniform draw."""
        largest = max(map(len, self._held))
        crowded = [slots for slots in self._held if len(slots) == largest]
        which, sample = divmod(int(leave * len(crowded) * largest), largest)
        return crowded[which].pop(sample)

    def grow(self, n_classes: int) -> None:
        super().grow(n_classes)
        self._held = slots_by_class(self.labels, self.n_classes)

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self._held = slots_by_class(self.labels, self.n_classes)
