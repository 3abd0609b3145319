"""The part that GDumb and Multitask share: they only store samples, and train a fresh network when it is requested.

The classifier is kept until the memory changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from purereplay.data.batch import Batch, check_batch
from purereplay.data.forms import COUNT, Forms, Limits, batch_forms, forms_like, n_parts, n_rows, prefixed
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Report
from purereplay.learners.baselines.base import Baseline
from purereplay.learners.settings import NetworkSettings, setting
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.networks import State, part

SCRATCH_DEMO: dict[str, Any] = {"hidden": 128}


@dataclass(frozen=True, kw_only=True)
class ScratchSettings(NetworkSettings):
    """Settings of a network that is trained from scratch."""

    batch_size: int = setting("batch size", 16, unit="samples", source="paper: batch of supervised learning")


@dataclass(frozen=True, kw_only=True)
class ScratchTraining:
    """Training of the fresh network."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None  # largest norm of a gradient
    cutmix: float = 0.0  # probability
    optimizer: Literal["sgd", "adam"] = "sgd"
    shift_and_flip: bool = False  # whether images are shifted and flipped at random

    def lrs(self, steps_per_epoch: int) -> torch.Tensor:
        """Return the learning rate of every step."""
        return torch.full((self.epochs * steps_per_epoch,), self.lr)


@dataclass(kw_only=True)
class ScratchLearner(Baseline):
    """A learner that stores samples, and trains a fresh network when a classifier is requested."""

    memory: ReplayMemory
    training: ScratchTraining
    waiting: list[Batch] = field(default_factory=list, init=False)  # taken and not offered to the memory yet
    n_done: int = field(default=0, init=False)  # batches offered so far
    _classifier: Classifier | None = field(default=None, init=False)

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.image_shape, self.n_classes)
        self.waiting.append(Batch(batch.images.to(self.engine.device), batch.labels.cpu(), batch.index.cpu()))

    @property
    def pending(self) -> bool:
        return bool(self.waiting)

    def finish(self) -> None:
        pass

    def held_index(self) -> torch.Tensor:
        return self.memory.index

    def work(self) -> Asks[Report | None]:
        batch = self.waiting.pop(0)
        self.memory.add(batch, self.generator)
        self.n_done += 1
        self._classifier = None
        return Report(buffer=self.n_done - 1, index=batch.index, labels=batch.labels, held_index=self.held_index())
        yield  # a generator that requests no training

    def classify(self) -> Asks[Classifier]:
        if self._classifier is None:
            seed = derive_seed(self.seed, "weights", self._n_seen)
            state = self.network.fresh(seed, self.engine.device)
            held = self.memory.contents()
            if held.n:
                [trained] = yield [self._job(held, state)]
                state = trained.state
            self._classifier = Classifier(self.network, state, self.image_shape)
        return self._classifier

    @property
    def _n_seen(self) -> int:
        return int(self.memory.seen.sum())

    def _job(self, held: Batch, state: State) -> ListedJob:
        training, size = self.training, min(self.training.batch_size, held.n)
        rng = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "order", self._n_seen)))
        per_epoch = held.n // size
        orders = [rng.permutation(held.n)[: per_epoch * size] for _ in range(training.epochs)]
        labels, extra = held.labels.to(self.engine.device), dict(self.loss.constants)
        if self.loss.technique is not None:
            extra |= self.loss.technique.per_sample(labels, self.n_classes)
        recipe = Listed(
            batch_size=size,
            optimizer=training.optimizer,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            clip_norm=training.clip_norm,
            cutmix=training.cutmix,
            shift_and_flip=training.shift_and_flip,
            technique=self.loss.technique,
            epoch_steps=per_epoch,
        )
        return ListedJob(
            phase="scratch",
            network=self.network,
            state=state,
            recipe=recipe,
            images=held.images,
            labels=labels,
            extra=extra,
            seed=derive_seed(self.seed, "draws", self._n_seen),
            index=torch.from_numpy(np.concatenate(orders)).view(-1, size),
            lrs=training.lrs(per_epoch),
        )

    def state(self) -> State:
        state = {"n_done": torch.tensor(self.n_done), "generator": self.generator.get_state()}
        state |= prefixed("memory.", self.memory.state())
        for i, batch in enumerate(self.waiting):
            state |= prefixed(f"waiting.{i}.", batch._asdict())
        return state | {"n_waiting": torch.tensor(len(self.waiting))}

    def forms(self, state: State, limits: Limits) -> Forms:
        n_waiting = n_parts(state, "waiting.")
        forms = {"n_done": COUNT, "n_waiting": COUNT._replace(least=n_waiting, most=n_waiting)}
        forms |= forms_like({"generator": self.generator.get_state()})
        forms |= prefixed("memory.", self.memory.forms(part(state, "memory."), limits))
        for i in range(n_waiting):
            n = n_rows(state, f"waiting.{i}.labels", limits.n_samples)
            forms |= prefixed(f"waiting.{i}.", batch_forms(n, self.image_shape, torch.uint8, limits))
        return forms

    def load(self, state: State) -> None:
        self.n_done = int(state["n_done"])
        self.generator.set_state(state["generator"].cpu())
        self.memory.load(part(state, "memory."))
        self.waiting = []
        for i in range(int(state["n_waiting"])):
            batch = part(state, f"waiting.{i}.")
            images = batch["images"].to(self.engine.device)
            self.waiting.append(Batch(images, batch["labels"].cpu(), batch["index"].cpu()))
        self._classifier = None
