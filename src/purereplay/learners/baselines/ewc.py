"""EWC: weights that mattered for earlier tasks are held where they were (Kirkpatrick et al. 2017).

At the end of a task the diagonal of the Fisher information is estimated; from then on the loss has λ/2 Σ F (w − w*)²
for every task behind (`consolidation.py`).

Choices where the papers leave them open: the Fisher information is that of the network's own predictions, a label
drawn from them for each sample, on the last samples of the task, as many as the rivals' memories hold. This is the
only learner that is told where tasks end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from purereplay.learners.base import Report
from purereplay.learners.baselines.consolidation import Consolidation
from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.online import Online, training
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.nets.jobs import Asks
from purereplay.nets.networks import State, part, prefixed
from purereplay.nets.technique import Step, Technique, plain_loss


@dataclass(frozen=True, kw_only=True)
class Elastic(Technique):
    """Cross-entropy with the penalty; `strength` is λ.

    `most` bounds λF. At 1 / rate a step of gradient descent takes the weight back to where it was held; beyond 2 / rate
    it would land farther away than it was, and diverge.
    """

    strength: float
    most: float = math.inf

    def loss(self, step: Step) -> Tensor:
        centre, stiffness = part(step.extra, "centre."), part(step.extra, "stiffness.")
        force = {n: (self.strength * stiffness[n]).clamp(max=self.most) for n in centre}
        pulls = [(force[n] * (step.state[n] - centre[n]).square()).flatten(1).sum(1) for n in centre]
        return plain_loss(step) + torch.stack(pulls).sum(0) / 2


@dataclass
class Ewc(Online):
    """An online learner without a memory, under the penalty of the tasks behind."""

    consolidation: Consolidation
    task_ended: bool = field(default=False, init=False)  # and the consolidation is still to come
    wants_task_ends = True

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
        self.consolidation.end_task(self.ground.network, self.weights, self.ground.seed)
        self.task_ended = False
        return None

    def _extra(self, labels: Tensor) -> State:
        return super()._extra(labels) | self.consolidation.extra(self.weights)

    def state(self) -> State:
        state = super().state() | {"task_ended": torch.tensor(self.task_ended)}
        return state | prefixed("consolidation.", self.consolidation.state())

    def load(self, state: State) -> None:
        super().load(state)
        self.task_ended = bool(state["task_ended"])
        self.consolidation.load(part(state, "consolidation."))


def ewc(s: RivalSettings, ground: Ground) -> Ewc:
    assert s.memory_size is not None and s.rate is not None
    most = 1 / s.rate if s.optimizer == "sgd" else math.inf
    nobody = torch.empty((0, *ground.image_shape), dtype=torch.uint8, device=ground.engine.device)
    ground = ground._replace(technique=Elastic(strength=s.ewc_strength, most=most))
    return Ewc(ground, memory=None, how=training(s), consolidation=Consolidation(s.memory_size, nobody))
