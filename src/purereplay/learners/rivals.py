"""The rivals of the paper: their settings, and how each is built from them.

Settings come from the paper's appendix; where it is silent, from the method's own paper, named in the comment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from purereplay.learners.offline import FromScratch, Training
from purereplay.learners.online import Online, OnlineTraining
from purereplay.learners.options import parse, validated
from purereplay.memory.greedy import GreedyBalanced
from purereplay.memory.partitioned import PartitionedReservoir
from purereplay.memory.replay import ReplayMemory
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.networks import Head, Network

RIVALS = ("finetune", "crs", "prs", "mir", "gdumb", "multitask")


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
    optimizer: Literal["adam", "sgd"] = "adam"  # online: the paper's for supervised learning
    rate: float = 2e-3  # of the online optimizer: the paper's, as for SPR's finetuning
    clip: float | None = 0.5  # online gradient values are cut there (released code, as for SPR's finetuning)
    rho: float = 0.0  # prs: target shares ∝ seen^rho
    gdumb_epochs: int = 100  # paper: 100; 500 on WebVision
    gdumb_rate: float = 0.05  # where each restart begins (Prabhu 2020)
    gdumb_least_rate: float = 5e-4  # and where it ends (Prabhu 2020)
    gdumb_momentum: float = 0.9  # Prabhu 2020
    gdumb_decay: float = 1e-6  # weight decay (Prabhu 2020)
    gdumb_cutmix: float = 0.5  # probability of CutMix
    multitask_epochs: int = 50  # paper
    multitask_rate: float = 0.05  # of stochastic gradient descent
    scratch_batch: int = 16  # of gdumb and multitask: the paper's batch of supervised learning


RIVAL_RANGES = {
    "replay_size": (0, math.inf),
    "rho": (0, math.inf),
    "gdumb_momentum": (0, 1),
    "gdumb_decay": (0, math.inf),
    "gdumb_cutmix": (0, 1),
}
RIVAL_PRESETS: dict[str, dict[str, int]] = {"demo": {"hidden": 256}}  # the network of SPR's preset; others: as they are


def rival_settings(
    preset: str, overrides: dict[str, str] | None, memory_size: int, image_shape: tuple[int, int, int]
) -> RivalSettings:
    """The settings of a run; what the dataset decides is filled in."""
    parsed = {key: parse(RivalSettings, key, text) for key, text in (overrides or {}).items()}
    s = validated(replace(RivalSettings(), **(RIVAL_PRESETS.get(preset, {}) | parsed)), RIVAL_RANGES)
    network = s.network or ("mlp" if image_shape[0] == 1 else "resnet18")
    return replace(s, memory_size=s.memory_size or memory_size, network=network)


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
) -> Online | FromScratch:
    """A learner from settings in which nothing is None any more; `n_stream` is how much Multitask has to hold."""
    s = settings
    assert s.memory_size is not None
    network = replace(network, head=Head(n_classes))
    memories: dict[str, type[ReplayMemory]] = {"crs": Reservoir, "mir": Reservoir, "gdumb": GreedyBalanced}
    memories["multitask"] = Reservoir
    memory: ReplayMemory | None = None
    capacity = n_stream if name == "multitask" else s.memory_size
    if name == "prs":
        memory = PartitionedReservoir(capacity, image_shape, n_classes, device=engine.device, rho=s.rho)
    elif name in memories:
        memory = memories[name](capacity, image_shape, n_classes, device=engine.device)
    if name in ("gdumb", "multitask"):
        assert memory is not None
        training = Training(s.multitask_epochs, s.scratch_batch, s.multitask_rate, momentum=0.0, weight_decay=0.0)
        if name == "gdumb":
            rates = (s.gdumb_rate, s.gdumb_least_rate)
            training = Training(
                s.gdumb_epochs, s.scratch_batch, *rates, s.gdumb_momentum, s.gdumb_decay, s.gdumb_cutmix
            )
        return FromScratch(network, n_classes, image_shape, memory, training, engine, seed)
    candidates = s.candidates if name == "mir" else 0
    how = OnlineTraining(s.batch_size, s.replay_size, candidates, s.optimizer, s.rate, s.clip)
    return Online(network, n_classes, image_shape, memory, how, engine, seed)
