"""A learner in one file: it trains on every incoming batch twice within one step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.base import common_arguments
from purereplay.learners.baselines.online import (
    ONLINE_DEMO,
    OnlineLearner,
    OnlineSettings,
    count_online_steps,
    online_training,
)
from purereplay.learners.baselines.pool import Pool, Rows, join
from purereplay.learners.registry import Entry
from purereplay.learners.settings import setting
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Listed


@dataclass(frozen=True, kw_only=True)
class ToySettings(OnlineSettings):
    """Settings of the toy."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": ONLINE_DEMO}

    echo: int = setting("times that each sample counts in a step", 2, source="this test")


@dataclass(kw_only=True)
class Toy(OnlineLearner):
    """Trains on each batch `echo` times within one step."""

    echo: int

    def plan_steps(self, pool: Pool) -> Iterator[Rows]:
        for batch in pool.batches():
            rows = batch
            for _ in range(self.echo - 1):
                rows = join(rows, batch)
            yield rows

    def _recipe(self, size: int) -> Listed:
        return replace(super()._recipe(size), batch_size=size * self.echo)


def build(settings: ToySettings, data: DataSpec, *, engine: Engine, seed: int) -> Toy:
    arguments = common_arguments(settings, data, engine=engine, seed=seed)
    return Toy(**arguments, training=online_training(settings), echo=settings.echo)


ENTRY = Entry(
    name="toy",
    title="Toy",
    summary="trains on every batch twice",
    settings=ToySettings,
    build=build,
    count_steps=count_online_steps,
)
