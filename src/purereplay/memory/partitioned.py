"""PRS: a reservoir that is partitioned by class (Kim et al. 2020), for samples of one label each.

With n_i samples of class i seen, its target is m_i = capacity · n_i^ρ / Σ_j n_j^ρ over the classes seen: equal shares
for ρ = 0, the stream's own for ρ = 1. A sample of class i enters a full memory with probability min(1, m_i / n_i). The
class that makes room is drawn by softmax(held − target) of the classes held, and of its samples each with the same
probability.

The released code counts a newcomer only after deciding about it, and of a single-label class it always evicts the
lowest slot; here the newcomer counts, and the eviction is uniform.
"""

from __future__ import annotations

from bisect import insort

import numpy as np
import torch
from torch import Tensor

from purereplay.memory.replay import Real, ReplayMemory, Whole, slots_by_class


class PartitionedReservoir(ReplayMemory):
    """Sequential by nature: a Python step per newcomer, on plain lists."""

    n_draws = 3  # enter or not, the class that makes room, its sample that leaves

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        n_classes: int,
        *,
        device: torch.device,
        rho: float = 0.0,
    ) -> None:
        super().__init__(capacity, image_shape, n_classes, device=device)
        self.rho = rho
        self._held = slots_by_class(self.labels, n_classes)
        self._counts = np.zeros(n_classes, np.float64)  # how many of each are held

    def _place(self, labels: Whole, draws: Real) -> Whole:
        n, seen, slots = self.n, self.seen.tolist(), []
        powers = [float(n_i) ** self.rho if n_i else 0.0 for n_i in seen]
        power = np.array(powers)  # the same once more: lists are faster to sum, arrays to take the softmax of
        for label, (enter, crowd, leave) in zip(labels.tolist(), draws.tolist(), strict=True):
            seen[label] += 1
            power[label] = powers[label] = float(seen[label]) ** self.rho
            scale = self.capacity / sum(powers)  # a running sum would depend on when a run was resumed
            if n < self.capacity:
                slot = n
                n += 1
            elif enter * seen[label] < scale * powers[label]:
                slot = self._evict(scale * power, crowd, leave)
            else:
                slots.append(-1)
                continue
            insort(self._held[label], slot)
            self._counts[label] += 1
            slots.append(slot)
        return np.array(slots, np.int64)

    def _evict(self, target: Real, crowd: float, leave: float) -> int:
        """The slot of the sample that leaves, by two uniform draws."""
        excess = self._counts - target
        excess[self._counts == 0] = -np.inf
        weight = np.exp(excess - excess.max()).cumsum()
        crowded = int(weight.searchsorted(crowd * weight[-1], side="right"))
        self._counts[crowded] -= 1
        return self._held[crowded].pop(int(leave * len(self._held[crowded])))

    def grow(self, n_classes: int) -> None:
        super().grow(n_classes)
        self._held = slots_by_class(self.labels, self.n_classes)
        self._counts = np.array([float(len(slots)) for slots in self._held])

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self._held = slots_by_class(self.labels, self.n_classes)
        self._counts[:] = [len(slots) for slots in self._held]
