"""A learner that records every decision, for users' own data.

Samples wait in an inbox until the learner takes them. Feature vectors are standardised by the mean and standard
deviation of the stream's first delayed buffer. The verdict on every scored sample is recorded, and a reservoir of
scored samples is kept for the noise estimate. The results do not depend on how the stream was cut into pieces, nor on
interrupts: every step of the work is made on a copy, which is published by one assignment (see `Learner.copy`).
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import MOST, Form, Forms, Limits, batch_forms, check_forms, n_rows, prefixed, total
from purereplay.data.scale import Scale, fit_scale
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import FilterReport
from purereplay.learners.spr.learner import SPR
from purereplay.memory.reservoir import Reservoir
from purereplay.memory.verdict_log import VerdictLog, Verdicts
from purereplay.nets.inference import Classifier, embed
from purereplay.nets.lockstep import drive
from purereplay.nets.networks import State, part
from purereplay.purify.noise_rate import NoiseTable, noise_rates

SAMPLE_SIZE = 2000  # scored samples kept for the noise estimate
_SAMPLE_BYTES = 2**26  # memory limit for them, but at least 200 are kept
_LEAST_STD = 5e-324  # the least positive number


class RecordedLearner:
    """`put` samples, then `work`; `state` is everything that later results depend on.

    `work` may be interrupted at any moment: the next call continues. Samples are put into a `copy`.
    """

    def __init__(self, learner: SPR, *, lookahead: int = 1) -> None:
        self.learner = learner
        self.lookahead = lookahead  # full delayed buffers taken at once; their experts may train side by side
        self.is_vectors = learner.delayed.dtype.is_floating_point
        self.scale: Scale | None = None  # of feature vectors, once known
        self.verdicts = VerdictLog()
        shape, dtype = learner.image_shape, learner.delayed.dtype
        fits = max(200, _SAMPLE_BYTES // (math.prod(shape) * dtype.itemsize))
        self.sample = Reservoir(
            min(SAMPLE_SIZE, fits), shape, learner.n_classes, device=torch.device("cpu"), dtype=dtype
        )
        self.inbox = _empty(torch.zeros((0, *shape), dtype=torch.float64 if self.is_vectors else dtype))
        self.n_given = torch.zeros(learner.n_classes, dtype=torch.int64)  # samples put in so far, by label

    def copy(self) -> Self:
        """Return a learner that can go on in place of this one, while this one stays as it is."""
        return copy.copy(self)  # all parts are replaced, not changed

    def grow(self, n_classes: int) -> None:
        """Allow labels below `n_classes` from now on; the number never shrinks."""
        if n_classes <= len(self.n_given):
            return
        self.learner, self.sample = self.learner.copy(), copy.copy(self.sample)
        self.learner.grow(n_classes)
        self.sample.grow(n_classes)
        more = torch.zeros(self.learner.n_classes - len(self.n_given), dtype=torch.int64)
        self.n_given = torch.cat([self.n_given, more])

    def put(self, samples: Tensor, labels: Tensor) -> None:
        """Add samples uint8 (n, C, H, W) or float64 (n, D, 1, 1) with labels int64 (n,), numbered as they arrive."""
        first = int(self.n_given.sum())
        new = Batch(samples, labels, torch.arange(first, first + len(labels)))
        self.inbox = Batch(*(torch.cat(pair) for pair in zip(self.inbox, new, strict=True)))
        self.n_given = self.n_given + torch.bincount(labels, minlength=len(self.n_given))

    def work(self, *, flush: bool = False) -> None:
        """Do all pending work; `flush`: also score the samples in a partly filled delayed buffer."""
        while (after := self._after_next_step(flush)) is not None:
            self.__dict__.update(after.__dict__)  # one operation: an interrupt comes before or after it

    def _after_next_step(self, flush: bool) -> Self | None:
        """Return a copy that has done the next step, or None if there is nothing to do."""
        capacity, is_scaled = self.learner.delayed.capacity, self.scale is not None or not self.is_vectors
        takes = bool(self.inbox.n) and (is_scaled or flush or self.inbox.n >= capacity)
        if not (self.learner.pending or takes or (flush and self.learner.delayed.n)):
            return None
        after = self.copy()
        after.learner = self.learner.copy()
        if self.learner.pending:
            after._work_once()
        elif takes:
            after._take()
        else:
            after.learner.finish()
        return after

    def _take(self) -> None:
        if self.is_vectors and self.scale is None:
            self.scale = fit_scale(self.inbox.images[: self.learner.delayed.capacity])
        wanted = self.learner.n_to_take(self.lookahead)
        piece, rest = (Batch(*(t[part] for t in self.inbox)) for part in (slice(wanted), slice(wanted, None)))
        self.learner.take(piece._replace(images=self.scaled(piece.images)))
        self.inbox = rest

    def _work_once(self) -> None:
        first = self.learner.queue[0].batch if self.learner.queue else None
        report = drive(self.learner.work(), self.learner.engine)
        if report is not None and first is not None:
            self._record(report, first)

    def scaled(self, samples: Tensor) -> Tensor:
        """Return samples as the learner takes them."""
        return samples if self.scale is None else self.scale.apply(samples)

    def classifier(self) -> Classifier | None:
        """Return the classifier, or None while no sample has passed the filter."""
        return self.learner.classifier() if self.learner.purified.n else None

    @property
    def seed(self) -> int:
        """Seed of all draws."""
        return self.learner.seed

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of a sample."""
        return self.learner.image_shape

    def held(self) -> Batch:
        """Return the contents of the purified buffer, vectors on their original scale."""
        held = self.learner.held()
        return held if self.scale is None else held._replace(images=self.scale.undo(held.images.cpu()))

    def judged(self) -> tuple[Tensor, dict[str, NDArray[Any]]]:
        """Return the given labels of the scored samples, and the columns of their verdicts."""
        verdicts = self.verdicts.table()
        columns = dict(zip(("clean_probability", "centrality", "buffer", "passed"), verdicts[1:], strict=True))
        return verdicts.labels, {name: t.numpy() for name, t in columns.items()}

    def clean_probability(self) -> Tensor:
        """Return the clean probability of the scored samples, float64 (n,)."""
        return self.verdicts.table().clean_probability

    def noise(self) -> NoiseTable:
        """Return the share of wrong labels among the scored samples, without pairs; see `purify.noise_rate`."""
        held = self.sample.contents()
        features = embed(self.learner.network, self.learner.inference_base, held.images, penultimate=True)
        return NoiseTable(*noise_rates(features.cpu().numpy(), held.labels.numpy(), self.learner.n_classes), {})

    def _record(self, report: FilterReport, batch: Batch) -> None:
        number = torch.full_like(report.labels, report.buffer)
        self.verdicts, self.sample = self.verdicts.copy(), copy.deepcopy(self.sample)
        self.verdicts.add(
            Verdicts(report.labels, report.clean_probability, report.centrality, number, report.selected_mask)
        )
        seed = derive_seed(self.learner.seed, "noise sample", report.buffer)
        self.sample.add(batch, torch.Generator().manual_seed(seed))

    def state(self) -> State:
        state = prefixed("learner.", self.learner.state()) | prefixed("inbox.", self.inbox._asdict())
        state |= prefixed("judged.", self.verdicts.state()) | prefixed("sample.", self.sample.state())
        state |= prefixed("scale.", self.scale._asdict() if self.scale else {})
        return state | {"n_given": self.n_given}

    def restore(self, state: State) -> None:
        """Check a saved state and load it; ValueError with the reason if it is not a state of this learner.

        `grow` must have been called for all labels of the saved learner.
        """
        check_forms(state, self._forms(state))
        self._check_counts(state)
        try:
            self.load(state)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(str(error).partition("\n")[0].rstrip(".") or type(error).__name__) from error

    def _forms(self, state: State) -> Forms:
        """Return the forms that the tensors of a saved `state` must have."""
        shape, limits = self.learner.image_shape, Limits(self.learner.n_classes, total(state, "n_given"))
        n_inbox, dtype = n_rows(state, "inbox.labels", limits.n_samples), self.inbox.images.dtype
        forms = prefixed("learner.", self.learner.forms(part(state, "learner."), limits))
        forms |= prefixed("inbox.", batch_forms(n_inbox, shape, dtype, limits))
        forms |= prefixed("judged.", self.verdicts.forms(part(state, "judged."), limits))
        forms |= prefixed("sample.", self.sample.forms(part(state, "sample."), limits))
        # samples reach the learner only after the scale is known
        if self.is_vectors and (part(state, "scale.") or n_inbox < limits.n_samples):
            forms["scale.mean"] = Form(torch.float64, shape, finite=True)
            forms["scale.std"] = Form(torch.float64, shape, least=_LEAST_STD, finite=True)
        return forms | {"n_given": Form(torch.int64, (limits.n_classes,), 0, MOST)}

    def _check_counts(self, state: State) -> None:
        """Raise ValueError unless every sample is in exactly one place; with tail=drop some are in none."""
        queue = [t for name, t in state.items() if name.startswith("learner.queue.") and name.endswith(".labels")]
        places = [state["inbox.labels"], state["learner.delayed.labels"], *queue, state["judged.labels"]]
        counted = torch.bincount(torch.cat([t.cpu() for t in places]), minlength=len(state["n_given"]))
        is_process = self.learner.tail == "process"
        if bool((counted > state["n_given"]).any()) or (is_process and not torch.equal(counted, state["n_given"])):
            raise ValueError(f"n_given counts {int(state['n_given'].sum())} samples, but it holds {int(counted.sum())}")
        held, n_scored = state["learner.purified.index"], sum(map(len, queue)) + len(state["judged.labels"])
        if is_process and len(held) and int(held.max()) >= n_scored:
            raise ValueError(f"learner.purified.index holds {int(held.max())}, but {n_scored} samples were scored")

    def load(self, state: State) -> None:
        self.learner.load(part(state, "learner."))
        self.inbox = Batch(**part(state, "inbox."))
        self.verdicts.load(part(state, "judged."))
        self.sample.load(part(state, "sample."))
        scale = part(state, "scale.")
        self.scale = Scale(**scale) if scale else None
        self.n_given = state["n_given"]


def _empty(images: Tensor) -> Batch:
    return Batch(images, *(torch.zeros(0, dtype=torch.int64) for _ in range(2)))
