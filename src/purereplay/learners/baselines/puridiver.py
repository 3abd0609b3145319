"""PuriDivER: a memory of pure and diverse samples, and robust training on it at task ends (Bang et al. 2022).

Online: each incoming batch is trained on once, together with as many samples of the memory. The batch then joins the
memory. While it is too large, the largest class loses the sample with the highest score (1 − α) · loss + α · similarity
to the other samples of its class, both standardised within the class. The similarity is the mean cosine over the
features whose weight for the class is above the mean weight of all classes. α is `diversity` · min(1, 1 / loss of the
training step), so an untrained network selects by loss.

At the end of a task the network is trained on the memory, first by cross-entropy. After the warm-up, a mixture of two
normal distributions splits the memory by loss at every epoch: samples with a small loss are clean. A second one splits
the others by the uncertainty of the prediction. Certain samples get the soft label p · given label + (1 − p) ·
prediction, where p is the probability of a small loss. For the uncertain ones only the logits of a weak and a strong
view must agree. If one of the sets has fewer than three samples, all samples count as clean in this epoch.

Choices where the papers leave them open, and departures from the released code: a step of robust training draws from
all three sets at once, instead of one batch from each of them with sizes in proportion. The released code re-labels the
uncertain samples and lets the certain ones agree, which is the setting `relabelled`. It takes p from the mixture's
first component, whichever that is. It replays from the second task on, here from the second batch on. Views are those
of `step_views.py` instead of AutoAugment; online, samples have no views. Momentum is not Nesterov's and is kept at
task ends. The classifier has no batch norm. The end of the stream is a task end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import COUNT, FLAG, Forms, Limits, batch_forms, n_rows, prefixed
from purereplay.data.seeds import derive_seed
from purereplay.learners.base import DataSpec, Report, Workload
from purereplay.learners.baselines.base import common_arguments
from purereplay.learners.baselines.continued import ContinuedLearner
from purereplay.learners.baselines.gdumb import WarmRestarts
from purereplay.learners.baselines.pool import ReplayDraws, join, padded
from purereplay.learners.baselines.step_views import StrongViewSettings, ViewKinds, view_kinds, views_of
from purereplay.learners.registry import Entry
from purereplay.learners.settings import DataFacts, NetworkSettings, setting
from purereplay.nets.augment import cutmix
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.nets.jobs import Asks, Listed, ListedJob, Trained
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import State, part
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, Technique
from purereplay.purify.gaussian_mixture import lower_probability

Real = NDArray[np.float64]
Whole = NDArray[np.int64]
Relabelled = Literal["certain", "uncertain"]
CLEAN, RELABELLED, UNLABELLED = range(3)  # the role of a sample in an epoch of robust training
_LEAST = 3  # samples of each set; otherwise the memory is not split
_BATCHES_AT_ONCE = 10  # batches that the learner takes at once


@dataclass(frozen=True, kw_only=True)
class PuriDivERSettings(NetworkSettings, StrongViewSettings):
    """Settings of PuriDivER."""

    # chosen on validation data, for 90 online steps; 50 passes over this memory have as many steps as 10 on CIFAR-10
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": {"hidden": 128, "online_lr": 0.03, "warm_up": 50}}

    memory_size: int = setting(
        "capacity of the memory; there is no delayed buffer", unit="samples", by_data="as SPR's P", source="Bang 2022"
    )
    batch_size: int = setting(
        "incoming samples of an online step, replayed samples of it, and batch size on the memory",
        16,
        unit="samples",
        source="Bang 2022",
    )
    online_lr: float = setting("learning rate of an online step", 0.001, source="Bang 2022, released code")
    lr: float = setting("learning rate on the memory at each restart of its cosine", 0.05, source="Bang 2022")
    min_lr: float = setting("learning rate at the end of each cosine", 5e-4, source="Bang 2022, released code")
    momentum: float = setting("momentum", 0.9, source="Bang 2022, released code", least=0, most=1)
    weight_decay: float = setting("weight decay", 1e-4, source="Bang 2022, released code", least=0)
    cutmix: float = setting("probability of CutMix", 0.5, source="Bang 2022, released code", least=0, most=1)
    diversity: float = setting("weight α of the similarity at a loss below 1", 0.5, source="Bang 2022", least=0, most=1)
    epochs: int = setting(
        "passes over the memory at each task end", 255, unit="epochs", source="Bang 2022; 127 on WebVision"
    )
    warm_up: int = setting(
        "passes by cross-entropy before the memory is split",
        10,
        unit="epochs",
        source="Bang 2022; 30 on CIFAR-100",
        least=0,
    )
    relabelled: Relabelled = setting(
        "samples with a large loss that get a soft label; of the others, views must agree",
        "certain",
        source="Bang 2022: certain; released code: uncertain",
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"memory_size": facts.buffer_size} | super().fill(chosen, facts, preset)


# ---------------------------------------------------------------- the memory


class Scores(NamedTuple):
    """Outputs of the network for samples: all that the choice of the memory depends on."""

    losses: Tensor  # (n,)
    features: Tensor  # (n, d)
    labels: Whole  # (n,), given
    weights: Tensor  # (d, classes), of the output layer


def select(scores: Scores, capacity: int, alpha: float, draws: list[float]) -> Whole:
    """Return the rows of the samples that stay, ascending, int64 (at most `capacity`,).

    Samples leave one by one; `draws` has a uniform number for each of them, which breaks ties of the largest class.
    """
    members = {c: np.flatnonzero(scores.labels == c) for c in np.unique(scores.labels).tolist()}
    losses = scores.losses.double().cpu().numpy()
    similarity: dict[int, Real] = {}  # of the classes that lose samples, (members, members)
    for u in draws[: max(0, len(scores.labels) - capacity)]:
        largest = max(map(len, members.values()))
        crowded = [c for c, own in members.items() if len(own) == largest]
        c = crowded[int(u * len(crowded))]
        if c not in similarity:
            similarity[c] = _cosines(scores, c, members[c])
        score = (1 - alpha) * _standardised(losses[members[c]]) + alpha * _standardised(similarity[c].mean(1))
        stays = np.arange(largest) != np.argmax(score)
        members[c], similarity[c] = members[c][stays], similarity[c][np.ix_(stays, stays)]
    return np.sort(np.concatenate([np.empty(0, np.int64), *members.values()]))


def _cosines(scores: Scores, label: int, members: Whole) -> Real:
    """Return the cosines between samples of one class, (n, n), over the features that matter for it."""
    relevant = scores.weights[:, label] > scores.weights.mean(1)
    own = F.normalize(
        scores.features[torch.from_numpy(members).to(scores.features.device)][:, relevant].double(), dim=1
    )
    cosines: Real = (own @ own.T).cpu().numpy()
    return cosines


def _standardised(values: Real) -> Real:
    standardised: Real = (values - values.mean()) / max(float(values.std()), 1e-12)
    return standardised


# ---------------------------------------------------------------- robust training


def assign_roles(logits: Tensor, labels: Tensor, relabelled: Relabelled) -> tuple[Tensor, Tensor]:
    """Return the role of each sample, int64 (n,), and the probability that its loss is small, float32 (n,)."""
    losses = F.cross_entropy(logits, labels, reduction="none").double().cpu().numpy()
    uncertainty = (1 - logits.softmax(1).amax(1)).double().cpu().numpy()
    span = max(float(losses.max() - losses.min()), 1e-12)
    p = lower_probability((losses - losses.min()) / span)
    role = np.full(len(p), CLEAN)
    large = np.flatnonzero(p < 0.5)
    certain = lower_probability(uncertainty[large]) >= 0.5
    if len(large) < len(p) and min(certain.sum(), (~certain).sum()) >= _LEAST:
        role[large] = np.where(certain == (relabelled == "certain"), RELABELLED, UNLABELLED)
    return torch.from_numpy(role), torch.from_numpy(p).float()


@dataclass(frozen=True, kw_only=True)
class RobustTraining(Technique):
    """The loss of an epoch on the memory; see the module.

    `extra` has the role of every row and its probability `small` of a small loss. CutMix pastes boxes between clean
    samples only.
    """

    views: ViewKinds
    cutmix: float

    def loss(self, step: Step) -> Tensor:
        role, small = (rows(step.extra[name], step.rows) for name in ("role", "small"))
        weak, strong = views_of(step, step.images, self.views)
        u = uniforms_per_key(step.keys, step.number, 4, stream=RandomStream.CUTMIX)
        mixed, (other, own) = cutmix(strong, step.labels, u, self.cutmix)
        both = (role == CLEAN) & (role.roll(1, 1) == CLEAN)
        own = torch.where(both, own, torch.ones_like(own))
        strong = torch.where(both[..., None, None, None], mixed, strong)
        logits = step.network.outputs(step.state, torch.cat([strong, weak], dim=1), training=True)
        of_strong, of_weak = logits.chunk(2, dim=1)
        clean = own * sample_losses(of_strong, step.labels) + (1 - own) * sample_losses(of_strong, other)
        given = (step.labels[..., None] == torch.arange(logits.shape[-1], device=logits.device)).to(logits.dtype)
        target = small[..., None] * given + (1 - small[..., None]) * of_weak.detach().softmax(-1)
        soft = -(target * of_strong.log_softmax(-1)).sum(-1)
        agreement = (of_strong - of_weak).square().mean(-1)
        return torch.where(role == CLEAN, clean, torch.where(role == RELABELLED, soft, agreement)).mean(1)


# ---------------------------------------------------------------- the learner


@dataclass(frozen=True, kw_only=True)
class MemoryTraining:
    """Training of PuriDivER."""

    batch_size: int
    online_lr: float
    lrs: Tensor  # (epochs,): learning rates on the memory
    momentum: float
    weight_decay: float
    cutmix: float
    views: ViewKinds
    warm_up: int
    relabelled: Relabelled


@dataclass(kw_only=True)
class PuriDivER(ContinuedLearner):
    """Online training with a purified, diverse memory, and robust training on the memory at task ends."""

    capacity: int
    diversity: float
    training: MemoryTraining
    memory: Batch = field(init=False)  # images on the device, labels and index on the CPU
    is_new: bool = field(default=False, init=False)  # whether samples came since the last training on the memory
    epochs_left: int = field(default=0, init=False)  # of the training on the memory
    wants_task_ends = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = Batch(*(t.clone() for t in self.waiting))

    @property
    def n_wanted(self) -> int:
        return self.training.batch_size

    def n_to_take(self, lookahead: int) -> int:
        return _BATCHES_AT_ONCE * self.training.batch_size

    @property
    def pending(self) -> bool:
        return super().pending or self.epochs_left > 0

    def held_index(self) -> Tensor:
        return self.memory.index.clone()

    def end_task(self) -> None:
        if self.is_new or super().pending:
            self.epochs_left = len(self.training.lrs)

    def finish(self) -> None:
        super().finish()
        self.end_task()

    def work(self) -> Asks[Report | None]:
        if super().pending:
            return (yield from self._learn_batch())
        yield from self._learn_memory()
        return None

    def _learn_batch(self) -> Asks[Report]:
        t, size = self.training, min(self.training.batch_size, self.waiting.n)
        now = Batch(*(t[:size] for t in self.waiting))
        draws = ReplayDraws(t.batch_size, derive_seed(self.seed, "replay"), self.n_done)
        [slots] = draws.slots(np.array([self.memory.n]), size, self.capacity)
        incoming = self.capacity + np.arange(size)
        replayed = slots if self.memory.n else incoming[-1 - slots]
        recipe = Listed(
            batch_size=size + t.batch_size,
            optimizer="sgd",
            momentum=t.momentum,
            weight_decay=t.weight_decay,
            cutmix=t.cutmix,
        )
        index = torch.from_numpy(join(incoming, replayed))[None]
        [trained] = yield [self._job("online", recipe, index, t.online_lr, now, {})]
        self._keep(trained)
        self.memory = self._updated_memory(now, trained.loss)
        self.waiting = Batch(*(t[size:].clone() for t in self.waiting))
        self.is_new = True
        self.n_done += 1
        return Report(
            buffer=self.n_done - 1,
            index=now.index,
            labels=now.labels,
            held_index=self.held_index(),
            base_loss=trained.loss,
        )

    def _updated_memory(self, now: Batch, loss: float) -> Batch:
        """Return the memory after a batch has joined it."""
        joined = Batch(*(torch.cat(pair) for pair in zip(self.memory, now, strict=True)))
        n_leaving = max(0, joined.n - self.capacity)
        if not n_leaving:
            return joined
        features = embed(self.network, self.weights, joined.images, penultimate=True)
        weights = self.weights["head.output.weight"]
        logits = torch.addmm(self.weights["head.output.bias"], features, weights)
        losses = F.cross_entropy(logits, joined.labels.to(logits.device), reduction="none")
        scores = Scores(losses, features, joined.labels.numpy(), weights)
        alpha = self.diversity * min(1.0, 1 / max(loss, 1e-12))
        draws = torch.rand(n_leaving, generator=self.generator, dtype=torch.float64).tolist()
        stays = torch.from_numpy(select(scores, self.capacity, alpha, draws))
        return Batch(*(t[stays.to(t.device)] for t in joined))

    def _learn_memory(self) -> Asks[None]:
        """Train on the memory for one epoch."""
        t, n = self.training, self.memory.n
        epoch = len(t.lrs) - self.epochs_left
        role, small = torch.full((n,), CLEAN), torch.ones(n)
        if epoch >= t.warm_up:
            logits = embed(self.network, self.weights, self.memory.images)
            role, small = assign_roles(logits, self.memory.labels.to(logits.device), t.relabelled)
        n_rows = self.capacity + t.batch_size
        extra = {"role": padded(role, n_rows), "small": padded(small, n_rows)}
        size = min(t.batch_size, n)
        n_steps = 0 if self.optimizer is None else int(self.optimizer["step"])
        rng = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "order", n_steps)))
        index = torch.from_numpy(rng.permutation(n)[: n // size * size]).view(-1, size)
        recipe = Listed(
            batch_size=size,
            optimizer="sgd",
            momentum=t.momentum,
            weight_decay=t.weight_decay,
            technique=RobustTraining(views=t.views, cutmix=t.cutmix),
        )
        none = Batch(*(t[:0] for t in self.memory))
        [trained] = yield [self._job("memory", recipe, index, float(t.lrs[epoch]), none, extra)]
        self._keep(trained)
        self.is_new = False
        self.epochs_left -= 1

    def _job(self, phase: str, recipe: Listed, index: Tensor, lr: float, now: Batch, extra: State) -> ListedJob:
        """Return a job on the memory's slots and the rows of an incoming batch after them."""
        device, size = self.engine.device, self.training.batch_size
        images, labels = (
            torch.cat([padded(held, self.capacity), padded(new, size)])
            for held, new in zip(self.memory[:2], now[:2], strict=True)
        )
        return ListedJob(
            phase=phase,
            network=self.network,
            state=self.weights,
            recipe=recipe,
            images=images,
            labels=labels.to(device),
            seed=derive_seed(self.seed, "draws"),
            optimizer=self.optimizer,
            index=index,
            lrs=torch.full((len(index),), lr),
            extra={name: t.to(device) for name, t in extra.items()},
        )

    def _keep(self, trained: Trained) -> None:
        self.weights, self.optimizer = trained.state, trained.optimizer

    def state(self) -> State:
        own = {name: torch.tensor(getattr(self, name)) for name in ("is_new", "epochs_left")}
        return super().state() | own | prefixed("memory.", self.memory._asdict())

    def forms(self, state: State, limits: Limits) -> Forms:
        n_held = n_rows(state, "memory.labels", self.capacity)
        memory = batch_forms(n_held, self.image_shape, torch.uint8, limits)
        own = {"is_new": FLAG, "epochs_left": COUNT._replace(most=len(self.training.lrs))}
        return (super().forms(state, limits) or {}) | own | prefixed("memory.", memory)

    def load(self, state: State) -> None:
        super().load(state)
        self.is_new, self.epochs_left = bool(state["is_new"]), int(state["epochs_left"])
        memory = part(state, "memory.")
        self.memory = Batch(memory["images"].to(self.engine.device), memory["labels"].cpu(), memory["index"].cpu())


def build(settings: PuriDivERSettings, data: DataSpec, *, engine: Engine, seed: int) -> PuriDivER:
    """Return a learner that has seen nothing."""
    s = settings
    restarts = WarmRestarts(epochs=s.epochs, batch_size=s.batch_size, lr=s.lr, min_lr=s.min_lr)
    training = MemoryTraining(
        batch_size=s.batch_size,
        online_lr=s.online_lr,
        lrs=restarts.lrs(1),
        momentum=s.momentum,
        weight_decay=s.weight_decay,
        cutmix=s.cutmix,
        views=view_kinds(s, data),
        warm_up=s.warm_up,
        relabelled=s.relabelled,
    )
    arguments = common_arguments(s, data, engine=engine, seed=seed)
    return PuriDivER(**arguments, capacity=s.memory_size, diversity=s.diversity, training=training)


def count_steps(s: PuriDivERSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count one step per incoming batch, and the training on the memory at every task end."""
    n_batches = -(-task_ends[-1] // s.batch_size)
    per_epoch = [max(1, min(end, s.memory_size) // s.batch_size) for end in task_ends]
    return Workload(n_batches, {"online": n_batches, "memory": s.epochs * sum(per_epoch)})


ENTRY = Entry(
    name="puridiver",
    title="PuriDivER",
    summary="keeps a pure and diverse memory, and trains robustly on it at task ends; told where tasks end",
    settings=PuriDivERSettings,
    build=build,
    count_steps=count_steps,
)
