"""EWC: weights that mattered for earlier tasks are held near their values (Kirkpatrick et al. 2017).

At the end of a task the diagonal of the Fisher information is estimated; from then on the loss has λ/2 Σ F (w − w*)²
for every finished task (`consolidation.py`).

Choices where the papers leave them open: the Fisher information is that of the network's own predictions, with a label
drawn from them for each sample, on the last samples of the task, as many as the other baselines' memories hold. The
learner is told where tasks end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from purereplay.data.forms import FLAG, Forms, Limits, prefixed
from purereplay.learners.base import DataSpec, Report
from purereplay.learners.baselines.base import common_arguments
from purereplay.learners.baselines.consolidation import Consolidation
from purereplay.learners.baselines.online import (
    ONLINE_DEMO,
    OnlineLearner,
    OnlineSettings,
    count_online_steps,
    online_training,
)
from purereplay.learners.baselines.pool import Pool, Rows
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import RobustLoss
from purereplay.learners.settings import DataFacts, setting
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Asks
from purereplay.nets.networks import State, part
from purereplay.nets.technique import Step, Technique, plain_loss


@dataclass(frozen=True, kw_only=True)
class EwcSettings(OnlineSettings):
    """Settings of EWC."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": ONLINE_DEMO}

    strength: float = setting("weight λ of the penalty", 1000.0, source="Kirkpatrick 2017: chosen by hand", least=0)
    memory_size: int = setting(
        "samples of a task from which the Fisher information is estimated", unit="samples", by_data="as SPR's P"
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"memory_size": facts.buffer_size} | super().fill(chosen, facts, preset)


@dataclass(frozen=True, kw_only=True)
class Elastic(Technique):
    """Cross-entropy with the penalty; `strength` is λ.

    `most` bounds λF. At 1 / lr a step of gradient descent moves the weight back to its centre. Beyond 2 / lr the step
    would overshoot and diverge.
    """

    strength: float
    most: float = math.inf

    def loss(self, step: Step) -> Tensor:
        centre, stiffness = part(step.extra, "centre."), part(step.extra, "stiffness.")
        force = {n: (self.strength * stiffness[n]).clamp(max=self.most) for n in centre}
        pulls = [(force[n] * (step.state[n] - centre[n]).square()).flatten(1).sum(1) for n in centre]
        return plain_loss(step) + torch.stack(pulls).sum(0) / 2


@dataclass(kw_only=True)
class Ewc(OnlineLearner):
    """An online learner without a memory, under the penalty of the finished tasks."""

    consolidation: Consolidation
    task_ended: bool = field(default=False, init=False)  # a task ended and its consolidation is pending
    wants_task_ends = True

    def plan_steps(self, pool: Pool) -> Iterator[Rows]:
        yield from pool.batches()

    @property
    def pending(self) -> bool:
        return super().pending or self.task_ended

    def end_task(self) -> None:
        self.task_ended = True

    def work(self) -> Asks[Report | None]:
        if super().pending:
            before = self.waiting
            report = yield from super().work()
            self.consolidation.saw(before.images[: before.n - self.waiting.n])
            return report
        self.consolidation.end_task(self.network, self.weights, self.seed)
        self.task_ended = False
        return None

    def _extra(self, pool: Pool) -> State:
        return super()._extra(pool) | self.consolidation.extra(self.weights)

    def state(self) -> State:
        state = super().state() | {"task_ended": torch.tensor(self.task_ended)}
        return state | prefixed("consolidation.", self.consolidation.state())

    def forms(self, state: State, limits: Limits) -> Forms:
        own = self.consolidation.forms(part(state, "consolidation."), self.weights)
        forms = (super().forms(state, limits) or {}) | prefixed("consolidation.", own)
        return forms | {"task_ended": FLAG}

    def load(self, state: State) -> None:
        super().load(state)
        self.task_ended = bool(state["task_ended"])
        self.consolidation.load(part(state, "consolidation."))


def build(settings: EwcSettings, data: DataSpec, *, engine: Engine, seed: int) -> Ewc:
    """Return a learner that has seen nothing."""
    s = settings
    loss = RobustLoss(Elastic(strength=s.strength, most=1 / s.lr if s.optimizer == "sgd" else math.inf))
    images = torch.empty((0, *data.image_shape), dtype=torch.uint8, device=engine.device)
    return Ewc(
        **common_arguments(s, data, engine=engine, seed=seed, loss=loss),
        training=online_training(s),
        consolidation=Consolidation(s.memory_size, images),
    )


ENTRY = Entry(
    name="ewc",
    title="EWC",
    summary="as finetune, and holds weights that mattered for earlier tasks; told where tasks end",
    settings=EwcSettings,
    build=build,
    count_steps=count_online_steps,
    named=("robust",),
)
