"""GDumb: keep a balanced memory, and train a fresh network on it when a classifier is requested (Prabhu et al. 2020).

The memory (`memory/greedy.py`) keeps classes balanced, or is a plain reservoir. The network is trained by stochastic
gradient descent with warm restarts and CutMix. These are the optimizer and the schedule of its own paper; the random
crops, the mirroring, the standardised inputs and the warm-up epoch of its released code are not done here.

Choices where the papers leave them open: with a loss against wrong labels there is no CutMix, since these losses take
one label per sample; with L2R there is no momentum, since its virtual step is one of plain gradient descent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from purereplay.learners.base import DataSpec, Workload
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.online import n_pieces
from purereplay.learners.baselines.scratch import SCRATCH_DEMO, ScratchLearner, ScratchSettings, ScratchTraining
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import RobustSettings, make_robust_loss
from purereplay.learners.settings import DataFacts, setting
from purereplay.memory.greedy import GreedyBalanced
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine

WEBVISION_BUFFER = 1000  # samples: of all datasets only WebVision has buffers of this size


@dataclass(frozen=True, kw_only=True)
class GDumbSettings(ScratchSettings, RobustSettings):
    """Settings of GDumb."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": SCRATCH_DEMO | {"l2r_clean": 10}}

    added: ClassVar[Mapping[str, Any]] = {"memory": "balanced"}

    memory_size: int = setting("capacity of the memory", unit="samples", by_data="as SPR's P", source="paper")
    memory: Literal["balanced", "reservoir"] = setting(
        "samples that the memory keeps: balanced by class, or a plain reservoir of the stream",
        "balanced",
        source="Prabhu 2020: balanced; SPR paper, appendix on noise robustness: reservoir",
    )
    epochs: int = setting(
        "passes over the memory", unit="epochs", by_data="500 on WebVision, otherwise 100", source="paper"
    )
    lr: float = setting("learning rate at each restart", 0.05, source="Prabhu 2020")
    min_lr: float = setting("learning rate at the end of each cosine", 5e-4, source="Prabhu 2020")
    momentum: float = setting("momentum", 0.9, source="Prabhu 2020", least=0, most=1)
    weight_decay: float = setting("weight decay", 1e-6, source="Prabhu 2020", least=0)
    clip_norm: float | None = setting(
        "largest norm of a gradient; none: no clipping", 10.0, source="Prabhu 2020, released code"
    )
    cutmix: float = setting("probability of CutMix", 0.5, source="Prabhu 2020", least=0, most=1)

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        epochs = 500 if facts.buffer_size == WEBVISION_BUFFER else 100
        return {"memory_size": facts.buffer_size, "epochs": epochs} | super().fill(chosen, facts, preset)

    def ineffective(self) -> set[str]:
        return super().ineffective() | {"pencil_epoch"}  # its epochs are passes over the memory in any case


@dataclass(frozen=True, kw_only=True)
class WarmRestarts(ScratchTraining):
    """A cosine that restarts after 1, 2, 4, … epochs (SGDR: T_0 = 1, T_mult = 2)."""

    min_lr: float = 0.0  # at the end of each cosine

    def lrs(self, steps_per_epoch: int) -> torch.Tensor:
        lrs, period, begin = [], 1, 0
        for epoch in range(self.epochs):
            if epoch == begin + period:
                begin, period = epoch, 2 * period
            for step in range(steps_per_epoch):
                share = (epoch - begin + step / steps_per_epoch) / period
                height = (1 + math.cos(math.pi * share)) / 2
                lrs.append(self.min_lr + (self.lr - self.min_lr) * height)
        return torch.tensor(lrs)


class GDumb(ScratchLearner):
    """A memory, usually balanced: `work` adds samples to it, `classify` trains on it from scratch."""


def build(settings: GDumbSettings, data: DataSpec, *, engine: Engine, seed: int) -> GDumb:
    """Return a learner that has seen nothing."""
    s = settings
    loss = make_robust_loss(s, data, engine)
    training = WarmRestarts(
        epochs=s.epochs,
        batch_size=s.batch_size,
        lr=s.lr,
        min_lr=s.min_lr,
        momentum=0.0 if s.robust == "l2r" else s.momentum,
        weight_decay=s.weight_decay,
        clip_norm=s.clip_norm,
        cutmix=s.cutmix if s.robust == "none" else 0.0,
    )
    memory = make_memory(GreedyBalanced if s.memory == "balanced" else Reservoir, s.memory_size, data, engine)
    return GDumb(**common_arguments(s, data, engine=engine, seed=seed, loss=loss), memory=memory, training=training)


def count_steps(s: GDumbSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count one training from scratch per task."""
    held = [min(end, s.memory_size) for end in task_ends]
    return Workload(n_pieces(task_ends), {"scratch": sum(s.epochs * max(1, n // s.batch_size) for n in held)})


ENTRY = Entry(
    name="gdumb",
    title="GDumb",
    summary="keeps a balanced memory and trains on it from scratch",
    settings=GDumbSettings,
    build=build,
    count_steps=count_steps,
    takes_robust_loss=True,
    named=("robust",),
)
