"""The part that learners with one continued network share: its weights, its optimizer and the samples that wait.

Samples wait until there are `n_wanted` of them: an incoming batch, or a delayed buffer. An incomplete batch waits for
the next samples and is trained on at the end of the stream. A learner with a delayed buffer makes several jobs of it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch

from purereplay.data.batch import Batch, check_batch
from purereplay.data.forms import COUNT, FLAG, Forms, Limits, batch_forms, forms_like, n_rows, prefixed, total
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Report, optimizer_forms
from purereplay.learners.baselines.base import Baseline
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks
from purereplay.nets.networks import State, part


@dataclass(kw_only=True)
class ContinuedLearner(Baseline):
    """A learner whose network is trained further by one job after the other."""

    weights: State = field(init=False)
    optimizer: State | None = field(default=None, init=False)
    waiting: Batch = field(init=False)  # samples taken and not trained on yet
    n_done: int = field(default=0, init=False)  # reports given so far
    finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        device = self.engine.device
        self.weights = self.network.fresh(derive_seed(self.seed, "weights"), device)
        images = torch.empty((0, *self.image_shape), dtype=torch.uint8, device=device)
        self.waiting = Batch(images, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    @property
    @abstractmethod
    def n_wanted(self) -> int:
        """Number of samples that must wait before there is work to do."""

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.image_shape, self.n_classes)
        new = Batch(batch.images.to(self.engine.device), batch.labels.cpu(), batch.index.cpu())
        self.waiting = Batch(*(torch.cat(pair) for pair in zip(self.waiting, new, strict=True)))

    @property
    def pending(self) -> bool:
        return self.waiting.n >= self.n_wanted or (self.finished and self.waiting.n > 0)

    def finish(self) -> None:
        self.finished = True

    def classify(self) -> Asks[Classifier]:
        return Classifier(self.network, self.weights, self.image_shape)
        yield  # a generator that requests no training

    def state(self) -> State:
        state = {name: torch.tensor(getattr(self, name)) for name in ("n_done", "finished")}
        state |= prefixed("weights.", self.weights) | prefixed("optimizer.", self.optimizer or {})
        state |= prefixed("waiting.", self.waiting._asdict())
        return state | {"generator": self.generator.get_state()}

    def forms(self, state: State, limits: Limits) -> Forms | None:
        n_waiting = n_rows(state, "waiting.labels", limits.n_samples)
        forms = {"n_done": COUNT, "finished": FLAG}
        forms |= forms_like({"generator": self.generator.get_state()})
        forms |= prefixed("weights.", forms_like(self.weights))
        forms |= prefixed("waiting.", batch_forms(n_waiting, self.image_shape, torch.uint8, limits))
        if self._has_optimizer(state):
            forms |= prefixed("optimizer.", optimizer_forms(self.weights))
        return forms

    def _has_optimizer(self, state: State) -> bool:
        """Return whether a saved state must have the optimizer's moments."""
        return total(state, "n_done") > 0

    def load(self, state: State) -> None:
        device = self.engine.device
        self.n_done, self.finished = int(state["n_done"]), bool(state["finished"])
        self.generator.set_state(state["generator"].cpu())
        self.weights = {name: t.to(device) for name, t in part(state, "weights.").items()}
        self.optimizer = {name: t.to(device) for name, t in part(state, "optimizer.").items()} or None
        waiting = part(state, "waiting.")
        self.waiting = Batch(waiting["images"].to(device), waiting["labels"].cpu(), waiting["index"].cpu())


@dataclass(kw_only=True)
class DelayedLearner(ContinuedLearner):
    """A learner that works on one delayed buffer after the other, in several jobs.

    The waiting samples are the delayed buffer, so never more than `delayed_size` of them are asked for. Every job has
    its own seed and starts its optimizer anew.
    """

    delayed_size: int
    n_now: int = field(default=0, init=False)  # samples of the buffer in progress; 0: none
    n_jobs: int = field(default=0, init=False)  # jobs done on it

    @property
    def n_wanted(self) -> int:
        return self.delayed_size

    def n_to_take(self, lookahead: int) -> int:
        return max(1, self.delayed_size - self.waiting.n)

    @property
    def pending(self) -> bool:
        return super().pending or self.n_now > 0

    @property
    @abstractmethod
    def jobs_per_buffer(self) -> int:
        """Number of jobs on a delayed buffer."""

    @abstractmethod
    def work_on(self, now: Batch) -> Asks[float]:
        """Do job number `n_jobs` on a delayed buffer, keep its results and return its loss."""

    @abstractmethod
    def held_index(self) -> torch.Tensor:
        """Return the indices of the samples in the memory."""

    def work(self) -> Asks[Report | None]:
        self.n_now = self.n_now or min(self.delayed_size, self.waiting.n)
        now = Batch(*(t[: self.n_now] for t in self.waiting))
        loss = yield from self.work_on(now)
        self.n_jobs += 1
        if self.n_jobs < self.jobs_per_buffer:
            return None
        self.waiting = Batch(*(t[self.n_now :].clone() for t in self.waiting))
        self.n_now = self.n_jobs = 0
        self.n_done += 1
        return Report(
            buffer=self.n_done - 1,
            index=now.index,
            labels=now.labels,
            held_index=self.held_index(),
            base_loss=loss,
        )

    def seed_for(self, purpose: str) -> int:
        """Return a seed for the present job."""
        return derive_seed(self.seed, purpose, self.n_done * self.jobs_per_buffer + self.n_jobs)

    def state(self) -> State:
        return super().state() | {name: torch.tensor(getattr(self, name)) for name in ("n_now", "n_jobs")}

    def forms(self, state: State, limits: Limits) -> Forms | None:
        n_waiting = n_rows(state, "waiting.labels", self.delayed_size)
        own = {"n_now": COUNT._replace(most=n_waiting), "n_jobs": COUNT._replace(most=self.jobs_per_buffer - 1)}
        return (super().forms(state, limits) or {}) | own

    def _has_optimizer(self, state: State) -> bool:
        return False

    def load(self, state: State) -> None:
        super().load(state)
        self.n_now, self.n_jobs = int(state["n_now"]), int(state["n_jobs"])
