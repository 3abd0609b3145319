"""Learners that train on every batch as it comes, with or without a memory of earlier samples.

Finetune, CRS, PRS and MIR differ in what is replayed beside the incoming batch: nothing, a random part of a reservoir,
of a reservoir shared out by class, or the part of it that the batch is about to harm. Which samples a memory keeps does
not depend on the network, so many batches are planned ahead and trained as one job.

Choices where the papers leave them open: an incomplete batch waits for the next samples and is trained at the end of
the stream; the very first batch, with nothing to replay yet, is replayed itself.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.data.batch import Batch, check_batch
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Learner, Report
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Job, Rehearsal
from purereplay.nets.networks import Network, State, part, prefixed

_BATCHES_AT_ONCE = 100  # trained as one job


@dataclass(frozen=True)
class OnlineTraining:
    """How an online learner trains."""

    batch_size: int = 10  # incoming samples of a step
    replay_size: int = 10  # replayed samples of a step; 0: none
    n_candidates: int = 0  # MIR: replayed ones are chosen from so many; 0: at random
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 2e-3
    clip: float | None = 0.5  # gradient values are cut there


@dataclass
class Online(Learner):
    """One online learner; see `learners.rivals` for who is who."""

    network: Network  # with one output per class
    n_classes: int
    image_shape: tuple[int, int, int]
    memory: ReplayMemory | None
    how: OnlineTraining
    engine: Engine
    seed: int = 0
    weights: State = field(init=False)
    optimizer: State | None = field(default=None, init=False)
    waiting: Batch = field(init=False)  # samples taken and not trained on yet
    n_batches: int = field(default=0, init=False)  # trained on so far
    n_done: int = field(default=0, init=False)  # jobs done so far
    finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        device = self.engine.device
        self.weights = {n: t.to(device) for n, t in self.network.init(derive_seed(self.seed, "weights")).items()}
        images = torch.empty((0, *self.image_shape), dtype=torch.uint8, device=device)
        self.waiting = Batch(images, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.image_shape, self.n_classes)
        new = Batch(batch.images.to(self.engine.device), batch.labels.cpu(), batch.index.cpu())
        self.waiting = Batch(*(torch.cat(pair) for pair in zip(self.waiting, new, strict=True)))

    @property
    def pending(self) -> bool:
        return self.waiting.n >= self.how.batch_size or (self.finished and self.waiting.n > 0)

    def finish(self) -> None:
        self.finished = True

    def work(self) -> Asks[Report | None]:
        size = min(self.how.batch_size, self.waiting.n)
        n = min(self.waiting.n // size, _BATCHES_AT_ONCE) * size
        now = Batch(*(t[:n] for t in self.waiting))
        # planned on a copy: if this is cut off, nothing has happened yet
        memory, index, pool = self._plan(now, size)
        recipe = Rehearsal(
            batch_size=size + self.how.replay_size if memory else size,
            optimizer=self.how.optimizer,
            clip=self.how.clip,
            n_incoming=size if memory and self.how.n_candidates else 0,
            n_candidates=self.how.n_candidates if memory else 0,
            n_replayed=self.how.replay_size if memory and self.how.n_candidates else 0,
        )
        job = Job(
            phase="online",
            network=self.network,
            state=self.weights,
            recipe=recipe,
            images=pool.images,
            labels=pool.labels.to(self.engine.device),
            seed=derive_seed(self.seed, "draws", self.n_batches),
            optimizer=self.optimizer,
            index=torch.from_numpy(index),
            rates=torch.full((len(index),), self.how.learning_rate),
        )
        [trained] = yield [job]
        self.weights, self.optimizer, self.memory = trained.state, trained.optimizer, memory
        self.waiting = Batch(*(t[n:].clone() for t in self.waiting))
        self.n_batches += len(index)
        self.n_done += 1
        held = torch.empty(0, dtype=torch.int64) if memory is None else memory.index
        return Report(
            buffer=self.n_done - 1,
            index=now.index,
            labels=now.labels,
            clean_probability=None,
            centrality=None,
            selected_mask=None,
            purified_index=held,
            expert_loss=None,
            base_loss=trained.loss,
        )

    def _plan(self, now: Batch, size: int) -> tuple[ReplayMemory | None, NDArray[np.int64], Batch]:
        """The memory afterwards, the rows of every step (steps, listed), and the images that they are rows of."""
        incoming = np.arange(now.n).reshape(-1, size)
        if self.memory is None:
            return None, incoming, now
        memory = deepcopy(self.memory)
        held = memory.contents()
        # the pool's size is the same for every job, so that jobs share a loop
        pool = Batch(*(torch.cat([_padded(t, memory.capacity), u]) for t, u in zip(held, now, strict=True)))
        row_of_slot = np.zeros(memory.capacity, np.int64)
        row_of_slot[: held.n] = np.arange(held.n)
        incoming = incoming + memory.capacity
        n_listed = self.how.n_candidates or self.how.replay_size
        labels, slots, steps = now.labels.numpy(), [], []
        for i, rows in enumerate(incoming):
            number = self.n_batches + i
            dice = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "replay", number)))
            known = row_of_slot[: memory.n] if memory.n else rows
            steps.append(np.concatenate([rows, _some(known, n_listed, dice)]))
            generator = torch.Generator().manual_seed(derive_seed(self.seed, "memory", number))
            taken = memory.place(labels[rows - memory.capacity], generator)
            row_of_slot[taken[taken >= 0]] = rows[taken >= 0]
            slots.append(taken)
        memory.write(np.concatenate(slots), now)
        return memory, np.stack(steps), pool

    def classify(self) -> Asks[Classifier]:
        return Classifier(self.network, self.weights, self.image_shape)
        yield  # nothing is asked for: the network is what it is

    def state(self) -> State:
        state = {name: torch.tensor(getattr(self, name)) for name in ("n_batches", "n_done", "finished")}
        state |= prefixed("weights.", self.weights) | prefixed("optimizer.", self.optimizer or {})
        state |= prefixed("waiting.", self.waiting._asdict())
        return state | ({} if self.memory is None else prefixed("memory.", self.memory.state()))

    def load(self, state: State) -> None:
        device = self.engine.device
        self.n_batches, self.n_done, self.finished = (
            int(state["n_batches"]),
            int(state["n_done"]),
            bool(state["finished"]),
        )
        self.weights = {name: t.to(device) for name, t in part(state, "weights.").items()}
        self.optimizer = {name: t.to(device) for name, t in part(state, "optimizer.").items()} or None
        waiting = part(state, "waiting.")
        self.waiting = Batch(waiting["images"].to(device), waiting["labels"].cpu(), waiting["index"].cpu())
        if self.memory is not None:
            self.memory.load(part(state, "memory."))


def _padded(t: torch.Tensor, n: int) -> torch.Tensor:
    """t (m, ...) with zeros after it, (n, ...)."""
    return torch.cat([t, t.new_zeros((n - t.shape[0], *t.shape[1:]))])


def _some(rows: NDArray[np.int64], n: int, dice: np.random.Generator) -> NDArray[np.int64]:
    """n of the rows, different ones as far as there are enough."""
    return dice.choice(rows, n, replace=len(rows) < n)
