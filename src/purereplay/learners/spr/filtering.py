"""Filtering of full delayed buffers: the Self-Centered filter, AUM or INCV, each buffer by itself.

In: full delayed buffers. Out: the probability of being clean of each sample (paper, section 3.2). The Self-Centered
filter compares the features of an expert network, which is trained on the buffer without labels. Other choices are
patches of the images, both together, or features from a file.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from purereplay.learners.spr.buffers import FullBuffer, ScoredBuffer
from purereplay.nets.inference import embed
from purereplay.nets.jobs import Asks, Contrastive, ContrastiveJob
from purereplay.nets.lockstep import diverged
from purereplay.nets.networks import Network, State, network_input
from purereplay.purify.aum import AreaUnderMargin
from purereplay.purify.directions import concatenate_features, main_directions
from purereplay.purify.incv import NoisyCrossValidation
from purereplay.purify.options import FilterOptions
from purereplay.purify.patches import patch_features
from purereplay.purify.self_centered import Verdict, score_buffers

FilterName = Literal["self-centered", "aum", "incv", "none"]
Features = Literal["projection", "penultimate", "patches", "combined", "inputs", "file"]
SeedFor = Callable[[str, int], int]  # (purpose, number of the buffer) -> seed


@dataclass(frozen=True, kw_only=True)
class FilterChoice:
    """The filter and its options."""

    name: FilterName  # none: every sample counts as clean
    features: Features  # file: `BufferFilter.own_features`
    options: FilterOptions  # of the Self-Centered filter
    aum: AreaUnderMargin = field(default_factory=AreaUnderMargin)
    incv: NoisyCrossValidation = field(default_factory=NoisyCrossValidation)

    @property
    def has_experts(self) -> bool:
        """Whether an expert network is trained on every buffer."""
        return self.name == "self-centered" and self.features not in ("patches", "inputs", "file")

    @property
    def has_patches(self) -> bool:
        return self.name == "self-centered" and self.features in ("patches", "combined")


@dataclass(kw_only=True)
class BufferFilter:
    """Scores buffers; keeps nothing from one buffer to the next."""

    choice: FilterChoice
    network: Network  # of an expert, with a projection head
    expert: Contrastive
    own_features: Tensor | None = None  # (N, d): the user's features by sample index, for features=file
    one_by_one: bool = False  # score buffers separately: slower on a GPU, but bits do not depend on the grouping

    def score(
        self, buffers: list[FullBuffer], n_classes: int, seed_for: SeedFor, more: list[Tensor] | None = None
    ) -> Asks[list[ScoredBuffer]]:
        """Return the buffers with a clean probability for every sample.

        `more` holds other features of each buffer, (n, d), that the Self-Centered filter compares as well.
        """
        choice = self.choice
        losses: list[float | None] = [None] * len(buffers)
        if choice.name == "none":
            ones = [torch.ones(b.batch.n, dtype=torch.float64) for b in buffers]
            verdicts = [Verdict(p, p.clone(), []) for p in ones]
        elif choice.name == "self-centered":
            features, losses = yield from self.buffer_features(buffers, seed_for)
            if more is not None:
                features = [concatenate_features(one, other) for one, other in zip(features, more, strict=True)]
            verdicts = self._self_centered(buffers, features, seed_for)
        else:
            supervised: AreaUnderMargin | NoisyCrossValidation = choice.aum if choice.name == "aum" else choice.incv
            seeds = [seed_for(choice.name, b.number) for b in buffers]
            verdicts = yield from supervised.score(self.network, [b.batch for b in buffers], n_classes, seeds)
        return [
            ScoredBuffer(
                b.number,
                b.batch,
                clean_probability=v.clean_probability.to("cpu", copy=True),
                centrality=v.centrality.to("cpu", copy=True),
                expert_loss=loss,
            )
            for b, v, loss in zip(buffers, verdicts, losses, strict=True)
        ]

    def buffer_features(
        self, buffers: list[FullBuffer], seed_for: SeedFor
    ) -> Asks[tuple[list[Tensor], list[float | None]]]:
        """Return the features that the Self-Centered filter compares, (n, d) per buffer, and the experts' losses."""
        no_loss: list[float | None] = [None] * len(buffers)
        if self.choice.features == "inputs":
            return [main_directions(network_input(b.batch.images).flatten(1)) for b in buffers], no_loss
        if self.own_features is not None:
            return [self.own_features[b.batch.index].to(b.batch.images.device) for b in buffers], no_loss
        if not self.choice.has_patches:
            return (yield from self.train_experts(buffers, seed_for))
        patches = [patch_features(b.batch.images, seed_for("patches", b.number)) for b in buffers]
        if not self.choice.has_experts:
            return patches, no_loss
        learned, losses = yield from self.train_experts(buffers, seed_for)
        return [concatenate_features(main_directions(own), p) for own, p in zip(learned, patches, strict=True)], losses

    def train_experts(
        self, buffers: list[FullBuffer], seed_for: SeedFor
    ) -> Asks[tuple[list[Tensor], list[float | None]]]:
        """Train a fresh network on each buffer without labels; returns its features and losses."""

        def fresh(buffer: FullBuffer) -> State:
            return self.network.fresh(seed_for("expert weights", buffer.number), buffer.batch.images.device)

        if len(buffers) == 1:
            states = [fresh(buffers[0])]  # an interrupt cannot leave a thread behind
        else:
            with ThreadPoolExecutor() as pool:  # each network draws its weights from its own generator
                states = list(pool.map(fresh, buffers))
        jobs = [
            ContrastiveJob(
                phase="expert",
                network=self.network,
                state=state,
                recipe=replace(self.expert, batch_size=min(self.expert.batch_size, b.batch.n)),
                images=b.batch.images,
                seed=seed_for("expert draws", b.number),
            )
            for b, state in zip(buffers, states, strict=True)
        ]
        trained = yield jobs
        penultimate = self.choice.features == "penultimate"
        features = [
            embed(self.network, t.state, b.batch.images, penultimate=penultimate)
            for b, t in zip(buffers, trained, strict=True)
        ]
        if not all(bool(own.isfinite().all()) for own in features):  # a loss is that before the last step
            raise diverged("expert")
        return features, [t.loss for t in trained]

    def _self_centered(
        self, buffers: list[FullBuffer], features: list[Tensor], seed_for: SeedFor
    ) -> list[Verdict[Tensor]]:
        """Return the filter's verdict on every buffer; it depends on the buffer and its features alone."""
        if self.one_by_one and len(buffers) > 1:
            return [self._self_centered([b], [own], seed_for)[0] for b, own in zip(buffers, features, strict=True)]
        seeds = [seed_for("graphs", b.number) for b in buffers]
        return score_buffers(features, [b.batch.labels for b in buffers], seeds, options=self.choice.options)
