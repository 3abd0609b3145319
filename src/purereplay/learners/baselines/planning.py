"""Which samples an online learner's next steps take, laid out before any of them is trained.

A memory decides by labels and its generator alone, so what it keeps and what each step replays is known without the
network. In: the incoming samples and the memory. Out: the memory as it is afterwards, and for every step the rows of a
pool that is the memory's slots followed by the incoming samples.
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.data.batch import Batch
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.draws import RandomStream, uniforms


class Planned(NamedTuple):
    """Some batches' steps."""

    memory: ReplayMemory | None  # as it is afterwards
    index: NDArray[np.int64]  # type: ignore[assignment]  # (steps, listed): rows of the pool
    pool: Batch  # the memory's slots as they were before, then the incoming samples
    row_of_slot: torch.Tensor  # int64 (capacity,): whose place in the pool each slot's sample has afterwards
    generator: torch.Generator  # of the memory, likewise


class ReplayDraws(NamedTuple):
    """What the choice of replayed samples depends on."""

    n: int  # samples that a batch replays, or that what it replays is chosen from
    key: int
    first: int  # the number of the first batch

    def slots(self, n_held: NDArray[np.int64], size: int, capacity: int) -> NDArray[np.int64]:
        """The slots that each batch of this size replays, (batches, n): different ones where there are enough.

        `n_held` says how many are held before each batch. Where it is 0, -1, -2, … stand for the first, second, … of
        the batch itself.
        """
        number = torch.arange(self.first, self.first + len(n_held))
        key, n = torch.tensor([self.key]), max(self.n, capacity)
        u = uniforms(key, number, n, stream=RandomStream.MEMORY_REPLAY)[:, 0].numpy()
        chosen = np.empty((len(n_held), self.n), np.int64)
        for i, held in enumerate(n_held.tolist()):
            if held > self.n:
                chosen[i] = np.argpartition(u[i, :held], self.n)[: self.n]
            else:
                chosen[i] = (u[i, : self.n] * held) if held else -1 - (u[i, : self.n] * size).astype(np.int64)
        return chosen


def plan(
    now: Batch, size: int, room: int, memory: ReplayMemory | None, generator: torch.Generator, draws: ReplayDraws
) -> Planned:
    """The steps on these samples, `size` at a time; memory and generator stay as they are.

    The pool has room for `room` incoming samples, the same for every job, so that jobs share a loop.
    """
    incoming = np.arange(now.n).reshape(-1, size)
    padded = Batch(*(_padded(t, room) for t in now))
    if memory is None:
        return Planned(None, incoming, padded, torch.empty(0, dtype=torch.int64), generator)
    memory, before = deepcopy(memory), generator
    generator = torch.Generator()
    generator.set_state(before.get_state())
    held = memory.contents()
    pool = Batch(*(torch.cat([_padded(t, memory.capacity), u]) for t, u in zip(held, padded, strict=True)))
    row_of_slot = np.zeros(memory.capacity, np.int64)
    row_of_slot[: held.n] = np.arange(held.n)
    incoming = incoming + memory.capacity
    slots = memory.place(now.labels.numpy(), generator)
    n_held = np.minimum(memory.capacity, held.n + size * np.arange(len(incoming)))  # before each batch
    replayed = draws.slots(n_held, size, memory.capacity)
    steps = []
    for rows, taken, chosen in zip(incoming, slots.reshape(incoming.shape), replayed, strict=True):
        again = row_of_slot[chosen] if chosen[0] >= 0 else rows[-1 - chosen]
        steps.append(np.concatenate([rows, again]))
        row_of_slot[taken[taken >= 0]] = rows[taken >= 0]
    memory.write(slots, now)
    return Planned(memory, np.stack(steps), pool, torch.from_numpy(row_of_slot), generator)


def _padded(t: torch.Tensor, n: int) -> torch.Tensor:
    """t (m, ...) with zeros after it, (n, ...)."""
    return torch.cat([t, t.new_zeros((n - t.shape[0], *t.shape[1:]))])
