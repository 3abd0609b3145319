"""The part that learners with one continued network share: its weights, its optimizer and the samples that wait.

Samples wait until there are `n_wanted` of them: an incoming batch, or a delayed buffer. An incomplete batch waits for
the next samples and is trained on at the end of the stream.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch

from purereplay.data.batch import Batch, check_batch
from purereplay.data.forms import COUNT, FLAG, Forms, Limits, batch_forms, forms_like, n_rows, total, with_prefix
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import optimizer_forms
from purereplay.learners.baselines.base import Baseline
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks
from purereplay.nets.networks import State, part, prefixed


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
        forms |= with_prefix("weights.", forms_like(self.weights))
        forms |= with_prefix("waiting.", batch_forms(n_waiting, self.image_shape, torch.uint8, limits))
        if total(state, "n_done"):
            forms |= with_prefix("optimizer.", optimizer_forms(self.weights))
        return forms

    def load(self, state: State) -> None:
        device = self.engine.device
        self.n_done, self.finished = int(state["n_done"]), bool(state["finished"])
        self.generator.set_state(state["generator"].cpu())
        self.weights = {name: t.to(device) for name, t in part(state, "weights.").items()}
        self.optimizer = {name: t.to(device) for name, t in part(state, "optimizer.").items()} or None
        waiting = part(state, "waiting.")
        self.waiting = Batch(waiting["images"].to(device), waiting["labels"].cpu(), waiting["index"].cpu())
