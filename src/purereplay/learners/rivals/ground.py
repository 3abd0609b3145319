"""What every rival of a run stands on, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from purereplay.learners.rivals.settings import RivalSettings
from purereplay.memory.replay import ReplayMemory
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Network, State
from purereplay.nets.technique import Technique


class Ground(NamedTuple):
    """The first fields of every rival."""

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
