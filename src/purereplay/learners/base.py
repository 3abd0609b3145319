"""The interface of every learner: it takes samples, works on them, and gives a classifier at any moment.

`take`, `work` and `classify` let a caller drive many learners at once: `work` and `classify` request training from the
engine instead of doing it. `observe`, `flush` and `classifier` do the same for one learner with its own engine.
A learner never sees true labels, and task ends only if it `wants_task_ends`. Between two calls `state()` is complete.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import COUNT, Form, Forms, Limits, check_forms, forms_like
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks
from purereplay.nets.lockstep import drive
from purereplay.nets.networks import State, is_trained

PIECE = 1000  # samples that a learner without delayed buffers takes at once


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSpec:
    """Everything a learner knows about its data before the first sample."""

    image_shape: tuple[int, int, int]
    n_classes: int
    n_samples: int = 0  # length of the stream; 0: unknown
    mean: tuple[float, ...] | None = None  # per channel, of images in [0, 1]; None: no normalisation
    std: tuple[float, ...] | None = None
    is_vectors: bool = False  # samples are standardised feature vectors, float32 (n, D, 1, 1)
    features: Tensor | None = None  # (N, d): the user's own features by sample index
    clean: Batch | None = None  # clean samples that are not in the stream: for L2R, which is defined by them

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.is_vectors else torch.uint8


class Workload(NamedTuple):
    """Training steps of a whole run, counted before it starts."""

    n_buffers: int  # reports that the learner will give
    steps: dict[str, int]  # by phase


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The outcome of one delayed buffer, or of one piece of the stream; all tensors on the CPU."""

    buffer: int  # number of the buffer, from 0
    index: Tensor  # int64 (n,): indices of the samples
    labels: Tensor  # int64 (n,): given labels
    held_index: Tensor  # int64 (m,): indices of the samples in P, or in the memory, afterwards
    base_loss: float | None = None  # None: no training on this buffer


@dataclass(frozen=True, kw_only=True, eq=False)
class FilterReport(Report):
    """The outcome of one delayed buffer that a filter has scored."""

    clean_probability: Tensor  # float64 (n,), high = clean
    centrality: Tensor  # float64 (n,), high = central
    selected_mask: Tensor  # bool (n,): True for samples that passed the filter
    expert_loss: float | None = None  # None: no expert was trained


ReportT = TypeVar("ReportT", bound=Report, covariant=True)


class Learner(ABC, Generic[ReportT]):
    """A continual learner; a subclass is plain sequential code for one run."""

    engine: Engine
    image_shape: tuple[int, int, int]
    n_done: int  # buffers, or pieces of the stream, that are finished
    wants_task_ends = False  # whether `end_task` must be called
    is_offline = False  # whether it learns only after the whole stream: then it is evaluated once, at the end

    def n_to_take(self, lookahead: int) -> int:
        """Return how many samples to give at once; `lookahead` is the number of buffers that may wait."""
        return PIECE

    @abstractmethod
    def take(self, batch: Batch) -> None:
        """Accept any number of samples, without training."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether there is work to do on samples already taken."""

    @abstractmethod
    def work(self) -> Asks[ReportT | None]:
        """Do the next piece of pending work; returns a report when a buffer is finished, else None.

        May be abandoned at any request and started again. A `copy` may be abandoned at any moment.
        """

    def copy(self) -> Self:
        """Return a learner that can go on in place of this one, while this one stays as it is.

        This is how work survives an interrupt at any moment, for example between two statements. Every step is made by
        a copy: samples are taken, or a piece of work is done. If the step comes to its end, the copy replaces the
        learner by a single assignment; if not, the copy is dropped and the learner does the step again. So a step may
        change the copy in any order, but nothing that the copy shares with this learner: shared tensors, lists and
        buffers are replaced, not written. Only one of the two may go on. Random numbers depend on counts that belong to
        the learner, so a repeated step gives the same bits.
        """
        return copy.deepcopy(self, {id(self.engine): self.engine})

    def held_index(self) -> Tensor:
        """Return the indices of the samples in P, or in the memory: int64 (m,)."""
        return torch.empty(0, dtype=torch.int64)

    @abstractmethod
    def finish(self) -> None:
        """End the stream: samples still held back become pending or are dropped."""

    def end_task(self) -> None:
        """End a task; called before the classifier is requested, only if `wants_task_ends`."""
        raise NotImplementedError

    @abstractmethod
    def classify(self) -> Asks[Classifier]:
        """Return the current classifier."""

    @abstractmethod
    def state(self) -> State:
        """Return everything the learner knows, as named tensors."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Restore a state returned by `state`."""

    def forms(self, state: State, limits: Limits) -> Forms | None:
        """Return the forms that the tensors of a saved `state` must have; None: they are not checked."""
        return None

    def restore(self, state: State, limits: Limits) -> None:
        """Check a saved state and load it; ValueError with the reason if it is not a state of this learner."""
        forms = self.forms(state, limits)
        if forms is not None:
            # a subclass may save more than its base class knows
            others = self.state().keys() - forms.keys()
            check_forms({name: t for name, t in state.items() if name not in others}, forms)
        try:
            self.load(state)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(str(error).partition("\n")[0].rstrip(".") or type(error).__name__) from error

    def observe(self, batch: Batch) -> list[ReportT]:
        """Take samples and do all the work they cause."""
        self.take(batch)
        return self._work_through()

    def flush(self) -> list[ReportT]:
        """End the stream and process a partly filled delayed buffer."""
        self.finish()
        return self._work_through()

    def classifier(self) -> Classifier:
        """Return the current classifier."""
        return drive(self.classify(), self.engine)

    def _work_through(self) -> list[ReportT]:
        reports = []
        while self.pending:
            reports.append(drive(self.work(), self.engine))
        return [report for report in reports if report is not None]


def optimizer_forms(weights: State) -> Forms:
    """Return the forms of Adam's moments and step count for a network with these weights."""
    trained = {name: form for name, form in forms_like(weights).items() if is_trained(name)}
    means = {f"mean.{name}": form for name, form in trained.items()}
    squares: dict[str, Form] = {f"square.{name}": form._replace(least=0) for name, form in trained.items()}
    return {"step": COUNT} | means | squares
