"""Self-Purified Replay from its settings, and its entries in the registry of learners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from purereplay.errors import UserError
from purereplay.learners.base import DataSpec, Workload
from purereplay.learners.networks import make_backbone
from purereplay.learners.registry import Entry
from purereplay.learners.settings import DataFacts, resolve
from purereplay.learners.spr.filtering import BufferFilter, FilterChoice
from purereplay.learners.spr.learner import SPR, SelfReplay
from purereplay.learners.spr.settings import SprSettings
from purereplay.memory.delayed import DelayedBuffer
from purereplay.memory.partitioned import PartitionedReservoir
from purereplay.memory.purified import PurifiedBuffer
from purereplay.memory.replay import ReplayMemory
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Contrastive, Supervised
from purereplay.nets.networks import Head, Network
from purereplay.nets.views import FeatureViews, Views
from purereplay.purify.aum import AreaUnderMargin
from purereplay.purify.incv import NoisyCrossValidation
from purereplay.purify.options import FilterOptions


def build_spr(settings: SprSettings, data: DataSpec, *, engine: Engine, seed: int) -> SPR:
    """Return a learner that has seen nothing."""
    return SPR(**spr_arguments(settings, data, engine=engine, seed=seed))


def spr_arguments(s: SprSettings, data: DataSpec, *, engine: Engine, seed: int) -> dict[str, Any]:
    """Return the constructor arguments of SPR, or UserError if settings and data do not fit together."""
    choice = filter_choice(s)
    if (s.features == "file") != (data.features is not None):
        raise UserError("The setting features=file needs a file of features: use --features-file.")
    if data.is_vectors and choice.has_patches:
        raise UserError("Feature vectors have no patches: choose features=projection or features=penultimate.")
    if data.is_vectors and s.network != "mlp":
        raise UserError(f"Feature vectors need the network mlp, not {s.network}.")
    expert = Contrastive(
        epochs=s.expert_epochs,
        batch_size=s.expert_batch,
        lr=s.lr,
        schedule=s.schedule,
        warm_epochs=s.warm_epochs,
        temperature=s.temperature,
        views=_views(s, data),
    )
    network = make_network(s, data)
    return {
        "network": network,
        "n_classes": data.n_classes,
        "delayed": DelayedBuffer(s.delayed_size, data.image_shape, device=engine.device, dtype=data.dtype),
        "purified": _memory(s, data, engine.device),
        "buffer_filter": BufferFilter(
            choice=choice, network=replace(network, n_classes=0), expert=expert, own_features=data.features
        ),
        "self_replay": SelfReplay(
            recipe=replace(expert, epochs=s.base_epochs, batch_size=s.base_batch),
            batches=s.replay,
            when=s.self_replay,
            schedule=s.base_schedule,
        ),
        "finetune": Supervised(
            epochs=s.finetune_epochs,
            batch_size=s.finetune_batch,
            lr=s.finetune_lr,
            clip=s.finetune_clip,
            decay_every=s.finetune_decay_every,
        ),
        "engine": engine,
        "seed": seed,
        "order": s.order,
        "tail": s.tail,
        "reseed": s.reseed,
    }


def make_network(s: SprSettings, data: DataSpec) -> Network:
    """Return the network of the base, without weights; experts have no layer for classes."""
    head = Head(s.projection_size, hidden=s.projection == "mlp")
    # before the first label a layer for classes has one output
    n_classes = max(1, data.n_classes) if s.has_class_layer else 0
    return Network(make_backbone(s, data.image_shape), head, data.mean, data.std, n_classes)


def make_spr(
    image_shape: tuple[int, int, int],
    n_classes: int,
    *,
    preset: str = "default",
    seed: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> SPR:
    """Return a learner for images of your own.

    `options` are settings by name (`purereplay settings` lists them). D and P hold 500 samples by default.
    A learner serves one thread at a time; `SelfPurifiedClassifier` may be shared by threads.
    """
    settings = resolve(SprSettings, options, DataFacts(image_shape), preset=preset)
    data = DataSpec(image_shape=image_shape, n_classes=n_classes)
    return build_spr(settings, data, engine=Engine(torch.device(device)), seed=seed)


def filter_choice(s: SprSettings) -> FilterChoice:
    """Return the filter that the settings describe."""
    return FilterChoice(
        name=s.filter,
        features=s.features,
        options=FilterOptions(
            n_graphs=s.graphs,
            scaling=s.scaling,
            posterior=s.posterior,
            small_class=s.small_class,
            n_iter=s.mixture_steps,
        ),
        aum=AreaUnderMargin(epochs=s.aum_epochs),
        incv=NoisyCrossValidation(rounds=s.incv_rounds, epochs=s.incv_epochs),
    )


def count_steps(s: SprSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count training steps as if P were full from the start."""
    n, d, p = task_ends[-1], s.delayed_size, s.purified_size
    n_buffers = -(-n // d) if s.tail == "process" else n // d
    half = max(1, s.base_batch // 2)
    base_steps = max(1, (d + p) // s.base_batch) if s.replay == "union" else max(1, d // half)
    if s.replay == "purified" or s.self_replay == "task-end":
        base_steps = max(1, p // s.base_batch)
    n_bases = {"every-buffer": n_buffers, "task-end": len(task_ends), "never": 0}[s.self_replay]
    choice = filter_choice(s)
    n_experts = n_buffers if choice.has_experts else 0
    filter_steps = {"aum": choice.aum.n_steps(d), "incv": choice.incv.n_steps(d)}
    steps = {
        "expert": n_experts * s.expert_epochs * max(1, d // s.expert_batch),
        "base": n_bases * s.base_epochs * base_steps,
        "filter": n_buffers * filter_steps.get(s.filter, 0),
        "finetune": len(task_ends) * s.finetune_epochs * max(1, p // s.finetune_batch),
    }
    return Workload(n_buffers, {phase: n for phase, n in steps.items() if n})


def _views(s: SprSettings, data: DataSpec) -> Views | FeatureViews:
    n_channels = data.image_shape[0]
    if data.is_vectors:
        return FeatureViews(n_channels, dropout=s.feature_dropout, noise=s.feature_noise)
    jitter = (0.5, 0.5, 0.5, 0.2) if n_channels == 3 else None
    return Views(area=(s.crop_area, 1.0), flip=s.flip, jitter=jitter, jitter_kind=s.jitter)


def _memory(s: SprSettings, data: DataSpec, device: torch.device) -> PurifiedBuffer | ReplayMemory:
    if s.filter == "none":
        kind = Reservoir if s.reservoir == "plain" else PartitionedReservoir
        return kind(s.purified_size, data.image_shape, data.n_classes, device=device, dtype=data.dtype)
    return PurifiedBuffer(
        s.purified_size,
        data.image_shape,
        data.n_classes,
        device=device,
        admission=s.admission,
        eviction=s.eviction,
        dtype=data.dtype,
    )


SPR_ENTRY = Entry(
    name="spr",
    title="SPR",
    summary="Self-Purified Replay",
    settings=SprSettings,
    build=build_spr,
    count_steps=count_steps,
    named=("filter", "graphs"),
)
SELF_REPLAY_ENTRY = replace(
    SPR_ENTRY,
    name="self-replay",
    title="Self-Replay",
    summary="SPR without the filter: P is a reservoir of the stream",
    fixed={"filter": "none"},
)
SELF_CENTERED_FILTER_ENTRY = replace(
    SPR_ENTRY,
    name="self-centered-filter",
    title="Self-Centered filter",
    summary="SPR without Self-Replay: the classifier starts from random weights",
    fixed={"self_replay": "never"},
)
