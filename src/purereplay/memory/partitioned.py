"""PRS: a reservoir partitioned by class (Kim et al. 2020), for samples with one label each.

With n_i samples of class i seen, its target is m_i = capacity · n_i^ρ / Σ_j n_j^ρ over the classes seen: equal shares
for ρ = 0, the stream's own shares for ρ = 1. A sample of class i enters a full memory with probability min(1, m_i /
n_i). The class that loses a sample is drawn by softmax(held − target) over the classes held, and the sample uniformly
within it.

The released code counts a new sample only after deciding about it, and always evicts the lowest slot of a single-label
class. Here the new sample counts, and the eviction is uniform.
"""

from __future__ import annotations

from bisect import insort

import numpy as np
import torch
from torch import Tensor

from purereplay.memory.replay import Real, ReplayMemory, Whole, slots_by_class


class PartitionedReservoir(ReplayMemory):
    """Partitioned reservoir. Sequential by nature: one Python step per new sample, on plain lists."""

    n_draws = 3  # whether to enter, the class that loses a sample, the sample to remove

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        n_classes: int,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.uint8,
        rho: float = 0.0,
    ) -> None:
        super().__init__(capacity, image_shape, n_classes, device=device, dtype=dtype)
        self.rho = rho
        self._held = slots_by_class(self.labels, n_classes)
        self._counts = np.zeros(n_classes, np.float64)  # samples held, by class

    def _place(self, labels: Whole, draws: Real) -> Whole:
        n, seen, slots = self.n, self.seen.tolist(), []
        powers = [float(n_i) ** self.rho if n_i else 0.0 for n_i in seen]
        power = np.array(powers)  # a copy as an array: lists are faster to sum, arrays to take the softmax of
        for label, (enter, crowd, removal) in zip(labels.tolist(), draws.tolist(), strict=True):
            seen[label] += 1
            power[label] = powers[label] = float(seen[label]) ** self.rho
            scale = self.capacity / sum(powers)  # a running sum would depend on where a run was resumed
            if n < self.capacity:
                slot = n
                n += 1
            elif enter * seen[label] < scale * powers[label]:
                slot = self._evict(scale * power, crowd, removal)
            else:
                slots.append(-1)
                continue
            insort(self._held[label], slot)
            self._counts[label] += 1
            slots.append(slot)
        return np.array(slots, np.int64)

    def _evict(self, target: Real, crowd: float, removal: float) -> int:
        """Remove a sample by two uniform draws and return its slot."""
        excess = self._counts - target
        excess[self._counts == 0] = -np.inf
        weight = np.exp(excess - excess.max()).cumsum()
        crowded = int(weight.searchsorted(crowd * weight[-1], side="right"))
        self._counts[crowded] -= 1
        return self._held[crowded].pop(int(removal * len(self._held[crowded])))

    def grow(self, n_classes: int) -> None:
        super().grow(n_classes)
        self._held = slots_by_class(self.labels, self.n_classes)
        self._counts = np.array([float(len(slots)) for slots in self._held])

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self._held = slots_by_class(self.labels, self.n_classes)
        self._counts[:] = [len(slots) for slots in self._held]
