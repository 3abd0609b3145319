"""The part that all baselines share: a network with one output per class, and the randomness of a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from purereplay.data.seeds import derive_seed
from purereplay.learners.base import DataSpec, Learner, Report
from purereplay.learners.networks import make_backbone
from purereplay.learners.robust.settings import RobustLoss
from purereplay.learners.settings import NetworkSettings
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Head, Network


@dataclass(kw_only=True)
class Baseline(Learner[Report]):
    """A learner that trains one classifier with labels."""

    network: Network  # one output per class
    n_classes: int
    image_shape: tuple[int, int, int]
    engine: Engine
    seed: int
    loss: RobustLoss = field(default_factory=RobustLoss)
    generator: torch.Generator = field(init=False)  # of the memory; its state continues from batch to batch

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(derive_seed(self.seed, "memory"))


def common_arguments(
    s: NetworkSettings, data: DataSpec, *, engine: Engine, seed: int, loss: RobustLoss | None = None
) -> dict[str, Any]:
    """Return the constructor arguments that every baseline takes."""
    loss = loss or RobustLoss()
    network = Network(make_backbone(s, data.image_shape), Head(data.n_classes), data.mean, data.std)
    return {
        "network": loss.prepare(network),
        "n_classes": data.n_classes,
        "image_shape": data.image_shape,
        "engine": engine,
        "seed": seed,
        "loss": loss,
    }


def make_memory(kind: Callable[..., ReplayMemory], capacity: int, data: DataSpec, engine: Engine) -> ReplayMemory:
    """Return an empty memory of this kind."""
    return kind(capacity, data.image_shape, data.n_classes, device=engine.device)
