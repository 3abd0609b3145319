"""AER: epochs without and with replay alternate; wrong labels are what is forgotten first (Millunzi et al. 2024).

In a forgetting epoch the network is trained on the incoming samples alone. Samples of the memory with wrong labels, and
complex ones, are forgotten first and get a large loss. The losses then decide about the memory, and the network of
before is restored. In a learning epoch it is trained on incoming and replayed samples.

Asymmetric Balanced Sampling (ABS) decides about the memory: only the incoming samples with the smallest losses are
offered, as many of them enter as into a reservoir, and each replaces a sample of the current task or of the past, by
their shares of the memory. In the current task a large loss is likely to leave, since it means a wrong label. In the
past a small loss is likely to leave, since wrong labels are gone and complex samples are worth keeping.

The loss is that of ER-ACE (`er_ace.py`), for incoming samples among the classes of their batch.

Choices where the papers leave them open: the authors make many epochs over a task. In one pass, samples wait in a
delayed buffer as long as SPR's, and the epochs are made over each full one. Only the groups of ABS depend on tasks, so
the learner is told where tasks end, and works on a partly filled buffer there. The losses of all samples are computed
once, at the end of a forgetting epoch, where the released code uses the losses of single batches within it. A sample
that is in the memory is not offered again. The very first forgetting epoch is undone like all others. The additional
training on the memory at task ends (consolidation) is left out, as in the released code's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import COUNT, FLAG, Form, Forms, Limits, batch_forms, n_rows, prefixed
from purereplay.learners.base import DataSpec, Report, Workload
from purereplay.learners.baselines.augmentation import AugmentSettings
from purereplay.learners.baselines.base import common_arguments
from purereplay.learners.baselines.continued import DelayedLearner
from purereplay.learners.baselines.er_ace import AsymmetricCrossEntropy
from purereplay.learners.baselines.pool import padded
from purereplay.learners.registry import Entry
from purereplay.learners.settings import DataFacts, NetworkSettings, setting
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.nets.jobs import Asks, Listed, ListedJob, Trained
from purereplay.nets.networks import State, part

Real = NDArray[np.float64]
Mask = NDArray[np.bool_]
_DRAWS = 3  # uniform numbers per offered sample: whether to enter, which group loses a sample, which sample


@dataclass(frozen=True, kw_only=True)
class AerSettings(NetworkSettings, AugmentSettings):
    """Settings of AER."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"demo": {"hidden": 128}}

    delayed_size: int = setting(
        "capacity of the delayed buffer, whose samples are trained on in epochs",
        unit="samples",
        by_data="as SPR's D",
        source="the authors hold a whole task",
    )
    memory_size: int = setting(
        "capacity of the memory, besides the delayed buffer", unit="samples", by_data="as SPR's P"
    )
    epochs: int = setting(
        "passes over each delayed buffer, without and with replay in turn; the last one has replay",
        50,
        unit="epochs",
        source="Millunzi 2024, over each task",
    )
    batch_size: int = setting(
        "incoming samples of a step, and replayed samples of it", 32, unit="samples", source="released code"
    )
    lr: float = setting(
        "learning rate of stochastic gradient descent", 0.1, source="released code's configuration for CIFAR-100"
    )
    rejected: float = setting(
        "share of the incoming samples, those with the largest losses, that are not offered to the memory",
        0.75,
        source="released code",
        least=0,
        most=0.99,
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        by_data = {
            "delayed_size": facts.buffer_size,
            "memory_size": facts.buffer_size,
        }
        return by_data | super().fill(chosen, facts, preset)


# ---------------------------------------------------------------- the memory


def replacements(losses: Real, is_current: Mask, offered: Real, n_before: int, draws: Real) -> list[int]:
    """Return the slot that each offered sample takes in a full memory, -1 if it does not enter.

    `losses` (capacity,) and `is_current` (capacity,) are those of the memory, `offered` (n,) the losses of the new
    samples, `n_before` the number of samples offered before, and `draws` (n, 3) uniform numbers.
    """
    losses, is_current = losses.copy(), is_current.copy()
    slots = []
    for i, (enter, group, sample) in enumerate(draws.tolist()):
        if int(enter * (n_before + i + 1)) >= len(losses):
            slots.append(-1)
            continue
        of_past = group * len(losses) < np.count_nonzero(~is_current)
        members = np.flatnonzero(is_current != of_past)
        weight = _scaled(losses[members])
        weight = (1 - weight if of_past else weight) + 1e-9  # equal losses: all are equally likely
        bounds = weight.cumsum()
        chosen = int(bounds.searchsorted(sample * bounds[-1], side="right"))
        slot = int(members[min(chosen, len(members) - 1)])
        losses[slot], is_current[slot] = offered[i], True
        slots.append(slot)
    return slots


def _scaled(values: Real) -> Real:
    """Values scaled to [0, 1]."""
    scaled: Real = (values - values.min()) / max(float(values.max() - values.min()), 1e-12)
    return scaled


# ---------------------------------------------------------------- the learner


@dataclass(kw_only=True)
class Aer(DelayedLearner):
    """Alternate replay over each delayed buffer."""

    capacity: int
    epochs: int
    batch_size: int
    lr: float
    rejected: float
    augment: bool
    memory: Batch = field(init=False)  # images on the device, labels and index on the CPU
    is_current: Tensor = field(init=False)  # bool (n,): whether a sample of the memory came in the current task
    seen: Tensor = field(init=False)  # bool (classes,): whether a class occurred
    n_offered: int = field(default=0, init=False)  # samples offered to the memory so far
    task_ended: bool = field(default=False, init=False)  # a task ended, and its last samples may wait
    wants_task_ends = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = Batch(*(t.clone() for t in self.waiting))
        self.is_current = torch.zeros(0, dtype=torch.bool)
        self.seen = torch.zeros(self.n_classes, dtype=torch.bool)

    @property
    def jobs_per_buffer(self) -> int:
        return self.epochs

    @property
    def pending(self) -> bool:
        return super().pending or self.task_ended

    def end_task(self) -> None:
        self.task_ended = True

    def held_index(self) -> Tensor:
        return self.memory.index.clone()

    def work(self) -> Asks[Report | None]:
        if self.waiting.n:
            return (yield from super().work())
        self.is_current, self.task_ended = torch.zeros_like(self.is_current), False
        return None

    def work_on(self, now: Batch) -> Asks[float]:
        self.seen[now.labels] = True
        replays = self.n_jobs % 2 == 1 or self.n_jobs == self.epochs - 1
        [trained] = yield [self._job(now, replays=replays and self.memory.n > 0)]
        if replays:
            self.weights = trained.state
        else:
            self._update_memory(now, trained)
        return trained.loss

    def _job(self, now: Batch, *, replays: bool) -> ListedJob:
        """Return an epoch over the delayed buffer. Rows are the memory's slots, then the buffer."""
        device, size, n_held = self.engine.device, min(self.batch_size, now.n), self.memory.n
        rng = np.random.Generator(np.random.PCG64(self.seed_for("order")))
        index = self.capacity + rng.permutation(now.n)[: now.n // size * size].reshape(-1, size)
        if replays:
            drawn = [rng.choice(n_held, self.batch_size, replace=n_held < self.batch_size) for _ in index]
            index = np.concatenate([index, drawn], axis=1)
        images, labels = (
            torch.cat([padded(held, self.capacity), padded(new, self.delayed_size)])
            for held, new in zip(self.memory[:2], now[:2], strict=True)
        )
        recipe = Listed(
            batch_size=index.shape[1],
            optimizer="sgd",
            shift_and_flip=self.augment,
            technique=AsymmetricCrossEntropy(n_replayed=self.batch_size if replays else 0),
        )
        return ListedJob(
            phase="learn" if replays else "forget",
            network=self.network,
            state=self.weights,
            recipe=recipe,
            images=images,
            labels=labels.to(device),
            seed=self.seed_for("draws"),
            index=torch.from_numpy(index),
            lrs=torch.full((len(index),), self.lr),
            extra={"seen": self.seen.to(device)},
        )

    def _update_memory(self, now: Batch, forgotten: Trained) -> None:
        """Offer the samples with small losses to the memory, by the losses of a network that has forgotten."""
        logits = embed(self.network, forgotten.state, torch.cat([now.images, self.memory.images])).cpu()
        absent = torch.ones(self.n_classes, dtype=torch.bool)
        absent[now.labels] = False
        own, held = logits[: now.n].masked_fill(absent, -torch.inf), logits[now.n :]
        fresh, known = (
            F.cross_entropy(some, batch.labels, reduction="none").double().numpy()
            for some, batch in ((own, now), (held, self.memory))
        )
        best = np.sort(np.argsort(fresh, kind="stable")[: max(1, round((1 - self.rejected) * now.n))])
        offered = best[~np.isin(now.index.numpy()[best], self.memory.index.numpy())]
        n_free = min(len(offered), self.capacity - self.memory.n)
        self._append(Batch(*(t[torch.from_numpy(offered[:n_free]).to(t.device)] for t in now)))
        known = np.concatenate([known, fresh[offered[:n_free]]])
        self.n_offered += n_free
        offered = offered[n_free:]
        draws = torch.rand((len(offered), _DRAWS), generator=self.generator, dtype=torch.float64).numpy()
        slots = replacements(known, self.is_current.numpy(), fresh[offered], self.n_offered, draws)
        self.n_offered += len(offered)
        taken = dict(zip(slots, offered.tolist(), strict=True))  # the last sample of a slot stays
        taken.pop(-1, None)
        to, rows = (torch.tensor(list(some), dtype=torch.int64) for some in (taken.keys(), taken.values()))
        for ours, theirs in zip(self.memory, now, strict=True):
            ours[to.to(ours.device)] = theirs[rows.to(theirs.device)]
        self.is_current[to] = True

    def _append(self, new: Batch) -> None:
        self.memory = Batch(*(torch.cat(pair) for pair in zip(self.memory, new, strict=True)))
        self.is_current = torch.cat([self.is_current, torch.ones(new.n, dtype=torch.bool)])

    def state(self) -> State:
        own = {name: torch.tensor(getattr(self, name)) for name in ("n_offered", "task_ended")}
        own |= {"seen": self.seen.clone(), "memory.is_current": self.is_current.clone()}
        return super().state() | own | prefixed("memory.", {n: t.clone() for n, t in self.memory._asdict().items()})

    def forms(self, state: State, limits: Limits) -> Forms:
        n_held = n_rows(state, "memory.labels", self.capacity)
        memory = batch_forms(n_held, self.image_shape, torch.uint8, limits)
        memory["is_current"] = Form(torch.bool, (n_held,))
        own = {"n_offered": COUNT, "task_ended": FLAG, "seen": Form(torch.bool, (self.n_classes,))}
        return (super().forms(state, limits) or {}) | own | prefixed("memory.", memory)

    def load(self, state: State) -> None:
        super().load(state)
        self.n_offered, self.task_ended = int(state["n_offered"]), bool(state["task_ended"])
        self.seen = state["seen"].cpu().clone()
        memory = part(state, "memory.")
        images = memory["images"].to(self.engine.device).clone()
        self.memory = Batch(images, memory["labels"].cpu().clone(), memory["index"].cpu().clone())
        self.is_current = memory["is_current"].cpu().clone()


def build(settings: AerSettings, data: DataSpec, *, engine: Engine, seed: int) -> Aer:
    """Return a learner that has seen nothing."""
    s = settings
    return Aer(
        **common_arguments(s, data, engine=engine, seed=seed),
        delayed_size=s.delayed_size,
        capacity=s.memory_size,
        epochs=s.epochs,
        batch_size=s.batch_size,
        lr=s.lr,
        rejected=s.rejected,
        augment=s.augment,
    )


def count_steps(s: AerSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count the epochs over the delayed buffers, of which the last one of a task may be short."""
    sizes = [
        min(s.delayed_size, end - at)
        for start, end in pairwise((0, *task_ends))
        for at in range(start, end, s.delayed_size)
    ]
    per_epoch = sum(max(1, n // s.batch_size) for n in sizes)
    n_learning = s.epochs // 2 + s.epochs % 2
    return Workload(len(sizes), {"forget": (s.epochs - n_learning) * per_epoch, "learn": n_learning * per_epoch})


ENTRY = Entry(
    name="aer",
    title="AER + ABS",
    summary="alternates epochs with and without replay to find wrong labels by what is forgotten; told where tasks end",
    settings=AerSettings,
    build=build,
    count_steps=count_steps,
)
