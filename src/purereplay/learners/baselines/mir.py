"""MIR: as CRS, but what is replayed is what the incoming batch is about to harm (Aljundi et al. 2019).

From the reservoir candidates are drawn at random. A virtual step of gradient descent on the incoming batch, at the
learner's rate, shows whose loss it would raise; those whose loss rises most are replayed.

Choices where the papers leave them open: the loss that decides is cross-entropy whatever technique trains, as it says
whom the batch harms, not whose label is wrong; and of JoCoR's two networks the one that answers decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.online import Online, training
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.jobs import Listed
from purereplay.nets.networks import is_trained
from purereplay.nets.technique import Choice, Step, plain_loss, sample_losses


@dataclass(frozen=True, kw_only=True)
class Interference(Choice):
    """Of the candidates, those whose loss a virtual step on the incoming samples raises most."""

    n_incoming: int
    n_replayed: int

    def choose(self, view: Callable[[Tensor], Step], index: Tensor, lr: Tensor) -> Tensor:
        """index (K, n_incoming + candidates) -> (K, n_incoming + n_replayed)."""
        incoming, candidates = index[:, : self.n_incoming], index[:, self.n_incoming :]
        step, others = view(incoming), view(candidates)
        names = [name for name in step.state if is_trained(name)]
        loss = plain_loss(step).sum()
        gradients = torch.autograd.grad(loss, [step.state[n] for n in names], allow_unused=True)
        with torch.no_grad():
            virtual = dict(step.state)
            for name, g in zip(names, gradients, strict=True):
                if g is not None:  # a second network may have no part in the answer
                    virtual[name] = step.state[name] - lr.view(-1, *(1,) * (g.ndim - 1)) * g
            before, after = (
                sample_losses(step.network.outputs(state, others.images, training=True), others.labels)
                for state in ({n: t.clone() for n, t in some.items()} for some in (step.state, virtual))
            )
            worst = (after - before).topk(self.n_replayed, dim=1).indices
            return torch.cat([incoming, candidates.gather(1, worst)], dim=1)


@dataclass
class Mir(Online):
    """An online learner that lists candidates, and leaves it to the step which of them are replayed."""

    n_candidates: int

    @property
    def n_listed(self) -> int:
        return self.n_candidates

    def _recipe(self, size: int) -> Listed:
        return replace(super()._recipe(size), choice=Interference(n_incoming=size, n_replayed=self.how.replay_size))


def mir(s: RivalSettings, ground: Ground) -> Mir:
    return Mir(ground, memory=ground.memory(Reservoir, s), how=training(s), n_candidates=s.candidates)
