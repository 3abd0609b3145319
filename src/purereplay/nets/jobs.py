"""Training requests: which network to train, on which data, by which recipe.

A learner writes `[trained] = yield [ContrastiveJob(...)]` and continues with the answer. The engine decides how jobs
are grouped and run. Jobs of equal `shape` can be trained side by side. There are four kinds, one per recipe:

ContrastiveJob  `Contrastive`: self-supervised training of expert and base (paper, equation 1)
JointJob        `Joint`: the same together with cross-entropy on the labels of D and P
SupervisedJob   `Supervised`: finetuning of the classifier (Algorithm 2)
ListedJob       `Listed`: supervised training on batches that the learner lists
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from purereplay.data.forms import prefixed
from purereplay.nets.networks import Network, State
from purereplay.nets.views import FeatureViews, Views

if TYPE_CHECKING:
    from purereplay.nets.technique import Choice, Technique


@dataclass(frozen=True, kw_only=True)
class Contrastive:
    """Self-supervised training by NT-Xent; an epoch is one pass over the job's images (D)."""

    epochs: int
    batch_size: int  # images of D per step
    replay_size: int = 0  # images of P per step
    replay_distinct: bool = False  # False: replay is drawn with replacement, as in the released code
    lr: float = 3e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warm_epochs: int = 10  # epochs at the full learning rate before the cosine begins
    temperature: float = 0.5
    views: Views | FeatureViews = field(default_factory=Views)


@dataclass(frozen=True, kw_only=True)
class Joint(Contrastive):
    """Sum of losses on the same views: NT-Xent, cross-entropy on labels of D and of P, and distillation on P."""

    contrastive: float = 1.0  # weight of NT-Xent
    delayed: float = 1.0  # weight of the cross-entropy on D, over the classes of D
    purified: float = 1.0  # weight of the cross-entropy on P, over all classes seen so far
    average: float = 0.99  # decay of the moving average of the weights, per step
    distillation: float = 0.0  # weight of the squared error of P's logits, for the classes known before this job


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """Finetuning by cross-entropy on given labels."""

    epochs: int
    batch_size: int = 16
    lr: float = 2e-3
    clip: float | None = 0.5  # gradient values are clipped to ±clip
    decay_every: int | None = 300  # steps after which the learning rate is multiplied by `decay`
    decay: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Supervised training on the batches and at the learning rates that the job lists."""

    batch_size: int  # images per step
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0
    clip: float | None = None  # gradient values are clipped to ±clip
    clip_norm: float | None = None  # maximal norm of a network's whole gradient
    cutmix: float = 0.0  # probability that a step applies CutMix
    choice: Choice | None = None  # selects the trained samples of a listed batch; None: all of them
    shift_and_flip: bool = False  # whether images are shifted and flipped at random
    technique: Technique | None = None  # replaces cross-entropy
    epoch_steps: int = 1  # steps that the technique counts as one epoch


Drawn = Contrastive | Supervised  # recipes whose batches the loop draws
Recipe = Drawn | Listed


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(ABC):
    """Training of one network; the base of all kinds of jobs."""

    phase: str  # name under which time and steps are counted: "expert", "base", "finetune", ...
    network: Network
    state: State
    recipe: Recipe
    images: Tensor  # uint8 (n, C, H, W), or feature vectors float32 (n, D, 1, 1)
    seed: int
    optimizer: State | None = None  # Adam's moments and step count to continue from

    @property
    @abstractmethod
    def n_steps(self) -> int:
        """Training steps of the job."""

    @property
    @abstractmethod
    def shape(self) -> Hashable:
        """Key of a loop: jobs of equal shape can use the same loop."""

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Key of a group: jobs of equal kind can be trained side by side."""

    @abstractmethod
    def shortened(self, n_steps: int) -> Job:
        """Return the same job with about `n_steps` steps."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the images."""
        return max(1, self.images.shape[0] // self.recipe.batch_size)

    @property
    def steps_before(self) -> int:
        """Steps that the network has taken before this job."""
        return 0 if self.optimizer is None else int(self.optimizer["step"])

    @property
    def n_replay(self) -> int:
        """Images of P that follow D in the pool."""
        return 0

    def pool(self) -> Tensor:
        """All images of the job, (n + n_replay, C, H, W)."""
        return self.images

    def targets(self) -> State:
        """Tensors that the loss compares the outputs with."""
        return {}

    def tensors(self) -> State:
        """Every tensor of the job, by name."""
        own = {"images": self.images} | prefixed("state.", self.state)
        return own | prefixed("optimizer.", self.optimizer or {})

    def _base_shape(self) -> tuple[Hashable, ...]:
        return self.network, self.recipe, self.images.dtype, tuple(self.images.shape)


@dataclass(frozen=True, eq=False, kw_only=True)
class ContrastiveJob(Job):
    """Self-supervised training on D, or on D ∪ P."""

    recipe: Contrastive
    replay: Tensor | None = None  # P, (m, C, H, W), of the images' dtype
    start: int = 0  # epochs of the learning rate schedule before this job

    @property
    def n_steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def shape(self) -> Hashable:
        return *self._base_shape(), None if self.replay is None else tuple(self.replay.shape)

    @property
    def kind(self) -> Hashable:
        return self.shape, self.start, self.steps_before

    def shortened(self, n_steps: int) -> ContrastiveJob:
        return replace(self, recipe=replace(self.recipe, epochs=max(1, n_steps // self.steps_per_epoch)))

    @property
    def n_replay(self) -> int:
        return 0 if self.replay is None else self.replay.shape[0]

    @property
    def n_held(self) -> int:
        """Images of P that are drawn, the first ones of `replay`."""
        return self.n_replay

    def pool(self) -> Tensor:
        return self.images if self.replay is None else torch.cat([self.images, self.replay])

    def tensors(self) -> State:
        return super().tensors() | ({} if self.replay is None else {"replay": self.replay})


@dataclass(frozen=True, eq=False, kw_only=True)
class JointJob(ContrastiveJob):
    """Training on D and P, both with labels. P may have empty places at its end, so that its shape never changes."""

    recipe: Joint
    labels: Tensor  # int64 (n + n_replay,): of D, then of P
    weights: Tensor  # float32 (n + n_replay,): of each sample in its cross-entropy
    allowed: Tensor  # bool (2, n_classes): classes that the cross-entropy on D, and on P, compares
    average: State  # moving average of the weights before this job
    held: int  # images of P, the first ones of `replay`
    remembered: Tensor | None = None  # float32 (n + n_replay, n_classes): logits that distillation keeps; of P only
    known: Tensor | None = None  # bool (n_classes,): classes and labels that distillation concerns

    @property
    def n_held(self) -> int:
        return self.held

    def targets(self) -> State:
        targets = {"labels": self.labels, "weights": self.weights, "allowed": self.allowed}
        if self.remembered is not None and self.known is not None:
            targets |= {"remembered": self.remembered, "known": self.known}
        return targets

    def tensors(self) -> State:
        held = {"held": torch.tensor(self.held)}
        return super().tensors() | self.targets() | held | prefixed("average.", self.average)


@dataclass(frozen=True, eq=False, kw_only=True)
class SupervisedJob(Job):
    """Finetuning on given labels."""

    recipe: Supervised
    labels: Tensor  # int64 (n,)

    @property
    def n_steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def shape(self) -> Hashable:
        return self._base_shape()

    @property
    def kind(self) -> Hashable:
        return self.shape, self.steps_before

    def shortened(self, n_steps: int) -> SupervisedJob:
        return replace(self, recipe=replace(self.recipe, epochs=max(1, n_steps // self.steps_per_epoch)))

    def targets(self) -> State:
        return {"labels": self.labels}

    def tensors(self) -> State:
        return super().tensors() | self.targets()


@dataclass(frozen=True, eq=False, kw_only=True)
class ListedJob(Job):
    """Supervised training on listed batches; each network has its own step count and learning rates."""

    recipe: Listed
    labels: Tensor  # int64 (n,)
    index: Tensor  # int64 (n_steps, listed): rows of the images
    lrs: Tensor  # float32 (n_steps,): learning rates
    extra: State = field(default_factory=dict)  # tensors of the recipe's technique

    @property
    def n_steps(self) -> int:
        return self.index.shape[0]

    @property
    def step_capacity(self) -> int:
        """Steps that a loop for this job can hold: jobs of similar length use the same loop."""
        return max(128, 1 << (self.n_steps - 1).bit_length())

    @property
    def shape(self) -> Hashable:
        extra = tuple((name, tuple(t.shape)) for name, t in self.extra.items())
        return *self._base_shape(), self.step_capacity, self.index.shape[1], extra

    @property
    def kind(self) -> Hashable:
        return self.shape

    def shortened(self, n_steps: int) -> ListedJob:
        return replace(self, index=self.index[:n_steps], lrs=self.lrs[:n_steps])

    def tensors(self) -> State:
        own = {"labels": self.labels, "index": self.index, "lrs": self.lrs}
        return super().tensors() | own | prefixed("extra.", self.extra)


DrawnJob = ContrastiveJob | SupervisedJob  # jobs whose batches the loop draws


def first_of_its_kind(jobs: Sequence[Job]) -> list[int]:
    """Index of the first job that requests the same training, for every job; its own index if there is none before."""
    seen: dict[Hashable, list[int]] = {}
    firsts = []
    for i, job in enumerate(jobs):
        alike = seen.setdefault((job.kind, job.steps_before, job.seed), [])
        first = next((k for k in alike if _same(job, jobs[k])), i)
        if first == i:
            alike.append(i)
        firsts.append(first)
    return firsts


def _same(a: Job, b: Job) -> bool:
    """Whether all tensors of two jobs are equal, bit for bit."""
    ours, theirs = a.tensors(), b.tensors()
    return ours.keys() == theirs.keys() and all(
        t is theirs[name] or torch.equal(t, theirs[name]) for name, t in ours.items()
    )


class Trained(NamedTuple):
    """The answer to a job."""

    state: State
    optimizer: State  # "step", and "mean.NAME" and "square.NAME" for every parameter NAME
    loss: float  # of the last step; not finite if the training diverged
    seconds: float  # this job's share of its group's training time
    extra: State = {}  # noqa: RUF012  # what the technique learned or recorded; of a joint job: the moving average


Result = TypeVar("Result")
Asks = Generator[Sequence[Job], list[Trained], Result]  # sequential work that requests training on its way
