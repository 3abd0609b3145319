"""ER-MKD: as CRS, and the network imitates a moving average of its own weights (Michel et al. 2024).

The average θ̄ ← (1 − α) θ̄ + α θ after every step is the teacher. The loss is cross-entropy plus λ times the distance of
the softened predictions, T² KL(teacher ‖ student). The teacher sees random views. The student sees the same views and
the images as they are, and the distance is the mean of both. The mean of the student's and the teacher's weights
predicts, with the student's statistics of batch norm.

Choices where paper and released code differ or leave them open: the average starts at the student's first weights; the
released code starts it at about α times them. Without augmentation, views are the images themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from purereplay.data.forms import Forms, Limits, forms_like
from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.augmentation import AugmentSettings, ViewSettings, settings_views
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.crs import Crs
from purereplay.learners.baselines.online import ONLINE_DEMO, MemorySettings, count_online_steps, online_training
from purereplay.learners.baselines.pool import Pool
from purereplay.learners.registry import Entry
from purereplay.learners.robust.settings import RobustLoss
from purereplay.learners.settings import setting
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier
from purereplay.nets.jobs import Asks
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import State, is_trained
from purereplay.nets.technique import Step, Technique, random_views
from purereplay.nets.views import Views

# chosen on validation data: of the 144 steps, an average of α = 0.01 would remember the first hundred
DEMO = ONLINE_DEMO | {"average_rate": 0.2, "strength": 2.0}
PUBLISHED = {"optimizer": "adam", "lr": 5e-4, "clip": None}
Predictor = Literal["mean", "student", "teacher"]
SHARE_OF_TEACHER: dict[Predictor, float] = {"mean": 0.5, "student": 0.0, "teacher": 1.0}


@dataclass(frozen=True, kw_only=True)
class ErMkdSettings(MemorySettings, AugmentSettings, ViewSettings):
    """Settings of ER-MKD; batches of 10 incoming samples are also those of Michel 2024."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": DEMO, "published": PUBLISHED}

    augment: bool = setting(
        "train on random views of the images of a step", by_data="true for colour images", source="Michel 2024"
    )
    replay_size: int = setting("replayed samples of a step", 64, unit="samples", source="Michel 2024")
    strength: float = setting("weight λ of the distillation", 5.5, source="Michel 2024, released code", least=0)
    temperature: float = setting(
        "temperature T by which logits are divided in the distillation", 4.0, source="Michel 2024"
    )
    average_rate: float = setting("share α of the new weights in the average", 0.01, source="Michel 2024", most=1)
    predictor: Predictor = setting(
        "weights that predict: the student's, the teacher's, or the mean of both", "mean", source="Michel 2024"
    )


@dataclass(frozen=True, kw_only=True)
class MomentumDistillation(Technique):
    """The loss of ER-MKD; `average` (K, parameters) is the teacher as one vector, see `flat`."""

    strength: float
    temperature: float
    rate: float
    views: Views | None  # None: no augmentation

    recorded: ClassVar[tuple[str, ...]] = ("average",)

    def loss(self, step: Step) -> Tensor:
        views = step.images if self.views is None else random_views(step, self.views)
        with torch.no_grad():
            teacher = step.network.outputs(self._teacher(step), views, training=True)
        student = step.network.outputs(step.state, views, training=True)
        distance = self.distance(student, teacher)
        if self.views is not None:
            plain = step.network.outputs(step.state, step.images, training=True)
            distance = (distance + self.distance(plain, teacher)) / 2
        return sample_losses(student, step.labels).mean(1) + self.strength * distance

    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """T² KL(teacher ‖ student) per network (K,) of logits (K, B, classes)."""
        p, q = ((logits / self.temperature).log_softmax(-1) for logits in (teacher, student))
        return self.temperature**2 * (p.exp() * (p - q)).sum(-1).mean(1)

    def _teacher(self, step: Step) -> State:
        """Add the student's present weights to the average, and return it as a network's state."""
        average, now = step.extra["average"], flat(step.state)
        average.copy_(torch.where(step.active[:, None], torch.lerp(average, now, self.rate), average))
        return unflat(average, step.state)


def flat(state: State) -> Tensor:
    """All parameters of K networks as one vector each, (K, parameters), in the order of their names."""
    return torch.cat([state[name].flatten(1) for name in sorted(state) if is_trained(name)], 1)


def unflat(vectors: Tensor, like: State) -> State:
    """States whose parameters are given by vectors (K, parameters); other tensors are copies of those in `like`."""
    names = [name for name in sorted(like) if is_trained(name)]
    parts = torch.split(vectors, [like[name][0].numel() for name in names], 1)
    others = {name: t.clone() for name, t in like.items() if not is_trained(name)}
    return others | {name: t.reshape(like[name].shape) for name, t in zip(names, parts, strict=True)}


@dataclass(kw_only=True)
class ErMkd(Crs):
    """Replay from a reservoir, with distillation from the average of the weights."""

    rate: float
    predictor: Predictor
    average: Tensor = field(init=False)  # (parameters,): it lacks the weights after the last step

    def __post_init__(self) -> None:
        super().__post_init__()
        self.average = self._flat_weights()

    def _flat_weights(self) -> Tensor:
        return flat({name: t[None] for name, t in self.weights.items()})[0]

    def _extra(self, pool: Pool) -> State:
        return super()._extra(pool) | {"average": self.average}

    def _after(self, pool: Pool, extra: State) -> None:
        super()._after(pool, extra)
        self.average = extra["average"]

    def classify(self) -> Asks[Classifier]:
        student = self._flat_weights()
        teacher = torch.lerp(self.average, student, self.rate)
        mixed = torch.lerp(student, teacher, SHARE_OF_TEACHER[self.predictor])
        state = unflat(mixed[None], {name: t[None] for name, t in self.weights.items()})
        return Classifier(self.network, {name: t[0] for name, t in state.items()}, self.image_shape)
        yield  # a generator that requests no training

    def state(self) -> State:
        return super().state() | {"average": self.average}

    def forms(self, state: State, limits: Limits) -> Forms | None:
        return (super().forms(state, limits) or {}) | forms_like({"average": self.average})

    def load(self, state: State) -> None:
        super().load(state)
        self.average = state["average"].to(self.engine.device)


def build(settings: ErMkdSettings, data: DataSpec, *, engine: Engine, seed: int) -> ErMkd:
    """Return a learner that has seen nothing."""
    s = settings
    loss = MomentumDistillation(
        strength=s.strength,
        temperature=s.temperature,
        rate=s.average_rate,
        views=settings_views(s, data) if s.augment else None,
    )
    return ErMkd(
        **common_arguments(s, data, engine=engine, seed=seed, loss=RobustLoss(loss)),
        memory=make_memory(Reservoir, s.memory_size, data, engine),
        training=online_training(s),
        rate=s.average_rate,
        predictor=s.predictor,
    )


ENTRY = Entry(
    name="er-mkd",
    title="ER-MKD",
    summary="as crs, and imitates a moving average of its own weights",
    settings=ErMkdSettings,
    build=build,
    count_steps=count_online_steps,
    named=("robust",),
)
