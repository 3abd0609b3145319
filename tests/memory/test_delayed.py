import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purereplay.data.batch import Batch
from purereplay.memory.delayed import DelayedBuffer

CPU = torch.device("cpu")


def batch(start: int, n: int) -> Batch:
    index = torch.arange(start, start + n)
    return Batch((index % 256).to(torch.uint8).view(n, 1, 1, 1).expand(n, 1, 2, 2), index % 3, index)


@given(capacity=st.integers(1, 7), sizes=st.lists(st.integers(0, 20), max_size=8))
@settings(deadline=None, max_examples=50)
def test_nothing_is_lost_or_reordered_whatever_the_batches(capacity, sizes):
    buffer = DelayedBuffer(capacity, (1, 2, 2), device=CPU)
    seen: list[int] = []
    start = 0
    for n in sizes:
        rest = batch(start, n)
        start += n
        while rest.n:
            rest = buffer.add(rest)
            assert buffer.n <= capacity
            if buffer.is_full:
                full = buffer.contents()
                assert full.n == capacity and (full.images[:, 0, 0, 0] == full.index % 256).all()
                seen += full.index.tolist()
                buffer.reset()
    assert seen + buffer.contents().index.tolist() == list(range(start))


def test_contents_are_a_copy_and_state_round_trips():
    buffer = DelayedBuffer(5, (1, 2, 2), device=CPU)
    buffer.add(batch(10, 3))
    copy = buffer.contents()
    buffer.add(batch(20, 2))
    assert copy.index.tolist() == [10, 11, 12]
    other = DelayedBuffer(5, (1, 2, 2), device=CPU)
    other.load(buffer.state())
    assert other.is_full and all(torch.equal(a, b) for a, b in zip(other.contents(), buffer.contents(), strict=True))


def test_copies_that_are_dropped_change_nothing():
    buffer = DelayedBuffer(5, (1, 2, 2), device=CPU)
    buffer.add(batch(10, 3))
    dropped = buffer.copy()
    dropped.add(batch(20, 2))
    assert dropped.contents().index.tolist() == [10, 11, 12, 20, 21] and buffer.n == 3
    dropped.reset()
    dropped.add(batch(30, 4))
    assert dropped.contents().index.tolist() == [30, 31, 32, 33]
    assert buffer.contents().index.tolist() == [10, 11, 12]
    buffer.add(batch(40, 1))
    assert buffer.contents().index.tolist() == [10, 11, 12, 40]


def test_vectors_are_kept_as_floats():
    buffer = DelayedBuffer(3, (4, 1, 1), device=CPU, dtype=torch.float32)
    vectors = torch.randn(3, 4, 1, 1)
    buffer.add(Batch(vectors, torch.zeros(3, dtype=torch.int64), torch.arange(3)))
    assert torch.equal(buffer.contents().images, vectors)
