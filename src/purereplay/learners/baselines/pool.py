"""The rows that an online learner's next training steps use, laid out before any of them is trained.

A memory decides by labels and its generator alone, so its contents at every step are known without the network. A pool
holds the memory's slots followed by the incoming samples; a learner lists the rows of the pool for each step:

    for batch in pool.batches():
        replayed = pool.draw()           # from the memory as it is before this batch
        yield join(batch, replayed)      # the rows of one training step
        pool.add(batch)                  # into the memory

The memory's class decides which samples it keeps, so every batch is added exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.data.batch import Batch
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.draws import RandomStream, uniforms

Rows = NDArray[np.int64]


class ReplayDraws(NamedTuple):
    """The random choice of replayed samples, a function of the batch's number."""

    n: int  # samples drawn for each batch
    key: int
    first: int  # number of the first batch

    def slots(self, n_held: Rows, size: int, capacity: int) -> Rows:
        """Return the slots drawn for each batch of this size, (batches, n), distinct if the memory holds enough.

        `n_held` is the number of samples in the memory before each batch. If it is 0, the numbers -1, -2, … stand for
        the first, second, … sample of the batch itself.
        """
        number = torch.arange(self.first, self.first + len(n_held))
        u = uniforms(torch.tensor([self.key]), number, max(self.n, capacity), stream=RandomStream.MEMORY_REPLAY)[
            :, 0
        ].numpy()
        chosen = np.empty((len(n_held), self.n), np.int64)
        for i, held in enumerate(n_held.tolist()):
            if held > self.n:
                chosen[i] = np.argpartition(u[i, :held], self.n)[: self.n]
            else:
                chosen[i] = (u[i, : self.n] * held) if held else -1 - (u[i, : self.n] * size).astype(np.int64)
        return chosen


class Pool:
    """Incoming samples alone, in batches of one size; the pool of a learner without a memory."""

    def __init__(self, incoming: Batch, *, batch_size: int, room: int) -> None:
        """`room` is the number of incoming samples that every job has space for, so that jobs share a loop."""
        self.samples = Batch(*(padded(t, room) for t in incoming))
        self._rows = np.arange(incoming.n).reshape(-1, batch_size)

    def batches(self) -> Iterator[Rows]:
        """Yield the rows of each incoming batch, in stream order."""
        yield from self._rows


class ReplayPool(Pool):
    """A memory's slots, then the incoming samples. The given memory and generator are copied, not changed."""

    def __init__(
        self,
        incoming: Batch,
        *,
        batch_size: int,
        room: int,
        memory: ReplayMemory,
        generator: torch.Generator,
        draws: ReplayDraws,
    ) -> None:
        super().__init__(incoming, batch_size=batch_size, room=room)
        held, capacity = memory.contents(), memory.capacity
        slots = (torch.cat([padded(t, capacity), new]) for t, new in zip(held, self.samples, strict=True))
        self.samples = Batch(*slots)
        self._rows = self._rows + capacity
        self.memory = deepcopy(memory)  # as it is after all batches
        self.generator = torch.Generator()
        self.generator.set_state(generator.get_state())
        self._row_of_slot = np.zeros(capacity, np.int64)
        self._row_of_slot[: held.n] = np.arange(held.n)
        # all decisions of the memory and all draws at once, which is faster and gives the same numbers
        slots_taken = self.memory.place(incoming.labels.numpy(), self.generator)
        self.memory.write(slots_taken, incoming)
        self._slots_taken = slots_taken.reshape(self._rows.shape)
        n_held = np.minimum(capacity, held.n + batch_size * np.arange(len(self._rows)))  # before each batch
        self._drawn = draws.slots(n_held, batch_size, capacity)
        self._at = 0

    def batches(self) -> Iterator[Rows]:
        """Yield the rows of each incoming batch, in stream order; each must be added before the next is asked for."""
        for number, batch in enumerate(self._rows):
            yield batch
            if self._at != number + 1:
                raise RuntimeError("Every batch must be added to the pool once, before the next one is asked for.")

    def draw(self) -> Rows:
        """Return the rows drawn for the current batch from the memory; an empty memory gives the batch itself."""
        slots: Rows = self._drawn[self._at]
        rows: Rows = self._row_of_slot[slots] if slots[0] >= 0 else self._rows[self._at][-1 - slots]
        return rows

    def add(self, batch: Rows) -> None:
        """Offer the current batch to the memory, whose class decides which samples it keeps."""
        taken = self._slots_taken[self._at]
        self._row_of_slot[taken[taken >= 0]] = batch[taken >= 0]
        self._at += 1

    @property
    def row_of_slot(self) -> torch.Tensor:
        """Rows of the samples that the memory holds now, int64 (capacity,)."""
        return torch.from_numpy(self._row_of_slot)


def join(batch: Rows, replayed: Rows) -> Rows:
    """Return the rows of one training step."""
    return np.concatenate([batch, replayed])


def padded(t: torch.Tensor, n: int) -> torch.Tensor:
    """t (m, ...) with zeros after it, (n, ...)."""
    return torch.cat([t, t.new_zeros((n - t.shape[0], *t.shape[1:]))])
