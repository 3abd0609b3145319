"""The settings of the rivals, and of the techniques that some of them can be combined with.

Settings come from the paper's appendix; where it is silent, from the method's own paper, named in the comment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from purereplay.errors import UserError
from purereplay.learners.options import parse, validated

RIVALS = ("finetune", "ewc", "crs", "prs", "mir", "gdumb", "multitask")
WITH_ROBUST = ("crs", "prs", "mir", "gdumb")  # that a technique against wrong labels can be combined with
Robust = Literal["none", "l2r", "pencil", "sl", "jocor"]


@dataclass(frozen=True)
class RivalSettings:
    """The options of the rivals; each uses those that concern it."""

    memory_size: int | None = None  # samples held; None: 100 / 300 / 500 / 1000 / 5000 by dataset, as for SPR's P
    network: Literal["mlp", "resnet18"] | None = None  # None: mlp for grey images, resnet18 for colour
    hidden: int = 512  # width of the mlp's two hidden layers
    stem: Literal["imagenet", "small"] = "imagenet"  # of the resnet18
    batch_size: int = 10  # incoming samples of a step, for finetune, crs, prs and mir
    replay_size: int = 10  # replayed samples of a step: as many as incoming ones
    candidates: int = 50  # mir chooses what it replays from so many (Aljundi 2019)
    optimizer: Literal["adam", "sgd"] = "adam"  # of finetune, ewc, crs, prs and mir; the paper does not say which
    rate: float | None = None  # of that optimizer; None: by network, the best of `crs` on validation data
    clip: float | None = 0.5  # online gradient values are cut there (released code, as for SPR's finetuning)
    rho: float = 0.0  # prs: target shares ∝ seen^rho
    gdumb_epochs: int = 100  # paper: 100; 500 on WebVision
    gdumb_rate: float = 0.05  # where each restart begins (Prabhu 2020)
    gdumb_least_rate: float = 5e-4  # and where it ends (Prabhu 2020)
    gdumb_momentum: float = 0.9  # Prabhu 2020
    gdumb_decay: float = 1e-6  # weight decay (Prabhu 2020)
    gdumb_clip: float | None = 10.0  # length that a gradient has at most (Prabhu 2020, released code)
    gdumb_cutmix: float = 0.5  # probability of CutMix
    multitask_epochs: int = 50  # paper
    multitask_rate: float = 0.05  # of stochastic gradient descent
    scratch_batch: int = 16  # of gdumb and multitask: the paper's batch of supervised learning
    ewc_strength: float = 1000.0  # λ of the penalty (Kirkpatrick 2017: chosen by hand; not in the paper)
    # techniques against wrong labels, with crs, prs, mir and gdumb
    robust: Robust = "none"
    l2r_clean: int = 100  # clean samples of each class, taken out of the stream (paper)
    l2r_batch: int = 100  # clean samples in a step (paper)
    pencil_alpha: float = 0.4  # of the given label (paper)
    pencil_beta: float = 0.1  # of the prediction's entropy (paper)
    pencil_stage1: int = 70  # epochs with the given labels (paper)
    pencil_stage2: int = 200  # epoch up to which labels are learned (paper)
    pencil_rate: float = 600.0  # of the labels (paper)
    sl_alpha: float = 1.0  # of cross-entropy (paper)
    sl_beta: float = 1.0  # of reverse cross-entropy (paper)
    jocor_lambda: float = 0.1  # of the agreement (paper)
    jocor_forget: float | None = None  # share of a batch passed by; None: the noise rate, half of it if asymmetric
    jocor_epochs: int = 10  # until that share is reached (Wei 2020)


RIVAL_RANGES = {
    "rho": (0, math.inf),
    "gdumb_momentum": (0, 1),
    "gdumb_decay": (0, math.inf),
    "gdumb_cutmix": (0, 1),
    "ewc_strength": (0, math.inf),
    "pencil_alpha": (0, math.inf),
    "pencil_beta": (0, math.inf),
    "pencil_stage1": (0, math.inf),
    "pencil_stage2": (0, math.inf),
    "pencil_rate": (0, math.inf),
    "sl_alpha": (0, math.inf),
    "sl_beta": (0, math.inf),
    "jocor_lambda": (0, 1),
    "jocor_forget": (0, 0.99),
}
# the network of SPR's preset, clean samples that leave some for the stream, and an optimizer for 144 steps, chosen as
# the other one; other presets: as they are
RIVAL_PRESETS: dict[str, dict[str, Any]] = {
    "demo": {"hidden": 128, "l2r_clean": 10, "optimizer": "sgd", "rate": 0.3, "clip": None}
}
# Adam's, the best of `crs` on a tenth of the training data of MNIST and of CIFAR-10: see REPRODUCTION.md
ONLINE_RATES = {"mlp": 2e-5, "resnet18": 5e-4}


def rival_settings(
    name: str,
    preset: str,
    overrides: dict[str, str] | None,
    *,
    memory_size: int,
    image_shape: tuple[int, int, int],
    noise_rate: float,
) -> RivalSettings:
    """The settings of a run; what the dataset and its noise decide is filled in."""
    parsed = {key: parse(RivalSettings, key, text) for key, text in (overrides or {}).items()}
    s = validated(replace(RivalSettings(), **(RIVAL_PRESETS.get(preset, {}) | parsed)), RIVAL_RANGES)
    if s.robust != "none" and name not in WITH_ROBUST:
        raise UserError(f"The technique {s.robust} goes with {', '.join(WITH_ROBUST)}, not with {name}.")
    if name == "mir" and s.candidates < s.replay_size:
        raise UserError(f"mir cannot choose {s.replay_size} samples (replay_size) from {s.candidates} (candidates).")
    network = s.network or ("mlp" if image_shape[0] == 1 else "resnet18")
    return replace(
        s,
        memory_size=s.memory_size or memory_size,
        network=network,
        rate=s.rate or ONLINE_RATES[network],
        jocor_forget=noise_rate if s.jocor_forget is None else s.jocor_forget,
    )
