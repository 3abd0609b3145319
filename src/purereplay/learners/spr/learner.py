"""Self-Purified Replay: Algorithms 1 and 2 of the paper.

Samples go into the delayed buffer D. A full D waits in a queue. Its expert is trained and the filter scores it,
together with all other waiting buffers. Samples that pass enter the purified buffer P, and the base is trained without
labels on D ∪ P. The queue records every finished step, so the state is always complete and interrupted work continues.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from purereplay.data.batch import Batch, check_batch
from purereplay.data.forms import COUNT, FLAG, MOST, Forms, Limits, forms_like, n_parts, prefixed, total
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.learners.base import FilterReport, Learner, optimizer_forms
from purereplay.learners.spr.buffers import FullBuffer, ScoredBuffer, buffer_forms, from_state
from purereplay.learners.spr.filtering import BufferFilter
from purereplay.memory.delayed import DelayedBuffer
from purereplay.memory.purified import PurifiedBuffer
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks, Contrastive, ContrastiveJob, Supervised, SupervisedJob
from purereplay.nets.networks import Head, Network, State, part
from purereplay.purify.self_centered import select

_COUNTS = ("n_queued", "n_done", "n_replays", "task_ended")
_LEAST_COLLAPSED = 20  # samples in P below which one prediction for all says nothing about the training
_LARGEST_SHARE = 0.9  # of a label in P above which such predictions are no surprise

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SelfReplay:
    """Training of the base on D ∪ P."""

    recipe: Contrastive  # batch_size is the whole batch, from D and P together
    batches: Literal["halves", "halves-distinct", "union", "purified"]
    # halves: half from D, half from P, and D alone until P is full; union: from all of D ∪ P; purified: from P
    when: Literal["every-buffer", "task-end", "never"]
    schedule: Literal["continuing", "restart"]  # of the learning rate, across buffers


@dataclass(kw_only=True)
class SPR(Learner[FilterReport]):
    """One continual learner; `learners.spr.build` makes it from settings."""

    network: Network  # of experts and base, with a projection head
    n_classes: int
    delayed: DelayedBuffer
    purified: PurifiedBuffer | ReplayMemory
    buffer_filter: BufferFilter
    self_replay: SelfReplay
    finetune: Supervised
    engine: Engine
    seed: int
    order: Literal["filter-first", "replay-first"]
    tail: Literal["process", "drop"]  # treatment of a partly filled D at the end of the stream
    reseed: bool  # True: the same random numbers for every buffer, as in the released code
    scored: list[ScoredBuffer] = field(default_factory=list, init=False)  # scored buffers, oldest first
    waiting: list[FullBuffer] = field(default_factory=list, init=False)  # full buffers that are not scored yet
    n_queued: int = field(default=0, init=False)  # delayed buffers filled so far
    n_done: int = field(default=0, init=False)  # delayed buffers finished so far
    base: State = field(init=False)
    base_optimizer: State | None = field(default=None, init=False)
    n_replays: int = field(default=0, init=False)  # trainings of the base so far
    task_ended: bool = field(default=False, init=False)  # a task ended and the base is not trained for it yet
    _classifier: Classifier | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.image_shape = self.delayed.image_shape
        self.base = self.network.fresh(self._seed("base weights"), self.engine.device)

    def grow(self, n_classes: int) -> None:
        """Allow labels below `n_classes` from now on; the number never shrinks."""
        if n_classes > self.n_classes:
            self.purified = copy.copy(self.purified)  # its counts are replaced, its samples stay
            self.purified.grow(n_classes)
            self.n_classes, self._classifier = n_classes, None

    def correct(self, batch: Batch) -> None:
        """Put samples with labels corrected by a person into P, with clean probability 1."""
        check_batch(batch, self.delayed.image_shape, self.n_classes)
        if not isinstance(self.purified, PurifiedBuffer):
            raise UserError("Corrections need a purified buffer: the setting filter=none has none.")
        purified = copy.deepcopy(self.purified)
        purified.insert(batch)
        self.purified, self._classifier = purified, None

    def withdraw(self, index: Tensor) -> None:
        """Take samples out of P, by their stream indices."""
        if not isinstance(self.purified, PurifiedBuffer):
            raise UserError("Samples can be withdrawn from a purified buffer: the setting filter=none has none.")
        purified = copy.deepcopy(self.purified)
        purified.remove(index)
        self.purified, self._classifier = purified, None

    # ---------------------------------------------------------------- Algorithm 1: training and filtering

    def take(self, batch: Batch) -> None:
        check_batch(batch, self.delayed.image_shape, self.n_classes, self.delayed.dtype)
        while batch.n:
            batch = self.delayed.add(batch)
            if self.delayed.is_full:
                self._enqueue()

    def n_to_take(self, lookahead: int) -> int:
        return lookahead * self.delayed.capacity - self.delayed.n

    @property
    def pending(self) -> bool:
        return bool(self.scored or self.waiting) or self.task_ended

    @property
    def queue(self) -> list[FullBuffer]:
        """Delayed buffers that are full and not finished, oldest first."""
        return [*self.scored, *self.waiting]

    @property
    def wants_task_ends(self) -> bool:  # type: ignore[override]
        return self.self_replay.when == "task-end"

    def end_task(self) -> None:
        self.task_ended = True

    def copy(self) -> Self:
        other = copy.copy(self)
        other.delayed = self.delayed.copy()
        other.scored = [copy.copy(buffer) for buffer in self.scored]
        return other

    def finish(self) -> None:
        if self.delayed.n and self.tail == "process":
            self._enqueue()
        self.delayed.reset()

    def work(self) -> Asks[FilterReport | None]:
        to_score = self._to_score()
        if to_score:
            scored = yield from self._score(to_score)
            self.scored, self.waiting = self.scored + scored, self.waiting[len(scored) :]
            return None
        if not self.scored:  # a task ended: intermittent Self-Replay trains the base on P (figure 3b)
            yield from self._train_base(None)
            self.task_ended, self._classifier = False, None
            return None
        buffer = self.scored[0]
        if self.order == "filter-first":
            report = self._purify(buffer)
            yield from self._replay(buffer)
        else:
            yield from self._replay(buffer)
            report = self._purify(buffer)
        self.scored, self.n_done, self._classifier = self.scored[1:], self.n_done + 1, None
        return buffer.finished(report)

    def _to_score(self) -> list[FullBuffer]:
        """Return the buffers to score next, the oldest of those that wait."""
        return self.waiting

    def _score(self, buffers: list[FullBuffer]) -> Asks[list[ScoredBuffer]]:
        """Return the buffers with a clean probability for every sample."""
        return (yield from self.buffer_filter.score(buffers, self.n_classes, self._seed))

    def _purify(self, buffer: ScoredBuffer) -> FilterReport:
        """P ← P ∪ Self-Centered Filter(D)."""
        if buffer.report is not None:
            return buffer.report
        chosen = select(buffer.clean_probability, self._seed("selection", buffer.number))
        generator = torch.Generator().manual_seed(self._seed("admission", buffer.number))
        passed = Batch(*(t[chosen] for t in buffer.batch))
        purified = copy.deepcopy(self.purified)
        if isinstance(purified, PurifiedBuffer):
            purified.add(passed, self._rank_values(buffer.clean_probability[chosen], buffer.number), generator)
        else:
            purified.add(passed, generator)
        self.purified = purified
        return buffer.reported(selected_mask=chosen, held_index=self.held_index())

    def _rank_values(self, clean_probability: Tensor, number: int) -> Tensor:
        """Return the values by which P ranks samples of buffer `number`; the lowest of a class leaves first."""
        return clean_probability

    def _replay(self, buffer: ScoredBuffer) -> Asks[None]:
        """θ ← Self-Replay using D ∪ P."""
        if buffer.replayed:
            return
        if self.self_replay.when == "every-buffer":
            buffer.base_loss = yield from self._train_base(buffer.batch.images)
        buffer.replayed = True

    def _train_base(self, delayed_images: Tensor | None) -> Asks[float | None]:
        """Train the base once; returns the last loss, or None if there is nothing to train on."""
        recipe, images, replay = self._replay_batches(delayed_images)
        if images.shape[0] < 2:  # one image has no negatives
            return None
        epochs_before = self.n_replays * max(0, recipe.epochs - recipe.warm_epochs)
        job = ContrastiveJob(
            phase="base",
            network=self.network,
            state=self.base,
            recipe=recipe,
            images=images,
            replay=replay,
            seed=self._seed("base draws", self.n_replays),
            optimizer=self.base_optimizer,
            start=epochs_before if self.self_replay.schedule == "continuing" else 0,
        )
        [trained] = yield [job]
        self.base, self.base_optimizer = trained.state, trained.optimizer
        self.n_replays += 1
        return trained.loss

    def _replay_batches(self, delayed_images: Tensor | None) -> tuple[Contrastive, Tensor, Tensor | None]:
        """Return the recipe, the images that an epoch passes over, and the images of P that each step adds."""
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

    @property
    def inference_base(self) -> State:
        """Weights of the base that the classifier starts from."""
        return self.base

    def classify(self) -> Asks[Classifier]:
        """Copy the base, add a linear layer and finetune on P; an empty P leaves the copy as it is."""
        if self._classifier is None:
            seed = self._seed("head weights", self.n_done)
            network, state = self.network.with_head(Head(self.n_classes), self.inference_base, seed)
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
            warn_if_collapsed(self._classifier, purified)
        return self._classifier

    # ---------------------------------------------------------------- memory between calls

    def state(self) -> State:
        state = {name: torch.tensor(getattr(self, name)) for name in _COUNTS}
        state |= prefixed("delayed.", self.delayed.state()) | prefixed("purified.", self.purified.state())
        state |= prefixed("base.", self.base) | prefixed("optimizer.", self.base_optimizer or {})
        for i, buffer in enumerate(self.queue):
            state |= prefixed(f"queue.{i}.", buffer.state())
        return state

    def forms(self, state: State, limits: Limits) -> Forms:
        n_queued, n_done, n_waiting = total(state, "n_queued"), total(state, "n_done"), n_parts(state, "queue.")
        n_replays = {"every-buffer": n_queued, "never": 0}.get(self.self_replay.when, MOST)
        forms = {
            "n_queued": COUNT._replace(least=n_done + n_waiting, most=n_done + n_waiting),
            "n_done": COUNT,
            "n_replays": COUNT._replace(most=n_replays),
            "task_ended": FLAG,
        }
        forms |= prefixed("delayed.", self.delayed.forms(part(state, "delayed."), limits))
        forms |= prefixed("purified.", self.purified.forms(part(state, "purified."), limits))
        forms |= prefixed("base.", forms_like(self.base))
        if total(state, "n_replays"):
            forms |= prefixed("optimizer.", optimizer_forms(self.base))
        for i in range(n_waiting):
            own = buffer_forms(part(state, f"queue.{i}."), n_done + i, self.delayed, limits)
            forms |= prefixed(f"queue.{i}.", own)
        return forms

    def load(self, state: State) -> None:
        device = self.engine.device
        self.n_queued, self.n_done, self.n_replays = (int(state[name]) for name in _COUNTS[:3])
        self.task_ended = bool(state["task_ended"])
        self.delayed.load(part(state, "delayed."))
        self.purified.load(part(state, "purified."))
        self.n_classes = self.purified.n_classes
        self.base = {name: t.to(device) for name, t in part(state, "base.").items()}
        self.base_optimizer = {name: t.to(device) for name, t in part(state, "optimizer.").items()} or None
        n_unfinished = self.n_queued - self.n_done
        queue = [from_state(part(state, f"queue.{i}."), device) for i in range(n_unfinished)]
        self.scored = [buffer for buffer in queue if isinstance(buffer, ScoredBuffer)]
        self.waiting = [buffer for buffer in queue if not isinstance(buffer, ScoredBuffer)]
        self._classifier = None

    # ---------------------------------------------------------------- small parts

    def _enqueue(self) -> None:
        images, labels, index = self.delayed.contents()
        full = FullBuffer(self.n_queued, Batch(images, labels.cpu(), index.cpu()))
        self.waiting, self.n_queued = [*self.waiting, full], self.n_queued + 1
        self.delayed.reset()

    def held(self) -> Batch:
        """Return the contents of P."""
        return self.purified.contents()[0] if isinstance(self.purified, PurifiedBuffer) else self.purified.contents()

    def held_index(self) -> Tensor:
        return self.purified.index

    def _seed(self, purpose: str, number: int = 0) -> int:
        return derive_seed(self.seed, purpose, 0 if self.reseed else number)


def warn_if_collapsed(classifier: Classifier, purified: Batch) -> None:
    """Log a warning if a classifier predicts one label for all of P, which has several."""
    if purified.n < _LEAST_COLLAPSED:
        return
    counts = torch.bincount(purified.labels)
    if int(counts.max()) > _LARGEST_SHARE * purified.n:
        return
    predicted = classifier.predict(purified.images)
    if bool((predicted == predicted[0]).all()):
        log.warning(
            "The classifier predicts one label for all %s samples in P, which have %s labels: its training collapsed; "
            "lower the learning rates, or train for more epochs.",
            f"{purified.n:,}",
            int((counts > 0).sum()),
        )
