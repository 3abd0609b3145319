"""What every learner is: it takes samples, works through what it took, and gives a classifier at any moment.

`take`, `work` and `classify` are for those who drive many learners at once: the last two ask the engine for training
instead of doing it. `observe`, `flush` and `classifier` are the same for one learner with an engine of its own.
A learner is never told the truth, and tasks only if it says that it `wants_task_ends`; between any two calls its whole
memory is in `state()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks
from purereplay.nets.lockstep import drive
from purereplay.nets.networks import State

PIECE = 1000  # samples


class Report(NamedTuple):
    """What became of one delayed buffer; all tensors on the CPU."""

    buffer: int  # its number, from 0
    index: Tensor  # type: ignore[assignment]  # int64 (n,): who was judged
    labels: Tensor  # int64 (n,): their given labels
    clean_probability: Tensor | None  # float64 (n,), high = clean; None: the learner does not judge
    centrality: Tensor | None  # float64 (n,), high = central; likewise
    selected_mask: Tensor | None  # bool (n,): who passed the filter; likewise
    purified_index: Tensor  # int64 (m,): who is in P, or in the memory, afterwards
    expert_loss: float | None  # None: no expert was trained
    base_loss: float | None  # None: the base was not trained on it


class Learner(ABC):
    """A continual learner; subclasses are plain sequential text for one run."""

    engine: Engine
    image_shape: tuple[int, int, int]
    n_done: int  # buffers, or pieces of the stream, worked through so far
    wants_task_ends = False  # whether `end_task` is called
    is_offline = False  # whether it learns only once it has seen everything: then it is judged at the end alone

    def appetite(self, lookahead: int) -> int:
        """How many samples it is best given at once; `lookahead` is how many buffers may wait."""
        return PIECE

    @abstractmethod
    def take(self, batch: Batch) -> None:
        """Accept any number of samples, without training."""

    @property
    @abstractmethod
    def pending(self) -> bool:
        """Whether there is work to do on samples taken."""

    @abstractmethod
    def work(self) -> Asks[Report | None]:
        """Do the next piece of pending work; None where it is not a whole buffer's.

        May be left unfinished at any request and begun again.
        """

    @abstractmethod
    def finish(self) -> None:
        """The stream is over: make what is still held back pending, or drop it."""

    def end_task(self) -> None:
        """A task is over; called only where `wants_task_ends`, before the classifier is asked for."""
        raise NotImplementedError

    @abstractmethod
    def classify(self) -> Asks[Classifier]:
        """The classifier as of now."""

    @abstractmethod
    def state(self) -> State:
        """Everything the learner knows, as named tensors."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Become the learner that gave this state."""

    def observe(self, batch: Batch) -> list[Report]:
        """Take samples and do all the work they cause."""
        self.take(batch)
        return self._work_through()

    def flush(self) -> list[Report]:
        """End of the stream: handle a partly filled delayed buffer."""
        self.finish()
        return self._work_through()

    def classifier(self) -> Classifier:
        """The inference network, at any moment."""
        return drive(self.classify(), self.engine)

    def _work_through(self) -> list[Report]:
        reports = []
        while self.pending:
            reports.append(drive(self.work(), self.engine))
        return [report for report in reports if report is not None]
