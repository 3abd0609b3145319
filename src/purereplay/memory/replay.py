"""Base of the replay memories: raw samples of the stream, each kept or not when it arrives.

Deciding and storing are two steps. `place` decides from the labels alone and is cheap, so a learner can plan many
training steps ahead. `write` then stores the images of all placed samples at once. `add` does both. Each new sample
costs a fixed number of random draws, kept or not, so the result does not depend on how the stream is cut into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import MOST, Form, Forms, Limits, batch_forms, total

Whole = NDArray[np.int64]
Real = NDArray[np.float64]


class ReplayMemory(ABC):
    """At most `capacity` samples: images on the device, labels and index on the CPU."""

    n_draws: ClassVar[int]  # uniform draws per new sample

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        n_classes: int,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        self.capacity = capacity
        self.n_classes = n_classes
        self.n = 0
        self.seen = np.zeros(n_classes, np.int64)  # samples seen so far, by class
        self._images = torch.zeros((capacity, *image_shape), dtype=dtype, device=device)
        self._labels = np.zeros(capacity, np.int64)
        self._index = np.zeros(capacity, np.int64)
        self._unwritten = np.zeros(capacity, bool)  # placed, image not written yet

    def grow(self, n_classes: int) -> None:
        """Raise the number of classes to at least `n_classes`."""
        self.seen = np.concatenate([self.seen, np.zeros(max(0, n_classes - self.n_classes), np.int64)])
        self.n_classes = len(self.seen)

    @property
    def is_full(self) -> bool:
        return self.n == self.capacity

    @property
    def labels(self) -> Whole:
        """Labels by slot, int64 (n,): a view that the next `place` changes."""
        return self._labels[: self.n]

    @property
    def index(self) -> Tensor:
        """Stream index of the samples held, int64 (n,)."""
        self._check_written()
        return torch.from_numpy(self._index[: self.n].copy())

    def place(self, labels: Whole, generator: torch.Generator) -> Whole:
        """Decide on new samples in order and return their slots, -1 if not kept: int64 (n,) in and out.

        A later sample may take the slot of an earlier one. `generator` is a CPU generator.
        """
        seen = self.seen + np.bincount(labels, minlength=self.n_classes)  # raises on an unknown label
        draws = torch.rand((len(labels), self.n_draws), generator=generator, dtype=torch.float64).numpy()
        slots = self._place(labels, draws)
        kept = slots >= 0
        taken = slots[kept]
        self._labels[taken] = labels[kept]  # numpy lets the last sample of a slot win
        self._unwritten[taken] = True
        self.seen = seen
        self.n = min(self.capacity, self.n + len(labels))
        return slots

    @abstractmethod
    def _place(self, labels: Whole, draws: Real) -> Whole:
        """Return slots (n,) for labels (n,) by uniform draws (n, n_draws); free slots are taken first, ascending.

        `n` and `seen` do not include the new samples yet.
        """

    def write(self, slots: Whole, batch: Batch) -> None:
        """Store the samples placed since the last write, in order; -1 and samples that lost their slot are skipped."""
        rows = np.flatnonzero(slots >= 0)
        last = np.empty(self.capacity, np.int64)
        last[slots[rows]] = rows
        rows = rows[last[slots[rows]] == rows]
        slots = slots[rows]
        self._images[torch.from_numpy(slots)] = batch.images[torch.from_numpy(rows)].to(self._images.device)
        self._index[slots] = batch.index.cpu().numpy()[rows]
        self._unwritten[slots] = False

    def add(self, batch: Batch, generator: torch.Generator) -> Whole:
        """Place and write; return the slots."""
        slots = self.place(batch.labels.cpu().numpy(), generator)
        self.write(slots, batch)
        return slots

    def contents(self) -> Batch:
        """Return a copy of the samples held; only the images are on the device."""
        self._check_written()
        return self._copy()

    def _copy(self) -> Batch:
        labels, index = (torch.from_numpy(a[: self.n].copy()) for a in (self._labels, self._index))
        return Batch(self._images[: self.n].clone(), labels, index)

    def _check_written(self) -> None:
        if self._unwritten.any():  # their slots still hold the images of removed samples
            raise RuntimeError("The replay memory holds placed samples without images: call write first.")

    def state(self) -> dict[str, Tensor]:
        """Return the complete state, also between `place` and `write`."""
        unwritten = torch.from_numpy(self._unwritten[: self.n].copy())
        return self._copy()._asdict() | {"unwritten": unwritten, "seen": torch.from_numpy(self.seen.copy())}

    def forms(self, state: dict[str, Tensor], limits: Limits) -> Forms:
        """Return the forms that the tensors of a saved `state` must have; every sample in it has its image."""
        n = min(self.capacity, total(state, "seen"))
        forms = batch_forms(n, tuple(self._images.shape[1:]), self._images.dtype, limits)
        forms["unwritten"] = Form(torch.bool, (n,), most=0)
        forms["seen"] = Form(torch.int64, (limits.n_classes,), 0, MOST)
        return forms

    def load(self, state: dict[str, Tensor]) -> None:
        self.grow(state["seen"].shape[0])
        self.n = state["labels"].shape[0]
        self.seen = state["seen"].cpu().numpy().copy()
        self._images[: self.n] = state["images"].to(self._images.device)
        self._unwritten[:] = False
        for name, ours in (("labels", self._labels), ("index", self._index), ("unwritten", self._unwritten)):
            ours[: self.n] = state[name].cpu().numpy()


def slots_by_class(labels: Whole, n_classes: int) -> list[list[int]]:
    """Return the slots of each class in ascending order, which makes them a function of the labels alone."""
    held: list[list[int]] = [[] for _ in range(n_classes)]
    for slot, label in enumerate(labels.tolist()):
        held[label].append(slot)
    return held
