from collections import Counter
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from scipy.special import softmax
from scipy.stats import chisquare

from purereplay.data.batch import Batch
from purereplay.memory.greedy import GreedyBalanced
from purereplay.memory.partitioned import PartitionedReservoir
from purereplay.memory.replay import ReplayMemory
from purereplay.memory.reservoir import Reservoir

CPU = torch.device("cpu")
N_CLASSES = 4
KINDS = [Reservoir, PartitionedReservoir, partial(PartitionedReservoir, rho=0.5), GreedyBalanced]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=["reservoir", "partitioned", "partitioned-rho", "greedy"])
streams = st.lists(st.lists(st.integers(0, N_CLASSES - 1), max_size=15), max_size=6)


def memory(kind, capacity: int) -> ReplayMemory:
    return kind(capacity, (1, 2, 2), N_CLASSES, device=CPU)


def batch(labels, start: int = 0) -> Batch:
    index = torch.arange(start, start + len(labels))
    images = (index % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Batch(images, torch.tensor(labels, dtype=torch.int64), index)


def stream(n: int, weights, seed: int = 0) -> list[int]:
    share = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(len(share), n, p=share).tolist()


def fill(ours: ReplayMemory, labels: list[int], generator: torch.Generator, size: int = 10, start: int = 0) -> None:
    for first in range(0, len(labels), size):
        ours.add(batch(labels[first : first + size], start + first), generator)


def counts(ours: ReplayMemory) -> list[int]:
    return np.bincount(ours.labels, minlength=N_CLASSES).tolist()


def assert_equal(a: ReplayMemory, b: ReplayMemory) -> None:
    ours, theirs = a.state(), b.state()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---------------------------------------------------------------- contract of every memory


@every_kind
@given(capacity=st.integers(0, 12), offered=streams, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_held_samples_were_offered_and_fit_the_capacity(kind, capacity, offered, seed):
    ours, generator, everything = memory(kind, capacity), torch.Generator().manual_seed(seed), []
    for labels in offered:
        slots = ours.add(batch(labels, len(everything)), generator)
        everything += labels
        held = ours.contents()
        assert slots.dtype == np.int64 and slots.shape == (len(labels),)
        assert ((slots >= -1) & (slots < max(1, capacity))).all()
        assert ours.n == held.n == min(capacity, len(everything)) and ours.is_full == (ours.n == capacity)
        assert held.labels.tolist() == ours.labels.tolist() == [everything[i] for i in held.index.tolist()]
        assert (held.images == (held.index % 256).view(-1, 1, 1, 1)).all() and held.images.dtype == torch.uint8
        assert len({*held.index.tolist()}) == held.n and torch.equal(held.index, ours.index)
        assert ours.seen.tolist() == np.bincount(np.array(everything, np.int64), minlength=N_CLASSES).tolist()
        # each slot holds the last sample placed in it, and no rejected sample
        last = {int(s): len(everything) - len(labels) + i for i, s in enumerate(slots) if s >= 0}
        assert all(int(held.index[s]) == i for s, i in last.items())


@every_kind
def test_same_generator_same_memory_however_the_stream_is_cut(kind):
    labels = stream(500, [8, 4, 2, 1])
    made = []
    for size in (10, 10, 1, 7, 500):
        made.append(memory(kind, 30))
        fill(made[-1], labels, torch.Generator().manual_seed(5), size)
    for other in made[1:]:
        assert_equal(made[0], other)
    fill(other := memory(kind, 30), labels, torch.Generator().manual_seed(6))
    assert other.index.tolist() != made[0].index.tolist()


@every_kind
def test_plan_first_and_write_once_equals_adding(kind):
    labels = stream(300, [8, 4, 2, 1])
    at_once, planned = memory(kind, 20), memory(kind, 20)
    fill(at_once, labels, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    plan = [planned.place(np.array(labels[i : i + 10]), generator) for i in range(0, 300, 10)]
    for read in (planned.contents, lambda: planned.index):
        with pytest.raises(RuntimeError, match="call write first"):
            read()
    halfway = memory(kind, 20)
    halfway.load(planned.state())
    for ours in (planned, halfway):  # also where a run was resumed in between
        ours.write(np.concatenate(plan), batch(labels))
        assert_equal(ours, at_once)


@every_kind
def test_no_sample_is_written_to_slot_minus_one(kind):
    ours = memory(kind, 6)
    fill(ours, stream(40, [1, 1, 1, 1]), torch.Generator().manual_seed(0))
    before = ours.state()
    ours.write(np.full(3, -1), batch([1, 2, 3], start=100))
    assert all(torch.equal(t, before[name]) for name, t in ours.state().items())
    ours.write(np.array([2, -1, 2, -1]), batch([0, 0, 0, 0], start=100))
    assert ours.index.tolist() == [*before["index"][:2].tolist(), 102, *before["index"][3:].tolist()]


@every_kind
@pytest.mark.parametrize("n", [0, 4, 60])
def test_state_goes_through_a_file_and_continues_exactly(kind, n):
    ours, again, generator = memory(kind, 10), memory(kind, 10), torch.Generator().manual_seed(0)
    fill(again, [3] * 50, torch.Generator())  # to be forgotten
    fill(ours, stream(n, [4, 2, 1, 1]), generator)
    state = ours.state()
    before = {name: t.clone() for name, t in state.items()}
    again.load(load(save(state)))
    assert_equal(ours, again)
    other = torch.Generator()
    other.set_state(generator.get_state())
    more = stream(100, [1, 1, 5, 1], seed=1)
    fill(ours, more, generator, start=n)
    assert all(torch.equal(t, before[name]) for name, t in state.items())  # a copy
    fill(again, more, other, start=n)
    assert_equal(ours, again)


@every_kind
@pytest.mark.parametrize("wrong", [-1, N_CLASSES])
def test_an_unknown_label_changes_nothing(kind, wrong):
    ours, fresh, generator = memory(kind, 5), memory(kind, 5), torch.Generator().manual_seed(0)
    with pytest.raises(ValueError):
        ours.add(batch([0, wrong]), generator)
    assert_equal(ours, fresh)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(0).get_state())


# ---------------------------------------------------------------- reservoir


class ForgetsTooFast(Reservoir):
    """Wrong: once full, every sample enters."""

    def _place(self, labels, draws):
        position = int(self.seen.sum()) + np.arange(len(labels))
        return np.where(position < self.capacity, position, (draws[:, 0] * self.capacity).astype(np.int64))


class OffByOne(Reservoir):
    """Wrong: the t-th sample draws a number below t - 1."""

    def _place(self, labels, draws):
        position = int(self.seen.sum()) + np.arange(len(labels))
        slots = np.where(position < self.capacity, position, (draws[:, 0] * position).astype(np.int64))
        return np.where(slots < self.capacity, slots, -1)


def p_value_of_uniform(kind, size: int, n: int = 6, capacity: int = 3, n_streams: int = 2000) -> float:
    """Chi-square over all subsets of a short stream of one class: each must be held equally often."""
    generator, held = torch.Generator().manual_seed(size), Counter()
    for _ in range(n_streams):
        ours, index = kind(capacity, (1, 1, 1), 1, device=CPU), np.zeros(capacity, np.int64)
        for first in range(0, n, size):
            slots = ours.place(np.zeros(size, np.int64), generator)
            for i, slot in enumerate(slots.tolist()):
                if slot >= 0:
                    index[slot] = first + i
        held[tuple(sorted(index.tolist()))] += 1
    subsets = list(combinations(range(n), capacity))
    assert held.keys() <= {*subsets}
    return float(chisquare([held[s] for s in subsets]).pvalue)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("kind", [Reservoir, PartitionedReservoir])  # of one class, the second is the first
def test_every_subset_of_the_stream_is_held_equally_often(kind, size):
    assert p_value_of_uniform(kind, size) > 1e-3


@pytest.mark.parametrize("kind", [ForgetsTooFast, OffByOne, GreedyBalanced])
def test_the_check_finds_a_wrong_reservoir(kind):
    assert p_value_of_uniform(kind, 2) < 1e-9


def test_of_a_long_stream_every_part_is_held_alike():
    held = np.zeros(10)
    for seed in range(20):
        fill(ours := memory(Reservoir, 100), [0] * 2000, torch.Generator().manual_seed(seed), size=50)
        held += np.bincount(ours.index.numpy() // 200, minlength=10)
    assert chisquare(held).pvalue > 1e-3


# ---------------------------------------------------------------- partitioned by class


def slow_partitioned(labels: list[int], capacity: int, rho: float, draws: np.ndarray) -> list[tuple[int, int]]:
    """Kim et al. 2020, one sample at a time: (label, number) by slot."""
    held: list[tuple[int, int]] = []
    for number, (label, (enter, crowd, removal)) in enumerate(zip(labels, draws, strict=True)):
        if len(held) < capacity:
            held.append((label, number))
            continue
        seen = np.array([labels[: number + 1].count(c) for c in range(N_CLASSES)])
        power = np.array([n**rho if n > 0 else 0 for n in seen])
        target = capacity * power / power.sum()
        if enter >= min(1, target[label] / seen[label]):
            continue
        classes = sorted({c for c, _ in held})
        excess = [sum(c == other for other, _ in held) - target[c] for c in classes]
        crowded = classes[int((np.cumsum(softmax(excess)) <= crowd).sum())]
        slots = [slot for slot, (c, _) in enumerate(held) if c == crowded]
        held[slots[int(removal * len(slots))]] = (label, number)
    return held


def slow_greedy(labels: list[int], capacity: int, draws: np.ndarray) -> list[tuple[int, int]]:
    """Prabhu et al. 2020, one sample at a time: (label, number) by slot."""
    held: list[tuple[int, int]] = []
    for number, (label, (removal,)) in enumerate(zip(labels, draws, strict=True)):
        count = Counter(c for c, _ in held)
        if len(held) < capacity:
            held.append((label, number))
        elif count[label] < capacity / len({*labels[: number + 1]}):
            largest = [c for c in sorted(count) if count[c] == max(count.values())]
            removable = [slot for c in largest for slot, (other, _) in enumerate(held) if other == c]
            held[removable[int(removal * len(removable))]] = (label, number)
    return held


@given(capacity=st.integers(1, 10), offered=streams, seed=st.integers(0, 99), rho=st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=60)
def test_partitioned_and_greedy_equal_one_sample_at_a_time(capacity, offered, seed, rho):
    labels = [label for part in offered for label in part]
    kinds = {
        partial(PartitionedReservoir, rho=rho): lambda draws: slow_partitioned(labels, capacity, rho, draws),
        GreedyBalanced: lambda draws: slow_greedy(labels, capacity, draws),
    }
    for kind, slow in kinds.items():
        ours, generator, start = memory(kind, capacity), torch.Generator().manual_seed(seed), 0
        for part in offered:
            ours.add(batch(part, start), generator)
            start += len(part)
        draws = torch.rand(
            (len(labels), ours.n_draws), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        ).numpy()
        held = ours.contents()
        assert [*zip(held.labels.tolist(), held.index.tolist(), strict=True)] == slow(draws)


@pytest.mark.parametrize(
    "rho, expected", [(0.0, [15, 15, 15, 15]), (1.0, [32, 16, 8, 4]), (0.5, [23.4, 16.6, 11.7, 8.3])]
)
def test_partitioned_shares_follow_rho(rho, expected):
    """A long imbalanced stream, classes mixed: the mean over seeds is at the target, and each run is near it."""
    held = []
    for seed in range(5):
        ours = memory(partial(PartitionedReservoir, rho=rho), 60)
        fill(ours, stream(3000, [8, 4, 2, 1], seed), torch.Generator().manual_seed(seed))
        held.append(counts(ours))
    assert np.abs(np.array(held) - expected).max() <= 4
    assert np.abs(np.mean(held, 0) - expected).max() <= 1.5


def test_partitioned_shares_after_a_stream_in_the_order_of_its_classes():
    """The last class keeps a few too many, whatever the capacity: one sample is the softmax's temperature."""
    labels = [c for c in range(N_CLASSES) for _ in range(400)]
    held = []
    for seed in range(10):
        fill(ours := memory(PartitionedReservoir, 200), labels, torch.Generator().manual_seed(seed), size=100)
        held.append(counts(ours))
    assert np.abs(np.mean(held, 0)[:3] - 50).max() <= 3 and 50 <= np.mean(held, 0)[3] <= 57, np.mean(held, 0)


@pytest.mark.parametrize("kind", [PartitionedReservoir, GreedyBalanced])
def test_a_late_class_enters(kind):
    ours, generator = memory(kind, 20), torch.Generator().manual_seed(0)
    fill(ours, [0] * 500, generator)
    fill(ours, [1] * 15, generator, start=500)
    assert counts(ours)[0] + counts(ours)[1] == 20 and abs(counts(ours)[1] - 10) <= 2


# ---------------------------------------------------------------- greedy


@pytest.mark.parametrize("capacity", [3, 20, 21, 23])
def test_greedy_is_balanced_once_every_class_came_often_enough(capacity):
    in_order = [c for c in range(N_CLASSES) for _ in range(40)]
    for labels in (in_order, stream(2000, [50, 5, 2, 1])):
        fill(ours := memory(GreedyBalanced, capacity), labels, torch.Generator().manual_seed(0))
        assert ours.is_full and max(counts(ours)) - min(counts(ours)) <= 1


def test_greedy_rejects_a_class_that_has_its_share():
    ours, generator = memory(GreedyBalanced, 4), torch.Generator().manual_seed(0)
    fill(ours, [0, 0, 0, 1], generator)
    assert ours.add(batch([0, 0], start=4), generator).tolist() == [-1, -1]
    [slot] = ours.add(batch([1], start=6), generator)
    assert 0 <= slot <= 2 and counts(ours) == [2, 2, 0, 0]  # a sample of the largest class was removed
    assert ours.add(batch([0, 1], start=7), generator).tolist() == [-1, -1]


@pytest.mark.gpu
@every_kind
def test_the_device_holds_the_images_and_decides_nothing(kind):
    held = []
    for device in ("cpu", "cuda"):
        ours = kind(10, (1, 2, 2), N_CLASSES, device=torch.device(device))
        generator = torch.Generator().manual_seed(0)
        for start in (0, 40, 80):
            ours.add(Batch(*(t.to(device) for t in batch([i % 3 for i in range(40)], start))), generator)
        contents = ours.contents()
        assert contents.images.device.type == device and not contents.labels.is_cuda
        held.append([t.cpu() for t in contents])
    assert all(torch.equal(a, b) for a, b in zip(*held, strict=True))


@every_kind
def test_adding_classes_later_changes_nothing(kind):
    labels = [0, 1] * 20 + stream(100, [1, 2, 3, 4])
    known, grown = memory(kind, 12), kind(12, (1, 2, 2), 2, device=CPU)
    for ours in (known, grown):
        generator = torch.Generator().manual_seed(5)
        fill(ours, labels[:40], generator)
        ours.grow(N_CLASSES)
        fill(ours, labels[40:], generator, start=40)
    assert_equal(known, grown)
    loaded = kind(12, (1, 2, 2), 1, device=CPU)
    loaded.load(grown.state())
    assert_equal(loaded, grown)
