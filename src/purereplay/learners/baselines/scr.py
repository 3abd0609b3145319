"""SCR: replay with a supervised contrastive loss; the nearest class mean predicts (Mai et al. 2021).

Every sample is taken twice, as it is and as a random view. Projections of samples with the same label are drawn
together, those of others apart. The classifier is made when it is requested: it compares the features of an image with
the mean features of each class in the memory.

Choices where the papers leave them open: as in the released code, features and means have length 1, and images and
views pass the network separately. A class without samples in the memory is never predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.augmentation import ViewSettings, settings_views
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.crs import Crs
from purereplay.learners.baselines.online import (
    LR_BY_NETWORK,
    ONLINE_DEMO,
    MemorySettings,
    count_online_steps,
    online_training,
)
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import RobustLoss
from purereplay.learners.settings import setting
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier, embed
from purereplay.nets.jobs import Asks
from purereplay.nets.losses import supervised_contrastive
from purereplay.nets.networks import BACKBONE, HEAD, Head, Network, State
from purereplay.nets.technique import Step, Technique, random_views
from purereplay.nets.views import Views

DEMO = ONLINE_DEMO | {"lr": 0.1, "crop_area": 0.6}  # chosen on validation data
PUBLISHED = {"optimizer": "sgd", "lr": 0.1, "clip": None}


@dataclass(frozen=True, kw_only=True)
class ScrSettings(MemorySettings, ViewSettings):
    """Settings of SCR; batches of 10 incoming samples are also those of Mai 2021."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": DEMO, "published": PUBLISHED}
    lr_by_network: ClassVar[Mapping[str, float]] = LR_BY_NETWORK | {"mlp": 1e-4}

    lr: float = setting(
        "learning rate", by_data="0.0001 for the mlp, best on validation data; 0.0005 for the resnet18, as `crs`"
    )
    replay_size: int = setting("replayed samples of a step", 100, unit="samples", source="Mai 2021")
    temperature: float = setting("temperature of the loss", 0.07, source="Mai 2021")
    projection_size: int = setting("outputs of the projection head", 128, unit="units", source="Mai 2021")


@dataclass(frozen=True, kw_only=True)
class SupervisedContrast(Technique):
    """The loss of SCR; the network has a projection head."""

    temperature: float
    projection_size: int
    views: Views

    def prepare(self, network: Network) -> Network:
        return replace(network, head=Head(self.projection_size, hidden=True))

    def loss(self, step: Step) -> Tensor:
        both = (step.images, random_views(step, self.views))
        projections = torch.cat([step.network.outputs(step.state, images, training=True) for images in both], 1)
        return supervised_contrastive(projections, step.labels.repeat(1, 2), self.temperature)


class Scr(Crs):
    """Replay from a reservoir with a contrastive loss, and a classifier of class means."""

    def classify(self) -> Asks[Classifier]:
        state = class_mean_state(self.network, self.weights, self.memory.contents(), self.n_classes)
        return Classifier(replace(self.network, head=Head(self.n_classes)), state, self.image_shape)
        yield  # a generator that requests no training


def class_mean_state(network: Network, weights: State, held: Batch, n_classes: int) -> State:
    """Return the weights of a network whose logits are largest for the class with the nearest mean.

    Means have length 1, so the nearest one has the largest product with the features, whatever their length.
    """
    features = F.normalize(embed(network, weights, held.images, penultimate=True), dim=1)
    of_class = F.one_hot(held.labels.to(features.device), n_classes).to(features.dtype)
    means = F.normalize(of_class.T @ features, dim=1)  # (n_classes, n_features)
    absent = ~of_class.bool().any(0) & (held.n > 0)
    bias = torch.zeros(n_classes, device=features.device).masked_fill(absent, -torch.inf)
    head = {f"{HEAD}output.weight": means.T.contiguous(), f"{HEAD}output.bias": bias}
    return {name: t for name, t in weights.items() if name.startswith(BACKBONE)} | head


def build(settings: ScrSettings, data: DataSpec, *, engine: Engine, seed: int) -> Scr:
    """Return a learner that has seen nothing."""
    s = settings
    loss = SupervisedContrast(
        temperature=s.temperature, projection_size=s.projection_size, views=settings_views(s, data)
    )
    return Scr(
        **common_arguments(s, data, engine=engine, seed=seed, loss=RobustLoss(loss)),
        memory=make_memory(Reservoir, s.memory_size, data, engine),
        training=online_training(s),
    )


ENTRY = Entry(
    name="scr",
    title="SCR",
    summary="replays with a supervised contrastive loss; the nearest class mean of the memory predicts",
    settings=ScrSettings,
    build=build,
    count_steps=count_online_steps,
    named=("robust",),
)
