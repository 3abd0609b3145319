"""DER++: replayed samples should also give the logits that they had when they arrived (Buzzega et al. 2020).

The reservoir keeps the logits of every sample with it. The loss is the cross-entropy of the incoming samples, plus α
times the mean squared difference between logits and kept logits of replayed samples, plus β times the cross-entropy of
other replayed samples.

Choices where paper and released code (Mammoth) leave them open: both groups of replayed samples come from one draw
without repetition, where the memory holds enough. The very first batch replays itself, with its own logits as the kept
ones. The three groups pass the network separately, so that each has its own batch statistics, as in Mammoth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.augmentation import AugmentSettings
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.crs import Crs
from purereplay.learners.baselines.online import ONLINE_DEMO, MemorySettings, count_online_steps, online_training
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import RobustLoss
from purereplay.learners.settings import setting
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Listed
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import State
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, Technique

# chosen on validation data: with β = 1 both cross-entropies weigh the same, as in crs, and half its learning rate gives
# them the same steps
DEMO = ONLINE_DEMO | {"lr": 0.15, "alpha": 1.0, "beta": 1.0}
# Mammoth on Sequential CIFAR-10 with 500 samples; there are 50 epochs per task, here is one
PUBLISHED = {"optimizer": "sgd", "lr": 0.03, "clip": None, "batch_size": 32, "replay_size": 32}


@dataclass(frozen=True, kw_only=True)
class DerSettings(MemorySettings, AugmentSettings):
    """Settings of DER++; `replay_size` is the size of each of the two groups of replayed samples."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": DEMO, "published": PUBLISHED}

    alpha: float = setting("weight of the kept logits", 0.2, source="Mammoth: CIFAR-10 with 500 samples", least=0)
    beta: float = setting(
        "weight of the replayed samples' cross-entropy", 0.5, source="Mammoth: CIFAR-10 with 500 samples", least=0
    )


@dataclass(frozen=True, kw_only=True)
class DarkExperience(Technique):
    """The loss of DER++; `logits` (K, n, classes) are those that each sample had when it arrived."""

    alpha: float
    beta: float
    n_replayed: int  # in each of the two groups at the end of a step

    recorded: ClassVar[tuple[str, ...]] = ("logits",)

    def per_sample(self, labels: Tensor, n_classes: int) -> State:
        return {"logits": torch.zeros(len(labels), n_classes, device=labels.device)}

    def loss(self, step: Step) -> Tensor:
        n = self.n_replayed
        sizes = [step.labels.shape[1] - 2 * n, n, n]
        incoming, matched, replayed = (
            step.network.outputs(step.state, images, training=True) for images in torch.split(step.images, sizes, 1)
        )
        labels, index = torch.split(step.labels, sizes, 1), torch.split(step.rows, sizes, 1)
        self._keep(step, index[0], incoming.detach())
        kept = rows(step.extra["logits"], index[1])
        return (
            sample_losses(incoming, labels[0]).mean(1)
            + self.alpha * (matched - kept).square().mean((1, 2))
            + self.beta * sample_losses(replayed, labels[2]).mean(1)
        )

    def _keep(self, step: Step, index: Tensor, logits: Tensor) -> None:
        kept = step.extra["logits"]
        new = torch.where(step.active[:, None, None], logits, rows(kept, index))
        kept.scatter_(1, index[..., None].expand_as(new), new)


class Der(Crs):
    """Replay of two groups of samples from a reservoir that also keeps their logits."""

    @property
    def n_drawn(self) -> int:
        return 2 * self.training.n_replayed

    def _recipe(self, size: int) -> Listed:
        return replace(super()._recipe(size), batch_size=size + self.n_drawn)


def build(settings: DerSettings, data: DataSpec, *, engine: Engine, seed: int) -> Der:
    """Return a learner that has seen nothing."""
    s = settings
    loss = RobustLoss(DarkExperience(alpha=s.alpha, beta=s.beta, n_replayed=s.replay_size))
    return Der(
        **common_arguments(s, data, engine=engine, seed=seed, loss=loss),
        memory=make_memory(Reservoir, s.memory_size, data, engine),
        training=replace(online_training(s), shift_and_flip=s.augment),
    )


ENTRY = Entry(
    name="der++",
    title="DER++",
    summary="as crs, and replayed samples keep the logits that they had when they arrived",
    settings=DerSettings,
    build=build,
    count_steps=count_online_steps,
    named=("robust",),
)
