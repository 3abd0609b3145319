"""Every choice of Self-Purified Replay as a named option, and the presets.

A setting that is None is chosen by the dataset (`for_dataset`). Where the paper and the released code differ, the
comment names both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from purereplay.errors import UserError
from purereplay.learners.judging import Features
from purereplay.learners.options import parse, validated
from purereplay.nets.losses import MIN_TEMPERATURE


@dataclass(frozen=True)
class SprSettings:
    """The options of Self-Purified Replay; the defaults are the preset `default`: what measures best so far."""

    delayed_size: int | None = None  # samples in D; None: 100 / 300 / 500 / 1000 / 5000 (1250 in the code) by dataset
    purified_size: int | None = None  # samples in P; None: by dataset
    network: Literal["mlp", "resnet18"] | None = None  # None: mlp for grey images, resnet18 for colour
    hidden: int = 512  # width of the mlp's two hidden layers (code; not in the paper)
    stem: Literal["imagenet", "small"] = "imagenet"  # of the resnet18 (code: imagenet on every dataset)
    projection: Literal["mlp", "linear"] = "mlp"  # head: linear-ReLU-linear (code) or "a one-layer MLP" (paper)
    projection_size: int = 256  # outputs of the head (code; not in the paper)
    order: Literal["filter-first", "replay-first"] = "filter-first"  # paper: filter first; code: replay first
    tail: Literal["process", "drop"] = "process"  # a partly filled D at the end of the stream; code: drop
    reseed: bool = False  # draw the same random numbers for every D (code); not in the paper
    # self-supervised training
    expert_epochs: int = 4000  # passes over D for each fresh expert
    base_epochs: int = 3000  # passes over D for the base, per buffer
    expert_batch: int | None = None  # None: all of D
    base_batch: int | None = None  # from D and P together; None: the size of D (250 on CIFAR-100 in the code)
    replay: Literal["halves", "halves-distinct", "union", "purified"] = "halves"  # code: halves of D and P, with
    # replacement; paper: D ∪ P; purified: of P only (appendix)
    self_replay: Literal["every-buffer", "task-end", "never"] = "every-buffer"  # task-end: intermittent (figure 4b)
    learning_rate: float = 3e-4  # of Adam (code); the paper's ε = 0.0002 is read as the rate
    schedule: Literal["cosine", "constant"] = "cosine"  # within one D (code); not in the paper
    warm_epochs: int = 10  # at the full rate before the cosine (code)
    base_schedule: Literal["continuing", "restart"] = "continuing"  # across buffers; code: never restarted
    temperature: float = 0.5  # of NT-Xent
    crop_area: float = 0.08  # least share of an image that a view keeps (code)
    flip: float = 0.5  # probability that a view is mirrored (code); 0 for letters and digits
    jitter: Literal["factors", "additive"] = "factors"  # colour jitter; additive: the code's old kornia
    feature_dropout: float = 0.2  # of feature vectors: probability that a view leaves a feature out; not in the paper
    feature_noise: float = 0.3  # likewise: standard deviation of what a view adds to a standardised feature
    # the Self-Centered filter
    filter: Literal["self-centered", "aum", "incv", "none"] = "self-centered"  # who judges D; none: P is a plain
    # reservoir of the stream; aum and incv: rival filters
    features: Features = "projection"  # of the expert; paper: penultimate. No expert is trained for patches (of the
    # images, see purify/patches.py; not in the paper) and for file (brought by the user, --features); combined: the
    # projection's main directions and patches (likewise not in the paper)
    graphs: int = 5  # E_max; 0: non-stochastic
    scaling: Literal["trimmed", "minmax"] = "trimmed"  # scores into the mixture; code: 5th to 95th percentile
    posterior: Literal["exact", "table"] = "exact"  # code: a table of 100 bins
    small_class: Literal["drop", "keep"] = "drop"  # classes too small to fit: probability 0 (code, in effect) or 0.5
    mixture_steps: int = 10  # of EM (code); not in the paper
    aum_epochs: int = 150  # of the filter aum, on every D (paper)
    incv_epochs: int = 200  # of the filter incv, on every half of D (paper)
    incv_rounds: int = 4  # of the filter incv (paper)
    admission: Literal["greedy", "partitioned"] = "partitioned"  # into a full P; paper: greedy; code: partitioned
    eviction: Literal["levelled", "softmax"] = "levelled"  # paper: classes balanced; code: a class by softmax(excess)
    # the inference network
    finetune_epochs: int = 50  # passes over P
    finetune_batch: int = 16
    finetune_rate: float = 2e-3  # of Adam; the paper's ε = 0.002 is read as the rate
    finetune_clip: float | None = 0.5  # gradient values are cut there (code); the paper has none
    finetune_decay_every: int | None = 300  # steps after which the rate falls to a tenth (code); the paper has none


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "projection": "linear",
        "replay": "union",
        "learning_rate": 2e-4,
        "schedule": "constant",
        "features": "penultimate",
        "scaling": "minmax",
        "admission": "greedy",
        "finetune_clip": None,
        "finetune_decay_every": None,
    },
    "reference": {
        "order": "replay-first",
        "tail": "drop",
        "reseed": True,
        "jitter": "additive",
        "posterior": "table",
        "eviction": "softmax",
    },
    "quick": {"expert_epochs": 60, "base_epochs": 20},
    # for 8×8 digits, quickly on a CPU: a crop of 8 % would be two pixels wide, and a mirrored digit is another sign
    "demo": {"hidden": 128, "expert_epochs": 450, "base_epochs": 150, "crop_area": 0.25, "flip": 0.0},
    # for small images of one's own on a CPU, where a resnet18 would take hours: a label needs many samples in D to be
    # judged well, by patches in half the time that experts take, and better (docs/your-data.md); a rare one is not shut
    # out; signs are not mirrored; after 20 passes over such a P the finetuning's rate has fallen to nothing
    "daily": {
        "delayed_size": 500,
        "purified_size": 1000,
        "network": "mlp",
        "hidden": 256,
        "expert_epochs": 200,
        "base_epochs": 60,
        "features": "patches",
        "crop_area": 0.25,
        "flip": 0.0,
        "small_class": "keep",
        "finetune_epochs": 20,
    },
}

# the learners that are Self-Purified Replay or a part of it (table 1: the ablations)
LEARNERS: dict[str, dict[str, str]] = {
    "spr": {},
    "self-replay": {"filter": "none"},
    "self-centered-filter": {"self_replay": "never"},
}

BY_DATASET = ("delayed_size", "purified_size", "network", "expert_batch", "base_batch")  # None: by dataset
_SIZES = {"digits": 100, "mnist": 300, "cifar10": 500, "cifar10n": 500, "webvision14": 1000}
_SIZES |= {"cifar100": 5000, "cifar100n": 5000}


def preset_settings(name: str, overrides: dict[str, str] | None = None) -> SprSettings:
    """A preset's settings with some of them given as text, `{"graphs": "20"}`; an unknown name is an error."""
    return _over_preset(name, {key: parse(SprSettings, key, text) for key, text in (overrides or {}).items()})


def _over_preset(name: str, chosen: Mapping[str, Any], *, vectors: bool = False) -> SprSettings:
    """A preset with some settings changed; vectors have no patches, and who says how long experts train has experts."""
    if name not in PRESETS:
        raise UserError(f"The preset {name!r} is unknown: choose one of {', '.join(PRESETS)}.")
    preset = dict(PRESETS[name])
    if preset.get("features") == "patches" and (vectors or "expert_epochs" in chosen):
        preset["features"] = "projection"
    return validated(replace(SprSettings(), **(preset | dict(chosen))), RANGES)


def buffer_size(dataset: str) -> int:
    """Samples in a buffer: the paper's, by dataset."""
    return next((n for name, n in _SIZES.items() if dataset.split("-")[0] == name), 500)


def for_dataset(settings: SprSettings, dataset: str, image_shape: tuple[int, int, int], preset: str) -> SprSettings:
    """Fill in what depends on the dataset."""
    size = buffer_size(dataset)
    delayed = 1250 if preset == "reference" and size == 5000 else size
    base = 250 if preset == "reference" and size == 5000 else settings.delayed_size or delayed
    chosen: dict[str, Any] = {
        "delayed_size": delayed,
        "purified_size": size,
        "network": "mlp" if image_shape[0] == 1 else "resnet18",
        "base_batch": base,
    }
    chosen = {key: value for key, value in chosen.items() if getattr(settings, key) is None}
    settings = replace(settings, **chosen)
    return replace(settings, expert_batch=settings.expert_batch or settings.delayed_size)


def with_budget(settings: SprSettings, budget: float) -> SprSettings:
    """Scale the self-supervised epochs."""
    if not (math.isfinite(budget) and budget > 0):
        raise UserError(f"The budget must be a positive number, not {budget}.")
    expert, base = (max(1, round(min(n * budget, 1e12))) for n in (settings.expert_epochs, settings.base_epochs))
    return replace(settings, expert_epochs=expert, base_epochs=base)


def own_settings(
    preset: str, options: Mapping[str, Any], image_shape: tuple[int, int, int], *, vectors: bool = False
) -> SprSettings:
    """Settings for data of your own: a preset with some of them changed; an unknown name is an error."""
    unknown = set(options) - {f.name for f in fields(SprSettings)}
    if unknown:
        raise UserError(f"The setting {min(unknown)!r} is unknown.")
    settings = _over_preset(preset, options, vectors=vectors)
    if vectors and settings.network is None:
        settings = replace(settings, network="mlp")
    return for_dataset(settings, "", image_shape, preset)


# what is not simply more than 0
RANGES = {
    "delayed_size": (2, math.inf),  # one sample has nothing to be compared with
    "expert_batch": (2, math.inf),
    "base_batch": (2, math.inf),
    "graphs": (0, math.inf),
    "warm_epochs": (0, math.inf),
    "flip": (0, 1),
    "temperature": (MIN_TEMPERATURE, math.inf),
    "crop_area": (1e-6, 1),
    "feature_dropout": (0, 1),
    "feature_noise": (0, math.inf),
}
