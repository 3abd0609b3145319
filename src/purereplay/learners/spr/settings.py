"""The settings of Self-Purified Replay and its presets.

Where the paper and the released code differ, the source of a setting names both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from purereplay.learners.settings import DataFacts, NetworkSettings, setting
from purereplay.learners.spr.filtering import Features, FilterName
from purereplay.nets.jobs import Contrastive, Supervised
from purereplay.nets.losses import MIN_TEMPERATURE
from purereplay.nets.views import FeatureViews, Views
from purereplay.purify.aum import AreaUnderMargin
from purereplay.purify.incv import NoisyCrossValidation
from purereplay.purify.options import DEFAULTS, Posterior, Scaling, SmallClass

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "projection": "linear",
        "replay": "union",
        "lr": 2e-4,
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
    # 8×8 digits: a crop of 8 % would be two pixels wide, and a mirrored digit is a different sign
    "demo": {"hidden": 128, "expert_epochs": 450, "base_epochs": 150, "crop_area": 0.25, "flip": 0.0},
    # The filter needs many samples of a label in D. Patches take half the time of experts and score better here
    # (docs/live.md). Rare labels are kept, signs are not mirrored, and after 20 passes over a P of this size the
    # learning rate of the finetuning has decayed to almost nothing.
    "live": {
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


@dataclass(frozen=True, kw_only=True)
class SprSettings(NetworkSettings):
    """Settings of Self-Purified Replay; the defaults are the preset `default`."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    added: ClassVar[Mapping[str, Any]] = {"reservoir": "plain"}
    # neither the training of the experts nor the shape of another network depends on these
    of_the_scores: ClassVar[tuple[str, ...]] = (
        "graphs",
        "scaling",
        "posterior",
        "small_class",
        "mixture_steps",
        "admission",
        "eviction",
    )

    delayed_size: int = setting(
        "capacity of the delayed buffer D",
        unit="samples",
        by_data="300 on MNIST, 500 on CIFAR-10, 1000 on WebVision, 5000 on CIFAR-100, 100 on digits",
        source="paper; 1250 on CIFAR-100 in the released code",
        least=2,  # a single sample cannot be compared with others
    )
    purified_size: int = setting(
        "capacity of the purified buffer P", unit="samples", by_data="as delayed_size", source="paper"
    )
    projection: Literal["mlp", "linear"] = setting(
        "projection head: linear-ReLU-linear, or linear",
        "mlp",
        source='released code: mlp; paper: "a one-layer MLP"',
    )
    projection_size: int = setting(
        "outputs of the projection head", 256, unit="units", source="released code; not in the paper"
    )
    order: Literal["filter-first", "replay-first"] = setting(
        "order of the two steps on a full D", "filter-first", source="paper: filter first; released code: replay first"
    )
    tail: Literal["process", "drop"] = setting(
        "treatment of a partly filled D at the end of the stream", "process", source="released code: drop"
    )
    reseed: bool = setting("draw the same random numbers for every D", False, source="released code: true")
    # self-supervised training
    expert_epochs: int = setting(
        "passes over D of each expert network", 4000, unit="epochs", source="paper", scaled=True
    )
    base_epochs: int = setting(
        "passes over D of the base network, per buffer", 3000, unit="epochs", source="paper", scaled=True
    )
    expert_batch: int = setting("batch size of the experts", unit="samples", by_data="all of D", least=2)
    base_batch: int = setting(
        "batch size of the base, D and P together",
        unit="samples",
        by_data="the size of D",
        source="250 on CIFAR-100 in the released code",
        least=2,
    )
    replay: Literal["halves", "halves-distinct", "union", "purified"] = setting(
        "batches of the base: half D and half P drawn with or without replacement, all of D ∪ P, or P alone",
        "halves",
        source="released code: halves; paper: union; appendix: purified",
    )
    self_replay: Literal["every-buffer", "task-end", "never"] = setting(
        "when the base is trained; task-end is the intermittent Self-Replay of figure 3b", "every-buffer"
    )
    lr: float = setting(
        "learning rate of Adam for experts and base",
        Contrastive.lr,
        source="released code; the paper's ε = 0.0002 is read as the learning rate",
    )
    schedule: Literal["cosine", "constant"] = setting(
        "learning rate schedule within one D", Contrastive.schedule, source="released code; not in the paper"
    )
    warm_epochs: int = setting(
        "epochs at the full learning rate before the cosine",
        Contrastive.warm_epochs,
        unit="epochs",
        source="released code",
        least=0,
    )
    base_schedule: Literal["continuing", "restart"] = setting(
        "learning rate schedule of the base across buffers", "continuing", source="released code: never restarted"
    )
    temperature: float = setting(
        "temperature of NT-Xent", Contrastive.temperature, source="paper", least=MIN_TEMPERATURE
    )
    crop_area: float = setting(
        "smallest share of an image's area that a view keeps",
        Views.area[0],
        source="released code",
        least=1e-6,
        most=1,
    )
    flip: float = setting(
        "probability that a view is mirrored; 0 for letters and digits",
        Views.flip,
        source="released code",
        least=0,
        most=1,
    )
    jitter: Literal["factors", "additive"] = setting(
        "colour jitter; additive: as in the released code's version of kornia", Views.jitter_kind
    )
    feature_dropout: float = setting(
        "probability that a view of a feature vector drops a feature",
        FeatureViews.dropout,
        source="not in the paper",
        least=0,
        most=1,
    )
    feature_noise: float = setting(
        "standard deviation of the noise that a view adds to a standardised feature",
        FeatureViews.noise,
        source="not in the paper",
        least=0,
    )
    # the filter
    filter: FilterName = setting(
        "filter applied to each delayed buffer; none: P is a reservoir of the whole stream",
        "self-centered",
        source="aum and incv: the paper's comparison",
    )
    reservoir: Literal["plain", "balanced"] = setting(
        "P of filter=none: a plain reservoir of the stream, or one with equal shares for all classes",
        "plain",
        source="paper, text of the ablation: plain; paper, section 5.1, and released code: balanced",
    )
    features: Features = setting(
        "features that the Self-Centered filter compares. An expert is trained for projection, penultimate and "
        "combined (the projection's main directions and patches), not for patches, inputs (the main directions of the "
        "samples themselves: for feature vectors) and file (--features-file)",
        "projection",
        source="paper: penultimate; released code: projection; the others are not in the paper",
    )
    graphs: int = setting(
        "sampled graphs E_max; 0: the similarity graph itself", DEFAULTS.n_graphs, source="paper", least=0
    )
    scaling: Scaling = setting(
        "scaling of the centralities before the mixture: 5th to 95th percentile, or minimum to maximum",
        DEFAULTS.scaling,
        source="released code: trimmed",
    )
    posterior: Posterior = setting(
        "evaluation of the mixture's posterior: exact, or a table of 100 bins",
        DEFAULTS.posterior,
        source="released code: table",
    )
    small_class: SmallClass = setting(
        "clean probability of labels with too few samples for a mixture: 0 (drop) or 0.5 (keep)",
        DEFAULTS.small_class,
        source="released code, in effect",
    )
    mixture_steps: int = setting(
        "EM steps of the beta mixture", DEFAULTS.n_iter, unit="steps", source="released code; not in the paper"
    )
    aum_epochs: int = setting(
        "training of the filter aum, on every D", AreaUnderMargin.epochs, unit="epochs", source="paper"
    )
    incv_epochs: int = setting(
        "training of the filter incv, on every half of D", NoisyCrossValidation.epochs, unit="epochs", source="paper"
    )
    incv_rounds: int = setting("rounds of the filter incv", NoisyCrossValidation.rounds, source="paper")
    admission: Literal["greedy", "partitioned"] = setting(
        "admission into a full P", "partitioned", source="paper: greedy; released code: partitioned"
    )
    eviction: Literal["levelled", "softmax"] = setting(
        "eviction from a full P: from the largest class, or from a class drawn by softmax of its excess",
        "levelled",
        source="paper: balanced classes; released code: softmax",
    )
    # the classifier
    finetune_epochs: int = setting("passes over P of the finetuning", 50, unit="epochs", source="paper")
    finetune_batch: int = setting("batch size of the finetuning", Supervised.batch_size, unit="samples", source="paper")
    finetune_lr: float = setting(
        "learning rate of Adam in the finetuning", Supervised.lr, source="paper's ε = 0.002, read as the learning rate"
    )
    finetune_clip: float | None = setting(
        "gradient values are clipped to ± this; none: no clipping",
        Supervised.clip,
        source="released code; not in the paper",
    )
    finetune_decay_every: int | None = setting(
        "steps after which the learning rate falls to a tenth; none: constant",
        Supervised.decay_every,
        unit="steps",
        source="released code; not in the paper",
    )

    @property
    def has_class_layer(self) -> bool:
        """Whether the base has a layer for classes beside its projection head."""
        return False

    def ineffective(self) -> set[str]:
        none = super().ineffective()
        if self.filter != "self-centered":
            none |= {"features", "graphs", "scaling", "posterior", "small_class", "mixture_steps"}
        if self.filter != "self-centered" or self.features in ("patches", "inputs", "file"):
            none |= {"expert_epochs", "expert_batch"}
        none |= {"aum_epochs"} if self.filter != "aum" else set()
        none |= {"incv_epochs", "incv_rounds"} if self.filter != "incv" else set()
        none |= {"admission", "eviction"} if self.filter == "none" else {"reservoir"}
        if self.self_replay == "never":
            none |= {"base_epochs", "base_batch", "base_schedule", "replay"}
        return none

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        values = super().fill(chosen, facts, preset)
        if "features" not in chosen and values.get("features", cls.features) == "patches":
            # feature vectors have no patches, and a user who sets the experts' epochs wants experts
            wants_experts = facts.is_vectors or "expert_epochs" in chosen
            values["features"] = "projection" if wants_experts else "patches"
        reduced = preset == "reference" and facts.buffer_size == 5000  # CIFAR-100 in the released code
        delayed_size = values.setdefault("delayed_size", 1250 if reduced else facts.buffer_size)
        values.setdefault("purified_size", facts.buffer_size)
        values.setdefault("base_batch", 250 if reduced else delayed_size)
        values.setdefault("expert_batch", delayed_size)
        return values
