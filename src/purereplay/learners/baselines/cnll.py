"""CNLL: separate clean and noisy samples of a delayed buffer, then learn from both semi-supervised (Karim et al. 2022).

The network is warmed up on a full delayed buffer with the given labels. The distance of a sample is the Jensen-Shannon
divergence between its prediction and its label. Samples below the mean distance are clean, the others are noisy. The
network is then finetuned: clean samples keep their labels, and noisy ones get the sharpened mean prediction of two weak
views. Weak views of the clean and strong views of the noisy samples are mixed with each other (mixup). The loss is the
cross-entropy of the clean ones, a weight that rises times the squared error of the noisy ones, and the divergence of
the mean prediction from equal shares of the classes. Two replay memories take part in the finetuning: of the clean
samples with the smallest distances, and of the noisy ones with the largest.

Choices where the papers leave them open, and departures from the released code: the authors collect clean and noisy
samples in two more buffers, finetune when 500 clean ones are there, and let the replay memories grow without a bound.
Here the network is finetuned on every delayed buffer, and both replay memories together hold as many samples as SPR's
P, each as a reservoir. So there are never more images than in SPR's D and P. The released code takes the first noisy
samples for replay, in any order. The weight of the squared error starts at 0 in every finetuning and has the released
code's factor 0.1. Views are those of `step_views.py` instead of AutoAugment. The released code's second output layer,
its loss weights by task, and its choice of the best epoch on the test set are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import Forms, Limits, prefixed
from purereplay.errors import UserError
from purereplay.learners.base import DataSpec, Workload
from purereplay.learners.baselines.base import common_arguments, make_memory
from purereplay.learners.baselines.continued import DelayedLearner
from purereplay.learners.baselines.pool import Rows, padded
from purereplay.learners.baselines.step_views import StrongViewSettings, ViewKinds, view_kinds, views_of
from purereplay.learners.registry import Entry
from purereplay.learners.settings import DataFacts, NetworkSettings, setting
from purereplay.memory.replay import ReplayMemory
from purereplay.memory.reservoir import Reservoir
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.networks import State, part
from purereplay.nets.technique import Step, Technique

Prediction = Literal["soft", "hard"]
# for delayed buffers of 100: more steps on each, chosen on validation data; larger steps on so few samples end with
# hidden units that are 0 for every image
CNLL_DEMO = {"hidden": 128, "batch_size": 16, "warm_up": 20, "warm_up_lr": 0.005, "epochs": 30, "lr": 0.01}


@dataclass(frozen=True, kw_only=True)
class CnllSettings(NetworkSettings, StrongViewSettings):
    """Settings of CNLL."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": CNLL_DEMO}

    delayed_size: int = setting(
        "capacity of the delayed buffer", unit="samples", by_data="as SPR's D", source="Karim 2022: 500", least=2
    )
    memory_size: int = setting(
        "capacity of both replay memories together, besides the delayed buffer",
        unit="samples",
        by_data="as SPR's P",
        source="no bound in the released code",
        least=2,
    )
    noisy_share: float = setting(
        "share of memory_size kept for noisy samples", 0.25, source="not in the paper", least=0, most=0.99
    )
    kept_clean: int = setting(
        "clean samples of a delayed buffer that are offered to the replay memory",
        25,
        unit="samples",
        source="Karim 2022",
    )
    kept_noisy: int = setting(
        "noisy samples of a delayed buffer that are offered to the replay memory",
        50,
        unit="samples",
        source="Karim 2022",
    )
    prediction: Prediction = setting(
        "prediction that is compared with the label: probabilities, or the most likely class alone",
        "soft",
        source="Karim 2022: soft; released code: hard",
    )
    batch_size: int = setting(
        "clean samples of a step, and noisy samples of it", 64, unit="samples", source="released code"
    )
    warm_up: int = setting("passes over a delayed buffer before it is separated", 5, unit="epochs", source="Karim 2022")
    warm_up_lr: float = setting(
        "learning rate of the warm-up", 5e-4, source="released code, before its first finetuning"
    )
    epochs: int = setting("passes of the finetuning over the clean samples", 10, unit="epochs", source="Karim 2022")
    lr: float = setting("learning rate of the finetuning", 0.025, source="released code")
    momentum: float = setting("momentum", 0.9, source="released code", least=0, most=1)
    weight_decay: float = setting("weight decay", 5e-4, source="released code", least=0)
    temperature: float = setting("temperature of the sharpening", 0.5, source="released code")
    mixup: int = setting("parameter of mixup's beta distribution", 4, source="released code")
    noisy_weight: float = setting(
        "weight of the noisy samples' squared error; a tenth of it is used", 30.0, source="released code", least=0
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        by_data = {"delayed_size": facts.buffer_size, "memory_size": facts.buffer_size}
        return by_data | super().fill(chosen, facts, preset)

    def check(self) -> None:
        super().check()
        if not 0 < self.n_noisy < self.memory_size:
            raise UserError(
                f"cnll needs two replay memories, but {self.memory_size} samples (memory_size) with the share "
                f"{self.noisy_share} (noisy_share) leave one of them empty."
            )

    @property
    def n_noisy(self) -> int:
        """Capacity of the replay memory of noisy samples."""
        return round(self.noisy_share * self.memory_size)


def distances(logits: Tensor, labels: Tensor, prediction: Prediction) -> Tensor:
    """Return the Jensen-Shannon divergence of predictions from labels, float64 (n,): 0 to ln 2, low = clean."""
    given = torch.nn.functional.one_hot(labels, logits.shape[1]).double()
    p = logits.double().softmax(1)
    if prediction == "hard":
        p = torch.nn.functional.one_hot(p.argmax(1), logits.shape[1]).double()
    middle = (given + p) / 2
    of_middle, of_given, of_p = (-torch.xlogy(t, t).sum(1) for t in (middle, given, p))
    return of_middle - (of_given + of_p) / 2


def separate(distance: Tensor) -> Tensor:
    """Return whether each sample is clean, bool (n,): its distance is below the mean, or all are equal."""
    below = distance < distance.mean()
    return below if below.any() else torch.ones_like(below)


@dataclass(frozen=True, kw_only=True)
class SemiSupervised(Technique):
    """The loss of the finetuning on as many clean as noisy samples, in this order; see the module.

    `extra` has the number of steps of an epoch.
    """

    views: ViewKinds
    temperature: float
    mixup: int
    weight: float  # of the squared error at the end of the ramp
    delay: int  # epochs before the ramp
    ramp: float = 16.0  # epochs

    def loss(self, step: Step) -> Tensor:
        size = step.labels.shape[1] // 2
        weak, strong = self.views
        first, second, one, other = views_of(step, step.images, (weak, weak, strong, strong))
        n_classes = step.network.head.n_outputs
        classes = torch.arange(n_classes, device=step.labels.device)
        given = (step.labels[:, :size, None] == classes).to(first.dtype)
        guess = self._guess(step, first[:, size:], second[:, size:])
        images = torch.cat([first[:, :size], second[:, :size], one[:, size:], other[:, size:]], dim=1)
        targets = torch.cat([given, given, guess, guess], dim=1)
        images, targets = self._mixed(step, images, targets)
        logits = step.network.outputs(step.state, images, training=True)
        p = logits.softmax(-1)
        clean = -(targets * logits.log_softmax(-1)).sum(-1)[:, : 2 * size].mean(1)
        noisy = (p - targets)[:, 2 * size :].square().mean((1, 2))
        unequal = -(p.mean(1).clamp(min=1e-12) * n_classes).log().mean(1)
        epoch = step.number / step.extra["epoch_steps"]
        weight = self.weight * ((epoch - self.delay) / self.ramp).clamp(0, 1)
        return clean + weight * noisy + unequal

    def _guess(self, step: Step, first: Tensor, second: Tensor) -> Tensor:
        """Return the sharpened mean prediction on two views, (K, B, classes)."""
        with torch.no_grad():
            state = {name: t.clone() for name, t in step.state.items()}  # batch norm must not count these views
            logits = step.network.outputs(state, torch.cat([first, second], dim=1), training=True)
            mean = torch.stack(logits.chunk(2, dim=1)).softmax(-1).mean(0)
            sharp = mean.pow(1 / self.temperature)
            return sharp / sharp.sum(-1, keepdim=True)

    def _mixed(self, step: Step, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Mix images (K, n, C, H, W) and targets (K, n, classes) of each network with others, with one weight."""
        n, n_odd = images.shape[1], 2 * self.mixup - 1
        u = uniforms_per_key(step.keys, step.number, n + n_odd, stream=RandomStream.MIXUP)
        order = u[:, :n].argsort(dim=1, stable=True)
        share = u[:, n:].sort(dim=1).values[:, self.mixup - 1]  # a median of uniforms has a symmetric beta distribution
        share = torch.maximum(share, 1 - share)

        def mix(t: Tensor) -> Tensor:
            wide = (...,) + (None,) * (t.ndim - 2)
            partner = t.gather(1, order[wide].expand(t.shape))
            own = share[(..., None) + (None,) * (t.ndim - 2)]
            return own * t + (1 - own) * partner

        return mix(images), mix(targets)


@dataclass(kw_only=True)
class Cnll(DelayedLearner):
    """Warm-up, separation and finetuning on each delayed buffer."""

    clean: ReplayMemory
    noisy: ReplayMemory
    n_kept: tuple[int, int]  # clean and noisy samples of a buffer that are offered to the memories
    prediction: Prediction
    batch_size: int
    epochs: tuple[int, int]  # of the warm-up and of the finetuning
    lrs: tuple[float, float]
    momentum: float
    weight_decay: float
    technique: SemiSupervised

    @property
    def jobs_per_buffer(self) -> int:
        return 2

    def held_index(self) -> Tensor:
        return self.clean.index

    def work_on(self, now: Batch) -> Asks[float]:
        if self.n_jobs == 0:
            [trained] = yield [self._warm_up(now)]
            self.weights = trained.state
            return trained.loss
        logits = embed(self.network, self.weights, now.images)
        distance = distances(logits, now.labels.to(logits.device), self.prediction).cpu()
        is_clean = separate(distance)
        [trained] = yield [self._finetune(now, is_clean.numpy())]
        self.weights = trained.state
        order = distance.argsort(stable=True)
        surest = order[is_clean[order]][: self.n_kept[0]], order.flip(0)[~is_clean[order.flip(0)]][: self.n_kept[1]]
        for memory, rows in zip((self.clean, self.noisy), surest, strict=True):
            memory.add(Batch(*(t[rows.to(t.device)] for t in now)), self.generator)
        return trained.loss

    def _warm_up(self, now: Batch) -> ListedJob:
        size = min(self.batch_size, now.n)
        rng = np.random.Generator(np.random.PCG64(self.seed_for("order")))
        orders = [rng.permutation(now.n)[: now.n // size * size] for _ in range(self.epochs[0])]
        index = (self._offset + np.concatenate(orders)).reshape(-1, size)
        return self._job("warm-up", now, index, self.lrs[0], Listed(batch_size=size, **self._descent))

    def _finetune(self, now: Batch, is_clean: np.ndarray[Any, np.dtype[np.bool_]]) -> ListedJob:
        size, rng = self.batch_size, np.random.Generator(np.random.PCG64(self.seed_for("order")))
        labelled = np.concatenate([np.arange(self.clean.n), self._offset + np.flatnonzero(is_clean)])
        unlabelled = np.concatenate(
            [self.clean.capacity + np.arange(self.noisy.n), self._offset + np.flatnonzero(~is_clean)]
        )
        if not len(unlabelled):
            unlabelled = labelled  # its labels are not used
        epoch_steps = max(1, len(labelled) // size)
        halves = [_batches(own, self.epochs[1] * epoch_steps, size, rng) for own in (labelled, unlabelled)]
        recipe = Listed(batch_size=2 * size, technique=self.technique, **self._descent)
        extra = {"epoch_steps": torch.tensor(float(epoch_steps))}
        return self._job("finetune", now, np.concatenate(halves, axis=1), self.lrs[1], recipe, extra)

    @property
    def _descent(self) -> dict[str, Any]:
        return {"optimizer": "sgd", "momentum": self.momentum, "weight_decay": self.weight_decay}

    @property
    def _offset(self) -> int:
        """Row of the delayed buffer's first sample; the replay memories come before."""
        return self.clean.capacity + self.noisy.capacity

    def _job(
        self, phase: str, now: Batch, index: Rows, lr: float, recipe: Listed, extra: State | None = None
    ) -> ListedJob:
        device = self.engine.device
        held = [(memory.contents(), memory.capacity) for memory in (self.clean, self.noisy)]
        images, labels = (
            torch.cat([*(padded(batch[i], n) for batch, n in held), padded(now[i], self.delayed_size)]) for i in (0, 1)
        )
        return ListedJob(
            phase=phase,
            network=self.network,
            state=self.weights,
            recipe=recipe,
            images=images,
            labels=labels.to(device),
            seed=self.seed_for("draws"),
            index=torch.from_numpy(index),
            lrs=torch.full((len(index),), lr),
            extra={name: t.to(device) for name, t in (extra or {}).items()},
        )

    def state(self) -> State:
        return super().state() | prefixed("clean.", self.clean.state()) | prefixed("noisy.", self.noisy.state())

    def forms(self, state: State, limits: Limits) -> Forms:
        forms = super().forms(state, limits) or {}
        for prefix, memory in (("clean.", self.clean), ("noisy.", self.noisy)):
            forms |= prefixed(prefix, memory.forms(part(state, prefix), limits))
        return forms

    def load(self, state: State) -> None:
        super().load(state)
        self.clean.load(part(state, "clean."))
        self.noisy.load(part(state, "noisy."))


def _batches(members: Rows, n_steps: int, size: int, rng: np.random.Generator) -> Rows:
    """Return rows (n_steps, size): one random order of the members after the other."""
    n_orders = -(-n_steps * size // len(members))
    orders = np.concatenate([rng.permutation(members) for _ in range(n_orders)])
    return orders[: n_steps * size].reshape(n_steps, size)


def build(settings: CnllSettings, data: DataSpec, *, engine: Engine, seed: int) -> Cnll:
    """Return a learner that has seen nothing."""
    s = settings
    technique = SemiSupervised(
        views=view_kinds(s, data),
        temperature=s.temperature,
        mixup=s.mixup,
        weight=0.1 * s.noisy_weight,
        delay=s.warm_up,
    )
    return Cnll(
        **common_arguments(s, data, engine=engine, seed=seed),
        delayed_size=s.delayed_size,
        clean=make_memory(Reservoir, s.memory_size - s.n_noisy, data, engine),
        noisy=make_memory(Reservoir, s.n_noisy, data, engine),
        n_kept=(s.kept_clean, s.kept_noisy),
        prediction=s.prediction,
        batch_size=s.batch_size,
        epochs=(s.warm_up, s.epochs),
        lrs=(s.warm_up_lr, s.lr),
        momentum=s.momentum,
        weight_decay=s.weight_decay,
        technique=technique,
    )


def count_steps(s: CnllSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count the steps as if the replay memory were full from the start and half of each delayed buffer were clean."""
    n = task_ends[-1]
    sizes = [min(s.delayed_size, n - at) for at in range(0, n, s.delayed_size)]
    n_clean = [s.memory_size - s.n_noisy + size // 2 for size in sizes]
    warm_up, finetune = (sum(max(1, n // s.batch_size) for n in some) for some in (sizes, n_clean))
    return Workload(len(sizes), {"warm-up": s.warm_up * warm_up, "finetune": s.epochs * finetune})


ENTRY = Entry(
    name="cnll",
    title="CNLL",
    summary="separates clean and noisy samples by their distance from the prediction, and learns from both",
    settings=CnllSettings,
    build=build,
    count_steps=count_steps,
)
