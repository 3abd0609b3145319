"""The training loop of listed batches: supervised training as all baselines request it.

The job lists the rows of its images and the learning rate of every step, so replay, epochs and restarts are up to the
learner. A technique may replace the loss, and a choice may select among the listed samples. K jobs of one shape run
side by side, on CUDA as one captured step. Its products use TF32 unless the precision is float32; those of a choice
never do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purereplay.data.forms import prefixed
from purereplay.nets.augment import cutmix, shifted_and_flipped
from purereplay.nets.device import Precision
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.jobs import ListedJob, Trained
from purereplay.nets.loops.base import capture, joined_pool, network_bytes, tf32
from purereplay.nets.networks import is_trained, network_input, stack, unstack
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, plain_loss

_STEPS_AT_ONCE = 50  # steps on CUDA between two synchronisations


class ListedLoop:
    """Loop of listed batches; see `base.Loop`."""

    def __init__(self, jobs: Sequence[ListedJob], device: torch.device, precision: Precision = "float32") -> None:
        job, k = jobs[0], len(jobs)
        recipe = job.recipe
        self.device, self.network, self.recipe, self.precision = device, job.network, recipe, precision
        self.n_bytes = k * network_bytes(job)
        self.state = stack([{n: t.to(device) for n, t in j.state.items()} for j in jobs])
        self.parameters = {n: t.requires_grad_() for n, t in self.state.items() if is_trained(n)}
        self.first, self.second = (
            {n: torch.zeros_like(p, requires_grad=False) for n, p in self.parameters.items()} for _ in range(2)
        )
        self.pool = torch.zeros(k, *job.images.shape, device=device)
        self.labels = torch.zeros(k, job.images.shape[0], dtype=torch.int64, device=device)
        self.index = torch.zeros(job.step_capacity, k, job.index.shape[1], dtype=torch.int64, device=device)
        self.lrs = torch.zeros(job.step_capacity, k, device=device)
        self.lengths = torch.zeros(k, dtype=torch.int64, device=device)  # steps of each network's job
        self.keys = torch.zeros(k, dtype=torch.int64, device=device)
        self.extra = {n: torch.zeros(k, *t.shape, dtype=t.dtype, device=device) for n, t in job.extra.items()}
        self.learned = recipe.technique.learned if recipe.technique else ()
        self.recorded = recipe.technique.recorded if recipe.technique else ()
        for name in self.learned:
            self.extra[name].requires_grad_()
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.before = torch.zeros(k, dtype=torch.int64, device=device)  # steps that each network has taken before
        # for the optimizer: step count of each network, and 1 for networks that are finished
        self.steps, self.idle = (torch.zeros(k, device=device) for _ in range(2))
        self.loss = torch.zeros(k, device=device)
        self.to_be_captured = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def load(self, jobs: Sequence[ListedJob]) -> None:
        for name, t in self.state.items():
            t.copy_(torch.stack([j.state[name].to(self.device) for j in jobs]))
        for ours, theirs in ((self.first, "mean"), (self.second, "square")):
            for name, t in ours.items():
                for k, j in enumerate(jobs):
                    t[k] = 0 if j.optimizer is None else j.optimizer[f"{theirs}.{name}"].to(self.device)
        self.before.copy_(torch.tensor([j.steps_before for j in jobs]))
        self.lengths.copy_(torch.tensor([j.n_steps for j in jobs]))
        self.pool.copy_(network_input(joined_pool(jobs, self.device)))
        self.labels.copy_(torch.stack([j.labels for j in jobs]))
        for k, j in enumerate(jobs):
            self.index[: j.n_steps, k], self.lrs[: j.n_steps, k] = j.index.to(self.device), j.lrs.to(self.device)
        self.keys.copy_(torch.tensor([j.seed for j in jobs], dtype=torch.int64))
        for name, t in self.extra.items():
            t.copy_(torch.stack([j.extra[name].to(self.device) for j in jobs]))
        self.cursor.zero_()
        if self.to_be_captured:
            self.to_be_captured = False
            with torch.enable_grad(), tf32(self.precision != "float32"):
                self.graph = capture(self._step, self.device, before=self.cursor.zero_)
            self.load(jobs)  # the warm-up changed all buffers

    def advance(self, at_most: int) -> int:
        if self.graph is None:
            self._step()
            return 1
        n = min(at_most, _STEPS_AT_ONCE)
        for _ in range(n):
            self.graph.replay()
        torch.cuda.synchronize(self.device)
        return n

    def answers(self, began: float) -> list[Trained]:
        losses = self.loss.tolist()
        moments = prefixed("mean.", self.first) | prefixed("square.", self.second)
        state = {n: t.detach() for n, t in self.state.items()}
        extra = {n: self.extra[n].detach() for n in (*self.learned, *self.recorded)}
        step = (self.before + self.lengths).cpu()
        share = (time.perf_counter() - began) / len(losses)
        return [
            Trained(
                unstack(state, k), unstack(moments, k) | {"step": step[k].clone()}, losses[k], share, unstack(extra, k)
            )
            for k in range(len(losses))
        ]

    def view(self, index: Tensor) -> Step:
        """Make a step on rows (K, B)."""
        images, labels = rows(self.pool, index), rows(self.labels, index)
        # counted from the first job, so that draws do not depend on how steps are split into jobs
        number, active = self.before + self.cursor, self.cursor < self.lengths
        epoch = number / self.recipe.epoch_steps
        return Step(self.network, self.state, images, labels, index, self.keys, number, epoch, active, self.extra)

    def _step(self) -> None:
        lr = self.lrs.index_select(0, self.cursor)[0]
        index = self.index.index_select(0, self.cursor)[0]
        statistics = {n: t.clone() for n, t in self.state.items() if not is_trained(n)}
        if self.recipe.choice is not None:
            with tf32(False):  # it compares losses of almost equal weights: TF32 would round their differences away
                index = self.recipe.choice.choose(self.view, index, lr)
            for name, before in statistics.items():  # undo the changes of virtual steps
                self.state[name].copy_(before)
        step, mix = self.view(index), None
        if self.recipe.shift_and_flip:
            n = index.shape[1]
            u = uniforms_per_key(self.keys, step.number, 3 * n, stream=RandomStream.SHIFT).view(-1, n, 3)
            step = step._replace(images=shifted_and_flipped(step.images, u))
        if self.recipe.cutmix:
            u = uniforms_per_key(self.keys, step.number, 4, stream=RandomStream.CUTMIX)
            images, mix = cutmix(step.images, step.labels, u, self.recipe.cutmix)
            step = step._replace(images=images)
        technique = self.recipe.technique
        loss = technique.loss(step) if technique else plain_loss(step, mix)
        learned = [self.extra[name] for name in self.learned]
        gradients = torch.autograd.grad(
            torch.where(step.active, loss, torch.zeros_like(loss)).sum(), [*self.parameters.values(), *learned]
        )
        with torch.no_grad():
            for name, before in statistics.items():
                t = self.state[name]
                t.copy_(torch.where(step.active.view(-1, *(1,) * (t.ndim - 1)), t, before))
            self._update(gradients[: len(self.parameters)], lr, step.active)
            if technique is not None:
                for name, gradient in zip(self.learned, gradients[len(self.parameters) :], strict=True):
                    technique.update(step, name, self.extra[name], gradient)
            self.loss.copy_(torch.where(step.active, loss, self.loss))
            self.cursor += 1

    def _update(self, gradients: Sequence[Tensor], lr: Tensor, active: Tensor) -> None:
        """Take one step of Adam or of SGD with momentum for every active network."""
        r = self.recipe
        if r.clip is not None:
            gradients = [g.clamp(-r.clip, r.clip) for g in gradients]
        if r.clip_norm is not None:
            length = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()  # (K,)
            scale = (r.clip_norm / length.clamp(min=1e-12)).clamp(max=1)
            gradients = [g * scale.view(-1, *(1,) * (g.ndim - 1)) for g in gradients]
        self.steps.copy_(self.before + self.cursor + 1)
        self.idle.copy_(~active)
        names = list(self.parameters)
        for k in range(len(self.idle)):
            parameters = [self.parameters[n].detach()[k] for n in names]
            own, first = [g[k].contiguous() for g in gradients], [self.first[n][k] for n in names]
            shared: dict[str, Any] = {
                "weight_decay": r.weight_decay,
                "maximize": False,
                "found_inf": self.idle[k],
                "lr": lr[k],
            }
            if r.optimizer == "adam":
                second, steps = [self.second[n][k] for n in names], [self.steps[k]] * len(names)
                torch._fused_adam_(
                    parameters, own, first, second, [], steps, beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, **shared
                )
            else:
                moments = first if r.momentum else []
                torch._fused_sgd_(
                    parameters,
                    own,
                    moments,
                    momentum=r.momentum,
                    dampening=0.0,
                    nesterov=False,
                    is_first_step=False,
                    **shared,
                )
