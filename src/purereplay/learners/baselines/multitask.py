"""Multitask: the upper bound, which stores the whole stream and trains only after all of it has arrived.

It is trained for 50 epochs, as in the paper, in a new random order every epoch. Labels are the given ones or, with
`--noise none`, the true ones. It is not a continual learner and is evaluated at the end only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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

    added: ClassVar[Mapping[str, Any]] = {
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "augment": False,
    }

    epochs: int = setting("passes over the stream", 50, unit="epochs", source="paper")
    optimizer: Literal["sgd", "adam"] = setting("optimizer", "sgd", source="not in the paper")
    lr: float = setting("learning rate", 0.05, source="not in the paper")
    momentum: float = setting("momentum of sgd", 0.0, source="not in the paper", least=0, most=1)
    weight_decay: float = setting("weight decay", 0.0, source="not in the paper", least=0)
    augment: bool = setting(
        "images are shifted by up to four pixels, and half of them are mirrored",
        False,
        source="not in the paper",
    )


class Multitask(ScratchLearner):
    """A memory as long as the stream."""

    is_offline = True


def build(settings: MultitaskSettings, data: DataSpec, *, engine: Engine, seed: int) -> Multitask:
    """Return a learner that has seen nothing."""
    s = settings
    return Multitask(
        **common_arguments(s, data, engine=engine, seed=seed),
        memory=make_memory(Reservoir, data.n_samples, data, engine),
        training=ScratchTraining(
            epochs=s.epochs,
            batch_size=s.batch_size,
            optimizer=s.optimizer,
            lr=s.lr,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
            shift_and_flip=s.augment,
        ),
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
