"""The training loop of MLPs on the CPU: threads take networks from a queue and train each for a few steps.

The steps are those of `cpu_mlp_step`. Results equal those of the plain loop up to rounding. They are the same bits in
every run on the same number of threads: they do not depend on which thread trains a network, or when.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor

from purereplay.nets.jobs import Contrastive, ContrastiveJob, DrawnJob, Job, Joint
from purereplay.nets.loops.cpu_mlp_joint import Shares, Taught, cropped_joint_steps, joint_step, last_joint_loss
from purereplay.nets.loops.cpu_mlp_step import (
    Crops,
    Weights,
    Workspace,
    compiled,
    cropped_steps,
    last_loss,
    make_workspace,
    step,
)
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.losses import NEVER
from purereplay.nets.networks import BACKBONE, CLASSES, HEAD, MLP, Network, State
from purereplay.nets.views import Views, boxes, make_views

_SECONDS_AT_ONCE = 0.5  # of training between two points at which the threads wait for each other
_STEPS_PER_TURN = 10  # steps before a thread takes the next network; the weights stay in its core's cache meanwhile


def can_train(job: Job) -> TypeGuard[ContrastiveJob]:
    """Whether this loop can train the job."""
    return isinstance(job, ContrastiveJob) and isinstance(job.network.backbone, MLP)


class CpuMlpLoop(PlainLoop):
    """The plain loop with another step; threads end with each call. See `base.Loop`."""

    recipe: Contrastive

    def __init__(self, jobs: Sequence[ContrastiveJob]) -> None:
        super().__init__(jobs, torch.device("cpu"), "float32")
        names = _layer_names(self.network, self.parameters)
        own = [[self.parameters[f"{name}.{part}"] for part in ("weight", "bias")] for name in names]
        self.networks = [self._weights(own, k) for k in range(len(jobs))]
        n_views = 2 * self.drawn[1].shape[-1]
        layers = [(weight.shape[1], weight.shape[2]) for weight, _ in own]
        self.make_workspace = partial(make_workspace, n_views, self.pool.shape[2:], layers)
        self.workspaces: list[Workspace] = []  # one per thread
        self.before = 0  # Adam's step count at the start of the job
        self.step_seconds = 0.1  # duration of the last step of all networks; initially a guess
        self.steps, self.step = compiled(cropped_steps), compiled(step)
        self.taught: list[Taught] = []  # one per network that learns labels
        if isinstance(self.recipe, Joint):
            self.joint_steps, self.joint_step = compiled(cropped_joint_steps), compiled(joint_step)
            n_backbone = sum(name.startswith(BACKBONE) for name in names)
            shares = _shares(self.recipe, n_backbone, self.drawn[1].shape[-1])
            self.taught = [self._taught(k, shares) for k in range(len(jobs))]

    def _weights(self, own: list[list[Tensor]], k: int) -> Weights:
        moments = [[self.optimizer.state[p] for p in layer] for layer in own]
        return Weights(
            parameters=[[p[k].detach() for p in layer] for layer in own],
            means=[[m["exp_avg"][k] for m in layer] for layer in moments],
            squares=[[m["exp_avg_sq"][k] for m in layer] for layer in moments],
            pool=self.pool[k],
        )

    def _taught(self, k: int, shares: Shares) -> Taught:
        layer = [self.parameters[f"{CLASSES}{part}"] for part in ("weight", "bias")]
        moments = [self.optimizer.state[p] for p in layer]
        n_classes = layer[1].shape[-1]
        targets = {name: t[k] for name, t in self.targets.items()}
        return Taught(
            shares=shares,
            parameters=[p[k].detach() for p in layer],
            gradients=[torch.empty_like(p[k]) for p in layer],
            means=[m["exp_avg"][k] for m in moments],
            squares=[m["exp_avg_sq"][k] for m in moments],
            present=[self.state[name][k].detach() for name in self.average],
            average=[t[k] for t in self.average.values()],
            labels=targets["labels"],
            weights=targets["weights"],
            allowed=targets["allowed"],
            remembered=targets.get("remembered", torch.empty(0, n_classes)),
            known=targets.get("known", torch.zeros(n_classes, dtype=torch.bool)),
            loss=torch.zeros(()),
        )

    def load(self, jobs: Sequence[DrawnJob]) -> None:
        super().load(jobs)
        self.before = jobs[0].steps_before

    def advance(self, at_most: int) -> int:
        began = time.perf_counter()
        at = self.done % self.n_drawn
        if at == 0:
            self._draw()
        n_steps = max(1, min(at_most, self.n_drawn - at, int(_SECONDS_AT_ONCE / self.step_seconds)))
        n_threads, n_networks = torch.get_num_threads(), len(self.networks)
        n_workers = min(n_threads, n_networks)
        self.workspaces += [self.make_workspace() for _ in range(n_workers - len(self.workspaces))]
        queue = _WorkQueue(self._run_steps, n_networks, n_steps, n_threads // n_workers)
        threads = [threading.Thread(target=queue.work, args=[p], daemon=True) for p in self.workspaces[1:n_workers]]
        try:
            try:
                for thread in threads:
                    thread.start()
                queue.work(self.workspaces[0])
                for thread in threads:
                    thread.join()
            finally:
                torch.set_num_threads(n_threads)  # also the default of threads started later
        finally:
            torch.set_num_threads(n_threads)  # again, since an interrupt may come within the first `finally`
            queue.stopped = True  # after an interrupt a thread may still be running
            for thread in threads:
                if thread.is_alive():
                    thread.join()
        if queue.errors:
            raise queue.errors[0]
        self.done += n_steps
        for moments in self.optimizer.state.values():
            moments["step"].fill_(self.before + self.done)
        self.step_seconds = (time.perf_counter() - began) / n_steps
        return n_steps

    def _draw(self) -> None:
        super()._draw()
        lrs, rows, numbers = self.drawn
        self.lrs: list[float] = lrs.tolist()
        self.rows = rows.repeat(1, 1, 2)  # (S, K, n): rows i and i + B are views of one image
        self.crops: list[Crops] = []  # for grey images
        views = self.recipe.views
        if self.pool.shape[2] == 1 and isinstance(views, Views) and views.jitter is None:
            box = boxes(numbers, views)[..., None, None]  # (S, K, n, 4, 1, 1)
            height, width = self.pool.shape[-2:]
            heights = _positions(box[..., 2, :, :], box[..., 3, :, :], height)
            widths = _positions(box[..., 0, :, :], box[..., 1, :, :], width)
            drawn = (t.unbind(1) for t in (self.rows, heights, widths))
            self.crops = [Crops(*own) for own in zip(*drawn, strict=True)]

    @torch.no_grad()
    def _run_steps(self, workspace: Workspace, k: int, first: int, n_steps: int) -> None:
        """Train network k for some steps; `first` is the first one, relative to `self.done`."""
        network, temperature = self.networks[k], self.recipe.temperature
        mean, std = list(self.network.mean or ()), list(self.network.std or ())
        at = self.done % self.n_drawn + first  # row of `drawn`
        count = self.before + self.done + first + 1  # Adam's step count
        taught = self.taught[k] if self.taught else None
        if self.crops:
            rest = (self.crops[k], mean, std, self.lrs, temperature, at, count, n_steps)
            if taught is None:
                self.steps(network, workspace, *rest)
            else:
                self.joint_steps(network, taught, workspace, *rest)
        else:
            for i in range(n_steps):
                rows = self.rows[at + i, k]
                torch.index_select(network.pool, 0, rows, out=workspace.images)
                workspace.views.copy_(make_views(workspace.images, self.drawn[2][at + i, k], self.recipe.views))
                own = (mean, std, self.lrs[at + i], temperature, count + i)
                if taught is None:
                    self.step(network, workspace, *own)
                else:
                    self.joint_step(network, taught, workspace, rows, *own)
        self.loss[k] = last_loss(workspace) if taught is None else last_joint_loss(workspace, taught)


class _WorkQueue:
    """Queue of networks: each thread takes the first one, trains it for a few steps and puts it back."""

    def __init__(
        self, run_steps: Callable[[Workspace, int, int, int], None], n_networks: int, n_steps: int, n_threads: int
    ) -> None:
        self.run_steps = run_steps
        self.n_steps = n_steps
        self.waiting = deque((k, 0) for k in range(n_networks))  # network and number of its finished steps
        self.n_threads = n_threads
        self.errors: list[BaseException] = []
        self.stopped = False

    def work(self, workspace: Workspace) -> None:
        """Process the queue until it is empty; operations of the calling thread run on `n_threads` threads."""
        torch.set_num_threads(self.n_threads)
        try:
            while self.waiting and not self.stopped:
                try:
                    k, done = self.waiting.popleft()
                except IndexError:  # another thread took the last network
                    return
                n = min(self.n_steps - done, _STEPS_PER_TURN)
                self.run_steps(workspace, k, done, n)
                if done + n < self.n_steps:
                    self.waiting.append((k, done + n))
        except BaseException as error:
            self.errors.append(error)
            self.stopped = True


def _shares(recipe: Joint, n_backbone: int, n_rows: int) -> Shares:
    """Return the numbers of a recipe whose steps have so many images."""
    return Shares(
        n_backbone=n_backbone,
        n_delayed=n_rows - recipe.replay_size,
        contrastive=recipe.contrastive,
        delayed=recipe.delayed,
        purified=recipe.purified,
        distillation=recipe.distillation,
        decay=recipe.average,
        never=NEVER,
    )


def _positions(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Position in the image of each of `size` pixels of a view, (S, K, n, size, 1)."""
    pixel = torch.arange(size, dtype=torch.float32)[:, None]
    return ((start + extent * (pixel + 0.5) / size) * size - 0.5).clamp_(0, size - 1)


def _layer_names(network: Network, parameters: State) -> list[str]:
    n_hidden = sum(name.startswith(f"{BACKBONE}layer") and name.endswith(".weight") for name in parameters)
    backbone = [f"{BACKBONE}layer{i + 1}" for i in range(n_hidden)]
    return [*backbone, *([f"{HEAD}hidden"] if network.head.hidden else []), f"{HEAD}output"]
