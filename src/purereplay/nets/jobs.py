"""What a learner asks the engine for: a network to be trained, on what, by which recipe.

A learner writes `[trained] = yield [Job(...)]` and goes on with the answer; how jobs are grouped and run is the
engine's business alone. Jobs whose `shape` is equal can be trained side by side.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from purereplay.nets.networks import Network, State
from purereplay.nets.views import FeatureViews, Views

if TYPE_CHECKING:
    from purereplay.nets.technique import Choice, Technique


@dataclass(frozen=True)
class Contrastive:
    """Self-supervised training by NT-Xent; an epoch is one pass over the job's images (D)."""

    epochs: int
    batch_size: int  # images of D in a step
    replay_size: int = 0  # images of P in a step
    replay_distinct: bool = False  # False: replay is drawn with replacement, as in the released code
    learning_rate: float = 3e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warm_epochs: int = 10  # epochs at the full rate before the cosine begins
    temperature: float = 0.5
    views: Views | FeatureViews = field(default_factory=Views)


@dataclass(frozen=True)
class Supervised:
    """Finetuning by cross-entropy on given labels."""

    epochs: int
    batch_size: int = 16
    learning_rate: float = 2e-3
    clip: float | None = 0.5  # gradients are cut to ±clip
    decay_every: int | None = 300  # steps after which the rate falls to a tenth
    decay: float = 0.1


@dataclass(frozen=True)
class Listed:
    """Supervised training on batches that the job lists (`Job.index`), at the rates that it lists (`Job.rates`)."""

    batch_size: int  # images in a step
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0
    clip: float | None = None  # gradients are cut to ±clip
    clip_norm: float | None = None  # a network's whole gradient is scaled down to at most this length
    cutmix: float = 0.0  # probability that a step's images are pasted into each other
    choice: Choice | None = None  # what of a listed batch is trained on; None: all of it
    shift_and_flip: bool = False  # whether images are shifted and mirrored at random
    technique: Technique | None = None  # what takes the place of cross-entropy
    epoch_steps: int = 1  # steps that the technique counts as an epoch


Drawn = Contrastive | Supervised  # recipes whose batches the engine draws
Recipe = Drawn | Listed


@dataclass(frozen=True, eq=False)
class Job:
    """One network to train."""

    phase: str  # what the time is booked under: "expert", "base", "finetune"
    network: Network
    state: State
    recipe: Recipe
    images: Tensor  # uint8 (n, C, H, W), or feature vectors float32 (n, D, 1, 1)
    seed: int
    replay: Tensor | None = None  # (m, C, H, W) likewise: the purified part of a contrastive job
    labels: Tensor | None = None  # int64 (n,), for a supervised job
    index: Tensor | None = None  # int64 (n_steps, listed): rows of the images, for a rehearsal
    rates: Tensor | None = None  # float32 (n_steps,): learning rates, likewise
    extra: State = field(default_factory=dict)  # what the recipe's technique works with
    optimizer: State | None = None  # Adam's moments and step count to go on with
    start: int = 0  # epochs of the schedule that lie behind

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.images.shape[0] // self.recipe.batch_size)

    @property
    def n_steps(self) -> int:
        if isinstance(self.recipe, Listed):
            return 0 if self.index is None else self.index.shape[0]
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def shape(self) -> Hashable:
        """Jobs of one shape can share a loop."""
        images = self.images.dtype, tuple(self.images.shape)
        replay = None if self.replay is None else tuple(self.replay.shape)
        listed = None if self.index is None else (self.step_capacity, self.index.shape[1])
        extra = tuple((name, tuple(t.shape)) for name, t in self.extra.items())
        return self.network, self.recipe, images, replay, self.labels is None, listed, extra

    @property
    def step_capacity(self) -> int:
        """How many steps a loop for this rehearsal has room for: jobs of similar length share one."""
        return max(128, 1 << (self.n_steps - 1).bit_length())

    @property
    def steps_before(self) -> int:
        """How many steps the network has behind it."""
        return 0 if self.optimizer is None else int(self.optimizer["step"])

    @property
    def kind(self) -> Hashable:
        """Jobs of one kind can be trained in one go: of one shape, they share step count and schedule.

        In a rehearsal every network has its own.
        """
        return self.shape if isinstance(self.recipe, Listed) else (self.shape, self.start, self.steps_before)


def first_of_its_kind(jobs: list[Job]) -> list[int]:
    """For every job the first one that asks for the very same training, itself where there is none before it."""
    seen: dict[Hashable, list[int]] = {}
    firsts = []
    for i, job in enumerate(jobs):
        alike = seen.setdefault((job.shape, job.seed, job.start, job.steps_before), [])
        first = next((k for k in alike if _same(job, jobs[k])), i)
        if first == i:
            alike.append(i)
        firsts.append(first)
    return firsts


def _same(a: Job, b: Job) -> bool:
    """Whether all that two jobs of one shape, seed and age bring is equal, number for number."""
    singles = ((a.images, b.images), (a.replay, b.replay), (a.labels, b.labels), (a.index, b.index), (a.rates, b.rates))
    for ours, theirs in singles:
        if ours is not None and theirs is not None and ours is not theirs and not torch.equal(ours, theirs):
            return False
    named = ((a.state, b.state), (a.extra, b.extra), (a.optimizer or {}, b.optimizer or {}))
    return all(ours is theirs or all(torch.equal(t, theirs[n]) for n, t in ours.items()) for ours, theirs in named)


class Trained(NamedTuple):
    """The answer to a job."""

    state: State
    optimizer: State  # "step", and "mean.NAME" and "square.NAME" for every parameter NAME
    loss: float  # of the last step
    seconds: float  # this job's share of the time its group took
    extra: State = {}  # noqa: RUF012  # what the technique learned


Result = TypeVar("Result")
Asks = Generator[list[Job], list[Trained], Result]  # sequential work that asks for training on its way
