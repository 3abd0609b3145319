"""Pure Replay: Self-Purified Replay in which the labels that pass the filter also teach.

Everything of Self-Purified Replay stays: the delayed buffer D, the Self-Centered filter, the purified buffer P and
NT-Xent on D ∪ P. Seven parts are added, each a setting that can be switched off; without all of them the learner is
`spr` with features=patches.

    purified_weight  the base also learns P's labels, by cross-entropy over all classes seen so far
    delayed_weight   and D's labels, each weighted by its clean probability, over the classes of D only, so that new
                     classes do not push down the old ones (Caccia et al. 2022)
    average          a moving average of the base's weights scores new samples and classifies
    base_features    the filter compares images by the average's projections as well
    sharpening       the average's opinion of the given label sharpens the filter's clean probability
    agreement        so does the agreement of the label with those of similar samples in D and P
    purified_ceiling samples above this clean probability rank equally in P, so that P is more varied

One more part is off by default: `distillation` keeps the logits that P's samples had before a buffer (Buzzega et al.
2020), as the moving average gives them.

The scores of a buffer depend on the base as trained on the buffers before it, so buffers are scored one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.data.forms import Form, Forms, Limits, forms_like, n_rows, prefixed
from purereplay.errors import UserError
from purereplay.learners.base import DataSpec, Workload, optimizer_forms
from purereplay.learners.registry import Entry
from purereplay.learners.settings import DataFacts, preset_values, setting
from purereplay.learners.spr.buffers import FullBuffer, ScoredBuffer
from purereplay.learners.spr.build import count_steps as count_spr_steps
from purereplay.learners.spr.build import spr_arguments
from purereplay.learners.spr.learner import SPR, warn_if_collapsed
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine
from purereplay.nets.inference import UNLIKELY, Classifier, embed, linear_probe
from purereplay.nets.jobs import Asks, Joint, JointJob
from purereplay.nets.lockstep import diverged
from purereplay.nets.networks import BACKBONE, CLASSES, HEAD, Head, Network, State, part
from purereplay.purify.agreement import label_agreement
from purereplay.purify.directions import concatenate_features, main_directions
from purereplay.purify.patches import patch_features

_DIRECTIONS = 64  # main directions that the agreement compares, of each kind of features
_TIE_BREAK = 1e-6  # share of a clean probability that a draw may take off, so that equal ones have an order
_LEAST_OPINION = 1e-6  # of the classifier on a given label, so that no clean probability is 0


@dataclass(frozen=True, kw_only=True)
class PureReplaySettings(SprSettings):
    """Settings of Pure Replay; where no source is given, the value was chosen on validation data."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "demo": {"hidden": 128, "base_epochs": 60, "distillation": 1.0},
        "live": {
            "delayed_size": 500,
            "purified_size": 1000,
            "network": "mlp",
            "hidden": 256,
            "base_epochs": 20,
            "base_batch": 100,
            "lr": 2e-3,
            "crop_area": 0.25,
            "flip": 0.0,
            "small_class": "keep",
            "contrastive_weight": 0.0,
            "base_features": False,
            "sharpening": 0.3,
            "agreement": 0.4,
            "purified_ceiling": 1.0,
            "admission": "partitioned",
        },
    }

    added: ClassVar[Mapping[str, Any]] = {"purified_ceiling": 1.0, "distillation": 0.0}

    stem: Literal["imagenet", "small"] = setting("first layer of the resnet18: 7×7 with pooling, or 3×3", "small")
    base_epochs: int = setting("passes over D of the base network, per buffer", 30, unit="epochs", scaled=True)
    base_batch: int = setting(
        "batch size of the base, D and P together",
        unit="samples",
        by_data="128 for colour images, otherwise the size of D",
        least=2,
    )
    lr: float = setting("learning rate of Adam for experts and base", 5e-4)
    crop_area: float = setting(
        "smallest share of an image's area that a view keeps",
        by_data="0.25 for grey images, 0.08 for colour",
        least=1e-6,
        most=1,
    )
    flip: float = setting(
        "probability that a view is mirrored; 0 for letters and digits",
        by_data="0 for grey images, 0.5 for colour",
        least=0,
        most=1,
    )
    schedule: Literal["cosine", "constant"] = setting("learning rate schedule within one D", "constant")
    features: Literal["projection", "penultimate", "patches", "combined", "inputs", "file"] = setting(
        "features that the Self-Centered filter compares, as in `spr`; base_features adds the base's", "patches"
    )
    contrastive_weight: float = setting("weight of NT-Xent in the base's loss", 1.0, least=0)
    purified_weight: float = setting("weight of the cross-entropy on P in the base's loss; 0: off", 1.0, least=0)
    delayed_weight: float = setting("weight of the cross-entropy on D in the base's loss; 0: off", 1.0, least=0)
    average: float = setting(
        "decay per step of the moving average of the base's weights; 0: off", 0.99, least=0, most=0.99999
    )
    distillation: float = setting(
        "weight of the squared error between the logits of P and those of the moving average before the buffer; 0: off",
        0.0,
        least=0,
    )
    base_features: bool = setting("the filter also compares the main directions of the base's projections", True)
    sharpening: float = setting(
        "exponent of the classifier's opinion in the clean probability: filter^(1-s-a) · opinion^s · agreement^a",
        0.4,
        least=0,
        most=1,
    )
    agreement: float = setting(
        "exponent of the label's agreement with similar samples in D and P in the clean probability; 0: off",
        0.4,
        least=0,
        most=1,
    )
    admission: Literal["greedy", "partitioned"] = setting("admission into a full P", "greedy", source="paper")
    purified_ceiling: float = setting(
        "clean probabilities above this count as equal in P, and which sample leaves is drawn; 1: the lowest leaves",
        0.5,
        least=0,
        most=1,
    )
    classifier: Literal["probe", "layer", "finetuned"] = setting(
        "classifier: logistic regression on P's features, the base's own layer, or Algorithm 2 (needs finetune_*)",
        "probe",
    )

    @property
    def learns_labels(self) -> bool:
        """Whether the base learns labels."""
        return bool(self.purified_weight or self.delayed_weight)

    @property
    def has_class_layer(self) -> bool:
        return self.learns_labels or self.average > 0

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        is_colour = facts.image_shape[0] == 3 and not facts.is_vectors
        by_data = {"crop_area": 0.08, "flip": 0.5} if is_colour else {"crop_area": 0.25, "flip": 0.0}
        values = by_data | preset_values(cls, preset) | chosen
        if is_colour:
            values.setdefault("base_batch", 128)
        values = super().fill(values, facts, preset)
        if "features" not in chosen and "expert_epochs" not in chosen and facts.is_vectors:
            values["features"] = "inputs"
        return values

    def check(self) -> None:
        super().check()
        if self.has_class_layer and (self.replay != "halves" or self.self_replay != "every-buffer"):
            raise UserError(
                "pure-replay trains on halves of D and P at every buffer: replay and self_replay can be changed only "
                "with purified_weight=0, delayed_weight=0 and average=0."
            )
        if not self.learns_labels and (self.sharpening or self.distillation or self.classifier == "layer"):
            raise UserError(
                "sharpening, distillation and classifier=layer need a base that learns labels: purified_weight or "
                "delayed_weight."
            )
        if self.sharpening + self.agreement > 1:
            raise UserError(f"sharpening + agreement must be at most 1, not {self.sharpening + self.agreement:g}.")
        if not (self.learns_labels or self.contrastive_weight):
            raise UserError("The base learns nothing: raise one of contrastive_, purified_ and delayed_weight above 0.")


@dataclass(kw_only=True)
class PureReplay(SPR):
    """One continual learner."""

    joint: Joint | None  # the base's training; None: as in Self-Purified Replay
    base_features: bool
    sharpening: float
    agreement: float
    purified_ceiling: float
    how_to_classify: Literal["probe", "layer", "finetuned"]
    average: State = field(init=False)  # moving average of the base
    seen: Tensor = field(init=False)  # bool (n_classes,): classes that the base was trained on

    def __post_init__(self) -> None:
        super().__post_init__()
        self.average = {name: t.clone() for name, t in self.base.items()}
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool)

    @property
    def inference_base(self) -> State:
        return self.base if self.joint is None else self.average

    def grow(self, n_classes: int) -> None:
        super().grow(n_classes)
        self.seen = torch.cat([self.seen, self.seen.new_zeros(self.n_classes - self.seen.shape[0])])

    # ---------------------------------------------------------------- clean probabilities

    def _to_score(self) -> list[FullBuffer]:
        return [] if self.scored else self.waiting[:1]

    def _score(self, buffers: list[FullBuffer]) -> Asks[list[ScoredBuffer]]:
        more = None
        if self.base_features and self.n_replays:  # before its first training the base has random weights
            more = [main_directions(self._by_base(b.batch.images)) for b in buffers]
        scored = yield from self.buffer_filter.score(buffers, self.n_classes, self._seed, more)
        for buffer in scored:
            buffer.clean_probability = self._sharpened(buffer)
        return scored

    def _by_base(self, images: Tensor, *, penultimate: bool = False) -> Tensor:
        """Return the features of images by the trained base; UserError if its training diverged."""
        features = embed(self.network, self.inference_base, images, penultimate=penultimate)
        if not bool(features.isfinite().all()):
            raise diverged("base")
        return features

    def _sharpened(self, buffer: ScoredBuffer) -> Tensor:
        """Clean probabilities float64 (n,): the filter's, the opinion of the classifier, and the labels' agreement.

        Their weighted geometric mean. The classifier has no opinion on a label that it has never seen.
        """
        labels, by_filter = buffer.batch.labels, buffer.clean_probability
        rest = torch.full_like(by_filter, 1 - self.agreement)
        sharpened = torch.ones_like(by_filter)
        if self.agreement:
            sharpened = self._agreement(buffer).clamp(_LEAST_OPINION, 1) ** self.agreement
        if self.sharpening and self.n_replays:
            n_known = self.network.n_classes  # a wider layer would round differently
            chances = self._by_layer(n_known).probabilities(buffer.batch.images).double().cpu()
            opinion = chances.gather(1, labels.clamp(max=n_known - 1)[:, None])[:, 0]
            opinion = (opinion / opinion.max().clamp(min=1e-9)).clamp(_LEAST_OPINION, 1)
            exponent = self.sharpening * self.seen[labels]
            sharpened, rest = sharpened * opinion**exponent, rest - exponent
        return by_filter ** rest.clamp(min=0) * sharpened  # rounding may leave less than 0

    def _agreement(self, buffer: ScoredBuffer) -> Tensor:
        """Agreement float64 (n,) of the buffer's labels with those of similar samples in D and P."""
        delayed, purified = buffer.batch, self.held()
        images, labels = torch.cat([delayed.images, purified.images]), torch.cat([delayed.labels, purified.labels])
        kinds = []
        if delayed.images.dtype == torch.uint8:
            kinds.append(patch_features(images, self._seed("patches", buffer.number), _DIRECTIONS))
        else:
            kinds.append(main_directions(images.flatten(1), _DIRECTIONS))
        if self.base_features and self.n_replays:
            kinds.append(main_directions(self._by_base(images), _DIRECTIONS))
        return label_agreement(concatenate_features(*kinds), labels, delayed.n).cpu()

    def _rank_values(self, clean_probability: Tensor, number: int) -> Tensor:
        if self.purified_ceiling == 1:
            return clean_probability
        generator = torch.Generator().manual_seed(self._seed("standing", number))
        tie_break = 1 - _TIE_BREAK * torch.rand(clean_probability.shape, generator=generator, dtype=torch.float64)
        return clean_probability.clamp(max=self.purified_ceiling) * tie_break

    # ---------------------------------------------------------------- training of the base

    def _replay(self, buffer: ScoredBuffer) -> Asks[None]:
        if self.joint is None:
            yield from super()._replay(buffer)
        elif not buffer.replayed:
            buffer.base_loss = yield from self._train_jointly(self.joint, buffer)
            buffer.replayed = True

    def _train_jointly(self, recipe: Joint, buffer: ScoredBuffer) -> Asks[float | None]:
        """Train the base on half of D and half of P at each step; returns the last loss.

        The layer for classes gets an output when its class is first trained on, not when it is announced: products of
        other widths round differently, and the pieces of a stream must not matter.
        """
        delayed, purified, device = buffer.batch, self.held(), self.engine.device
        if delayed.n + purified.n < 2:
            return None
        size = recipe.batch_size // 2 if purified.n else recipe.batch_size
        size = max(1, min(size, delayed.n))
        seen = self.seen.clone()
        seen[delayed.labels] = seen[purified.labels] = True
        present = torch.zeros_like(seen)
        present[delayed.labels] = True
        n_outputs = max(self.network.n_classes, int(seen.nonzero().max()) + 1)
        network = replace(self.network, n_classes=n_outputs)
        n_empty = self.purified.capacity - purified.n if purified.n else 0
        replay = torch.cat([purified.images, purified.images.new_zeros(n_empty, *self.image_shape)])
        job = JointJob(
            phase="base",
            network=network,
            state=_widened(self.base, n_outputs),
            recipe=replace(recipe, batch_size=size, replay_size=size if purified.n else 0),
            images=delayed.images,
            replay=replay if purified.n else None,
            seed=self._seed("base draws", self.n_replays),
            optimizer=None if self.base_optimizer is None else _widened(self.base_optimizer, n_outputs),
            labels=torch.cat([delayed.labels, purified.labels, purified.labels.new_zeros(n_empty)]).to(device),
            weights=torch.cat([self._label_weights(buffer), torch.ones(purified.n + n_empty)]).to(device),
            allowed=self._allowed(present, seen)[:, :n_outputs].to(device),
            average=_widened(self.average, n_outputs),
            held=purified.n,
        )
        if recipe.distillation:
            remembered, known = self._remembered(purified.images, delayed.n, n_empty, n_outputs)
            job = replace(job, remembered=remembered, known=known)
        [trained] = yield [job]
        self.base, self.base_optimizer, self.average = trained.state, trained.optimizer, trained.extra
        self.network, self.seen, self.n_replays = network, seen, self.n_replays + 1
        return trained.loss

    def _remembered(self, purified: Tensor, n_before: int, n_after: int, n_outputs: int) -> tuple[Tensor, Tensor]:
        """Return logits of P by the moving average, and the classes that it knows: bool (n_outputs,).

        Rows of zeros stand for D, before those of P, and for empty places, after them.
        """
        logits = self._by_layer(n_outputs).logits(purified)
        known = self.seen[:n_outputs] if self.n_replays else torch.zeros(n_outputs, dtype=torch.bool)
        return F.pad(logits, (0, 0, n_before, n_after)), known.to(logits.device)

    def _label_weights(self, buffer: ScoredBuffer) -> Tensor:
        """Return the weight of each label of D in the cross-entropy: float32 (n,)."""
        return buffer.clean_probability.float()

    def _allowed(self, present: Tensor, seen: Tensor) -> Tensor:
        """Return the classes that the cross-entropies on D and on P compare, bool (2, n_classes).

        `present` are the classes of D, `seen` all classes so far.
        """
        return torch.stack([present, seen])

    # ---------------------------------------------------------------- the classifier

    def classify(self) -> Asks[Classifier]:
        if self.how_to_classify == "finetuned":
            return (yield from super().classify())
        if self._classifier is None:
            self._classifier = self._by_layer(self.n_classes) if self.how_to_classify == "layer" else self._by_probe()
            warn_if_collapsed(self._classifier, self.held())
        return self._classifier

    def _by_layer(self, n_outputs: int) -> Classifier:
        """Return the classifier by the base's own layer for classes; unseen classes are not predicted."""
        own = part(self.average, CLASSES)
        n_more = n_outputs - self.network.n_classes
        weight, bias = (F.pad(own[name], (0, n_more)) for name in ("weight", "bias"))
        seen = self.seen[:n_outputs].to(bias.device)
        return self._linear(weight, bias.masked_fill(~seen, UNLIKELY) if bool(seen.any()) else bias)

    def _by_probe(self) -> Classifier:
        """Return the classifier by logistic regression on P; an empty P leaves all classes equal."""
        purified, width = self.held(), self.network.backbone.n_features
        if not purified.n:
            zeros = torch.zeros(width + 1, self.n_classes, device=self.engine.device)
            return self._linear(zeros[:-1], zeros[-1])
        features = self._by_base(purified.images, penultimate=True)
        return self._linear(*linear_probe(features, purified.labels, self.n_classes))

    def _linear(self, weight: Tensor, bias: Tensor) -> Classifier:
        network: Network = replace(self.network, head=Head(bias.shape[0]), n_classes=0)
        backbone = {name: t for name, t in self.inference_base.items() if name.startswith(BACKBONE)}
        layer = {f"{HEAD}output.weight": weight, f"{HEAD}output.bias": bias}
        return Classifier(network, backbone | layer, self.image_shape, self.delayed.dtype)

    # ---------------------------------------------------------------- memory between calls

    def state(self) -> State:
        own = {} if self.joint is None else prefixed("average.", self.average) | {"seen": self.seen}
        return super().state() | own

    def forms(self, state: State, limits: Limits) -> Forms:
        forms = super().forms(state, limits)
        if self.joint is None:
            return forms
        n_outputs = n_rows(state, f"base.{CLASSES}bias", max(1, limits.n_classes))
        base = _widened(self.base, max(n_outputs, self.network.n_classes))
        forms |= prefixed("base.", forms_like(base)) | prefixed("average.", forms_like(base))
        if any(name.startswith("optimizer.") for name in forms):
            forms |= prefixed("optimizer.", optimizer_forms(base))
        return forms | {"seen": Form(torch.bool, (limits.n_classes,))}

    def load(self, state: State) -> None:
        super().load(state)
        if self.joint is not None:
            self.average = {name: t.to(self.engine.device) for name, t in part(state, "average.").items()}
            self.network = replace(self.network, n_classes=state[f"base.{CLASSES}bias"].shape[-1])
            self.seen = state["seen"].cpu().clone()


def _widened(state: State, n_classes: int) -> State:
    """Return the state with zeros for the classes that its layer for classes lacks."""
    names = [name for name in state if f"{CLASSES}weight" in name or f"{CLASSES}bias" in name]
    wide = {}
    for name in names:
        t = state[name]
        wide[name] = torch.cat([t, t.new_zeros(*t.shape[:-1], n_classes - t.shape[-1])], dim=-1)
    return state | wide


def build(settings: PureReplaySettings, data: DataSpec, *, engine: Engine, seed: int) -> PureReplay:
    """Return a learner that has seen nothing."""
    s = settings
    arguments = spr_arguments(s, data, engine=engine, seed=seed)
    joint = None
    if s.has_class_layer:
        recipe = arguments["self_replay"].recipe
        joint = Joint(
            **{f.name: getattr(recipe, f.name) for f in fields(recipe)},
            contrastive=s.contrastive_weight,
            delayed=s.delayed_weight,
            purified=s.purified_weight,
            average=s.average,
            distillation=s.distillation,
        )
    return PureReplay(
        **arguments,
        joint=joint,
        base_features=s.base_features,
        sharpening=s.sharpening,
        agreement=s.agreement,
        purified_ceiling=s.purified_ceiling,
        how_to_classify=s.classifier,
    )


def count_steps(s: PureReplaySettings, task_ends: tuple[int, ...]) -> Workload:
    """Count training steps as if P were full from the start."""
    workload = count_spr_steps(s, task_ends)
    if s.classifier != "finetuned":
        workload.steps.pop("finetune", None)
    return workload


ENTRY = Entry(
    name="pure-replay",
    title="Pure Replay",
    summary="Self-Purified Replay in which the labels that pass the filter also teach",
    settings=PureReplaySettings,
    build=build,
    count_steps=count_steps,
    named=("filter", "graphs"),
)
