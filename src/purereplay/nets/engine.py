"""The engine: it trains what learners ask for, K networks of one shape side by side.

`Engine.train` groups jobs, runs each group as one loop over stacked networks and returns one answer per job. The loops
are in `loops/`. `lockstep` advances learners from request to request.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch

from purereplay.errors import UserError
from purereplay.nets.device import Precision
from purereplay.nets.jobs import ContrastiveJob, Job, ListedJob, SupervisedJob, Trained, first_of_its_kind
from purereplay.nets.loops.base import Loop, network_bytes
from purereplay.nets.loops.cpu_mlp import CpuMlpLoop, can_train
from purereplay.nets.loops.listed import ListedLoop
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.networks import MLP

log = logging.getLogger(__name__)

_LOOPS_KEPT = 6  # loops whose memory and captured graph stay ready for the next job of their shape
_CPU_MEMORY = 2**31  # what all loops together may take there; CUDA: half of the card, or what is free
_CPU_SIDE_BY_SIDE = 16  # perceptrons: beyond this nothing is gained on a few cores


class TrainingProgress(NamedTuple):
    """Where the engine is within a group of jobs."""

    phase: str
    n_networks: int
    done: int  # steps
    total: int


class _CudaLoopFailed(Exception):
    """The fast loop turned out not to work."""


def own_the_process() -> None:
    """For a program of our own, before PyTorch's threads are born; a library leaves its user's arithmetic alone.

    Numbers below 1e-38 count as 0: Adam's fading moments get there, where a processor is thirty times slower.
    """
    torch.set_flush_denormal(True)


class Engine:
    """Trains jobs on one device; `watch` hears of progress a few times a second and may raise to interrupt."""

    def __init__(
        self,
        device: torch.device,
        *,
        precision: Precision = "float32",
        watch: Callable[[TrainingProgress], None] | None = None,
    ) -> None:
        self.device = device
        self.precision = precision
        self.watch = watch
        self._loops: OrderedDict[Hashable, Loop[Any]] = OrderedDict()  # the one used last comes last
        self._told = time.perf_counter()  # when progress was told last
        self._cuda = _load_cuda_loop() if device.type == "cuda" and precision == "bf16" else None
        self._memory = _CPU_MEMORY
        if device.type == "cuda":
            torch.backends.cudnn.deterministic = True  # same seed, same bits
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            free, total = torch.cuda.mem_get_info(device)
            self._memory = min(total // 2, free * 9 // 10)

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """The jobs' answers, in their order; the loss of one that diverged is not finite.

        What several ask for in the same way is trained once: runs that differ in their filter alone have the same
        experts, for example.
        """
        firsts = first_of_its_kind(jobs)
        shared = Counter(firsts)
        trained = self._train_all([jobs[i] for i in shared])
        answers = {i: t._replace(seconds=t.seconds / n) for (i, n), t in zip(shared.items(), trained, strict=True)}
        return [answers[i] for i in firsts]

    def _train_all(self, jobs: list[Job]) -> list[Trained]:
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            groups[self.group(job)].append(i)
        answers: dict[int, Trained] = {}
        for members in groups.values():
            left, share = members, equal_share(len(members), self.side_by_side(jobs[members[0]]))
            while left:
                some = left[:share]
                try:
                    trained = self._train_group([jobs[i] for i in some])
                except _CudaLoopFailed:
                    return self._train_all(jobs)  # what was trained so far is lost: this is found out at the first job
                except torch.cuda.OutOfMemoryError:
                    if len(some) == 1:
                        raise UserError(
                            f"The GPU's memory does not hold one {jobs[some[0]].phase} network: use smaller batches."
                        ) from None
                    self._halve(jobs[some[0]], len(some))
                    share = equal_share(len(left), self.side_by_side(jobs[left[0]]))
                    continue
                answers.update(zip(some, trained, strict=True))
                left = left[len(some) :]
        return [answers[i] for i in range(len(jobs))]

    def group(self, job: Job) -> Hashable:
        """Jobs with the same answer can be trained in one go."""
        return job.shape if self._cuda_loop_for(job) else job.kind

    def side_by_side(self, job: Job) -> int:
        """How many networks of this job's shape are trained at once."""
        fit = max(1, self._memory // self.bytes_for(job))
        if self.device.type == "cuda":
            return fit
        # three ResNets at once take 1.3 to 1.4 times as long as one after the other: nothing of theirs is one product
        return min(_CPU_SIDE_BY_SIDE, fit) if isinstance(job.network.backbone, MLP) else 1

    def bytes_for(self, job: Job) -> int:
        """About how much memory one such network takes in training."""
        cuda = self._cuda_loop_for(job)
        n_bytes: int = cuda.cuda_bytes(job) if cuda else network_bytes(job)
        return n_bytes

    def _cuda_loop_for(self, job: Job) -> ModuleType | None:
        """The module of the CUDA loop if that loop can train the job."""
        return self._cuda if self._cuda is not None and self._cuda.can_train(job) else None

    def _train_group(self, jobs: list[Job]) -> list[Trained]:
        began = time.perf_counter()
        key = (jobs[0].shape, len(jobs))
        loop = self._loops.pop(key, None)
        if loop is None:
            self._make_room(len(jobs) * self.bytes_for(jobs[0]))
            loop = self._make_loop(jobs)
        self._loops[key] = loop
        loop.load(jobs)
        n_steps = max(job.n_steps for job in jobs)  # who is done earlier waits
        done = 0
        while done < n_steps:
            done += loop.advance(n_steps - done)
            if self.watch and time.perf_counter() - self._told > 0.1:
                self._told = time.perf_counter()
                self.watch(TrainingProgress(jobs[0].phase, len(jobs), done, n_steps))
        answers = loop.answers(began)
        sums = torch.stack([torch.stack([t.sum() for t in a.state.values()]).sum() for a in answers])
        return [a if ok else a._replace(loss=math.nan) for a, ok in zip(answers, sums.isfinite().tolist(), strict=True)]

    def _make_loop(self, jobs: list[Job]) -> Loop[Any]:
        """The fastest loop for these jobs of one shape."""
        if listed := [job for job in jobs if isinstance(job, ListedJob)]:
            return ListedLoop(listed, self.device, self.precision)
        if cuda := self._cuda_loop_for(jobs[0]):
            return self._make_cuda_loop(cuda, jobs)
        if self.device.type == "cpu" and self.precision == "float32":
            contrastive = [job for job in jobs if can_train(job)]
            if contrastive:
                return CpuMlpLoop(contrastive)
        drawn = [job for job in jobs if isinstance(job, ContrastiveJob | SupervisedJob)]
        return PlainLoop(drawn, self.device, self.precision)

    def _make_cuda_loop(self, cuda: ModuleType, jobs: list[Job]) -> Loop[Any]:
        """The fast loop, compiled and captured; where that fails the plain one serves from now on, with one warning."""
        try:
            loop: Loop[Any] = cuda.CudaLoop(jobs, self.device)
            loop.load(jobs)
            loop.advance(1)
            return loop
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("the fast training loop does not work here, the plain one runs: %s", str(error)[:300])
            self._cuda = None
            raise _CudaLoopFailed from error

    def _halve(self, job: Job, k: int) -> None:
        """Memory ran out with k networks: let go of everything, and do with half from now on."""
        self._loops.clear()
        torch.cuda.empty_cache()
        self._memory = max(1, k // 2) * self.bytes_for(job)
        log.warning("the GPU's memory does not hold %d %s networks: going on with %d", k, job.phase, max(1, k // 2))

    def _make_room(self, n_bytes: int) -> None:
        """Let go of the loops used longest ago until a new one of this size is within the memory allowed."""
        held = sum(loop.n_bytes for loop in self._loops.values())
        while self._loops and (held + n_bytes > self._memory or len(self._loops) >= _LOOPS_KEPT):
            held -= self._loops.popitem(last=False)[1].n_bytes


def equal_share(n: int, at_most: int) -> int:
    """How many of n networks to train at a time: in a few more goes than needed where all of them are then of one size.

    One loop serves them all then; loops of two sizes often do not fit into the memory together, and making one anew
    takes seconds.
    """
    goes = -(-n // at_most)
    sizes = [n // g for g in range(goes, goes + goes // 2 + 1) if n % g == 0]
    return sizes[0] if sizes else -(-n // goes)


def _load_cuda_loop() -> ModuleType | None:
    """The fast loop's module, where Triton is there to compile it."""
    try:
        return import_module("purereplay.nets.loops.cuda.loop")
    except ImportError as error:
        log.warning("Triton is not there, the plain loop runs: %s", error)
        return None
