"""How much work a run is, counted before it starts: buffers, training steps by phase, memory, and about how long."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

import torch

from purereplay.data.batch import Batch
from purereplay.data.seeds import derive_seed
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.settings import SprSettings
from purereplay.learners.spr import SPR
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Job

PHASES = ("expert", "base", "finetune")


class Plan(NamedTuple):
    """Network-steps of a whole run."""

    n_buffers: int
    steps: dict[str, int]  # by phase


class Estimate(NamedTuple):
    """A plan with measured speeds."""

    plan: Plan
    seconds_per_step: dict[str, float]  # of one network, by phase, measured here and now
    side_by_side: int  # experts trained at once
    fit: dict[str, int]  # by phase: how many networks could be trained at once in the memory there is
    memory: int  # bytes that training takes, all phases together
    seconds: float


def plan(options: SprSettings, task_ends: tuple[int, ...]) -> Plan:
    """Count the steps of a stream whose tasks end there, as if P were full from the start."""
    n, d, p = task_ends[-1], options.delayed_size, options.purified_size
    assert d and p and options.base_batch and options.expert_batch
    n_buffers = -(-n // d) if options.tail == "process" else n // d
    half = max(1, options.base_batch // 2)
    base_steps = max(1, (d + p) // options.base_batch) if options.replay == "union" else max(1, d // half)
    steps = {
        "expert": n_buffers * options.expert_epochs * max(1, d // options.expert_batch),
        "base": n_buffers * options.base_epochs * base_steps,
        "finetune": len(task_ends) * options.finetune_epochs * max(1, p // options.finetune_batch),
    }
    return Plan(n_buffers, steps)


def estimate(settings: RunSettings, learner: SPR, task_ends: tuple[int, ...]) -> Estimate:
    """Time a few steps of each phase on made-up images of the right shape and multiply."""
    counted = plan(settings.options, task_ends)
    jobs = _sample_jobs(learner)
    engine = Engine(learner.engine.device, precision=settings.precision)
    fit = {phase: engine.side_by_side(job) for phase, job in jobs.items()}
    a_task = -(-counted.n_buffers // len(task_ends))  # buffers are taken ahead up to the end of a task
    together = {"expert": min(settings.lookahead, a_task, fit["expert"]), "base": 1, "finetune": 1}
    speeds = {phase: _seconds_per_step(engine, job, together[phase]) / together[phase] for phase, job in jobs.items()}
    memory = sum(together[phase] * engine.bytes_for(job) for phase, job in jobs.items())
    seconds = sum(speeds[phase] * counted.steps[phase] for phase in PHASES)
    return Estimate(counted, speeds, together["expert"], fit, memory, seconds)


def _sample_jobs(learner: SPR) -> dict[str, Job]:
    """One job of each phase, as the learner itself asks for them, on random images."""
    shape, n, p = learner.delayed.image_shape, learner.delayed.capacity, learner.purified.capacity
    generator = torch.Generator().manual_seed(derive_seed("estimate"))

    def made_up(count: int) -> Batch:
        images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
        return Batch(images, torch.arange(count) % learner.n_classes, torch.arange(count))

    learner.purified.add(made_up(p), torch.ones(p), generator)
    learner.take(made_up(n))
    work = learner.work()
    [expert] = next(work)
    waiting = learner.queue[0]
    waiting.clean_probability = waiting.centrality = torch.zeros(n)  # the expert's answer is not waited for
    [base] = next(learner._replay(waiting))
    [finetune] = next(learner.classify())
    return {"expert": expert, "base": base, "finetune": finetune}


def _seconds_per_step(engine: Engine, job: Job, k: int) -> float:
    """Seconds of one step of k such networks side by side."""
    few = 3 if engine.device.type == "cpu" else 100
    for _ in range(2):  # the first round warms up
        some = replace(job, recipe=replace(job.recipe, epochs=max(1, few // job.steps_per_epoch)))
        began = time.perf_counter()
        engine.train([some] * k)
        seconds = time.perf_counter() - began
    return seconds / some.n_steps
