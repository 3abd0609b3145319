"""Self-Purified Replay from its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from purereplay.errors import UserError
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.learners.judging import Filtering, Judging
from purereplay.learners.settings import SprSettings, own_settings
from purereplay.learners.spr import SPR, SelfReplay
from purereplay.memory.delayed import DelayedBuffer
from purereplay.memory.purified import PurifiedBuffer
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Contrastive, Supervised
from purereplay.nets.networks import MLP, Backbone, Head, Network
from purereplay.nets.resnet import ResNet18
from purereplay.nets.views import FeatureViews, Views
from purereplay.purify.aum import AreaUnderMargin
from purereplay.purify.incv import NoisyCrossValidation
from purereplay.purify.options import FilterOptions


def build_spr(
    settings: SprSettings,
    *,
    image_shape: tuple[int, int, int],
    n_classes: int,
    engine: Engine,
    seed: int,
    brought: torch.Tensor | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    vectors: bool = False,
) -> SPR:
    """A learner from settings in which nothing is None any more that depends on the dataset; `brought` are features.

    With `vectors` it takes standardised feature vectors, float32 (n, D, 1, 1): images of one pixel and D channels.
    """
    s = settings
    if (s.features == "file") != (brought is not None):
        raise UserError("Features of the user's own need a file (--features), and the setting features=file.")
    if s.delayed_size is None or s.purified_size is None or s.expert_batch is None or s.base_batch is None:
        raise UserError("The settings delayed_size, purified_size, expert_batch and base_batch must be given.")
    if vectors and make_filtering(s).has_patches:
        raise UserError("Feature vectors have no patches: choose features=projection or features=penultimate.")
    if vectors and s.network != "mlp":
        raise UserError(f"Feature vectors need the network mlp, not {s.network}.")
    dtype = torch.float32 if vectors else torch.uint8
    head = Head(s.projection_size, hidden=s.projection == "mlp")
    expert = Contrastive(
        epochs=s.expert_epochs,
        batch_size=s.expert_batch,
        learning_rate=s.learning_rate,
        schedule=s.schedule,
        warm_epochs=s.warm_epochs,
        temperature=s.temperature,
        views=_views(s, image_shape, vectors),
    )
    base = replace(expert, epochs=s.base_epochs, batch_size=s.base_batch)
    network = Network(make_backbone(s, image_shape), head, mean, std)
    return SPR(
        network=network,
        n_classes=n_classes,
        delayed=DelayedBuffer(s.delayed_size, image_shape, device=engine.device, dtype=dtype),
        purified=_memory(s, image_shape, n_classes, engine.device, dtype),
        judging=Judging(make_filtering(s), network, expert, brought),
        self_replay=SelfReplay(base, s.replay, s.self_replay, s.base_schedule),
        finetune=Supervised(
            s.finetune_epochs, s.finetune_batch, s.finetune_rate, s.finetune_clip, s.finetune_decay_every
        ),
        engine=engine,
        seed=seed,
        order=s.order,
        tail=s.tail,
        reseed=s.reseed,
    )


def make_filtering(s: SprSettings) -> Filtering:
    return Filtering(
        kind=s.filter,
        features=s.features,
        options=FilterOptions(
            n_graphs=s.graphs,
            small_class=s.small_class,
            scaling=s.scaling,
            posterior=s.posterior,
            n_iter=s.mixture_steps,
        ),
        aum=AreaUnderMargin(s.aum_epochs),
        incv=NoisyCrossValidation(s.incv_rounds, s.incv_epochs),
    )


def make_spr(
    image_shape: tuple[int, int, int],
    n_classes: int,
    *,
    preset: str = "default",
    seed: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> SPR:
    """A learner for images of your own: any setting of `SprSettings` by name; D and P hold 500 samples unless said."""
    settings = own_settings(preset, options, image_shape)
    return build_spr(
        settings, image_shape=image_shape, n_classes=n_classes, engine=Engine(torch.device(device)), seed=seed
    )


def _views(s: SprSettings, image_shape: tuple[int, int, int], vectors: bool) -> Views | FeatureViews:
    if vectors:
        return FeatureViews(image_shape[0], dropout=s.feature_dropout, noise=s.feature_noise)
    jitter = (0.5, 0.5, 0.5, 0.2) if image_shape[0] == 3 else None
    return Views(area=(s.crop_area, 1.0), flip=s.flip, jitter=jitter, jitter_kind=s.jitter)


def _memory(
    s: SprSettings, image_shape: tuple[int, int, int], n_classes: int, device: torch.device, dtype: torch.dtype
) -> PurifiedBuffer | Reservoir:
    assert s.purified_size is not None
    if s.filter == "none":
        return Reservoir(s.purified_size, image_shape, n_classes, device=device, dtype=dtype)
    return PurifiedBuffer(
        s.purified_size,
        image_shape,
        n_classes,
        device=device,
        admission=s.admission,
        eviction=s.eviction,
        dtype=dtype,
    )


def make_backbone(s: SprSettings | RivalSettings, image_shape: tuple[int, int, int]) -> Backbone:
    channels, height, width = image_shape
    if s.network == "mlp":
        return MLP(channels * height * width, (s.hidden, s.hidden))
    if height != width:
        raise UserError(f"The resnet18 takes square images, not {height}×{width}.")
    return ResNet18(channels, height, s.stem)
