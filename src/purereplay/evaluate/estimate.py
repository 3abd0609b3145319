"""The work of a run before it starts: buffers, training steps by phase, memory, and the approximate time."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from purereplay.data.batch import Batch
from purereplay.data.catalogue import info_for
from purereplay.data.seeds import derive_seed
from purereplay.evaluate.settings import RunSettings
from purereplay.learners import registry
from purereplay.learners.base import Learner, Report, Workload
from purereplay.learners.networks import make_backbone
from purereplay.learners.settings import NetworkSettings
from purereplay.nets.engine import Engine, equal_share
from purereplay.nets.jobs import Asks, Job, JointJob, ListedJob, Result, Trained
from purereplay.nets.networks import Head, Network, State, is_trained

_SAMPLE_BUFFERS = 6  # about half of a random buffer passes the filter, so P is full by then


class Estimate(NamedTuple):
    """A workload with measured speeds."""

    workload: Workload
    seconds_per_step: dict[str, float]  # of one network, by phase, measured on this machine
    side_by_side: dict[str, int]  # by phase: networks of one run trained at once
    fit: dict[str, int]  # by phase: networks that fit into the available memory at once
    memory: int  # bytes that training takes, all phases together
    seconds: float


def count_steps(settings: RunSettings, task_ends: tuple[int, ...]) -> Workload:
    """Count the training steps of a stream whose tasks end at these positions."""
    count = registry.entry(settings.learner).count_steps
    counted = count(settings.options, task_ends)
    if settings.evaluate == "end":  # one classifier is trained instead of one per task
        once = count(settings.options, task_ends[-1:]).steps
        counted.steps.update({phase: once[phase] for phase in ("scratch", "finetune") if phase in once})
    return counted


def memory_of(settings: RunSettings) -> int:
    """Return the approximate bytes of a run's largest network in training, by its settings alone.

    As `network_bytes`, for batches and buffers of full size; nothing is loaded or built.
    """
    info, options = info_for(settings.dataset), settings.options
    head = Head(getattr(options, "projection_size", info.n_classes))
    shape = info.shape if settings.encoder is None else (settings.encoder.dim, 1, 1)
    network = Network(make_backbone(cast(NetworkSettings, options), shape), head)
    with torch.device("meta"):
        weights = sum(t.numel() for t in network.init(0).values())
    image = math.prod(shape)
    steps = count_steps(settings, (info.n_train,)).steps

    def size(*names: str) -> int:
        return sum(getattr(options, name, 0) for name in names)

    needed = []
    for phase in steps:
        if phase in ("expert", "base"):
            views, held = 2 * size(f"{phase}_batch"), size("delayed_size", "purified_size")
            interpolation = shape[-1] ** 2 + shape[-2] ** 2
            work = views * (network.activation_floats() + 6 * image + 3 * interpolation + 4 * views)
        else:
            batch = size("finetune_batch") or size("batch_size", "replay_size")
            held = size("memory_size", "purified_size") or info.n_train
            work = batch * (network.activation_floats() + image)
        needed.append(4 * (4 * weights + held * image + work))
    return max(needed)


def estimate(settings: RunSettings, learner: Learner[Report], task_ends: tuple[int, ...]) -> Estimate:
    """Time a few steps of each phase on random images of the right shape, and multiply."""
    counted = count_steps(settings, task_ends)
    jobs = _sample_jobs(learner, is_vectors=settings.encoder is not None)
    jobs = {phase: job for phase, job in jobs.items() if counted.steps.get(phase)}  # a short stream may fill no buffer
    engine = Engine(learner.engine.device, precision=settings.precision)
    fit = {phase: engine.side_by_side(job) for phase, job in jobs.items()}
    per_task = -(-counted.n_buffers // len(task_ends))  # buffers are taken ahead up to the end of a task
    together = dict.fromkeys(jobs, 1)
    if "expert" in jobs:
        together["expert"] = equal_share(min(settings.lookahead, per_task), fit["expert"])
    speeds = {phase: _seconds_per_step(engine, job, together[phase]) / together[phase] for phase, job in jobs.items()}
    memory = sum(together[phase] * engine.bytes_for(job) for phase, job in jobs.items())
    seconds = sum(speed * counted.steps[phase] for phase, speed in speeds.items())
    return Estimate(counted, speeds, together, fit, memory, seconds)


def _sample_jobs(learner: Learner[Report], *, is_vectors: bool) -> dict[str, Job]:
    """Return one job of each phase as the learner itself requests it, after a few buffers of random images."""
    jobs: dict[str, Job] = {}

    def answer(work: Asks[Result]) -> None:
        """Advance the work with untrained networks as answers; keep the last job of each phase."""
        trained: list[Trained] | None = None
        try:
            while True:
                asked = next(work) if trained is None else work.send(trained)
                jobs.update({job.phase: job for job in asked})
                trained = [Trained(job.state, _no_moments(job), 0.0, 0.0, _extra(job)) for job in asked]
        except StopIteration:
            return

    generator = torch.Generator().manual_seed(derive_seed("estimate"))
    n = learner.n_to_take(_SAMPLE_BUFFERS)
    images = torch.randint(0, 256, (n, *learner.image_shape), dtype=torch.uint8, generator=generator)
    if is_vectors:
        images = torch.randn((n, *learner.image_shape), generator=generator)
    learner.take(Batch(images, torch.arange(n) % 2, torch.arange(n)))
    if learner.wants_task_ends:
        learner.end_task()
    while learner.pending:
        answer(learner.work())
    answer(learner.classify())
    return jobs


def _extra(job: Job) -> State:
    if isinstance(job, JointJob):
        return job.average
    return job.extra if isinstance(job, ListedJob) else {}


def _no_moments(job: Job) -> State:
    """Return the moments of Adam before the first step."""
    names = [name for name in job.state if is_trained(name)]
    moments = {f"{m}.{name}": torch.zeros_like(job.state[name]) for name in names for m in ("mean", "square")}
    return moments | {"step": torch.tensor(0)}


def _seconds_per_step(engine: Engine, job: Job, k: int) -> float:
    """Return the seconds of one step of k such networks side by side."""
    few = 3 if engine.device.type == "cpu" else 100
    for _ in range(2):  # the first round warms up
        some = job.shortened(few)
        began = time.perf_counter()
        engine.train([replace(some, seed=i) for i in range(k)])  # identical jobs would be trained once
        seconds = time.perf_counter() - began
    return seconds / some.n_steps
