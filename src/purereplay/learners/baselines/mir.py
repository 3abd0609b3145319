"""MIR: as CRS, but replays the samples that the incoming batch interferes with most (Aljundi et al. 2019).

Candidates are drawn from the reservoir at random. A virtual step of gradient descent on the incoming batch, with the
learner's learning rate, shows whose loss it would raise. The candidates whose loss rises most are replayed.

Choices where the papers leave them open: the loss that selects is always cross-entropy, since it measures interference
and not wrong labels; of JoCoR's two networks the one that predicts selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from purereplay.errors import UserError
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
from purereplay.learners.settings import setting
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Listed
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import is_trained
from purereplay.nets.technique import Choice, Step, plain_loss


@dataclass(frozen=True, kw_only=True)
class MirSettings(ReplaySettings):
    """Settings of MIR."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": REPLAY_DEMO}

    candidates: int = setting("samples that are drawn to select from", 50, unit="samples", source="Aljundi 2019")

    def check(self) -> None:
        super().check()
        if self.candidates < self.replay_size:
            raise UserError(
                f"mir cannot select {self.replay_size} samples (replay_size) from {self.candidates} (candidates)."
            )


@dataclass(frozen=True, kw_only=True)
class Interference(Choice):
    """Selects the candidates whose loss a virtual step on the incoming samples raises most."""

    n_incoming: int
    n_replayed: int

    def choose(self, view: Callable[[Tensor], Step], index: Tensor, rate: Tensor) -> Tensor:
        """index (K, n_incoming + candidates) -> (K, n_incoming + n_replayed)."""
        incoming, candidates = index[:, : self.n_incoming], index[:, self.n_incoming :]
        step, others = view(incoming), view(candidates)
        names = [name for name in step.state if is_trained(name)]
        loss = plain_loss(step).sum()
        gradients = torch.autograd.grad(loss, [step.state[n] for n in names], allow_unused=True)
        with torch.no_grad():
            virtual = dict(step.state)
            for name, g in zip(names, gradients, strict=True):
                if g is not None:  # JoCoR's second network takes no part in the prediction
                    virtual[name] = step.state[name] - rate.view(-1, *(1,) * (g.ndim - 1)) * g
            before, after = (
                sample_losses(step.network.outputs(state, others.images, training=True), others.labels)
                for state in ({n: t.clone() for n, t in some.items()} for some in (step.state, virtual))
            )
            worst = (after - before).topk(self.n_replayed, dim=1).indices
            return torch.cat([incoming, candidates.gather(1, worst)], dim=1)


@dataclass(kw_only=True)
class Mir(ReplayLearner):
    """Replay of the samples that the incoming batch interferes with most."""

    n_candidates: int

    def plan_steps(self, pool: ReplayPool) -> Iterator[Rows]:
        for batch in pool.batches():
            candidates = pool.draw()
            yield join(batch, candidates)  # the step itself selects from the candidates: see `Interference`
            pool.add(batch)

    @property
    def n_drawn(self) -> int:
        return self.n_candidates

    def _recipe(self, size: int) -> Listed:
        choice = Interference(n_incoming=size, n_replayed=self.training.n_replayed)
        return replace(super()._recipe(size), choice=choice)


def build(settings: MirSettings, data: DataSpec, *, engine: Engine, seed: int) -> Mir:
    """Return a learner that has seen nothing."""
    loss = make_robust_loss(settings, data, engine)
    return Mir(
        **common_arguments(settings, data, engine=engine, seed=seed, loss=loss),
        memory=make_memory(Reservoir, settings.memory_size, data, engine),
        training=online_training(settings),
        n_candidates=settings.candidates,
    )


ENTRY = Entry(
    name="mir",
    title="MIR",
    summary="replays the samples that the incoming batch interferes with most",
    settings=MirSettings,
    build=build,
    count_steps=count_online_steps,
    takes_robust_loss=True,
    named=("robust",),
)
