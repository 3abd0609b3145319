"""Purified buffer P: class-balanced; high clean probabilities enter, the lowest are evicted first (section 3.2).

All samples of a scored buffer are added at once. Admitted samples join those held, all are ranked within their class by
clean probability, and the first `capacity` in the order (rank, then probability) stay. This balances the classes and
evicts the lowest probability of the largest class first.

Admission, where paper and released code differ:
    greedy       (paper) every sample that passed the filter may compete for a slot
    partitioned  (released code) once P is full, a sample may compete with probability share / seen: the equal share of
                 its class over the number of samples of its class offered so far. This keeps P from being filled with
                 the few most central samples of a long stream

Eviction:
    levelled     (paper: balanced classes, the lowest clean probability first) as described above
    softmax      (released code) new samples are added one by one; each replaces the lowest probability of a class drawn
                 by softmax(excess over its share). Sequential by nature: one Python step per new sample
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import MOST, Form, Forms, Limits, batch_forms, n_rows

Admission = Literal["greedy", "partitioned"]
Eviction = Literal["levelled", "softmax"]
Whole = NDArray[np.int64]
Real = NDArray[np.float64]


class PurifiedBuffer:
    """At most `capacity` samples that are probably clean: images on the device, everything else on the CPU."""

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        n_classes: int,
        *,
        device: torch.device,
        admission: Admission = "partitioned",
        eviction: Eviction = "levelled",
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        self.capacity = capacity
        self.n_classes = n_classes
        self.admission = admission
        self.eviction = eviction
        self.n = 0
        self._images = torch.zeros((capacity, *image_shape), dtype=dtype, device=device)
        self._labels = np.zeros(capacity, np.int64)
        self._index = np.zeros(capacity, np.int64)
        self._probability = np.zeros(capacity, np.float64)
        self._seen = np.zeros(n_classes, np.int64)  # samples offered so far, by class

    @property
    def is_full(self) -> bool:
        return self.n == self.capacity

    @property
    def index(self) -> Tensor:
        """Stream index of the samples held, int64 (n,)."""
        return torch.from_numpy(self._index[: self.n].copy())

    def grow(self, n_classes: int) -> None:
        """Raise the number of classes to at least `n_classes`."""
        self._seen = np.concatenate([self._seen, np.zeros(max(0, n_classes - self.n_classes), np.int64)])
        self.n_classes = len(self._seen)

    def add(self, batch: Batch, clean_probability: Tensor, generator: torch.Generator) -> None:
        """Offer samples with their clean probabilities; `generator` is a CPU generator for the admission."""
        labels, index = batch.labels.cpu().numpy(), batch.index.cpu().numpy()
        probability = clean_probability.to("cpu", torch.float64).numpy()
        admitted = np.flatnonzero(self._admit(labels, generator))
        if self.eviction == "levelled":
            slots, enters = self._levelled(labels[admitted], probability[admitted])
        else:
            slots, enters = self._by_softmax(labels[admitted], probability[admitted], generator)
        rows = admitted[enters]
        self._images[torch.from_numpy(slots)] = batch.images[torch.from_numpy(rows)].to(self._images.device)
        self._labels[slots], self._index[slots], self._probability[slots] = labels[rows], index[rows], probability[rows]
        self.n = min(self.capacity, self.n + len(admitted))

    def insert(self, batch: Batch) -> None:
        """Insert samples whose labels a person confirmed, with probability 1 and without admission.

        A sample held under the same index is replaced. Classes stay balanced: if a class has more confirmed samples
        than its share, the newest stay.
        """
        others = ~np.isin(self._index[: self.n], batch.index.cpu().numpy())
        held, probability = self.contents()
        kept = torch.from_numpy(np.flatnonzero(others))
        newest_first = [torch.cat([new.cpu().flip(0), old.cpu()[kept]]) for new, old in zip(batch, held, strict=True)]
        images, labels, index = newest_first
        certain = np.concatenate([np.ones(batch.n), probability.numpy()[others]])
        self.n = 0
        _, stays = self._levelled(labels.numpy(), certain)
        self.n = len(stays)
        self._images[: self.n] = images[torch.from_numpy(stays)].to(self._images.device)
        self._labels[: self.n], self._index[: self.n] = labels.numpy()[stays], index.numpy()[stays]
        self._probability[: self.n] = certain[stays]

    def remove(self, index: Tensor) -> None:
        """Remove the samples with these stream indices, as far as they are held."""
        stays = np.flatnonzero(~np.isin(self._index[: self.n], index.cpu().numpy()))
        self.n = len(stays)
        self._images[: self.n] = self._images[torch.from_numpy(stays)]
        for values in (self._labels, self._index, self._probability):
            values[: self.n] = values[stays]

    def _levelled(self, labels: Whole, probability: Real) -> tuple[Whole, Whole]:
        """Return the slots of the new samples that stay, and their rows: int64 (m,) each."""
        labels = np.concatenate([self._labels[: self.n], labels])
        probability = np.concatenate([self._probability[: self.n], probability])
        best_first = np.argsort(-probability, kind="stable")  # of equal probabilities the older stays
        rank = rank_within_class(labels[best_first], self.n_classes)
        order = best_first[np.argsort(rank, kind="stable")]
        stays = np.zeros(len(labels), bool)
        stays[order[: self.capacity]] = True
        free = np.ones(self.capacity, bool)
        free[: self.n] = ~stays[: self.n]
        enters = np.flatnonzero(stays[self.n :])
        return np.flatnonzero(free)[: len(enters)], enters

    def _by_softmax(self, labels: Whole, probability: Real, generator: torch.Generator) -> tuple[Whole, Whole]:
        """Add new samples one by one as the released code does; the last sample of a slot stays. Returns as above."""
        held_labels, held = self._labels.copy(), self._probability.copy()
        count = np.bincount(held_labels[: self.n], minlength=self.n_classes)
        draws = torch.rand(len(labels), generator=generator, dtype=torch.float64).tolist()
        taken: dict[int, int] = {}  # slot -> row of the new sample
        offered = zip(labels.tolist(), probability.tolist(), draws, strict=True)
        for i, (label, p, u) in enumerate(offered):
            slot = self.n + i
            if slot >= self.capacity:
                weight = np.where(count > 0, np.exp(count - count.max()), 0.0).cumsum()
                crowded = int(np.searchsorted(weight, u * weight[-1], side="right"))
                slot = int(np.where(held_labels == crowded, held, np.inf).argmin())
                count[crowded] -= 1
            held_labels[slot], held[slot] = label, p
            count[label] += 1
            taken[slot] = i
        return np.fromiter(taken.keys(), np.int64), np.fromiter(taken.values(), np.int64)

    def _admit(self, labels: Whole, generator: torch.Generator) -> NDArray[np.bool_]:
        """Return the mask (n,) of samples that may compete for a slot, and count all of them as seen."""
        u = torch.rand(len(labels), generator=generator, dtype=torch.float64).numpy()
        present = np.bincount(np.concatenate([self._labels[: self.n], labels]), minlength=self.n_classes)
        share = self.capacity / max(1, int(np.count_nonzero(present)))
        seen_before = self._seen[labels] + rank_within_class(labels, self.n_classes)
        self._seen += np.bincount(labels, minlength=self.n_classes)
        if self.admission == "greedy":
            return np.ones(len(labels), bool)
        competes: NDArray[np.bool_] = u * seen_before < share
        competes[: self.capacity - self.n] = True  # free slots go to the first samples
        return competes

    def contents(self) -> tuple[Batch, Tensor]:
        """Return a copy of the samples held and their clean probabilities; only the images are on the device."""
        labels, probability = (torch.from_numpy(a[: self.n].copy()) for a in (self._labels, self._probability))
        return Batch(self._images[: self.n].clone(), labels, self.index), probability

    def state(self) -> dict[str, Tensor]:
        batch, probability = self.contents()
        return batch._asdict() | {"probability": probability, "seen": torch.from_numpy(self._seen.copy())}

    def forms(self, state: dict[str, Tensor], limits: Limits) -> Forms:
        """Return the forms that the tensors of a saved `state` must have."""
        n = n_rows(state, "labels", self.capacity)
        forms = batch_forms(n, tuple(self._images.shape[1:]), self._images.dtype, limits)
        forms["probability"] = Form(torch.float64, (n,), 0, 1, finite=True)
        forms["seen"] = Form(torch.int64, (limits.n_classes,), 0, MOST)
        return forms

    def load(self, state: dict[str, Tensor]) -> None:
        self.grow(state["seen"].shape[0])
        self.n = state["labels"].shape[0]
        self._images[: self.n] = state["images"].to(self._images.device)
        self._seen[:] = state["seen"].cpu().numpy()
        for name, ours in (("labels", self._labels), ("index", self._index), ("probability", self._probability)):
            ours[: self.n] = state[name].cpu().numpy()


def rank_within_class(labels: Whole, n_classes: int) -> Whole:
    """Return the number of earlier entries with the same label, int64 (n,)."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=n_classes)
    first = np.cumsum(counts) - counts  # start of each class in `order`
    rank = np.empty_like(labels)
    rank[order] = np.arange(len(labels)) - first[labels[order]]
    return rank
