"""The planned rows of an online learner against a loop that handles one sample at a time."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from purereplay.data.batch import Batch
from purereplay.learners.baselines.pool import ReplayDraws, ReplayPool, join
from purereplay.memory.partitioned import PartitionedReservoir
from purereplay.memory.replay import ReplayMemory
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.draws import RandomStream, uniforms

SHAPE, N_CLASSES, CAPACITY = (1, 2, 2), 4, 7
CPU = torch.device("cpu")


def samples(n: int, first: int = 0) -> Batch:
    """Samples whose image is their own number."""
    number = torch.arange(first, first + n)
    images = number.view(-1, 1, 1, 1).expand(-1, *SHAPE).to(torch.uint8).contiguous()
    return Batch(images, (number * 7) % N_CLASSES, number + 1000)


def planned(memory: ReplayMemory, incoming: Batch, size: int, seed: int, n_drawn: int, first: int) -> tuple:
    """Images of every step, and the memory afterwards, by the pool."""
    draws = ReplayDraws(n_drawn, key=5, first=first)
    generator = torch.Generator().manual_seed(seed)
    pool = ReplayPool(incoming, batch_size=size, room=40, memory=memory, generator=generator, draws=draws)
    steps = []
    for batch in pool.batches():
        steps.append(join(batch, pool.draw()))
        pool.add(batch)
    held = pool.samples.images[pool.row_of_slot[: pool.memory.n]]
    return [pool.samples.images[torch.from_numpy(rows)] for rows in steps], pool.memory, held


def obvious(memory: ReplayMemory, incoming: Batch, size: int, seed: int, n_drawn: int, first: int) -> tuple:
    """The same, one batch after the other, with the images themselves in the memory."""
    generator = torch.Generator().manual_seed(seed)
    steps = []
    for number, start in enumerate(range(0, incoming.n, size)):
        batch = Batch(*(t[start : start + size] for t in incoming))
        held = memory.contents().images
        width = max(n_drawn, memory.capacity)
        u = uniforms(torch.tensor([5]), torch.tensor(first + number), width, stream=RandomStream.MEMORY_REPLAY)[0]
        if len(held) > n_drawn:
            order = np.argsort(u[: len(held)].numpy())[:n_drawn]  # the smallest numbers win
            replayed = held[torch.from_numpy(order)]
        else:
            source = held if len(held) else batch.images
            replayed = torch.stack([source[int(u[i] * len(source))] for i in range(n_drawn)])
        steps.append(torch.cat([batch.images, replayed]))
        for i in range(batch.n):  # sample by sample
            memory.add(Batch(*(t[i : i + 1] for t in batch)), generator)
    return steps, memory, memory.contents().images


@pytest.mark.parametrize("kind", [Reservoir, PartitionedReservoir])
@pytest.mark.parametrize(("n_before", "n", "size", "n_drawn"), [(0, 24, 4, 3), (3, 20, 5, 5), (40, 30, 3, 6)])
def test_planned_steps_are_those_of_an_obvious_loop(kind, n_before, n, size, n_drawn):
    memories = [kind(CAPACITY, SHAPE, N_CLASSES, device=CPU) for _ in range(2)]
    for memory in memories:
        if n_before:
            memory.add(samples(n_before), torch.Generator().manual_seed(9))
    incoming = samples(n, first=n_before)
    ours, after, held = planned(memories[0], incoming, size, 1, n_drawn, first=11)
    theirs, expected, expected_held = obvious(memories[1], incoming, size, 1, n_drawn, first=11)
    assert len(ours) == len(theirs) == n // size
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a[:size], b[:size])  # the incoming batch, in order
        assert sorted(a[size:].flatten(1)[:, 0].tolist()) == sorted(b[size:].flatten(1)[:, 0].tolist())
    assert torch.equal(after.index, expected.index) and torch.equal(held, expected_held)
    assert memories[0].n == min(n_before, CAPACITY)  # the pool worked on a copy


def test_replayed_samples_are_drawn_evenly_and_without_repetition():
    draws = ReplayDraws(n=10, key=1, first=0)
    slots = draws.slots(np.full(2000, 30), size=10, capacity=30)
    assert slots.shape == (2000, 10) and all(len(set(row)) == 10 for row in slots.tolist())
    counts = np.bincount(slots.ravel(), minlength=30)
    assert chisquare(counts).pvalue > 0.01
    few = draws.slots(np.array([0, 4, 10]), size=7, capacity=30)
    assert set(few[0]) <= set(range(-7, 0)) and set(few[1]) <= set(range(4)) and set(few[2]) <= set(range(10))


def test_a_batch_that_is_not_added_is_an_error():
    memory = Reservoir(CAPACITY, SHAPE, N_CLASSES, device=CPU)
    generator = torch.Generator().manual_seed(1)
    draws = ReplayDraws(3, key=5, first=0)
    pool = ReplayPool(samples(20), batch_size=5, room=40, memory=memory, generator=generator, draws=draws)
    with pytest.raises(RuntimeError, match="added to the pool once"):
        for number, batch in enumerate(pool.batches()):
            pool.draw()
            if number != 1:
                pool.add(batch)
