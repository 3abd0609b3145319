"""What learners have in common that only remember, and train a fresh network whenever a classifier is wanted.

The classifier is kept until the memory changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from purereplay.data.batch import Batch, check_batch
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Report
from purereplay.learners.baselines.ground import Rival
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.networks import State, part, prefixed


@dataclass(frozen=True)
class Training:
    """How the fresh network is trained, by stochastic gradient descent."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None  # length that a gradient has at most
    cutmix: float = 0.0  # probability

    def rates(self, steps_per_epoch: int) -> torch.Tensor:
        """The rate of every step."""
        return torch.full((self.epochs * steps_per_epoch,), self.learning_rate)


@dataclass
class FromScratch(Rival):
    """One such learner."""

    memory: ReplayMemory
    how: Training
    waiting: list[Batch] = field(default_factory=list, init=False)  # taken, but not offered to the memory yet
    n_done: int = field(default=0, init=False)  # batches offered so far
    _classifier: Classifier | None = field(default=None, init=False)

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.image_shape, self.ground.n_classes)
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
            seed = derive_seed(self.ground.seed, "weights", self._n_seen)
            state = self.ground.network.fresh(seed, self.engine.device)
            held = self.memory.contents()
            if held.n:
                [trained] = yield [self._job(held, state)]
                state = trained.state
            self._classifier = Classifier(self.ground.network, state, self.image_shape)
        return self._classifier

    @property
    def _n_seen(self) -> int:
        return int(self.memory.seen.sum())

    def _job(self, held: Batch, state: State) -> ListedJob:
        how, size = self.how, min(self.how.batch_size, held.n)
        dice = np.random.Generator(np.random.PCG64(derive_seed(self.ground.seed, "order", self._n_seen)))
        per_epoch = held.n // size
        orders = [dice.permutation(held.n)[: per_epoch * size] for _ in range(how.epochs)]
        labels, extra = held.labels.to(self.engine.device), dict(self.ground.constants)
        if self.ground.technique is not None:
            extra |= self.ground.technique.per_sample(labels, self.ground.n_classes)
        recipe = Listed(
            batch_size=size,
            optimizer="sgd",
            momentum=how.momentum,
            weight_decay=how.weight_decay,
            clip_norm=how.clip_norm,
            cutmix=how.cutmix,
            technique=self.ground.technique,
            epoch_steps=per_epoch,
        )
        return ListedJob(
            phase="scratch",
            network=self.ground.network,
            state=state,
            recipe=recipe,
            images=held.images,
            labels=labels,
            extra=extra,
            seed=derive_seed(self.ground.seed, "draws", self._n_seen),
            index=torch.from_numpy(np.concatenate(orders)).view(-1, size),
            lrs=how.rates(per_epoch),
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
