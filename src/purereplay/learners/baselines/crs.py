"""CRS: every step also replays a random part of a reservoir (Vitter 1985; Riemer et al. 2019).

The reservoir (`memory/reservoir.py`) holds every sample of the stream so far with the same probability. Wrong labels
are therefore in the memory in the same proportion as in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.online import (
    REPLAY_DEMO,
    ReplayLearner,
    ReplaySettings,
    count_online_steps,
    online_training,
)
from purereplay.learners.baselines.pool import ReplayPool, Rows, join
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import make_robust_loss
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine


@dataclass(frozen=True, kw_only=True)
class CrsSettings(ReplaySettings):
    """Settings of CRS."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": REPLAY_DEMO}


class Crs(ReplayLearner):
    """Replay from a reservoir."""

    def plan_steps(self, pool: ReplayPool) -> Iterator[Rows]:
        for batch in pool.batches():
            replayed = pool.draw()  # draw from the memory
            yield join(batch, replayed)  # join both; the engine takes one training step on these rows
            pool.add(batch)  # add the batch to the memory


def build(settings: CrsSettings, data: DataSpec, *, engine: Engine, seed: int) -> Crs:
    """Return a learner that has seen nothing."""
    loss = make_robust_loss(settings, data, engine)
    return Crs(
        **common_arguments(settings, data, engine=engine, seed=seed, loss=loss),
        memory=make_memory(Reservoir, settings.memory_size, data, engine),
        training=online_training(settings),
    )


ENTRY = Entry(
    name="crs",
    title="CRS",
    summary="replays from a reservoir of the stream",
    settings=CrsSettings,
    build=build,
    count_steps=count_online_steps,
    takes_robust_loss=True,
    named=("robust",),
)
