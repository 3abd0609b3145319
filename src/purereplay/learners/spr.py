"""Self-Purified Replay: Algorithms 1 and 2 of the paper.

Samples go into the delayed buffer D. A full D waits in a queue; its expert is trained and the Self-Centered filter
judges it (together with all buffers that wait), what passes enters the purified buffer P, and the base is trained
without labels on D ∪ P. Each of these steps leaves a mark in the queue, so that the state is whole after every one of
them and work that was cut off goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from purereplay.data.batch import Batch, check_batch
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.learners.base import Learner, Report
from purereplay.learners.judging import Judging
from purereplay.learners.waiting import Waiting
from purereplay.memory.delayed import DelayedBuffer
from purereplay.memory.purified import PurifiedBuffer
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Contrastive, ContrastiveJob, Supervised, SupervisedJob
from purereplay.nets.networks import Head, Network, State, part, prefixed
from purereplay.purify.self_centered import select

_COUNTS = ("n_queued", "n_done", "n_replays", "task_ended")


@dataclass(frozen=True)
class SelfReplay:
    """How the base is trained on D ∪ P."""

    recipe: Contrastive  # batch_size is the whole batch, from D and P together
    batches: Literal["halves", "halves-distinct", "union", "purified"] = "halves"
    # halves: half from D, half from P, and D alone until P is full; union: batches from all of D ∪ P; purified: from P
    when: Literal["every-buffer", "task-end", "never"] = "every-buffer"
    schedule: Literal["continuing", "restart"] = "continuing"  # of the learning rate, across buffers


@dataclass
class SPR(Learner):
    """One continual learner; see `learners.settings` for presets and `build_spr`."""

    network: Network  # of expert and base alike, with a projection head
    n_classes: int
    delayed: DelayedBuffer
    purified: PurifiedBuffer | Reservoir
    judging: Judging
    self_replay: SelfReplay
    finetune: Supervised
    engine: Engine
    seed: int = 0
    order: Literal["filter-first", "replay-first"] = "filter-first"
    tail: Literal["process", "drop"] = "process"
    reseed: bool = False  # True: the same random numbers for every buffer, as the released code draws them
    queue: list[Waiting] = field(default_factory=list, init=False)
    n_queued: int = field(default=0, init=False)  # delayed buffers filled so far
    n_done: int = field(default=0, init=False)  # delayed buffers worked through so far
    base: State = field(init=False)
    base_optimizer: State | None = field(default=None, init=False)
    n_replays: int = field(default=0, init=False)  # how often the base was trained
    task_ended: bool = field(default=False, init=False)  # and the base is still to be trained for it
    _classifier: Classifier | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.image_shape = self.delayed.image_shape
        self.base = self.network.fresh(self._seed("base weights"), self.engine.device)

    def grow(self, n_classes: int) -> None:
        """Labels below `n_classes` may come from now on; only ever more."""
        self.purified.grow(n_classes)
        if self.purified.n_classes > self.n_classes:
            self.n_classes, self._classifier = self.purified.n_classes, None

    def correct(self, batch: Batch) -> None:
        """Samples with the labels that a person gave them, judged before: they go into P, with probability 1."""
        check_batch(batch, self.delayed.image_shape, self.n_classes)
        if not isinstance(self.purified, PurifiedBuffer):
            raise UserError("Corrections need the purified buffer, which the setting filter=none does without.")
        self.purified.insert(batch)
        self._classifier = None

    # ---------------------------------------------------------------- Algorithm 1: training and filtering

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.delayed.image_shape, self.n_classes, self.delayed.dtype)
        while batch.n:
            batch = self.delayed.add(batch)
            if self.delayed.is_full:
                self._enqueue()

    def appetite(self, lookahead: int) -> int:
        return lookahead * self.delayed.capacity - self.delayed.n

    @property
    def pending(self) -> bool:
        return bool(self.queue) or self.task_ended

    @property
    def wants_task_ends(self) -> bool:  # type: ignore[override]
        return self.self_replay.when == "task-end"

    def end_task(self) -> None:
        self.task_ended = True

    def finish(self) -> None:
        if self.delayed.n and self.tail == "process":
            self._enqueue()
        self.delayed.reset()

    def work(self) -> Asks[Report | None]:
        new = [w for w in self.queue if w.clean_probability is None]
        if new:
            yield from self.judging.judge(new, self.n_classes, self._seed)
            return None
        if not self.queue:  # intermittent Self-Replay (figure 4b)
            yield from self._train_base(None)
            self.task_ended, self._classifier = False, None
            return None
        waiting = self.queue[0]
        if self.order == "filter-first":
            self._filter(waiting)
            yield from self._replay(waiting)
        else:
            yield from self._replay(waiting)
            self._filter(waiting)
        assert waiting.report is not None
        self.queue.pop(0)
        self.n_done += 1
        self._classifier = None
        return waiting.report._replace(base_loss=waiting.base_loss)

    def _filter(self, waiting: Waiting) -> None:
        """P ← P ∪ Self-Centered Filter(D)."""
        if waiting.report is not None:
            return
        assert waiting.clean_probability is not None
        batch, number = waiting.batch, waiting.number
        chosen = select(waiting.clean_probability, self._seed("selection", number))
        generator = torch.Generator().manual_seed(self._seed("admission", number))
        passed = Batch(*(t[chosen] for t in batch))
        if isinstance(self.purified, PurifiedBuffer):
            self.purified.add(passed, waiting.clean_probability[chosen], generator)
        else:
            self.purified.add(passed, generator)
        waiting.report = waiting.reported(selected_mask=chosen, purified_index=self.purified.index)

    def _replay(self, waiting: Waiting) -> Asks[None]:
        """θ ← Self-Replay using D ∪ P."""
        if waiting.replayed:
            return
        if self.self_replay.when == "every-buffer":
            waiting.base_loss = yield from self._train_base(waiting.batch.images)
        waiting.replayed = True

    def _train_base(self, delayed_images: Tensor | None) -> Asks[float | None]:
        """One round of the base's training; returns its last loss, None where there is nothing to train on."""
        recipe, images, replay = self._replay_batches(delayed_images)
        if images.shape[0] < 2:  # one image has no negatives
            return None
        gone = self.n_replays * max(0, recipe.epochs - recipe.warm_epochs)
        job = ContrastiveJob(
            phase="base",
            network=self.network,
            state=self.base,
            recipe=recipe,
            images=images,
            replay=replay,
            seed=self._seed("base draws", self.n_replays),
            optimizer=self.base_optimizer,
            start=gone if self.self_replay.schedule == "continuing" else 0,
        )
        [trained] = yield [job]
        self.base, self.base_optimizer = trained.state, trained.optimizer
        self.n_replays += 1
        return trained.loss

    def _replay_batches(self, delayed_images: Tensor | None) -> tuple[Contrastive, Tensor, Tensor | None]:
        how, recipe = self.self_replay.batches, self.self_replay.recipe
        purified = self.held()
        if how == "purified" or delayed_images is None:
            return replace(recipe, batch_size=min(recipe.batch_size, purified.n)), purified.images, None
        if how == "union":
            images = torch.cat([delayed_images, purified.images])
            return replace(recipe, batch_size=min(recipe.batch_size, images.shape[0])), images, None
        if not self.purified.is_full:
            return replace(recipe, batch_size=min(recipe.batch_size, delayed_images.shape[0])), delayed_images, None
        half = max(1, min(recipe.batch_size // 2, delayed_images.shape[0]))
        distinct = how == "halves-distinct"
        return (
            replace(recipe, batch_size=half, replay_size=half, replay_distinct=distinct),
            delayed_images,
            purified.images,
        )

    # ---------------------------------------------------------------- Algorithm 2: the inference network

    def classify(self) -> Asks[Classifier]:
        """Copy the base, put a linear layer on it, finetune on P; before P holds anything, it is not finetuned."""
        if self._classifier is None:
            seed = self._seed("head weights", self.n_done)
            network, state = self.network.with_head(Head(self.n_classes), self.base, seed)
            purified = self.held()
            if purified.n:
                job = SupervisedJob(
                    phase="finetune",
                    network=network,
                    state=state,
                    recipe=replace(self.finetune, batch_size=min(self.finetune.batch_size, purified.n)),
                    images=purified.images,
                    labels=purified.labels.to(self.engine.device),
                    seed=self._seed("finetune draws", self.n_done),
                )
                [trained] = yield [job]
                state = trained.state
            self._classifier = Classifier(network, state, self.delayed.image_shape, self.delayed.dtype)
        return self._classifier

    # ---------------------------------------------------------------- memory between calls

    def state(self) -> State:
        state = {name: torch.tensor(getattr(self, name)) for name in _COUNTS}
        state |= prefixed("delayed.", self.delayed.state()) | prefixed("purified.", self.purified.state())
        state |= prefixed("base.", self.base) | prefixed("optimizer.", self.base_optimizer or {})
        for i, w in enumerate(self.queue):
            state |= prefixed(f"queue.{i}.", w.state())
        return state

    def load(self, state: State) -> None:
        device = self.engine.device
        self.n_queued, self.n_done, self.n_replays = (int(state[name]) for name in _COUNTS[:3])
        self.task_ended = bool(state["task_ended"])
        self.delayed.load(part(state, "delayed."))
        self.purified.load(part(state, "purified."))
        self.n_classes = self.purified.n_classes
        self.base = {name: t.to(device) for name, t in part(state, "base.").items()}
        self.base_optimizer = {name: t.to(device) for name, t in part(state, "optimizer.").items()} or None
        n_waiting = self.n_queued - self.n_done
        self.queue = [Waiting.from_state(part(state, f"queue.{i}."), device) for i in range(n_waiting)]
        self._classifier = None

    # ---------------------------------------------------------------- small parts

    def _enqueue(self) -> None:
        images, labels, index = self.delayed.contents()
        self.queue.append(Waiting(self.n_queued, Batch(images, labels.cpu(), index.cpu())))
        self.n_queued += 1
        self.delayed.reset()

    def held(self) -> Batch:
        """What P holds."""
        return self.purified.contents()[0] if isinstance(self.purified, PurifiedBuffer) else self.purified.contents()

    def _seed(self, what: str, number: int = 0) -> int:
        return derive_seed(self.seed, what, 0 if self.reseed else number)
