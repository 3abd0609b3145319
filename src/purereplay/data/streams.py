"""Stream: given labels split into tasks, shuffled within each, passed once (paper, section 2).

In: images, given labels, tasks and a seed. Out: `Batch`es. A task holds the samples whose *given* label is one of its
classes. A stream has no true labels, so nothing behind it can use them. `Batch.index` is the position in the training
set; only the judge, who has the true labels, can match it with them.
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
    """One pass over the samples, task by task; the order depends on labels, tasks and seed alone."""

    def __init__(
        self,
        images: ArrayLike,
        labels: ArrayLike,
        *,
        tasks: Sequence[Sequence[int]],
        seed: int,
        without: NDArray[np.int64] | None = None,
    ) -> None:
        """Parameters:
        images: uint8 (N, C, H, W), or feature vectors float32 (N, D, 1, 1); a memory map is not copied
        labels: (N,), as given
        tasks: class ids of each task
        without: positions of samples to leave out; the order of the others does not change
        """
        self._images = np.asarray(images)  # a view of a memory map; nothing is read
        self._labels: NDArray[np.int64] = np.array(labels, dtype=np.int64)
        if self._images.dtype not in (np.uint8, np.float32) or self._images.ndim != 4:
            found = f"{self._images.dtype} {self._images.shape}"
            raise ValueError(f"images must be uint8 (N, C, H, W), or vectors float32 (N, D, 1, 1), not {found}")
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
        """Return the number of samples in the pass."""
        return len(self.order)

    def batch(self, start: int, stop: int) -> Batch:
        """Return samples start … stop − 1 of the pass, copied from the dataset."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of a stream of {len(self)}")
        index = self.order[start:stop].copy()
        # indexing with an array always copies, so the tensors own their memory
        return Batch(
            images=torch.from_numpy(self._images[index]),
            labels=torch.from_numpy(self._labels[index]),
            index=torch.from_numpy(index),
        )

    def fingerprint(self) -> str:
        """Return a short digest of order, labels, tasks and image shape; equal for a run and its resumption."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(json.dumps([self.tasks, self._images.shape]).encode())
        digest.update(self.order.astype("<i8").tobytes())
        digest.update(self._labels.astype("<i8").tobytes())
        return digest.hexdigest()

    def _shuffled(self, number: int, seed: int) -> NDArray[np.int64]:
        """Return the positions of task `number`, in stream order."""
        positions = np.flatnonzero(np.isin(self._labels, self.tasks[number])).astype(np.int64)
        return np.random.default_rng(derive_seed(seed, "stream", number)).permutation(positions)


def _check_tasks(tasks: tuple[tuple[int, ...], ...]) -> None:
    """Raise UserError if there is no class, or if a class is in two tasks."""
    classes = [c for task in tasks for c in task]
    if not classes:
        raise UserError("A stream needs at least one task with at least one class.")
    for c in set(classes):
        if classes.count(c) > 1:
            raise UserError(f"Class {c} is in the tasks more than once.")
