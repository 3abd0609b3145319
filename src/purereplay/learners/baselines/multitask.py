"""Multitask: the upper bound, which stores the whole stream and trains only after all of it has arrived.

It is trained for 50 epochs, as in the paper, by stochastic gradient descent in a new random order every epoch. Labels
are the given ones or, with `--noise none`, the true ones. It is no continual learner and is evaluated at the end only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from purereplay.learners.base import DataSpec, Workload
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.online import n_pieces
from purereplay.learners.baselines.scratch import SCRATCH_DEMO, ScratchLearner, ScratchSettings, ScratchTraining
from purereplay.learners.registry import Entry
from purereplay.learners.settings import setting
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine


@dataclass(frozen=True, kw_only=True)
class MultitaskSettings(ScratchSettings):
    """Settings of Multitask."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": SCRATCH_DEMO}

    epochs: int = setting("passes over the stream", 50, unit="epochs", source="paper")
    lr: float = setting("learning rate of stochastic gradient descent", 0.05)


class Multitask(ScratchLearner):
    """A memory as long as the stream."""

    is_offline = True


def build(settings: MultitaskSettings, data: DataSpec, *, engine: Engine, seed: int) -> Multitask:
    """Return a learner that has seen nothing."""
    s = settings
    return Multitask(
        **common_arguments(s, data, engine=engine, seed=seed),
        memory=make_memory(Reservoir, data.n_samples, data, engine),
        training=ScratchTraining(epochs=s.epochs, batch_size=s.batch_size, lr=s.lr),
    )


def count_steps(s: MultitaskSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count one training on the whole stream."""
    return Workload(n_pieces(task_ends), {"scratch": s.epochs * max(1, task_ends[-1] // s.batch_size)})


ENTRY = Entry(
    name="multitask",
    title="Multitask",
    summary="stores the whole stream and trains at the end: the upper bound",
    settings=MultitaskSettings,
    build=build,
    count_steps=count_steps,
    named=("robust",),
)
