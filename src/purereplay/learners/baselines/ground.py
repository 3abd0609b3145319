"""What every rival of a run stands on, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from purereplay.data.seeds import derive_seed
from purereplay.learners.base import Learner
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Network, State
from purereplay.nets.technique import Technique


class Ground(NamedTuple):
    """What the run gives to its learner."""

    network: Network  # with one output per class
    n_classes: int
    image_shape: tuple[int, int, int]
    engine: Engine
    seed: int
    technique: Technique | None  # in the place of cross-entropy
    constants: State  # what the technique works with in every job

    def memory(self, kind: Callable[..., ReplayMemory], s: RivalSettings) -> ReplayMemory:
        """An empty memory of this kind."""
        return kind(s.memory_size, self.image_shape, self.n_classes, device=self.engine.device)


@dataclass
class Rival(Learner):
    """What it stands on, and the luck of its memory."""

    ground: Ground
    generator: torch.Generator = field(init=False)  # of the memory; goes on from batch to batch

    def __post_init__(self) -> None:
        self.engine, self.image_shape = self.ground.engine, self.ground.image_shape
        self.generator = torch.Generator().manual_seed(derive_seed(self.ground.seed, "memory"))
