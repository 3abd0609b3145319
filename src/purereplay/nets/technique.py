"""Interfaces by which a learner changes a supervised step: a technique its loss, a choice its samples.

Both are part of a job's recipe and see a `Step` of K networks side by side. A technique against wrong labels
(`learners/robust/`) or against forgetting (`learners/baselines/ewc.py`) returns their losses. A choice
(`learners/baselines/mir.py`) returns samples. They use tensor operations only, so that a step can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from torch import Tensor

from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import Network, State
from purereplay.nets.views import Views, make_views


class Step(NamedTuple):
    """One step of K networks."""

    network: Network
    state: State  # (K, ...) each
    images: Tensor  # float in [0, 1], (K, B, C, H, W)
    labels: Tensor  # int64 (K, B)
    rows: Tensor  # int64 (K, B): rows of the job's images
    keys: Tensor  # int64 (K,): keys of the draws
    number: Tensor  # int64 (K,): steps that each network has taken before
    epoch: Tensor  # float32 (K,): epochs that each network has trained before
    active: Tensor  # bool (K,): networks that take this step; the others are finished and must not change
    extra: State  # (K, ...) each: the job's tensors for the technique


class Technique:
    """Replacement of cross-entropy; subclasses are frozen dataclasses, so that they can be part of a job's shape."""

    learned: ClassVar[tuple[str, ...]] = ()  # names in `extra` that are trained and returned
    recorded: ClassVar[tuple[str, ...]] = ()  # names in `extra` that `loss` writes to; also returned

    def prepare(self, network: Network) -> Network:
        """Return the network to train instead of this one."""
        return network

    def per_sample(self, labels: Tensor, n_classes: int) -> State:
        """Initial values of the tensors kept per sample, (n, ...), for given labels int64 (n,)."""
        return {}

    def steps_of_epoch(self, steps_of_replay: int) -> int:
        """Steps that count as an epoch of an online learner; `steps_of_replay`: for one pass over its memory."""
        return steps_of_replay

    def loss(self, step: Step) -> Tensor:
        """Loss per network (K,)."""
        raise NotImplementedError

    def update(self, step: Step, name: str, value: Tensor, gradient: Tensor) -> None:
        """Update a learned extra in place."""
        raise NotImplementedError


class Choice:
    """Selection among the listed samples of a step; subclasses are frozen dataclasses."""

    def choose(self, view: Callable[[Tensor], Step], index: Tensor, lr: Tensor) -> Tensor:
        """Listed rows (K, n) -> rows to train on (K, m); `view` makes a step on given rows, `lr` is (K,)."""
        raise NotImplementedError


def random_views(step: Step, views: Views) -> Tensor:
    """One random view of every image of the step, (K, B, C, H, W)."""
    n, n_numbers = step.images.shape[1], views.n_numbers
    u = uniforms_per_key(step.keys, step.number, n * n_numbers, stream=RandomStream.VIEWS)
    return make_views(step.images.flatten(0, 1), u.view(-1, n_numbers), views).view(step.images.shape)


def plain_loss(step: Step, mix: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Mean cross-entropy (K,); `mix` holds CutMix's second labels (K, B) and the weight (K, 1) of the first ones."""
    logits = step.network.outputs(step.state, step.images, training=True)
    losses = sample_losses(logits, step.labels)
    if mix is not None:
        other, share = mix
        losses = share * losses + (1 - share) * sample_losses(logits, other)
    return losses.mean(1)
