"""How full delayed buffers are judged: by the Self-Centered filter or a rival of it, each buffer by itself.

What goes in are buffers that wait; what comes out is each sample's probability of being clean (paper, section 3.2).
The filter's features are those of an expert network trained on the buffer without labels, unless something else is
asked for: patches of the images, in its place or beside it, or rows of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from purereplay.learners.waiting import Waiting
from purereplay.nets.inference import embed
from purereplay.nets.jobs import Asks, Contrastive, Job
from purereplay.nets.networks import Network, State
from purereplay.purify.aum import AreaUnderMargin
from purereplay.purify.directions import concatenate_features, main_directions
from purereplay.purify.incv import NoisyCrossValidation
from purereplay.purify.options import DEFAULTS, FilterOptions
from purereplay.purify.patches import patch_features
from purereplay.purify.self_centered import Verdict, score_buffers

Features = Literal["projection", "penultimate", "patches", "combined", "file"]
Seeds = Callable[[str, int], int]  # of (what it is for, number of the buffer)


@dataclass(frozen=True)
class Filtering:
    """Which filter, and how it is set."""

    kind: Literal["self-centered", "aum", "incv", "none"] = "self-centered"  # none: everything is taken to be clean
    features: Features = "projection"  # file: `Judging.brought`
    options: FilterOptions = DEFAULTS  # of the Self-Centered filter
    aum: AreaUnderMargin = field(default_factory=AreaUnderMargin)
    incv: NoisyCrossValidation = field(default_factory=NoisyCrossValidation)

    @property
    def has_experts(self) -> bool:
        """Whether a network is trained on every buffer for its features."""
        return self.kind == "self-centered" and self.features not in ("patches", "file")

    @property
    def has_patches(self) -> bool:
        return self.kind == "self-centered" and self.features in ("patches", "combined")


@dataclass
class Judging:
    """Judges buffers; nothing is kept from one to the next."""

    filtering: Filtering
    network: Network  # of an expert, with a projection head
    expert: Contrastive
    brought: Tensor | None = None  # (N, d): features by sample index, where the filter's are not an expert's
    apart: bool = False  # buffer by buffer, slower on a GPU, where the bits depend on what is judged together

    def judge(self, new: list[Waiting], n_classes: int, seed: Seeds) -> Asks[None]:
        """Write the verdict on each of these buffers into it."""
        f = self.filtering
        if f.kind == "none":
            ones = [torch.ones(w.batch.n, dtype=torch.float64) for w in new]
            verdicts = [Verdict(p, p.clone(), []) for p in ones]
        elif f.kind == "self-centered":
            verdicts = self._self_centered(new, (yield from self._features(new, seed)), seed)
        else:
            rival: AreaUnderMargin | NoisyCrossValidation = f.aum if f.kind == "aum" else f.incv
            seeds = [seed(f.kind, w.number) for w in new]
            verdicts = yield from rival.score(self.network, [w.batch for w in new], n_classes, seeds)
        for w, verdict in zip(new, verdicts, strict=True):
            w.centrality = verdict.centrality.to("cpu", copy=True)
            w.clean_probability = verdict.clean_probability.to("cpu", copy=True)

    def _features(self, new: list[Waiting], seed: Seeds) -> Asks[list[Tensor]]:
        """What the Self-Centered filter compares, (n, d) for each buffer."""
        if self.brought is not None:
            return [self.brought[w.batch.index].to(w.batch.images.device) for w in new]
        if not self.filtering.has_patches:
            return (yield from self._train_experts(new, seed))
        patches = [patch_features(w.batch.images, seed("patches", w.number)) for w in new]
        if not self.filtering.has_experts:
            return patches
        trained = yield from self._train_experts(new, seed)
        return [
            concatenate_features(main_directions(own), beside) for own, beside in zip(trained, patches, strict=True)
        ]

    def _train_experts(self, new: list[Waiting], seed: Seeds) -> Asks[list[Tensor]]:
        """A fresh network on each of these buffers, without labels, and what it makes of the images."""

        def fresh(w: Waiting) -> State:
            return self.network.fresh(seed("expert weights", w.number), w.batch.images.device)

        with ThreadPoolExecutor() as pool:  # each network draws its weights from a generator of its own
            states = list(pool.map(fresh, new))
        jobs = [
            Job(
                phase="expert",
                network=self.network,
                state=state,
                recipe=replace(self.expert, batch_size=min(self.expert.batch_size, w.batch.n)),
                images=w.batch.images,
                seed=seed("expert draws", w.number),
            )
            for w, state in zip(new, states, strict=True)
        ]
        trained = yield jobs
        for w, t in zip(new, trained, strict=True):
            w.expert_loss = t.loss
        penultimate = self.filtering.features == "penultimate"
        return [
            embed(self.network, t.state, w.batch.images, penultimate=penultimate)
            for w, t in zip(new, trained, strict=True)
        ]

    def _self_centered(self, new: list[Waiting], features: list[Tensor], seed: Seeds) -> list[Verdict[Tensor]]:
        """What the filter says of every buffer; it depends on nothing but the buffer and its features."""
        if self.apart and len(new) > 1:
            return [self._self_centered([w], [own], seed)[0] for w, own in zip(new, features, strict=True)]
        seeds = [seed("graphs", w.number) for w in new]
        return score_buffers(features, [w.batch.labels for w in new], seeds, options=self.filtering.options)
