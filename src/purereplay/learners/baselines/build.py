"""A rival from its name and its settings, with the technique that it is combined with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from purereplay.data.batch import Batch
from purereplay.errors import UserError
from purereplay.learners.base import Learner
from purereplay.learners.baselines.crs import crs
from purereplay.learners.baselines.ewc import ewc
from purereplay.learners.baselines.finetune import finetune
from purereplay.learners.baselines.gdumb import gdumb
from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.mir import mir
from purereplay.learners.baselines.multitask import multitask
from purereplay.learners.baselines.prs import prs
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.learners.robust.jocor import JoCoR
from purereplay.learners.robust.l2r import LearningToReweight, clean_extra
from purereplay.learners.robust.pencil import Pencil
from purereplay.learners.robust.sl import SymmetricLearning
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Head, Network
from purereplay.nets.technique import Technique

_BUILDERS: dict[str, Callable[[RivalSettings, Ground], Learner]] = {
    "finetune": finetune,
    "ewc": ewc,
    "crs": crs,
    "prs": prs,
    "mir": mir,
    "gdumb": gdumb,
    "multitask": multitask,
}


def build_rival(
    name: str,
    settings: RivalSettings,
    *,
    network: Network,
    image_shape: tuple[int, int, int],
    n_classes: int,
    n_stream: int,
    engine: Engine,
    seed: int,
    clean: Batch | None = None,
) -> Learner:
    """A learner from settings in which nothing is None any more.

    `n_stream` is how much Multitask has to hold, `clean` what L2R is given.
    """
    s, technique, constants = settings, _technique(settings), {}
    network = replace(network, head=Head(n_classes))
    network = network if technique is None else technique.prepare(network)
    if s.robust == "l2r":
        if clean is None:
            raise UserError("The technique l2r needs clean samples.")
        constants = clean_extra(Batch(clean.images.to(engine.device), clean.labels, clean.index))
    s = replace(s, memory_size=n_stream) if name == "multitask" else s
    return _BUILDERS[name](s, Ground(network, n_classes, image_shape, engine, seed, technique, constants))


def _technique(s: RivalSettings) -> Technique | None:
    """What the settings name; a technique is built from its own ones."""
    if s.robust == "none":
        return None
    if s.robust == "l2r":
        return LearningToReweight(batch_size=s.l2r_batch)
    if s.robust == "pencil":
        return Pencil(
            alpha=s.pencil_alpha,
            beta=s.pencil_beta,
            lr=s.pencil_rate,
            stage1=s.pencil_stage1,
            stage2=s.pencil_stage2,
        )
    if s.robust == "sl":
        return SymmetricLearning(alpha=s.sl_alpha, beta=s.sl_beta)
    assert s.jocor_forget is not None
    return JoCoR(forget=s.jocor_forget, weight=s.jocor_lambda, epochs=s.jocor_epochs)
