"""PRS: as CRS, from a reservoir with a target share for each class (Kim et al. 2020).

The memory (`memory/partitioned.py`) decides which samples enter and leave. The shares are equal (`rho` is 0) as in the
SPR paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.crs import Crs
from purereplay.learners.baselines.online import REPLAY_DEMO, ReplaySettings, count_online_steps, online_training
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import make_robust_loss
from purereplay.learners.settings import setting
from purereplay.memory.partitioned import PartitionedReservoir
from purereplay.nets.engine import Engine


@dataclass(frozen=True, kw_only=True)
class PrsSettings(ReplaySettings):
    """Settings of PRS."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": REPLAY_DEMO}

    rho: float = setting("exponent of the target shares, proportional to seen^rho", 0.0, source="paper", least=0)


class Prs(Crs):
    """Replay from a partitioned reservoir: draw, join, step and add as in CRS."""


def build(settings: PrsSettings, data: DataSpec, *, engine: Engine, seed: int) -> Prs:
    """Return a learner that has seen nothing."""
    loss = make_robust_loss(settings, data, engine)
    return Prs(
        **common_arguments(settings, data, engine=engine, seed=seed, loss=loss),
        memory=make_memory(partial(PartitionedReservoir, rho=settings.rho), settings.memory_size, data, engine),
        training=online_training(settings),
    )


ENTRY = Entry(
    name="prs",
    title="PRS",
    summary="replays from a reservoir with equal shares for the classes",
    settings=PrsSettings,
    build=build,
    count_steps=count_online_steps,
    takes_robust_loss=True,
    named=("robust",),
)
