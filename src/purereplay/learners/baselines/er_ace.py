"""ER-ACE: as CRS, with a cross-entropy that keeps incoming samples from pushing old classes away (Caccia et al. 2022).

The cross-entropy of incoming samples is over the classes of the incoming batch only. That of replayed samples is over
all classes seen so far. The loss is the sum of both means.

Choices where paper and released code differ or leave them open: as in the paper, classes that were never seen take no
part; the released code leaves them in both terms. Incoming and replayed samples pass the network separately, so that
each has its own batch statistics, as in the released code.
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
from purereplay.learners.baselines.pool import Pool
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import RobustLoss
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import State
from purereplay.nets.technique import Step, Technique

# lr: released code, which tunes over 0.1, 0.01 and 0.001
PUBLISHED = {"optimizer": "sgd", "lr": 0.1, "clip": None}


@dataclass(frozen=True, kw_only=True)
class ErAceSettings(MemorySettings, AugmentSettings):
    """Settings of ER-ACE; batches of 10 incoming and 10 replayed samples are also those of Caccia 2022."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": ONLINE_DEMO, "published": PUBLISHED}


@dataclass(frozen=True, kw_only=True)
class AsymmetricCrossEntropy(Technique):
    """The loss of ER-ACE; `seen` (K, classes) marks the classes of all incoming samples so far."""

    n_replayed: int  # the last samples of a step; 0: none

    recorded: ClassVar[tuple[str, ...]] = ("seen",)

    def loss(self, step: Step) -> Tensor:
        sizes = [step.labels.shape[1] - self.n_replayed, self.n_replayed]
        new, old = torch.split(step.labels, sizes, 1)
        seen = step.extra["seen"]
        present = (new[..., None] == torch.arange(seen.shape[1], device=new.device)).any(1)
        seen.logical_or_(present & step.active[:, None])
        incoming, *replayed = (
            step.network.outputs(step.state, images, training=True)
            for images in torch.split(step.images, [n for n in sizes if n], 1)
        )
        loss = _cross_entropy_among(present, incoming, new)
        return loss + _cross_entropy_among(seen, replayed[0], old) if replayed else loss


def _cross_entropy_among(classes: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy (K,) of logits (K, B, c) and labels (K, B), among the classes marked in (K, c)."""
    return sample_losses(logits.masked_fill(~classes[:, None], -torch.inf), labels).mean(1)


class ErAce(Crs):
    """Replay from a reservoir, with the asymmetric cross-entropy."""

    def _extra(self, pool: Pool) -> State:
        return super()._extra(pool) | {"seen": torch.from_numpy(self.memory.seen > 0).to(self.engine.device)}


def build(settings: ErAceSettings, data: DataSpec, *, engine: Engine, seed: int) -> ErAce:
    """Return a learner that has seen nothing."""
    loss = RobustLoss(AsymmetricCrossEntropy(n_replayed=settings.replay_size))
    return ErAce(
        **common_arguments(settings, data, engine=engine, seed=seed, loss=loss),
        memory=make_memory(Reservoir, settings.memory_size, data, engine),
        training=replace(online_training(settings), shift_and_flip=settings.augment),
    )


ENTRY = Entry(
    name="er-ace",
    title="ER-ACE",
    summary="as crs, with a loss that shields old classes from the incoming batch",
    settings=ErAceSettings,
    build=build,
    count_steps=count_online_steps,
    named=("robust",),
)
