"""Streams: one pass, cut by given labels, owned memory, exact resumption."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purereplay.data.streams import Stream
from purereplay.errors import UserError

TASKS = ((7, 6), (2, 3), (0, 1))


def make_stream(n: int = 200, seed: int = 0, tasks: tuple[tuple[int, ...], ...] = TASKS) -> Stream:
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)
    return Stream(images, rng.integers(0, 10, n), tasks=tasks, seed=seed)


@settings(deadline=None, max_examples=50)
@given(
    labels=st.lists(st.sampled_from((0, 1, 2, 3, 5, 6, 7)), min_size=10, max_size=60),
    seed=st.integers(0, 9),
    batch_size=st.integers(1, 12),
)
def test_a_stream_passes_each_sample_of_its_classes_once(labels: list[int], seed: int, batch_size: int) -> None:
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    stream = Stream(images, np.array(labels, dtype=np.int64), tasks=TASKS, seed=seed)
    assert sorted(stream.order.tolist()) == [i for i, label in enumerate(labels) if label in {7, 6, 2, 3, 0, 1}]
    begin = 0
    for task, end in zip(TASKS, stream.task_ends, strict=True):
        assert {labels[i] for i in stream.order[begin:end]} <= set(task)
        begin = end
    assert stream.task_ends[-1] == len(stream)

    index = []
    for start in range(0, len(stream), batch_size):
        batch = stream.batch(start, min(start + batch_size, len(stream)))
        assert batch.images.flatten().tolist() == batch.index.tolist()
        assert batch.labels.tolist() == [labels[i] for i in batch.index.tolist()]
        index += batch.index.tolist()
    assert index == stream.order.tolist()


def test_order_depends_on_the_seed_and_on_nothing_else() -> None:
    assert np.array_equal(make_stream(seed=1).order, make_stream(seed=1).order)
    assert not np.array_equal(make_stream(seed=1).order, make_stream(seed=2).order)
    whole, last = make_stream(seed=1), make_stream(seed=1, tasks=TASKS[:1])
    assert np.array_equal(whole.order[: whole.task_ends[0]], last.order)  # a task does not depend on later ones


def test_batches_own_their_memory(tmp_path: Path) -> None:
    images = np.zeros((20, 1, 4, 4), dtype=np.uint8)
    labels = np.zeros(20, dtype=np.int64)
    stream = Stream(images, labels, tasks=((0,),), seed=0)
    before = stream.order.copy()
    batch = stream.batch(0, 20)  # the whole: the case where a view would be possible
    for tensor in batch:
        tensor.fill_(7)
    assert not images.any()
    assert not stream.batch(0, 20).images.any()
    assert not stream.batch(0, 20).labels.any()
    assert np.array_equal(stream.order, before)
    labels[:] = 3  # nor does the stream follow its maker's array
    assert not stream.batch(0, 20).labels.any()


def test_memory_map_is_read_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.arange(16, dtype=np.uint8).reshape(16, 1, 1, 1))
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    stream = Stream(images, np.arange(16) % 2, tasks=((0,), (1,)), seed=0)
    batch = stream.batch(0, 16)
    assert batch.images.flatten().tolist() == batch.index.tolist()
    batch.images.add_(1)  # a copy can be written, the map cannot


def test_batch_types() -> None:
    batch = make_stream().batch(3, 9)
    assert batch.images.dtype == torch.uint8
    assert batch.images.shape == (6, 1, 4, 4)
    assert batch.labels.dtype == batch.index.dtype == torch.int64


def test_fingerprint_sees_seed_labels_and_tasks() -> None:
    rng = np.random.default_rng(0)
    images, labels = np.zeros((50, 1, 2, 2), dtype=np.uint8), rng.integers(0, 8, 50)
    relabelled = labels.copy()
    position = int(np.flatnonzero(labels == 7)[0])
    relabelled[position] = 6  # the same task, so the order stays

    def fingerprint(labels: np.ndarray = labels, tasks: object = TASKS, seed: int = 0) -> str:
        return Stream(images, labels, tasks=tasks, seed=seed).fingerprint()  # type: ignore[arg-type]

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(relabelled), fingerprint(tasks=TASKS[::-1]), fingerprint(seed=1)}) == 4
    int(fingerprint(), 16)


def test_wrong_input_is_refused() -> None:
    images = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    with pytest.raises(UserError, match="Class 1"):
        Stream(images, np.arange(4), tasks=((0, 1), (1, 2)), seed=0)
    with pytest.raises(UserError, match="at least one task"):
        Stream(images, np.arange(4), tasks=(), seed=0)
    with pytest.raises(ValueError, match="4 images"):
        Stream(images, np.arange(5), tasks=((0,),), seed=0)
    with pytest.raises(ValueError, match="uint8"):
        Stream(images.astype(float), np.arange(4), tasks=((0,),), seed=0)
    stream = Stream(images, np.arange(4), tasks=((0, 1),), seed=0)
    with pytest.raises(IndexError):
        stream.batch(0, 3)


def test_a_task_without_samples_is_empty() -> None:
    stream = Stream(np.zeros((4, 1, 2, 2), dtype=np.uint8), np.zeros(4), tasks=((5,), (0,)), seed=0)
    assert stream.task_ends == (0, 4)
    assert stream.batch(0, 4).labels.tolist() == [0] * 4
