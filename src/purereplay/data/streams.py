"""The stream: given labels cut into tasks, shuffled within each, passed once (paper, section 2; design: `Batch`).

In: images, given labels, tasks and a seed. Out: `Batch`es. A task holds the samples whose *given* label is one of its
classes. A stream never sees a true label, so nothing behind it can; `Batch.index` is the position in the training
set, which only a judge who holds the truth can use.
"""

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from purereplay.data.batch import Batch
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError


class Stream:
    """One pass over the samples, task after task; the order depends on labels, tasks and seed alone."""

    def __init__(
        self,
        images: ArrayLike,
        labels: ArrayLike,
        *,
        tasks: Sequence[Sequence[int]],
        seed: int,
        without: NDArray[np.int64] | None = None,
    ) -> None:
        """`images` uint8 (N, C, H, W), a memory map stays one; `labels` (N,): the given ones; `tasks`: class ids;
        `without`: positions of samples that do not pass, the others' order being the same."""
        self._images = np.asarray(images)  # of a memory map: a view, nothing is read
        self._labels: NDArray[np.int64] = np.array(labels, dtype=np.int64)
        if self._images.dtype != np.uint8 or self._images.ndim != 4:
            raise ValueError(f"images must be uint8 (N, C, H, W), not {self._images.dtype} {self._images.shape}")
        if self._labels.shape != self._images.shape[:1]:
            raise ValueError(f"{len(self._images)} images but labels of shape {self._labels.shape}")
        self.tasks: tuple[tuple[int, ...], ...] = tuple(tuple(int(c) for c in task) for task in tasks)
        _check_tasks(self.tasks)
        parts = [self._shuffled(number, seed) for number in range(len(self.tasks))]
        if without is not None:
            parts = [part[~np.isin(part, without)] for part in parts]
        self.order: NDArray[np.int64] = np.concatenate(parts)
        self.order.setflags(write=False)
        self.task_ends: tuple[int, ...] = tuple(int(end) for end in np.cumsum([len(part) for part in parts]))

    def __len__(self) -> int:
        """The number of samples that pass."""
        return len(self.order)

    def batch(self, start: int, stop: int) -> Batch:
        """The samples start … stop − 1 of the pass, copied out of the dataset."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of a stream of {len(self)}")
        index = self.order[start:stop].copy()
        # indexing by an array always copies, so the tensors own what they hold
        return Batch(
            images=torch.from_numpy(self._images[index]),
            labels=torch.from_numpy(self._labels[index]),
            index=torch.from_numpy(index),
        )

    def fingerprint(self) -> str:
        """A short digest of order, labels, tasks and image shape: equal for a run and its resumption."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(json.dumps([self.tasks, self._images.shape]).encode())
        digest.update(self.order.astype("<i8").tobytes())
        digest.update(self._labels.astype("<i8").tobytes())
        return digest.hexdigest()

    def _shuffled(self, number: int, seed: int) -> NDArray[np.int64]:
        """The positions of task `number`, in the order they pass."""
        positions = np.flatnonzero(np.isin(self._labels, self.tasks[number])).astype(np.int64)
        return np.random.default_rng(derive_seed(seed, "stream", number)).permutation(positions)


def _check_tasks(tasks: tuple[tuple[int, ...], ...]) -> None:
    """A class in two tasks would let its samples pass twice."""
    classes = [c for task in tasks for c in task]
    if not classes:
        raise UserError("A stream needs at least one task with at least one class.")
    for c in set(classes):
        if classes.count(c) > 1:
            raise UserError(f"Class {c} is in the tasks more than once.")
