"""Delayed buffer D: holds samples back until there are enough of them to be scored (paper, section 3)."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import Forms, Limits, batch_forms, n_rows


class DelayedBuffer:
    """Fixed number of samples in order of arrival, on the device."""

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        *,
        device: torch.device,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        self.capacity = capacity
        self.image_shape = image_shape
        self.dtype = dtype  # of the images; float32: feature vectors
        self.n = 0
        # copies share this memory: rows below `n` are never written again
        self._images = torch.zeros((capacity, *image_shape), dtype=dtype, device=device)
        self._labels = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._index = torch.zeros(capacity, dtype=torch.int64, device=device)

    @property
    def is_full(self) -> bool:
        return self.n == self.capacity

    def copy(self) -> Self:
        """Return a buffer that can go on while this one stays as it is; then only one of the two is used."""
        return copy.copy(self)

    def add(self, batch: Batch) -> Batch:
        """Add the samples that fit, in order, and return the rest."""
        taken = min(self.capacity - self.n, batch.n)
        for ours, theirs in zip((self._images, self._labels, self._index), batch, strict=True):
            ours[self.n : self.n + taken] = theirs[:taken].to(ours.device)
        self.n += taken
        return Batch(*(t[taken:] for t in batch))

    def contents(self) -> Batch:
        """Return a copy of the samples held."""
        return Batch(*(t[: self.n].clone() for t in (self._images, self._labels, self._index)))

    def reset(self) -> None:
        self.n = 0
        self._images, self._labels, self._index = (
            torch.empty_like(t) for t in (self._images, self._labels, self._index)
        )

    def state(self) -> dict[str, Tensor]:
        return self.contents()._asdict()

    def forms(self, state: dict[str, Tensor], limits: Limits) -> Forms:
        """Return the forms that the tensors of a saved `state` must have."""
        return batch_forms(n_rows(state, "labels", self.capacity), self.image_shape, self.dtype, limits)

    def load(self, state: dict[str, Tensor]) -> None:
        self.reset()
        self.add(Batch(**state))
