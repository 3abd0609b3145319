"""Settings of the losses against wrong labels, and the loss that they describe.

Sources are the appendix of the SPR paper and, where it is silent, the method's own paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

from purereplay.errors import UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.robust.jocor import JoCoR
from purereplay.learners.robust.l2r import LearningToReweight, clean_extra
from purereplay.learners.robust.pencil import Pencil
from purereplay.learners.robust.sl import SymmetricLearning
from purereplay.learners.settings import DataFacts, Settings, setting
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Network, State
from purereplay.nets.technique import Technique

RobustName = Literal["none", "l2r", "pencil", "sl", "jocor"]
ROBUST_TITLES = {"l2r": "L2R", "pencil": "Pencil", "sl": "SL", "jocor": "JoCoR"}


@dataclass(frozen=True, kw_only=True)
class RobustSettings(Settings):
    """The loss against wrong labels that replaces cross-entropy."""

    added: ClassVar[Mapping[str, Any]] = {"pencil_lr_batch": None, "pencil_epoch": "memory"}

    robust: RobustName = setting("loss against wrong labels", "none")
    l2r_clean: int = setting(
        "clean samples of each class, taken out of the stream", 100, unit="samples", source="paper"
    )
    l2r_batch: int = setting("clean samples in a step", LearningToReweight.batch_size, unit="samples", source="paper")
    pencil_alpha: float = setting("weight of the given label", Pencil.alpha, source="paper", least=0)
    pencil_beta: float = setting("weight of the prediction's entropy", Pencil.beta, source="paper", least=0)
    pencil_stage1: int = setting("epochs with the given labels", Pencil.stage1, unit="epochs", source="paper", least=0)
    pencil_stage2: int = setting(
        "epoch at which labels stop changing", Pencil.stage2, unit="epochs", source="paper", least=0
    )
    pencil_lr: float = setting("learning rate of the labels", Pencil.lr, source="paper", least=0)
    pencil_lr_batch: int | None = setting(
        "batch size that the labels' rate was made for: in batches of B it is multiplied by B / this; none: unchanged",
        None,
        unit="samples",
        source="Yi 2019: 128",
    )
    pencil_epoch: Literal["stream", "memory"] = setting(
        "an epoch of PENCIL with replay: a pass over the stream, so that the given labels stay, or a pass of replay "
        "over the memory",
        "stream",
        source="the papers leave it open; best of both for `crs` on validation data",
    )
    sl_alpha: float = setting("weight of cross-entropy", SymmetricLearning.alpha, source="paper", least=0)
    sl_beta: float = setting("weight of reverse cross-entropy", SymmetricLearning.beta, source="paper", least=0)
    jocor_lambda: float = setting("weight of the networks' agreement", JoCoR.weight, source="paper", least=0, most=1)
    jocor_forget: float = setting(
        "share of a batch that is ignored at the end",
        by_data="the noise rate, or half of it for asymmetric noise",
        least=0,
        most=0.99,
    )
    jocor_epochs: int = setting("epochs until jocor_forget is reached", JoCoR.epochs, unit="epochs", source="Wei 2020")

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"jocor_forget": facts.noise_rate} | super().fill(chosen, facts, preset)

    def ineffective(self) -> set[str]:
        others = [f"{loss}_" for loss in ROBUST_TITLES if loss != self.robust]
        names = [f.name for f in fields(self)]
        return super().ineffective() | {name for name in names if name.startswith(tuple(others))}


class RobustLoss(NamedTuple):
    """A loss that replaces cross-entropy, with the tensors that every job gives to it."""

    technique: Technique | None = None  # None: cross-entropy
    constants: State = {}  # noqa: RUF012

    def prepare(self, network: Network) -> Network:
        """Return the network to train instead of this one."""
        return network if self.technique is None else self.technique.prepare(network)


def make_robust_loss(s: RobustSettings, data: DataSpec, engine: Engine) -> RobustLoss:
    """Return the loss that the settings describe."""
    if s.robust == "none":
        return RobustLoss()
    if s.robust == "l2r":
        if data.clean is None:
            raise UserError("The loss l2r needs clean samples.")
        clean = data.clean._replace(images=data.clean.images.to(engine.device))
        return RobustLoss(LearningToReweight(batch_size=s.l2r_batch), clean_extra(clean))
    if s.robust == "pencil":
        return RobustLoss(
            Pencil(
                alpha=s.pencil_alpha,
                beta=s.pencil_beta,
                lr=s.pencil_lr,
                lr_batch=s.pencil_lr_batch,
                epoch=s.pencil_epoch,
                stage1=s.pencil_stage1,
                stage2=s.pencil_stage2,
            )
        )
    if s.robust == "sl":
        return RobustLoss(SymmetricLearning(alpha=s.sl_alpha, beta=s.sl_beta))
    return RobustLoss(JoCoR(forget=s.jocor_forget, weight=s.jocor_lambda, epochs=s.jocor_epochs))
