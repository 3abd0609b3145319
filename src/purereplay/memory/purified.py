"""The purified buffer P: class-balanced, entered by clean probability, left by the lowest one first (section 3.2).

All samples of a judged buffer are added in one go: those that are admitted join those that are held, everyone is
ranked within its class by clean probability, and the best ranks of all classes stay. Keeping the first `capacity` of
the order (rank, then probability) levels the classes and lets the lowest probability of the largest class go first.

Admission, where paper and released code differ:
    greedy       (paper) everything that passed the filter may compete for a place
    partitioned  (released code) once P is full, a sample may compete with probability share / seen: its class's equal
                 share over how many of its class were offered so far, which keeps P from turning into the few most
                 central samples of a long stream

Eviction:
    levelled     (paper: balanced classes, the lowest clean probability first) what is described above
    softmax      (released code) one newcomer after the other takes the place of the lowest probability of a class
                 drawn by softmax(excess over its share); sequential by nature, so it costs a Python step per newcomer
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from purereplay.data.batch import Batch

Admission = Literal["greedy", "partitioned"]
Eviction = Literal["levelled", "softmax"]


class PurifiedBuffer:
    """At most `capacity` samples believed to be clean, on the device."""

    def __init__(
        self,
        capacity: int,
        image_shape: tuple[int, int, int],
        n_classes: int,
        *,
        device: torch.device,
        admission: Admission = "partitioned",
        eviction: Eviction = "levelled",
    ) -> None:
        self.capacity = capacity
        self.n_classes = n_classes
        self.admission = admission
        self.eviction = eviction
        self.n = 0
        self._images = torch.zeros((capacity, *image_shape), dtype=torch.uint8, device=device)
        self._labels = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._index = torch.zeros(capacity, dtype=torch.int64, device=device)
        self._probability = torch.zeros(capacity, dtype=torch.float64, device=device)
        self._seen = torch.zeros(n_classes, dtype=torch.int64, device=device)  # offered so far, by class

    @property
    def is_full(self) -> bool:
        return self.n == self.capacity

    def add(self, batch: Batch, clean_probability: Tensor, generator: torch.Generator) -> None:
        """Offer samples with their clean probability; `generator` is a CPU generator and decides on admission."""
        device = self._labels.device
        batch = Batch(*(t.to(device) for t in batch))
        clean_probability = clean_probability.to(device, torch.float64)
        admitted = self._admit(batch.labels, generator)
        new = Batch(*(t[admitted] for t in batch))
        new_probability = clean_probability[admitted]

        place = self._levelled if self.eviction == "levelled" else self._by_softmax
        slots, enters = place(new.labels, new_probability, generator)
        for ours, theirs in zip(self._tensors(), (*new, new_probability), strict=True):
            ours[slots] = theirs[enters]
        self.n = min(self.capacity, self.n + new.n)

    def _levelled(self, labels: Tensor, probability: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which newcomers stay, and in whose slots: int64 (m,) each."""
        device, n_new = labels.device, labels.shape[0]
        labels = torch.cat([self._labels[: self.n], labels])
        probability = torch.cat([self._probability[: self.n], probability])
        best_first = torch.argsort(probability, descending=True, stable=True)  # of equals the older stays
        rank = torch.empty_like(labels)
        rank[best_first] = rank_within_class(labels[best_first], self.n_classes)
        order = best_first[torch.argsort(rank[best_first], stable=True)]
        stays = torch.zeros(self.n + n_new, dtype=torch.bool, device=device)
        stays[order[: self.capacity]] = True
        free = torch.ones(self.capacity, dtype=torch.bool, device=device)
        free[: self.n] = ~stays[: self.n]
        enters = stays[self.n :].nonzero().squeeze(1)
        return free.nonzero().squeeze(1)[: enters.shape[0]], enters

    def _by_softmax(self, labels: Tensor, probability: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The released code's way, one newcomer after the other; a slot's last newcomer is the one that stays."""
        held_labels, held = self._labels.cpu().numpy().copy(), self._probability.cpu().numpy().copy()
        count = np.bincount(held_labels[: self.n], minlength=self.n_classes)
        draws = torch.rand(labels.shape[0], generator=generator, dtype=torch.float64).tolist()
        taken: dict[int, int] = {}  # slot -> newcomer
        newcomers = zip(labels.tolist(), probability.tolist(), draws, strict=True)
        for i, (label, p, u) in enumerate(newcomers):
            slot = self.n + i
            if slot >= self.capacity:
                weight = np.where(count > 0, np.exp(count - count.max()), 0.0).cumsum()
                crowded = int(np.searchsorted(weight, u * weight[-1], side="right"))
                slot = int(np.where(held_labels == crowded, held, np.inf).argmin())
                count[crowded] -= 1
            held_labels[slot], held[slot] = label, p
            count[label] += 1
            taken[slot] = i
        pairs = torch.tensor(list(taken.items()), dtype=torch.int64, device=labels.device).view(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _admit(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Who may compete for a place (n,) bool; counts everyone as seen."""
        present = torch.bincount(torch.cat([self._labels[: self.n], labels]), minlength=self.n_classes)
        share = self.capacity / max(1, int((present > 0).sum()))
        seen_before = self._seen[labels] + rank_within_class(labels, self.n_classes)
        self._seen += torch.bincount(labels, minlength=self.n_classes)
        u = torch.rand(labels.shape[0], generator=generator, dtype=torch.float64).to(labels.device)
        if self.admission == "greedy":
            return torch.ones_like(labels, dtype=torch.bool)
        free_place = torch.arange(labels.shape[0], device=labels.device) < self.capacity - self.n
        return free_place | (u * seen_before < share)

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._images, self._labels, self._index, self._probability

    def contents(self) -> tuple[Batch, Tensor]:
        """A copy of the samples held and of their clean probabilities."""
        images, labels, index, probability = (t[: self.n].clone() for t in self._tensors())
        return Batch(images, labels, index), probability

    def state(self) -> dict[str, Tensor]:
        batch, probability = self.contents()
        return batch._asdict() | {"probability": probability, "seen": self._seen.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.n = state["labels"].shape[0]
        for name, ours in zip(("images", "labels", "index", "probability"), self._tensors(), strict=True):
            ours[: self.n] = state[name].to(ours.device)
        self._seen.copy_(state["seen"])


def rank_within_class(labels: Tensor, n_classes: int) -> Tensor:
    """How many earlier entries have the same label, int64 (n,)."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels, minlength=n_classes)
    first = torch.cumsum(counts, 0) - counts  # where each class begins in `order`
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(labels.shape[0], device=labels.device) - first[labels[order]]
    return rank
