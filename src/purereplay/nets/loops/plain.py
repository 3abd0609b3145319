"""The plain training loop: K stacked networks trained by autograd and PyTorch's Adam, on any device.

On CUDA one step is captured as a graph and replayed, with the learning rate and all draws on the device. It trains any
network with any recipe whose batches are drawn; `cpu_mlp` and `cuda` are faster loops for some of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from purereplay.nets.device import Precision
from purereplay.nets.jobs import Contrastive, ContrastiveJob, Drawn, DrawnJob, Joint, JointJob, Trained
from purereplay.nets.loops.base import capture, drawn_at_once, joined_pool, network_bytes
from purereplay.nets.networks import State, is_trained, network_input, stack, unstack
from purereplay.nets.steps import contrastive_loss, draw_numbers, draw_rows, joint_loss, lr_at, supervised_loss

_REPLAYS_AT_ONCE = 50  # steps on CUDA between two synchronisations


class PlainLoop:
    """Loop of autograd steps; see `base.Loop`."""

    def __init__(self, jobs: Sequence[DrawnJob], device: torch.device, precision: Precision) -> None:
        job = jobs[0]
        self.device = device
        self.n_bytes = len(jobs) * network_bytes(job)
        self.network, self.steps_per_epoch = job.network, job.steps_per_epoch
        self.recipe: Drawn = job.recipe
        self.n_images, self.n_replay = job.images.shape[0], job.n_replay
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)
        self.state = stack([{n: t.to(device) for n, t in j.state.items()} for j in jobs])
        self.parameters = {n: t.requires_grad_() for n, t in self.state.items() if is_trained(n)}
        on_cuda = device.type == "cuda"
        self.lr = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(list(self.parameters.values()), lr=self.lr, fused=True, capturable=on_cuda)
        for p in self.parameters.values():
            zero = torch.zeros((), device=device)
            self.optimizer.state[p] = {"step": zero, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        self.pool = network_input(joined_pool(jobs, device))
        self.targets = stack([{n: t.to(device) for n, t in j.targets().items()} for j in jobs])
        self.average: State = {}
        if isinstance(self.recipe, Joint):
            self.average = {name: t.detach().clone() for name, t in self.state.items()}
        self.n_held = torch.zeros(len(jobs), dtype=torch.int64, device=device)
        self.keys = torch.zeros(len(jobs), dtype=torch.int64, device=device)
        self.start = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros(len(jobs), device=device)
        self.n_drawn = drawn_at_once(job, len(jobs))
        self.done = 0
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)  # row of the next step in `drawn`
        self._draw()
        # the warm-up changes the buffers; `load` overwrites them
        self.graph = capture(self._step, device, before=self.cursor.zero_) if on_cuda else None

    @torch.no_grad()
    def load(self, jobs: Sequence[DrawnJob]) -> None:
        job, device = jobs[0], self.device
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
            moments["step"].fill_(job.steps_before)
        self.pool.copy_(network_input(joined_pool(jobs, device)))
        for name, t in self.targets.items():
            t.copy_(torch.stack([j.targets()[name] for j in jobs]))
        for name, t in self.average.items():
            t.copy_(torch.stack([j.average[name].to(device) for j in jobs if isinstance(j, JointJob)]))
        self.n_held.copy_(torch.tensor([j.n_held if isinstance(j, ContrastiveJob) else 0 for j in jobs]))
        self.keys.copy_(torch.tensor([j.seed for j in jobs], dtype=torch.int64))
        self.start.fill_(job.start if isinstance(job, ContrastiveJob) else 0)
        self.done = 0

    def advance(self, at_most: int) -> int:
        at = self.done % self.n_drawn
        if at == 0:
            self._draw()
        if self.graph is None:
            self._step()
            self.done += 1
            return 1
        n = min(at_most, _REPLAYS_AT_ONCE, self.n_drawn - at)
        for _ in range(n):
            self.graph.replay()
        torch.cuda.synchronize(self.device)
        self.done += n
        return n

    def answers(self, began: float) -> list[Trained]:
        losses = self.loss.tolist()
        # Adam does not count steps of parameters without a gradient, such as a projection head without NT-Xent
        step = torch.stack([moments["step"] for moments in self.optimizer.state.values()]).max().long()
        per_network = {}
        for name, p in self.parameters.items():
            per_network[f"mean.{name}"] = self.optimizer.state[p]["exp_avg"]
            per_network[f"square.{name}"] = self.optimizer.state[p]["exp_avg_sq"]
        state = {name: t.detach() for name, t in self.state.items()}
        share = (time.perf_counter() - began) / len(losses)
        return [
            Trained(
                unstack(state, k),
                unstack(per_network, k) | {"step": step.clone()},
                losses[k],
                share,
                unstack(self.average, k),
            )
            for k in range(len(losses))
        ]

    def _draw(self) -> None:
        """Draw learning rates, rows and numbers of the next steps into the buffers that the captured step reads."""
        steps = torch.arange(self.done, self.done + self.n_drawn, device=self.device)
        index = draw_rows(self.recipe, self.n_images, self.n_replay, self.n_held, self.keys, steps)
        new = [lr_at(self.recipe, steps, self.steps_per_epoch, self.start), index]
        if isinstance(self.recipe, Contrastive):
            new.append(draw_numbers(self.recipe, index.shape[-1], self.keys, steps))
        if not hasattr(self, "drawn"):
            self.drawn = [t.clone() for t in new]
        for ours, t in zip(self.drawn, new, strict=True):
            ours.copy_(t)
        self.cursor.zero_()

    def _step(self) -> None:
        lr, index, *numbers = (t.index_select(0, self.cursor)[0] for t in self.drawn)
        self.lr.copy_(lr)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(index, *numbers)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        if not isinstance(self.recipe, Contrastive) and self.recipe.clip is not None:
            torch.nn.utils.clip_grad_value_(self.parameters.values(), self.recipe.clip)
        self.optimizer.step()
        if isinstance(self.recipe, Joint):
            with torch.no_grad():
                weights = [self.state[name] for name in self.average]
                torch._foreach_lerp_(list(self.average.values()), weights, 1 - self.recipe.average)
        self.loss.copy_(loss.detach())
        self.cursor += 1

    def _loss(self, index: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Loss per network (K,) on the rows index (K, B)."""
        if not isinstance(self.recipe, Contrastive) or numbers is None:
            labels = self.targets["labels"]
            return supervised_loss(self.network, self.state, self.pool, labels, index, self.autocast)
        if not isinstance(self.recipe, Joint):
            return contrastive_loss(self.network, self.state, self.recipe, self.pool, index, numbers, self.autocast)
        return joint_loss(self.network, self.state, self.recipe, self.pool, self.targets, index, numbers, self.autocast)
