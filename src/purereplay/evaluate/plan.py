"""How much work a run is, counted before it starts: buffers, training steps by phase, memory, and about how long."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch

from purereplay.data.batch import Batch
from purereplay.data.seeds import derive_seed
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.base import PIECE, Learner
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.learners.build import make_filtering
from purereplay.learners.settings import SprSettings
from purereplay.nets.engine import Engine, equal_share
from purereplay.nets.jobs import Asks, Job, ListedJob, Result, Trained
from purereplay.nets.networks import State, is_trained

_SAMPLE_BUFFERS = 6  # about half of a random buffer passes the filter, so P is full by then


class Plan(NamedTuple):
    """Network-steps of a whole run."""

    n_buffers: int
    steps: dict[str, int]  # by phase


class Estimate(NamedTuple):
    """A plan with measured speeds."""

    plan: Plan
    seconds_per_step: dict[str, float]  # of one network, by phase, measured here and now
    side_by_side: dict[str, int]  # by phase: networks of one run trained at once
    fit: dict[str, int]  # by phase: how many networks could be trained at once in the memory there is
    memory: int  # bytes that training takes, all phases together
    seconds: float


def plan(settings: RunSettings, task_ends: tuple[int, ...]) -> Plan:
    """Count the steps of a stream whose tasks end there."""
    if isinstance(settings.options, RivalSettings):
        return _plan_rival(settings.learner, settings.options, task_ends)
    return plan_spr(settings.options, task_ends)


def _plan_rival(name: str, options: RivalSettings, task_ends: tuple[int, ...]) -> Plan:
    n_pieces = sum(-(-(end - start) // PIECE) for start, end in pairwise((0, *task_ends)))
    if name not in ("gdumb", "multitask"):
        return Plan(n_pieces, {"online": -(-task_ends[-1] // options.batch_size)})
    assert options.memory_size is not None
    epochs = options.gdumb_epochs if name == "gdumb" else options.multitask_epochs
    held = [min(end, options.memory_size) for end in task_ends] if name == "gdumb" else [task_ends[-1]]
    return Plan(n_pieces, {"scratch": sum(epochs * max(1, n // options.scratch_batch) for n in held)})


def plan_spr(options: SprSettings, task_ends: tuple[int, ...]) -> Plan:
    """As if P were full from the start."""
    n, d, p = task_ends[-1], options.delayed_size, options.purified_size
    assert d and p and options.base_batch and options.expert_batch
    n_buffers = -(-n // d) if options.tail == "process" else n // d
    half = max(1, options.base_batch // 2)
    base_steps = max(1, (d + p) // options.base_batch) if options.replay == "union" else max(1, d // half)
    if options.replay == "purified" or options.self_replay == "task-end":
        base_steps = max(1, p // options.base_batch)
    n_bases = {"every-buffer": n_buffers, "task-end": len(task_ends), "never": 0}[options.self_replay]
    filtering = make_filtering(options)
    n_experts = n_buffers if filtering.has_experts else 0
    rivals = {"aum": filtering.aum.n_steps(d), "incv": filtering.incv.n_steps(d)}
    steps = {
        "expert": n_experts * options.expert_epochs * max(1, d // options.expert_batch),
        "base": n_bases * options.base_epochs * base_steps,
        "filter": n_buffers * rivals.get(options.filter, 0),
        "finetune": len(task_ends) * options.finetune_epochs * max(1, p // options.finetune_batch),
    }
    return Plan(n_buffers, {phase: n for phase, n in steps.items() if n})


def estimate(settings: RunSettings, learner: Learner, task_ends: tuple[int, ...]) -> Estimate:
    """Time a few steps of each phase on made-up images of the right shape and multiply."""
    counted = plan(settings, task_ends)
    jobs = _sample_jobs(learner)
    engine = Engine(learner.engine.device, precision=settings.precision)
    fit = {phase: engine.side_by_side(job) for phase, job in jobs.items()}
    a_task = -(-counted.n_buffers // len(task_ends))  # buffers are taken ahead up to the end of a task
    together = dict.fromkeys(jobs, 1)
    if "expert" in jobs:
        together["expert"] = equal_share(min(settings.lookahead, a_task), fit["expert"])
    speeds = {phase: _seconds_per_step(engine, job, together[phase]) / together[phase] for phase, job in jobs.items()}
    memory = sum(together[phase] * engine.bytes_for(job) for phase, job in jobs.items())
    seconds = sum(speed * counted.steps[phase] for phase, speed in speeds.items())
    return Estimate(counted, speeds, together, fit, memory, seconds)


def _sample_jobs(learner: Learner) -> dict[str, Job]:
    """One job of each phase as the learner itself asks for them, after a few buffers of random images."""
    jobs: dict[str, Job] = {}

    def answer(work: Asks[Result]) -> None:
        """Advance the work with untrained networks for answers; of each phase the last job is kept."""
        trained: list[Trained] | None = None
        try:
            while True:
                asked = next(work) if trained is None else work.send(trained)
                jobs.update({job.phase: job for job in asked})
                trained = [Trained(job.state, _no_moments(job), 0.0, 0.0, _extra(job)) for job in asked]
        except StopIteration:
            return

    generator = torch.Generator().manual_seed(derive_seed("estimate"))
    n = learner.appetite(_SAMPLE_BUFFERS)
    images = torch.randint(0, 256, (n, *learner.image_shape), dtype=torch.uint8, generator=generator)
    learner.take(Batch(images, torch.arange(n) % 2, torch.arange(n)))
    if learner.wants_task_ends:
        learner.end_task()
    while learner.pending:
        answer(learner.work())
    answer(learner.classify())
    return jobs


def _extra(job: Job) -> State:
    return job.extra if isinstance(job, ListedJob) else {}


def _no_moments(job: Job) -> State:
    names = [name for name in job.state if is_trained(name)]
    moments = {f"{m}.{name}": torch.zeros_like(job.state[name]) for name in names for m in ("mean", "square")}
    return moments | {"step": torch.tensor(0)}


def _seconds_per_step(engine: Engine, job: Job, k: int) -> float:
    """Seconds of one step of k such networks side by side."""
    few = 3 if engine.device.type == "cpu" else 100
    for _ in range(2):  # the first round warms up
        some = job.shortened(few)
        began = time.perf_counter()
        engine.train([replace(some, seed=i) for i in range(k)])  # the very same one would be trained once
        seconds = time.perf_counter() - began
    return seconds / some.n_steps
