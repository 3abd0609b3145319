"""Learners that only remember, and train a fresh network on what they hold whenever a classifier is wanted.

GDumb holds a greedily balanced memory and trains with warm restarts and CutMix; Multitask, the upper bound, holds
everything, and is judged at the end alone. The classifier is kept until the memory changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from purereplay.data.batch import Batch, check_batch
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Learner, Report
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Job, Rehearsal
from purereplay.nets.networks import Network, State, part, prefixed
from purereplay.nets.technique import Technique


@dataclass(frozen=True)
class Training:
    """How the fresh network is trained."""

    epochs: int
    batch_size: int = 16
    learning_rate: float = 0.05
    least_rate: float | None = None  # where a cosine with restarts ends (SGDR: T_0 = 1, T_mult = 2); None: constant
    momentum: float = 0.9
    weight_decay: float = 1e-6
    clip_norm: float | None = None  # length that a gradient has at most
    cutmix: float = 0.0  # probability; with a technique there is none: its loss is for one label a sample
    technique: Technique | None = None  # in the place of cross-entropy


@dataclass
class FromScratch(Learner):
    """One such learner; see `learners.rivals` for who is who."""

    network: Network  # with one output per class
    n_classes: int
    image_shape: tuple[int, int, int]
    memory: ReplayMemory
    training: Training
    engine: Engine
    seed: int = 0
    constants: State = field(default_factory=dict)  # what the technique works with
    is_offline: bool = False  # Multitask
    waiting: list[Batch] = field(default_factory=list, init=False)  # taken, but not offered to the memory yet
    n_done: int = field(default=0, init=False)  # batches offered so far
    generator: torch.Generator = field(init=False)  # of the memory; goes on from batch to batch
    _classifier: Classifier | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(derive_seed(self.seed, "memory"))

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.image_shape, self.n_classes)
        self.waiting.append(Batch(batch.images.to(self.engine.device), batch.labels.cpu(), batch.index.cpu()))

    @property
    def pending(self) -> bool:
        return bool(self.waiting)

    def finish(self) -> None:
        pass

    def work(self) -> Asks[Report | None]:
        batch = self.waiting.pop(0)
        self.memory.add(batch, self.generator)
        self.n_done += 1
        self._classifier = None
        return Report(
            buffer=self.n_done - 1,
            index=batch.index,
            labels=batch.labels,
            clean_probability=None,
            centrality=None,
            selected_mask=None,
            purified_index=self.memory.index,
            expert_loss=None,
            base_loss=None,
        )
        yield  # nothing is trained before it is wanted

    def classify(self) -> Asks[Classifier]:
        if self._classifier is None:
            fresh = self.network.init(derive_seed(self.seed, "weights", self._n_seen))
            state = {name: t.to(self.engine.device) for name, t in fresh.items()}
            held = self.memory.contents()
            if held.n:
                [trained] = yield [self._job(held, state)]
                state = trained.state
            self._classifier = Classifier(self.network, state, self.image_shape)
        return self._classifier

    @property
    def _n_seen(self) -> int:
        return int(self.memory.seen.sum())

    def _job(self, held: Batch, state: State) -> Job:
        how, size = self.training, min(self.training.batch_size, held.n)
        dice = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "order", self._n_seen)))
        per_epoch = held.n // size
        orders = [dice.permutation(held.n)[: per_epoch * size] for _ in range(how.epochs)]
        labels, extra = held.labels.to(self.engine.device), dict(self.constants)
        recipe = Rehearsal(
            size,
            "sgd",
            how.momentum,
            how.weight_decay,
            clip_norm=how.clip_norm,
            cutmix=how.cutmix,
            epoch_steps=per_epoch,
        )
        if how.technique is not None:
            recipe = replace(recipe, cutmix=0.0, technique=how.technique)
            extra |= how.technique.per_sample(labels, self.n_classes)
        return Job(
            phase="scratch",
            network=self.network,
            state=state,
            recipe=recipe,
            images=held.images,
            labels=labels,
            extra=extra,
            seed=derive_seed(self.seed, "draws", self._n_seen),
            index=torch.from_numpy(np.concatenate(orders)).view(-1, size),
            rates=restarts(how, per_epoch),
        )

    def state(self) -> State:
        state = {"n_done": torch.tensor(self.n_done), "generator": self.generator.get_state()}
        state |= prefixed("memory.", self.memory.state())
        for i, batch in enumerate(self.waiting):
            state |= prefixed(f"waiting.{i}.", batch._asdict())
        return state | {"n_waiting": torch.tensor(len(self.waiting))}

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


def restarts(how: Training, steps_per_epoch: int) -> torch.Tensor:
    """The rate of every step: constant, or a cosine that restarts after 1, 2, 4, … epochs (SGDR)."""
    if how.least_rate is None:
        return torch.full((how.epochs * steps_per_epoch,), how.learning_rate)
    rates, period, begin = [], 1, 0
    for epoch in range(how.epochs):
        if epoch == begin + period:
            begin, period = epoch, 2 * period
        for step in range(steps_per_epoch):
            share = (epoch - begin + step / steps_per_epoch) / period
            rates.append(how.least_rate + (how.learning_rate - how.least_rate) * (1 + math.cos(math.pi * share)) / 2)
    return torch.tensor(rates)
