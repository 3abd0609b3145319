"""What a supervised step looks like from inside, how a technique may change its loss and a choice its samples.

A technique against wrong labels (`learners/robust/`) or against forgetting (`learners/baselines/ewc.py`) is part of a
job's recipe. It sees a `Step` of K networks side by side and answers with their losses, by tensor operations alone. So
does a choice (`learners/baselines/mir.py`), which answers with samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from purereplay.nets.networks import Network, State


class Step(NamedTuple):
    """One step of K networks."""

    network: Network
    state: State  # (K, ...) each
    images: Tensor  # float in [0, 1], (K, B, C, H, W)
    labels: Tensor  # int64 (K, B)
    rows: Tensor  # int64 (K, B): of the job's images
    keys: Tensor  # int64 (K,): of the draws
    number: Tensor  # int64 (K,): how many steps each network has behind it
    epoch: Tensor  # float32 (K,): how many epochs
    active: Tensor  # bool (K,): who takes this step; the others are done, and nothing of theirs may change
    extra: State  # (K, ...) each: what the job brought for the technique


class Technique:
    """A way to learn; subclasses are frozen dataclasses, so that one can be part of a job's shape."""

    learned: ClassVar[tuple[str, ...]] = ()  # names in `extra` that get gradients, and are handed back
    recorded: ClassVar[tuple[str, ...]] = ()  # names in `extra` that `loss` writes into, handed back as well

    def prepare(self, network: Network) -> Network:
        """The network to train in the place of this one."""
        return network

    def per_sample(self, labels: Tensor, n_classes: int) -> State:
        """What is kept for each sample, as it begins: tensors (n, ...) for given labels int64 (n,)."""
        return {}

    def loss(self, step: Step) -> Tensor:
        """Loss per network (K,)."""
        raise NotImplementedError

    def update(self, step: Step, name: str, value: Tensor, gradient: Tensor) -> None:
        """One step for a learned extra, in place."""
        raise NotImplementedError


class Choice:
    """Which of the listed samples a step takes; subclasses are frozen dataclasses, likewise."""

    def choose(self, view: Callable[[Tensor], Step], index: Tensor, lr: Tensor) -> Tensor:
        """Rows that a step lists (K, n) -> rows that it takes (K, m); `view` makes a step on rows, `lr` is (K,)."""
        raise NotImplementedError


def sample_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every sample, (K, B), of logits (K, B, classes) and labels (K, B)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def plain_loss(step: Step, mix: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Mean cross-entropy; `mix` are CutMix's other labels (K, B) and the share (K, 1) of the own ones."""
    logits = step.network.outputs(step.state, step.images, training=True)
    losses = sample_losses(logits, step.labels)
    if mix is not None:
        other, share = mix
        losses = share * losses + (1 - share) * sample_losses(logits, other)
    return losses.mean(1)
