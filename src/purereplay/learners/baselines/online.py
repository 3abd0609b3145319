"""What learners that train on every batch as it comes have in common, with or without a memory of earlier samples.

Finetune, CRS, PRS and MIR differ in what is replayed beside the incoming batch; EWC replays nothing, and holds on to
weights instead. Which samples a memory keeps does not depend on the network, so many batches are planned ahead and
trained as one job.

Choices where the papers leave them open: an incomplete batch waits for the next samples and is trained at the end of
the stream; the very first batch, with nothing to replay yet, is replayed itself. For a technique against wrong labels
an epoch is as many steps as replay needs to go once through the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from purereplay.data.batch import Batch, check_batch
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Report
from purereplay.learners.baselines.ground import Rival
from purereplay.learners.baselines.planning import Planned, ReplayDraws, plan
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.networks import State, part, prefixed

_BATCHES_AT_ONCE = 100  # trained as one job


@dataclass(frozen=True)
class OnlineTraining:
    """How an online learner trains."""

    batch_size: int  # incoming samples of a step
    replay_size: int  # replayed samples of a step, where there is a memory
    optimizer: Literal["adam", "sgd"]
    learning_rate: float
    clip: float | None  # gradient values are cut there


def training(s: RivalSettings) -> OnlineTraining:
    assert s.rate is not None
    return OnlineTraining(s.batch_size, s.replay_size, s.optimizer, s.rate, s.clip)


@dataclass
class Online(Rival):
    """One online learner."""

    memory: ReplayMemory | None
    how: OnlineTraining
    weights: State = field(init=False)
    optimizer: State | None = field(default=None, init=False)
    waiting: Batch = field(init=False)  # samples taken and not trained on yet
    n_batches: int = field(default=0, init=False)  # trained on so far
    n_done: int = field(default=0, init=False)  # jobs done so far
    finished: bool = field(default=False, init=False)
    carried: State = field(default_factory=dict, init=False)  # what the technique knows of samples held, by slot

    def __post_init__(self) -> None:
        super().__post_init__()
        device = self.engine.device
        if self.memory is not None and self.ground.technique is not None:
            nobody = torch.zeros(self.memory.capacity, dtype=torch.int64, device=device)
            self.carried = self.ground.technique.per_sample(nobody, self.ground.n_classes)
        self.weights = self.ground.network.fresh(derive_seed(self.ground.seed, "weights"), device)
        images = torch.empty((0, *self.image_shape), dtype=torch.uint8, device=device)
        self.waiting = Batch(images, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.image_shape, self.ground.n_classes)
        new = Batch(batch.images.to(self.engine.device), batch.labels.cpu(), batch.index.cpu())
        self.waiting = Batch(*(torch.cat(pair) for pair in zip(self.waiting, new, strict=True)))

    @property
    def pending(self) -> bool:
        return self.waiting.n >= self.how.batch_size or (self.finished and self.waiting.n > 0)

    @property
    def n_listed(self) -> int:
        """Samples of the memory that a step lists beside the incoming ones."""
        return self.how.replay_size

    def finish(self) -> None:
        self.finished = True

    def work(self) -> Asks[Report | None]:
        size = min(self.how.batch_size, self.waiting.n)
        n = min(self.waiting.n // size, _BATCHES_AT_ONCE) * size
        now = Batch(*(t[:n] for t in self.waiting))
        # planned on a copy: if this is cut off, nothing has happened yet
        draws = ReplayDraws(self.n_listed, derive_seed(self.ground.seed, "replay"), self.n_batches)
        planned = plan(now, size, _BATCHES_AT_ONCE * self.how.batch_size, self.memory, self.generator, draws)
        [trained] = yield [self._job(planned, size)]
        self.weights, self.optimizer = trained.state, trained.optimizer
        self.memory, self.generator = planned.memory, planned.generator
        self.carried = {name: trained.extra[name][planned.row_of_slot] for name in self.carried}
        self.waiting = Batch(*(t[n:].clone() for t in self.waiting))
        self.n_batches += len(planned.index)
        self.n_done += 1
        return Report(
            buffer=self.n_done - 1,
            index=now.index,
            labels=now.labels,
            clean_probability=None,
            centrality=None,
            selected_mask=None,
            purified_index=torch.empty(0, dtype=torch.int64) if self.memory is None else self.memory.index,
            expert_loss=None,
            base_loss=trained.loss,
        )

    def _job(self, planned: Planned, size: int) -> ListedJob:
        return ListedJob(
            phase="online",
            network=self.ground.network,
            state=self.weights,
            recipe=self._recipe(size),
            images=planned.pool.images,
            labels=planned.pool.labels.to(self.engine.device),
            seed=derive_seed(self.ground.seed, "draws"),
            optimizer=self.optimizer,
            index=torch.from_numpy(planned.index),
            lrs=torch.full((len(planned.index),), self.how.learning_rate),
            extra=self._extra(planned.pool.labels),
        )

    def _recipe(self, size: int) -> Listed:
        """How a batch of this size is trained on."""
        replayed = 0 if self.memory is None else self.how.replay_size
        return Listed(
            batch_size=size + replayed,
            optimizer=self.how.optimizer,
            clip=self.how.clip,
            technique=self.ground.technique,
            epoch_steps=max(1, self.memory.capacity // replayed) if self.memory else 1,
        )

    def _extra(self, labels: torch.Tensor) -> State:
        """What the technique works with: the same for all, and for each row of the pool."""
        extra = dict(self.ground.constants)
        if self.carried and self.ground.technique is not None:
            assert self.memory is not None
            new = labels[self.memory.capacity :].to(self.engine.device)
            fresh = self.ground.technique.per_sample(new, self.ground.n_classes)
            extra |= {name: torch.cat([held, fresh[name]]) for name, held in self.carried.items()}
        return extra

    def classify(self) -> Asks[Classifier]:
        return Classifier(self.ground.network, self.weights, self.image_shape)
        yield  # nothing is asked for: the network is what it is

    def state(self) -> State:
        state = {name: torch.tensor(getattr(self, name)) for name in ("n_batches", "n_done", "finished")}
        state |= prefixed("weights.", self.weights) | prefixed("optimizer.", self.optimizer or {})
        state |= prefixed("waiting.", self.waiting._asdict()) | prefixed("carried.", self.carried)
        state["generator"] = self.generator.get_state()
        return state | ({} if self.memory is None else prefixed("memory.", self.memory.state()))

    def load(self, state: State) -> None:
        device = self.engine.device
        self.n_batches, self.n_done = int(state["n_batches"]), int(state["n_done"])
        self.finished = bool(state["finished"])
        self.generator.set_state(state["generator"].cpu())
        self.weights = {name: t.to(device) for name, t in part(state, "weights.").items()}
        self.optimizer = {name: t.to(device) for name, t in part(state, "optimizer.").items()} or None
        waiting = part(state, "waiting.")
        self.waiting = Batch(waiting["images"].to(device), waiting["labels"].cpu(), waiting["index"].cpu())
        self.carried = {name: t.to(device) for name, t in part(state, "carried.").items()}
        if self.memory is not None:
            self.memory.load(part(state, "memory."))
