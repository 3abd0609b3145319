"""The engine: it trains what learners ask for, K networks of one shape side by side.

`drive` advances one learner's work from request to request, `drive_together` many at once. `Engine.train` groups jobs,
runs each group as one loop over stacked networks and hands every job its own answer. On CUDA a loop's step is captured
once as a graph and replayed, with the step count, the learning rate and all draws on the device.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.errors import Interrupted, UserError
from purereplay.nets.jobs import Asks, Contrastive, Job, Result, Trained
from purereplay.nets.networks import is_trained, stack, unstack
from purereplay.nets.steps import contrastive_loss, learning_rate, supervised_loss

log = logging.getLogger(__name__)

_LOOPS_KEPT = 6  # loops whose memory and captured graph stay ready for the next job of their shape
_REPLAYS_AT_ONCE = 50  # steps between two looks at the clock on CUDA
_CPU_MEMORY = 2**31  # what all loops together may take there; CUDA: half of the card
_CPU_SIDE_BY_SIDE = 16  # beyond this nothing is gained on a few cores


class Progress(NamedTuple):
    """Where the engine is within a group of jobs."""

    phase: str
    n_networks: int
    done: int  # steps
    total: int


class Engine:
    """Trains jobs on one device; `watch` hears of progress a few times a second and may raise to interrupt."""

    def __init__(self, device: torch.device, *, watch: Callable[[Progress], None] | None = None) -> None:
        self.device = device
        self.watch = watch
        self._loops: OrderedDict[Hashable, _Loop] = OrderedDict()  # the one used last comes last
        self._told = time.perf_counter()  # when progress was told last
        on_cuda = device.type == "cuda"
        if on_cuda:
            torch.backends.cudnn.deterministic = True  # same seed, same bits
        self._memory = torch.cuda.get_device_properties(device).total_memory // 2 if on_cuda else _CPU_MEMORY

    def train(self, jobs: list[Job]) -> list[Trained]:
        """The jobs' answers, in their order."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            groups[job.kind].append(i)
        answers: dict[int, Trained] = {}
        for members in groups.values():
            k = self.side_by_side(jobs[members[0]])
            for at in range(0, len(members), k):
                some = members[at : at + k]
                answers.update(zip(some, self._train_group([jobs[i] for i in some]), strict=True))
        return [answers[i] for i in range(len(jobs))]

    def side_by_side(self, job: Job) -> int:
        """How many networks of this job's shape are trained at once; the same on every call for the same device."""
        fit = max(1, self._memory // network_bytes(job))
        return fit if self.device.type == "cuda" else min(_CPU_SIDE_BY_SIDE, fit)

    def _train_group(self, jobs: list[Job]) -> list[Trained]:
        began = time.perf_counter()
        key = (jobs[0].shape, len(jobs))
        loop = self._loops.pop(key, None)
        if loop is None:
            self._make_room(len(jobs) * network_bytes(jobs[0]))
            loop = _Loop(jobs, self.device)
        self._loops[key] = loop
        loop.load(jobs)
        n_steps = jobs[0].n_steps
        done = 0
        while done < n_steps:
            done += loop.advance(n_steps - done)
            if self.watch and time.perf_counter() - self._told > 0.1:
                self._told = time.perf_counter()
                self.watch(Progress(jobs[0].phase, len(jobs), done, n_steps))
        answers = loop.answers(began)
        if not all(math.isfinite(a.loss) and all(bool(t.isfinite().all()) for t in a.state.values()) for a in answers):
            raise UserError(f"The training of the {jobs[0].phase} network diverged: lower its learning rate.")
        return answers

    def _make_room(self, n_bytes: int) -> None:
        """Let go of the loops used longest ago until a new one of this size is within the memory allowed."""
        held = sum(loop.n_bytes for loop in self._loops.values())
        while self._loops and (held + n_bytes > self._memory or len(self._loops) >= _LOOPS_KEPT):
            held -= self._loops.popitem(last=False)[1].n_bytes


@dataclass
class Account:
    """Where one learner's time goes."""

    seconds: dict[str, float] = field(default_factory=dict)  # by phase; "other" is what is not training
    steps: dict[str, int] = field(default_factory=dict)  # training steps by phase

    def book(self, phase: str, seconds: float, steps: int = 0) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        if steps:
            self.steps[phase] = self.steps.get(phase, 0) + steps


def drive(work: Asks[Result], engine: Engine, account: Account | None = None) -> Result:
    """Run one learner's work to its end, training what it asks for on the way."""
    [result] = drive_together([work], engine, [account or Account()])
    return result


def drive_together(works: list[Asks[Result]], engine: Engine, accounts: list[Account]) -> list[Result]:
    """Run many learners' works to their ends, training side by side what has one shape.

    The request for the network that is trained least goes first, and everybody who asks for the same kind of job joins
    it. So whoever is ahead waits, and runs of one shape fall into lockstep again after every difference between them.
    """
    results: dict[int, Result] = {}
    requests: dict[int, list[Job]] = {}

    def advance(i: int, answer: list[Trained] | None) -> None:
        began = time.perf_counter()
        try:
            requests[i] = next(works[i]) if answer is None else works[i].send(answer)
        except StopIteration as end:
            results[i] = end.value
        accounts[i].book("other", time.perf_counter() - began)

    for i in range(len(works)):
        advance(i, None)
    try:
        while requests:
            last = min(requests, key=lambda i: min(job.steps_before for job in requests[i]))
            kind = {job.kind for job in requests[last]}
            chosen = [i for i, jobs in requests.items() if {job.kind for job in jobs} == kind]
            asked = {i: requests.pop(i) for i in chosen}
            answers = iter(engine.train([job for jobs in asked.values() for job in jobs]))
            for i, jobs in asked.items():
                answer = [next(answers) for _ in jobs]
                for job, trained in zip(jobs, answer, strict=True):
                    accounts[i].book(job.phase, trained.seconds, job.n_steps)
                advance(i, answer)
    except Exception as error:
        stop = error if isinstance(error, Interrupted) else Interrupted("Another run failed.")
        for i, work in enumerate(works):  # each may put its state in safety
            if i not in results:
                with suppress(Exception):
                    work.throw(stop)
        raise
    return [results[i] for i in range(len(works))]


def network_bytes(job: Job) -> int:
    """About how much memory one network of this job takes: weights, gradients, moments, images and activations."""
    weights = sum(t.numel() for t in job.state.values())
    image = job.images[0].numel()
    pool = (job.images.shape[0] + (0 if job.replay is None else job.replay.shape[0])) * image
    if isinstance(job.recipe, Contrastive):
        views = 2 * (min(job.recipe.batch_size, job.images.shape[0]) + job.recipe.replay_size)
        interpolation = job.images.shape[-1] ** 2 + job.images.shape[-2] ** 2
        work = views * (job.network.activation_floats() + 6 * image + 3 * interpolation + 4 * views)
    else:
        work = job.recipe.batch_size * (job.network.activation_floats() + image)
    return 4 * (4 * weights + pool + work)


class _Loop:
    """K stacked networks with everything that a step reads and writes, in place."""

    def __init__(self, jobs: list[Job], device: torch.device) -> None:
        job = jobs[0]
        self.n_bytes = len(jobs) * network_bytes(job)
        self.network, self.recipe, self.steps_per_epoch = job.network, job.recipe, job.steps_per_epoch
        self.state = stack([{n: t.to(device) for n, t in j.state.items()} for j in jobs])
        self.parameters = {n: t.requires_grad_() for n, t in self.state.items() if is_trained(n)}
        on_cuda = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(list(self.parameters.values()), lr=self.rate, fused=True, capturable=on_cuda)
        for p in self.parameters.values():
            zero = torch.zeros((), device=device)
            self.optimizer.state[p] = {"step": zero, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        self.images = self._pool([j.images for j in jobs], device)
        self.replay = (
            None if job.replay is None else self._pool([j.replay for j in jobs if j.replay is not None], device)
        )
        self.labels = (
            None if job.labels is None else torch.stack([j.labels for j in jobs if j.labels is not None]).to(device)
        )
        self.keys = torch.zeros(len(jobs), dtype=torch.int64, device=device)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.start = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros(len(jobs), device=device)
        self.graph = self._capture() if on_cuda else None

    @staticmethod
    def _pool(images: list[Tensor], device: torch.device) -> Tensor:
        return torch.stack(images).to(device).float() / 255

    @torch.no_grad()
    def load(self, jobs: list[Job]) -> None:
        """Put the jobs' networks, moments, images and keys in the places that the step uses."""
        job, device = jobs[0], self.keys.device
        for name, t in self.state.items():
            t.copy_(torch.stack([j.state[name].to(device) for j in jobs]))
        for name, p in self.parameters.items():
            moments = self.optimizer.state[p]
            for ours, theirs in (("exp_avg", "mean"), ("exp_avg_sq", "square")):
                if job.optimizer is None:
                    moments[ours].zero_()
                else:
                    given = [j.optimizer[f"{theirs}.{name}"].to(device) for j in jobs if j.optimizer is not None]
                    moments[ours].copy_(torch.stack(given))
            moments["step"].fill_(0 if job.optimizer is None else int(job.optimizer["step"]))
        self.images.copy_(self._pool([j.images for j in jobs], device))
        if self.replay is not None:
            self.replay.copy_(self._pool([j.replay for j in jobs if j.replay is not None], device))
        if self.labels is not None:
            self.labels.copy_(torch.stack([j.labels for j in jobs if j.labels is not None]))
        self.keys.copy_(torch.tensor([j.seed for j in jobs], dtype=torch.int64))
        self.start.fill_(job.start)
        self.step.zero_()

    def advance(self, at_most: int) -> int:
        """Take some steps; returns how many."""
        if self.graph is None:
            self._step()
            return 1
        n = min(at_most, _REPLAYS_AT_ONCE)
        for _ in range(n):
            self.graph.replay()
        torch.cuda.synchronize(self.keys.device)
        return n

    def answers(self, began: float) -> list[Trained]:
        """Every job's network, moments and last loss, as tensors of its own, and its share of the time since then."""
        losses = self.loss.tolist()
        step = self.optimizer.state[next(iter(self.parameters.values()))]["step"].long()
        per_network = {}
        for name, p in self.parameters.items():
            per_network[f"mean.{name}"] = self.optimizer.state[p]["exp_avg"]
            per_network[f"square.{name}"] = self.optimizer.state[p]["exp_avg_sq"]
        state = {name: t.detach() for name, t in self.state.items()}
        share = (time.perf_counter() - began) / len(losses)
        return [
            Trained(unstack(state, k), unstack(per_network, k) | {"step": step.clone()}, losses[k], share)
            for k in range(len(losses))
        ]

    def _step(self) -> None:
        self.rate.copy_(learning_rate(self.recipe, self.step, self.steps_per_epoch, self.start))
        self.optimizer.zero_grad(set_to_none=True)
        if isinstance(self.recipe, Contrastive):
            loss = contrastive_loss(
                self.network, self.state, self.recipe, self.images, self.replay, self.keys, self.step
            )
        else:
            assert self.labels is not None
            loss = supervised_loss(
                self.network, self.state, self.recipe, self.images, self.labels, self.keys, self.step
            )
        loss.sum().backward()  # type: ignore[no-untyped-call]
        if not isinstance(self.recipe, Contrastive) and self.recipe.clip is not None:
            torch.nn.utils.clip_grad_value_(self.parameters.values(), self.recipe.clip)
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self.step += 1

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """The step as a CUDA graph; None, with a warning, where it cannot be captured. `load` undoes the warm-up."""
        try:
            side = torch.cuda.Stream(self.keys.device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
            return graph
        except RuntimeError as error:
            log.warning("the training step could not be captured as a CUDA graph, the plain loop runs: %s", error)
            return None
