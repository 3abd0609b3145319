"""A learner with its books: what came and was not taken yet, what became of every sample, and a sample of them all.

Around `SPR` stands what people need who bring their own data. Samples wait in an inbox until the learner takes them, so
that work that was cut off loses none. Feature vectors are standardised by the mean and standard deviation of the
stream's first delayed buffer. Each judged sample leaves its verdict; a reservoir of the judged ones is kept for the
estimate of the noise. None of it depends on how the stream was cut into pieces.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Report
from purereplay.learners.spr import SPR
from purereplay.memory.reservoir import Reservoir
from purereplay.memory.verdict_log import VerdictLog, Verdicts
from purereplay.nets.engine import drive
from purereplay.nets.inference import Classifier, embed
from purereplay.nets.networks import State, part, prefixed
from purereplay.purify.noise_rate import NoiseRate, noise_rates

SAMPLE_SIZE = 2000  # judged samples kept for the estimate of the noise
_SAMPLE_BYTES = 2**26  # and at most this much memory, unless that is fewer than 200
_FURTHEST = 10.0  # standard deviations: what lies beyond is moved there


class Scale(NamedTuple):
    """Of feature vectors, float64 (D, 1, 1) each."""

    mean: Tensor
    std: Tensor  # 1 where a feature does not vary

    def apply(self, vectors: Tensor) -> Tensor:
        """Standardised, float32, cut at ±10."""
        return ((vectors - self.mean) / self.std).clamp(-_FURTHEST, _FURTHEST).float()

    def undo(self, vectors: Tensor) -> Tensor:
        return vectors.double() * self.std + self.mean


def fit_scale(vectors: Tensor) -> Scale:
    """Of vectors float64 (n, D, 1, 1)."""
    std = vectors.std(0, correction=0)
    # rounding in the mean may leave a feature that does not vary with a tiny deviation
    flat = std <= 1e-12 * vectors.abs().amax(0)
    return Scale(vectors.mean(0), torch.where(flat, 1.0, std))


class AuditedLearner:
    """`put` samples in, `work`, and ask; `state` is everything that decides what comes next."""

    def __init__(self, learner: SPR, *, lookahead: int = 1) -> None:
        self.learner = learner
        self.lookahead = lookahead  # full delayed buffers taken at once, whose experts may train side by side
        self.is_vectors = learner.delayed.dtype.is_floating_point
        self.scale: Scale | None = None  # of feature vectors, once known
        self.judged = VerdictLog()
        shape, dtype = learner.image_shape, learner.delayed.dtype
        fits = max(200, _SAMPLE_BYTES // (math.prod(shape) * dtype.itemsize))
        self.sample = Reservoir(
            min(SAMPLE_SIZE, fits), shape, learner.n_classes, device=torch.device("cpu"), dtype=dtype
        )
        self.inbox = _empty(torch.zeros((0, *shape), dtype=torch.float64 if self.is_vectors else dtype))
        self.n_given = torch.zeros(learner.n_classes, dtype=torch.int64)  # samples put in so far, by label

    def grow(self, n_classes: int) -> None:
        """Labels below `n_classes` may come from now on; only ever more."""
        self.learner.grow(n_classes)
        self.sample.grow(n_classes)
        more = torch.zeros(self.learner.n_classes - len(self.n_given), dtype=torch.int64)
        self.n_given = torch.cat([self.n_given, more])

    def put(self, samples: Tensor, labels: Tensor) -> None:
        """Samples uint8 (n, C, H, W) or float64 (n, D, 1, 1) with labels int64 (n,); they are numbered as they come."""
        first = int(self.n_given.sum())
        new = Batch(samples, labels, torch.arange(first, first + len(labels)))
        self.inbox = Batch(*(torch.cat(pair) for pair in zip(self.inbox, new, strict=True)))
        self.n_given = self.n_given + torch.bincount(labels, minlength=len(self.n_given))

    def work(self, *, flush: bool = False) -> None:
        """Do all the work there is; `flush`: also judge what would still be held back."""
        self._work_through()
        capacity = self.learner.delayed.capacity
        if self.is_vectors and self.scale is None and (self.inbox.n >= capacity or (flush and self.inbox.n)):
            self.scale = fit_scale(self.inbox.images[:capacity])
        while self.inbox.n and (self.scale is not None or not self.is_vectors):
            wanted = self.learner.appetite(self.lookahead)
            piece, rest = (Batch(*(t[part] for t in self.inbox)) for part in (slice(wanted), slice(wanted, None)))
            self.learner.take(piece._replace(images=self.scaled(piece.images)))
            self.inbox = rest
            self._work_through()
        if flush:
            self.learner.finish()
            self._work_through()

    def scaled(self, samples: Tensor) -> Tensor:
        """Samples as the learner takes them."""
        return samples if self.scale is None else self.scale.apply(samples)

    def classifier(self) -> Classifier | None:
        """None as long as nothing has passed the filter."""
        return self.learner.classifier() if self.learner.purified.n else None

    def noise(self) -> tuple[NoiseRate, list[NoiseRate]]:
        """The share of wrong labels among the judged samples, overall and by label; see `purify.noise_rate`."""
        held = self.sample.contents()
        features = embed(self.learner.network, self.learner.base, held.images, penultimate=True)
        return noise_rates(features.cpu().numpy(), held.labels.numpy(), self.learner.n_classes)

    def _work_through(self) -> None:
        while self.learner.pending:
            first = self.learner.queue[0].batch if self.learner.queue else None
            report = drive(self.learner.work(), self.learner.engine)
            if report is not None and first is not None:
                self._record(report, first)

    def _record(self, report: Report, batch: Batch) -> None:
        assert report.clean_probability is not None and report.centrality is not None
        assert report.selected_mask is not None and int(report.index[0]) == self.judged.n
        number = torch.full_like(report.labels, report.buffer)
        self.judged.add(
            Verdicts(report.labels, report.clean_probability, report.centrality, number, report.selected_mask)
        )
        seed = derive_seed(self.learner.seed, "noise sample", report.buffer)
        self.sample.add(batch, torch.Generator().manual_seed(seed))

    def state(self) -> State:
        state = prefixed("learner.", self.learner.state()) | prefixed("inbox.", self.inbox._asdict())
        state |= prefixed("judged.", self.judged.state()) | prefixed("sample.", self.sample.state())
        state |= prefixed("scale.", self.scale._asdict() if self.scale else {})
        return state | {"n_given": self.n_given}

    def load(self, state: State) -> None:
        self.learner.load(part(state, "learner."))
        self.inbox = Batch(**part(state, "inbox."))
        self.judged.load(part(state, "judged."))
        self.sample.load(part(state, "sample."))
        scale = part(state, "scale.")
        self.scale = Scale(**scale) if scale else None
        self.n_given = state["n_given"]


def _empty(images: Tensor) -> Batch:
    return Batch(images, *(torch.zeros(0, dtype=torch.int64) for _ in range(2)))
