import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from purereplay.data.batch import Batch
from purereplay.memory.purified import PurifiedBuffer, rank_within_class

CPU = torch.device("cpu")
N_CLASSES = 4


def buffer(capacity: int, admission: str = "greedy") -> PurifiedBuffer:
    return PurifiedBuffer(capacity, (1, 2, 2), N_CLASSES, device=CPU, admission=admission)


def batch(labels: list[int], start: int = 0) -> Batch:
    index = torch.arange(start, start + len(labels))
    images = (index % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Batch(images, torch.tensor(labels, dtype=torch.int64), index)


def slow_greedy(held: list[tuple[int, float, int]], capacity: int) -> set[int]:
    """One by one: while there are too many, the largest class gives up its lowest probability.

    Of several largest classes the one whose lowest is lower gives; of equal probabilities the newer sample goes.
    """
    held = list(held)
    while len(held) > capacity:
        counts = {c: sum(label == c for label, _, _ in held) for c in range(N_CLASSES)}
        crowded = [c for c in counts if counts[c] == max(counts.values())]
        lowest = [min((p, -i) for label, p, i in held if label == c) for c in crowded]
        _, minus = min(lowest)
        held = [h for h in held if h[2] != -minus]
    return {i for _, _, i in held}


samples = st.lists(st.tuples(st.integers(0, N_CLASSES - 1), st.integers(0, 5)), max_size=25)


@given(capacity=st.integers(1, 10), batches=st.lists(samples, min_size=1, max_size=4))
@settings(deadline=None, max_examples=150)
def test_one_operation_equals_evicting_one_by_one(capacity, batches):
    ours, everything, start = buffer(capacity), [], 0
    for offered in batches:
        labels, p = [c for c, _ in offered], torch.tensor([v / 5 for _, v in offered])
        kept = {*ours.contents()[0].index.tolist()}
        everything = [h for h in everything if h[2] in kept]
        everything += [(c, float(v / 5), start + i) for i, (c, v) in enumerate(offered)]
        ours.add(batch(labels, start), p, torch.Generator())
        start += len(offered)
        held, probability = ours.contents()
        expected = slow_greedy(everything, capacity)
        # the class that keeps one more than the others may be another one where the probabilities are equal
        ours_p = sorted((int(c), round(float(v), 6)) for c, v in zip(held.labels, probability, strict=True))
        counts = torch.bincount(held.labels, minlength=N_CLASSES)
        slow_counts = torch.bincount(
            torch.tensor([c for c, _, i in everything if i in expected], dtype=torch.int64), minlength=N_CLASSES
        )
        assert counts.sort().values.tolist() == slow_counts.sort().values.tolist()
        assert (held.images[:, 0, 0, 0] == held.index % 256).all()
        if {*held.index.tolist()} != expected:
            slow_p = sorted((c, round(v, 6)) for c, v, i in everything if i in expected)
            assert sorted(v for _, v in ours_p) == sorted(v for _, v in slow_p)


def test_lowest_probability_of_the_largest_class_is_evicted_first():
    ours = buffer(4)
    ours.add(batch([0, 0, 0, 1]), torch.tensor([0.9, 0.1, 0.5, 0.2]), torch.Generator())
    ours.add(batch([1], start=4), torch.tensor([0.05]), torch.Generator())
    held, _ = ours.contents()
    assert sorted(held.index.tolist()) == [0, 2, 3, 4]  # 1 was evicted, though 4 has the lowest probability of all


def test_classes_are_levelled():
    ours = buffer(30)
    labels = [0] * 100 + [1] * 100 + [2] * 4
    ours.add(batch(labels), torch.rand(204), torch.Generator().manual_seed(0))
    counts = torch.bincount(ours.contents()[0].labels, minlength=4)
    assert counts.tolist() == [13, 13, 4, 0]


def test_partitioned_admission_follows_share_over_seen():
    """After a class was offered n times, the chance of a sample to have competed is min(1, share / its rank)."""
    admitted = torch.zeros(200)
    for seed in range(300):
        ours = buffer(20, "partitioned")
        generator = torch.Generator().manual_seed(seed)
        ours.add(batch([0] * 20), torch.zeros(20), generator)  # fill it
        admitted += torch.from_numpy(ours._admit(np.zeros(200, np.int64), generator))
    expected = 20 / torch.arange(20, 220).clamp(min=20)
    assert (admitted / 300 - expected).abs().max() < 5 * (0.5 / 300**0.5)
    assert abs(float(admitted.sum() / 300 - expected.sum())) < 2


def test_partitioned_admission_lets_a_new_class_in():
    ours = buffer(20, "partitioned")
    generator = torch.Generator().manual_seed(0)
    ours.add(batch([0] * 200), torch.ones(200), generator)
    ours.add(batch([1] * 10, start=200), torch.full((10,), 0.1), generator)
    counts = torch.bincount(ours.contents()[0].labels, minlength=4)
    assert counts.tolist() == [10, 10, 0, 0]


def test_same_generator_same_contents_and_state_round_trips():
    def fill() -> PurifiedBuffer:
        ours, generator = buffer(10, "partitioned"), torch.Generator().manual_seed(3)
        for start in (0, 40, 80):
            ours.add(batch([i % 3 for i in range(40)], start), torch.rand(40, generator=generator), generator)
        return ours

    a, b, c = fill(), fill(), buffer(10, "partitioned")
    c.load(a.state())
    for other in (b, c):
        assert all(torch.equal(a.state()[n], other.state()[n]) for n in a.state())
    generator = [torch.Generator().manual_seed(9) for _ in range(2)]
    for ours, g in zip((a, c), generator, strict=True):
        ours.add(batch([0, 1, 2, 3] * 10, 200), torch.ones(40), g)
    assert torch.equal(a.contents()[0].index, c.contents()[0].index)


@given(
    capacity=st.integers(1, 12),
    offered=samples,
    confirmed=st.dictionaries(st.integers(0, 30), st.integers(0, N_CLASSES - 1), min_size=1, max_size=15),
)
@settings(deadline=None, max_examples=150)
def test_confirmed_samples_enter_and_are_held_once(capacity, offered, confirmed):
    ours = buffer(capacity)
    ours.add(batch([c for c, _ in offered]), torch.tensor([v / 5 for _, v in offered]), torch.Generator())
    before = ours.contents()
    index = torch.tensor(list(confirmed))
    images = (index % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    ours.insert(Batch(images, torch.tensor(list(confirmed.values())), index))
    held, probability = ours.contents()
    found = {i: (int(c), float(p)) for i, c, p in zip(held.index.tolist(), held.labels, probability, strict=True)}
    assert len(found) == held.n == ours.n <= capacity  # no sample twice
    assert torch.equal(held.images[:, 0, 0, 0], (held.index % 256).to(torch.uint8))
    others = {
        i: (int(c), float(p)) for i, c, p in zip(before[0].index.tolist(), before[0].labels, before[1], strict=True)
    }
    expected = others | {i: (c, 1.0) for i, c in confirmed.items()}
    assert held.n == min(capacity, len(expected)) and all(expected[i] == found[i] for i in found)
    kept = slow_greedy([(c, p, i) for i, (c, p) in expected.items()], capacity)
    counts = [sorted(expected[i][0] for i in group) for group in (kept, found)]
    assert [counts[0].count(c) - counts[1].count(c) in (-1, 0, 1) for c in range(N_CLASSES)] == [True] * N_CLASSES
    # confirmed samples come first within a class, the newest before all
    newest_first = list(confirmed)[::-1]
    for c in range(N_CLASSES):
        ranked = [i for i in newest_first if confirmed[i] == c]
        n_held = sum(label == c for label, _ in found.values())
        assert set(ranked[:n_held]) <= set(found)


@pytest.mark.parametrize("n", [0, 6])
def test_state_goes_through_a_file_and_is_a_copy(n):
    ours, again = buffer(10), buffer(10)
    ours.add(batch([i % 3 for i in range(n)]), torch.linspace(0, 1, n), torch.Generator())
    state = ours.state()
    before = {name: t.clone() for name, t in state.items()}
    again.load(load(save(state)))
    ours.add(batch([3] * 8, start=100), torch.ones(8), torch.Generator())
    assert all(torch.equal(t, before[name]) for name, t in state.items())
    assert again.n == n and all(torch.equal(t, before[name]) for name, t in again.state().items())
    assert torch.equal(again.index, before["index"])


@pytest.mark.gpu
@pytest.mark.parametrize("eviction", ["levelled", "softmax"])
def test_the_device_holds_the_images_and_decides_nothing(eviction):
    held = []
    for device in ("cpu", "cuda"):
        ours = PurifiedBuffer(10, (1, 2, 2), N_CLASSES, device=torch.device(device), eviction=eviction)
        generator = torch.Generator().manual_seed(0)
        for start in (0, 40, 80):
            offered = Batch(*(t.to(device) for t in batch([i % 3 for i in range(40)], start)))
            ours.add(offered, torch.rand(40, generator=generator).to(device), generator)
        contents, probability = ours.contents()
        assert contents.images.device.type == device and not contents.labels.is_cuda and not probability.is_cuda
        held.append(ours.state())
    assert all(torch.equal(t, held[1][name].cpu()) for name, t in held[0].items())


def test_softmax_eviction_is_one_after_the_other():
    """Against the rule written out with lists; a crowded class loses its lowest, and every new sample enters."""
    for seed in range(5):
        ours = PurifiedBuffer(12, (1, 2, 2), N_CLASSES, device=CPU, admission="greedy", eviction="softmax")
        generator = torch.Generator().manual_seed(seed)
        slots: list[tuple[int, float, int]] = []  # label, probability, index
        for start in (0, 30, 60):
            labels = torch.randint(0, 2 + start // 30, (30,), generator=generator).tolist()
            p = torch.rand(30, generator=generator, dtype=torch.float64)
            twin = torch.Generator()
            twin.set_state(generator.get_state())
            torch.rand(30, generator=twin, dtype=torch.float64)  # what admission draws
            draws = torch.rand(30, generator=twin, dtype=torch.float64).tolist()
            ours.add(batch(labels, start), p, generator)
            for i in range(30):
                added = (labels[i], float(p[i]), start + i)
                if len(slots) < 12:
                    slots.append(added)
                    continue
                counts = [sum(s[0] == c for s in slots) for c in range(N_CLASSES)]
                weights = [math.exp(n) if n else 0.0 for n in counts]
                u, crowded = draws[i] * sum(weights), 0
                while u >= weights[crowded]:
                    u -= weights[crowded]
                    crowded += 1
                out = min((s for s in slots if s[0] == crowded), key=lambda s: s[1])
                slots[slots.index(out)] = added
            held, probability = ours.contents()
            assert held.index.tolist() == [s[2] for s in slots]
            assert held.labels.tolist() == [s[0] for s in slots]
            assert probability.tolist() == pytest.approx([s[1] for s in slots])
            assert (held.images[:, 0, 0, 0] == held.index % 256).all()
        assert max(counts) - min(counts) <= 4  # nearly balanced


def test_nothing_offered_changes_nothing():
    ours = buffer(3)
    ours.add(batch([0, 1]), torch.tensor([0.5, 0.5]), torch.Generator())
    ours.add(batch([]), torch.empty(0), torch.Generator())
    assert ours.n == 2


def test_rank_within_class():
    assert rank_within_class(np.array([2, 0, 2, 2, 0]), 3).tolist() == [0, 0, 1, 2, 1]
