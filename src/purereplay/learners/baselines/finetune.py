"""Finetune: a network that trains on every batch as it arrives, and remembers nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from purereplay.learners.baselines.pool import Pool, Rows
from purereplay.learners.registry import Entry
from purereplay.nets.engine import Engine


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(OnlineSettings):
    """Settings of Finetune."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": ONLINE_DEMO}


class Finetune(OnlineLearner):
    """Trains on each batch once."""

    def plan_steps(self, pool: Pool) -> Iterator[Rows]:
        yield from pool.batches()


def build(settings: FinetuneSettings, data: DataSpec, *, engine: Engine, seed: int) -> Finetune:
    """Return a learner that has seen nothing."""
    return Finetune(**common_arguments(settings, data, engine=engine, seed=seed), training=online_training(settings))


ENTRY = Entry(
    name="finetune",
    title="Finetune",
    summary="trains on every batch once",
    settings=FinetuneSettings,
    build=build,
    count_steps=count_online_steps,
    named=("robust",),
)
