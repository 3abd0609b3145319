"""Self-Purified Replay with a supervised base: the comparison of the paper's figure 3a.

Buffers, filter, views, optimizer, epochs and finetuning are those of `spr`. Instead of NT-Xent without labels, the base
learns the given labels of D and P by cross-entropy over all classes seen so far. D's labels are those of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from purereplay.errors import UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.pure_replay import PureReplay
from purereplay.learners.registry import Entry
from purereplay.learners.spr.buffers import FullBuffer, ScoredBuffer
from purereplay.learners.spr.build import count_steps, spr_arguments
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Joint


@dataclass(frozen=True, kw_only=True)
class SupervisedBaseSettings(SprSettings):
    """The settings of `spr`; replay and self_replay have one value each."""

    @property
    def has_class_layer(self) -> bool:
        return True

    def check(self) -> None:
        super().check()
        if self.replay != "halves" or self.self_replay != "every-buffer":
            raise UserError("supervised-base needs replay=halves and self_replay=every-buffer: leave them unchanged.")


@dataclass(kw_only=True)
class SupervisedBase(PureReplay):
    """One continual learner."""

    def _to_score(self) -> list[FullBuffer]:
        return self.waiting  # scores do not depend on the base

    def _label_weights(self, buffer: ScoredBuffer) -> Tensor:
        return torch.ones(buffer.batch.n)

    def _allowed(self, present: Tensor, seen: Tensor) -> Tensor:
        return torch.stack([seen, seen])


def build(settings: SupervisedBaseSettings, data: DataSpec, *, engine: Engine, seed: int) -> SupervisedBase:
    """Return a learner that has seen nothing."""
    arguments = spr_arguments(settings, data, engine=engine, seed=seed)
    recipe = arguments["self_replay"].recipe
    common = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    return SupervisedBase(
        **arguments,
        joint=Joint(**common, contrastive=0.0, delayed=1.0, purified=1.0, average=0.0),
        base_features=False,
        sharpening=0.0,
        agreement=0.0,
        purified_ceiling=1.0,
        how_to_classify="finetuned",
    )


ENTRY = Entry(
    name="supervised-base",
    title="SPR with a supervised base",
    summary="SPR whose base learns the given labels of D and P instead of NT-Xent (figure 3a)",
    settings=SupervisedBaseSettings,
    build=build,
    count_steps=count_steps,
    named=("filter", "graphs"),
)
