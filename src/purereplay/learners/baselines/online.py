"""The part that online learners share: they train on every batch as it arrives, once.

A subclass lists the rows of each training step (`plan_steps`). The memory's decisions do not depend on the network, so
many batches are planned ahead and trained as one job.

Choices where the papers leave them open: an incomplete batch waits for the next samples and is trained at the end of
the stream. The very first batch replays itself, since the memory is empty. A loss against wrong labels counts as one
epoch the number of steps that replay needs for one pass over the memory, unless it says otherwise (PENCIL).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from purereplay.data.batch import Batch
from purereplay.data.forms import COUNT, Forms, Limits, forms_like, prefixed
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import PIECE, Report, Workload
from purereplay.learners.baselines.continued import ContinuedLearner
from purereplay.learners.baselines.pool import Pool, ReplayDraws, ReplayPool, Rows
from purereplay.learners.robust.settings import RobustSettings
from purereplay.learners.settings import DataFacts, NetworkSettings, setting
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.networks import State, part

_BATCHES_PER_JOB = 100
# for Adam: the best of `crs` on a tenth of the training data of MNIST and of CIFAR-10 (docs/experiments)
LR_BY_NETWORK = {"mlp": 2e-5, "resnet18": 5e-4}


@dataclass(frozen=True, kw_only=True)
class OnlineSettings(NetworkSettings):
    """Settings of a learner that trains on every batch once."""

    lr_by_network: ClassVar[Mapping[str, float]] = LR_BY_NETWORK

    batch_size: int = setting("incoming samples of a step", 10, unit="samples", source="paper")
    optimizer: Literal["adam", "sgd"] = setting("optimizer", "adam", source="not in the paper")
    lr: float = setting(
        "learning rate", by_data="0.00002 for the mlp, 0.0005 for the resnet18: best of `crs` on validation data"
    )
    clip: float | None = setting(
        "gradient values are clipped to ± this; none: no clipping", 0.5, source="released code, as for SPR's finetuning"
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        values = super().fill(chosen, facts, preset)
        values.setdefault("lr", cls.lr_by_network.get(values["network"], 1.0))
        return values


@dataclass(frozen=True, kw_only=True)
class MemorySettings(OnlineSettings):
    """Settings of an online learner that replays samples from a memory."""

    memory_size: int = setting("capacity of the memory", unit="samples", by_data="as SPR's P", source="paper")
    replay_size: int = setting("replayed samples of a step", 10, unit="samples", source="paper")

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"memory_size": facts.buffer_size} | super().fill(chosen, facts, preset)


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(MemorySettings, RobustSettings):
    """Settings of a learner that replays, and that takes a loss against wrong labels."""


# for the 144 steps of `purereplay demo`: the network of SPR's preset and an optimizer chosen on validation data
ONLINE_DEMO = {"hidden": 128, "optimizer": "sgd", "lr": 0.3, "clip": None}
REPLAY_DEMO = ONLINE_DEMO | {"l2r_clean": 10}


@dataclass(frozen=True, kw_only=True)
class OnlineTraining:
    """Training of an online learner."""

    batch_size: int  # incoming samples of a step
    optimizer: Literal["adam", "sgd"]
    lr: float
    clip: float | None  # gradient values are clipped to ± this
    n_replayed: int = 0  # replayed samples of a step
    shift_and_flip: bool = False  # whether images are shifted and flipped at random


def online_training(s: OnlineSettings) -> OnlineTraining:
    """Return the training that the settings describe."""
    n_replayed = s.replay_size if isinstance(s, MemorySettings) else 0
    return OnlineTraining(batch_size=s.batch_size, optimizer=s.optimizer, lr=s.lr, clip=s.clip, n_replayed=n_replayed)


def count_online_steps(s: OnlineSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count one step per incoming batch."""
    return Workload(n_pieces(task_ends), {"online": -(-task_ends[-1] // s.batch_size)})


def n_pieces(task_ends: tuple[int, ...]) -> int:
    """Return the number of pieces in which a stream is handed over."""
    return sum(-(-(end - start) // PIECE) for start, end in pairwise((0, *task_ends)))


@dataclass(kw_only=True)
class OnlineLearner(ContinuedLearner):
    """A learner that trains on every incoming batch once."""

    training: OnlineTraining
    n_batches: int = field(default=0, init=False)  # batches trained on so far

    @property
    def n_wanted(self) -> int:
        return self.training.batch_size

    def work(self) -> Asks[Report | None]:
        size = min(self.training.batch_size, self.waiting.n)
        n = min(self.waiting.n // size, _BATCHES_PER_JOB) * size
        now = Batch(*(t[:n] for t in self.waiting))
        # the pool works on copies: if the training is abandoned, nothing has changed
        pool = self._pool(now, size)
        index = np.stack(list(self.plan_steps(pool)))
        [trained] = yield [self._job(pool, index, size)]
        self.weights, self.optimizer = trained.state, trained.optimizer
        self._after(pool, trained.extra)
        self.waiting = Batch(*(t[n:].clone() for t in self.waiting))
        self.n_batches += len(index)
        self.n_done += 1
        return Report(
            buffer=self.n_done - 1,
            index=now.index,
            labels=now.labels,
            held_index=self.held_index(),
            base_loss=trained.loss,
        )

    @abstractmethod
    def plan_steps(self, pool: Any) -> Iterator[Rows]:
        """Yield the rows of the pool that each training step uses, in stream order."""

    def _pool(self, now: Batch, size: int) -> Pool:
        return Pool(now, batch_size=size, room=self._room)

    @property
    def _room(self) -> int:
        return _BATCHES_PER_JOB * self.training.batch_size

    def _after(self, pool: Pool, extra: State) -> None:
        """Keep what a finished job changed besides the network."""

    def _job(self, pool: Pool, index: Rows, size: int) -> ListedJob:
        return ListedJob(
            phase="online",
            network=self.network,
            state=self.weights,
            recipe=self._recipe(size),
            images=pool.samples.images,
            labels=pool.samples.labels.to(self.engine.device),
            seed=derive_seed(self.seed, "draws"),
            optimizer=self.optimizer,
            index=torch.from_numpy(index),
            lrs=torch.full((len(index),), self.training.lr),
            extra=self._extra(pool),
        )

    def _recipe(self, size: int) -> Listed:
        """Return the recipe for incoming batches of this size."""
        return Listed(
            batch_size=size + self.training.n_replayed,
            optimizer=self.training.optimizer,
            clip=self.training.clip,
            shift_and_flip=self.training.shift_and_flip,
            technique=self.loss.technique,
            epoch_steps=self._epoch_steps,
        )

    @property
    def _epoch_steps(self) -> int:
        """Steps that a loss against wrong labels counts as an epoch."""
        return 1

    def _extra(self, pool: Pool) -> State:
        """Return the tensors that the loss works with."""
        return dict(self.loss.constants)

    def state(self) -> State:
        return super().state() | {"n_batches": torch.tensor(self.n_batches)}

    def forms(self, state: State, limits: Limits) -> Forms | None:
        return (super().forms(state, limits) or {}) | {"n_batches": COUNT}

    def load(self, state: State) -> None:
        super().load(state)
        self.n_batches = int(state["n_batches"])


@dataclass(kw_only=True)
class ReplayLearner(OnlineLearner):
    """An online learner with a memory, from which each step replays samples."""

    memory: ReplayMemory
    carried: State = field(default_factory=dict, init=False)  # what the loss keeps per sample, by slot of the memory

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.technique is not None:
            empty = torch.zeros(self.memory.capacity, dtype=torch.int64, device=self.engine.device)
            self.carried = self.loss.technique.per_sample(empty, self.n_classes)

    @property
    def n_drawn(self) -> int:
        """Samples of the memory that are drawn for a step."""
        return self.training.n_replayed

    @abstractmethod
    def plan_steps(self, pool: ReplayPool) -> Iterator[Rows]: ...

    def _pool(self, now: Batch, size: int) -> ReplayPool:
        return ReplayPool(
            now,
            batch_size=size,
            room=self._room,
            memory=self.memory,
            generator=self.generator,
            draws=ReplayDraws(self.n_drawn, derive_seed(self.seed, "replay"), self.n_batches),
        )

    def _after(self, pool: Pool, extra: State) -> None:
        if isinstance(pool, ReplayPool):
            self.memory, self.generator = pool.memory, pool.generator
            self.carried = {name: extra[name][pool.row_of_slot] for name in self.carried}

    def held_index(self) -> torch.Tensor:
        return self.memory.index

    @property
    def _epoch_steps(self) -> int:
        steps = max(1, self.memory.capacity // self.training.n_replayed)
        return steps if self.loss.technique is None else self.loss.technique.steps_of_epoch(steps)

    def _extra(self, pool: Pool) -> State:
        extra = super()._extra(pool)
        if self.carried and self.loss.technique is not None:
            new = pool.samples.labels[self.memory.capacity :].to(self.engine.device)
            fresh = self.loss.technique.per_sample(new, self.n_classes)
            extra |= {name: torch.cat([held, fresh[name]]) for name, held in self.carried.items()}
        return extra

    def state(self) -> State:
        return super().state() | prefixed("carried.", self.carried) | prefixed("memory.", self.memory.state())

    def forms(self, state: State, limits: Limits) -> Forms | None:
        memory = self.memory.forms(part(state, "memory."), limits)
        own = prefixed("carried.", forms_like(self.carried)) | prefixed("memory.", memory)
        return (super().forms(state, limits) or {}) | own

    def load(self, state: State) -> None:
        super().load(state)
        self.carried = {name: t.to(self.engine.device) for name, t in part(state, "carried.").items()}
        self.memory.load(part(state, "memory."))
