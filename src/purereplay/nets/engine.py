"""The engine: trains the jobs that learners request, K networks of one shape side by side.

`Engine.train` groups jobs, runs each group as one loop over stacked networks and returns one answer per job. The loops
are in `loops/`. `lockstep` advances learners from request to request.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import Counter, defaultdict
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

_LOOPS_KEPT = 6  # loops kept with their memory and captured graph for the next job of their shape
_CPU_MEMORY = 2**31  # bytes for all loops on the CPU; on CUDA: half of the memory, or 90 % of the free memory
_CPU_SIDE_BY_SIDE = 16  # MLPs per group on the CPU: more are no faster on a few cores


class TrainingProgress(NamedTuple):
    """Progress of the engine within a group of jobs."""

    phase: str
    n_networks: int
    done: int  # steps
    total: int


class _CudaLoopFailed(Exception):
    """The CUDA loop could not be compiled or captured."""


def flush_denormals() -> None:
    """Treat numbers below 1e-38 as 0, on which processors are thirty times slower; Adam's moments decay to them.

    Only the command line calls this, before PyTorch starts its threads. The library does not change the arithmetic of
    its caller's process.
    """
    torch.set_flush_denormal(True)


class Engine:
    """Trains jobs on one device; `watch` receives the progress a few times per second and may raise to interrupt."""

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
        # in the order of their last use; an OrderedDict would not survive an interrupt in the look-up of a key
        self._loops: dict[Hashable, Loop[Any]] = {}
        self._in_use = weakref.ref(threading.Lock())  # to the lock of the last call, held while it trains
        self._reported_at = time.perf_counter()  # time of the last call of `watch`
        self._cuda = _load_cuda_loop() if device.type == "cuda" and precision == "bf16" else None
        self._memory = _CPU_MEMORY
        if device.type == "cuda":
            torch.backends.cudnn.deterministic = True  # same seed, same bits
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            free, total = torch.cuda.mem_get_info(device)
            self._memory = min(total // 2, free * 9 // 10)

    def train(self, jobs: Sequence[Job]) -> list[Trained]:
        """Train jobs and return their answers in order; the loss of a job that diverged is not finite.

        Identical jobs are trained once. For example, runs that differ only in their filter share their experts.
        """
        own = threading.Lock()
        with own:  # interrupts cannot leave a lock held
            other = self._in_use()
            if other is not None and other.locked():
                raise UserError(
                    "A learner and its engine serve one thread at a time: give each thread its own learner."
                )
            self._in_use = weakref.ref(own)
            return self._train_shared(jobs)

    def _train_shared(self, jobs: Sequence[Job]) -> list[Trained]:
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
                    return self._train_all(jobs)  # answers so far are lost: the loop fails at its first job
                except torch.cuda.OutOfMemoryError:
                    if len(some) == 1:
                        raise UserError(
                            f"The GPU's memory cannot hold one {jobs[some[0]].phase} network: use smaller batches."
                        ) from None
                    self._halve(jobs[some[0]], len(some))
                    share = equal_share(len(left), self.side_by_side(jobs[left[0]]))
                    continue
                answers.update(zip(some, trained, strict=True))
                left = left[len(some) :]
        return [answers[i] for i in range(len(jobs))]

    def group(self, job: Job) -> Hashable:
        """Key of a group: jobs with equal keys can be trained side by side."""
        return job.shape if self._cuda_loop_for(job) else job.kind

    def side_by_side(self, job: Job) -> int:
        """Number of networks of this job's shape that are trained side by side."""
        fit = max(1, self._memory // self.bytes_for(job))
        if self.device.type == "cuda":
            return fit
        # three ResNets side by side take 1.3 to 1.4 times as long as in sequence: they share no matrix product
        return min(_CPU_SIDE_BY_SIDE, fit) if isinstance(job.network.backbone, MLP) else 1

    def bytes_for(self, job: Job) -> int:
        """Approximate memory of one such network in training."""
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
        loop.load(jobs)
        n_steps = max(job.n_steps for job in jobs)  # shorter jobs idle
        done = 0
        while done < n_steps:
            done += loop.advance(n_steps - done)
            if self.watch and time.perf_counter() - self._reported_at > 0.1:
                self._reported_at = time.perf_counter()
                self.watch(TrainingProgress(jobs[0].phase, len(jobs), done, n_steps))
        answers = loop.answers(began)
        self._loops[key] = loop  # only now: a loop that was interrupted is not used again
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
        """Compile and capture the CUDA loop; if that fails, warn and use the plain loop from now on."""
        try:
            loop: Loop[Any] = cuda.CudaLoop(jobs, self.device)
            loop.load(jobs)
            loop.advance(1)
            return loop
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("the CUDA training loop failed, using the plain loop: %s", str(error)[:300])
            self._cuda = None
            raise _CudaLoopFailed from error

    def _halve(self, job: Job, k: int) -> None:
        """After k networks ran out of memory: drop all loops and allow half as many networks from now on."""
        self._loops.clear()
        torch.cuda.empty_cache()
        self._memory = max(1, k // 2) * self.bytes_for(job)
        log.warning("the GPU's memory cannot hold %d %s networks: continuing with %d", k, job.phase, max(1, k // 2))

    def _make_room(self, n_bytes: int) -> None:
        """Drop the least recently used loops until a new one of this size fits into the allowed memory."""
        held = sum(loop.n_bytes for loop in self._loops.values())
        while self._loops and (held + n_bytes > self._memory or len(self._loops) >= _LOOPS_KEPT):
            held -= self._loops.pop(next(iter(self._loops))).n_bytes


def equal_share(n: int, at_most: int) -> int:
    """Size of the groups in which to train n networks: equal-sized groups, even if that takes a few more of them.

    Equal groups share one loop. Loops of two sizes often do not fit into memory together, and making a loop again takes
    seconds.
    """
    n_groups = -(-n // at_most)
    sizes = [n // g for g in range(n_groups, n_groups + n_groups // 2 + 1) if n % g == 0]
    return sizes[0] if sizes else -(-n // n_groups)


def _load_cuda_loop() -> ModuleType | None:
    """Import the module of the CUDA loop; None, with a warning, if Triton is not installed."""
    try:
        return import_module("purereplay.nets.loops.cuda.loop")
    except ImportError as error:
        log.warning("Triton is not installed, using the plain loop: %s", error)
        return None
