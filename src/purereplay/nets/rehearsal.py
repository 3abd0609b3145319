"""Supervised training on batches that the learner has chosen: what every rival of Self-Purified Replay asks for.

The learner says for each step which rows of the job's images it takes and at which rate, so replay, epochs, restarts
and reservoirs are its own business. A technique may change the loss; `_Interference` lets a step choose what it
replays (MIR). K jobs of one shape run side by side, on CUDA as one captured step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.nets.augment import cutmix, shifted_and_flipped
from purereplay.nets.draws import uniforms
from purereplay.nets.jobs import Job, Rehearsal, Trained
from purereplay.nets.loops import capture, joined_pool, network_bytes
from purereplay.nets.networks import State, is_trained, network_input, prefixed, stack, unstack
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, plain_loss, sample_losses

_CUTMIX, _SHIFT = 3, 4  # the streams of draws
_STEPS_AT_ONCE = 50  # between two looks at the clock on CUDA


@dataclass
class _Interference:
    """MIR: of the candidates, replay those whose loss a virtual step on the incoming samples raises most."""

    n_incoming: int
    n_replayed: int

    def choose(self, loop: RehearsalLoop, index: Tensor, rate: Tensor) -> Tensor:
        """index (K, n_incoming + candidates) -> (K, n_incoming + n_replayed)."""
        incoming, candidates = index[:, : self.n_incoming], index[:, self.n_incoming :]
        names = list(loop.parameters)
        loss = plain_loss(loop.view(incoming)).sum()
        gradients = torch.autograd.grad(loss, [loop.parameters[n] for n in names], allow_unused=True)
        with torch.no_grad():
            virtual = dict(loop.state)
            for name, g in zip(names, gradients, strict=True):
                if g is not None:  # a second network may have no part in the answer
                    virtual[name] = loop.parameters[name] - rate * g
            images, labels = rows(loop.pool, candidates), rows(loop.labels, candidates)
            before, after = (
                sample_losses(loop.network.outputs(s, images, training=True), labels)
                for s in ({n: t.clone() for n, t in loop.state.items()}, {n: t.clone() for n, t in virtual.items()})
            )
            worst = (after - before).topk(self.n_replayed, dim=1).indices
            return torch.cat([incoming, candidates.gather(1, worst)], dim=1)


class RehearsalLoop:
    """See `loops.Loop`."""

    def __init__(self, jobs: Sequence[Job], device: torch.device) -> None:
        job, k = jobs[0], len(jobs)
        recipe = job.recipe
        assert isinstance(recipe, Rehearsal) and job.index is not None
        self.device, self.network, self.recipe = device, job.network, recipe
        self.n_bytes = k * network_bytes(job)
        self.n_steps = job.index.shape[0]
        self.state = stack([{n: t.to(device) for n, t in j.state.items()} for j in jobs])
        self.parameters = {n: t.requires_grad_() for n, t in self.state.items() if is_trained(n)}
        self.first, self.second = (
            {n: torch.zeros_like(p, requires_grad=False) for n, p in self.parameters.items()} for _ in range(2)
        )
        self.rate = torch.zeros((), device=device)
        self.optimizer = _make_optimizer(
            recipe, self.parameters, self.rate, self.first, self.second, capturable=device.type == "cuda"
        )
        self.pool = torch.zeros(k, *job.images.shape, device=device)
        self.labels = torch.zeros(k, job.images.shape[0], dtype=torch.int64, device=device)
        self.index = torch.zeros(self.n_steps, k, job.index.shape[1], dtype=torch.int64, device=device)
        self.rates = torch.zeros(self.n_steps, device=device)
        self.keys = torch.zeros(k, dtype=torch.int64, device=device)
        self.extra = {n: torch.zeros(k, *t.shape, dtype=t.dtype, device=device) for n, t in job.extra.items()}
        self.learned = recipe.technique.learned if recipe.technique else ()
        self.recorded = recipe.technique.recorded if recipe.technique else ()
        for name in self.learned:
            self.extra[name].requires_grad_()
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.before = torch.zeros((), device=device)  # steps of the optimizer that lie behind
        self.loss = torch.zeros(k, device=device)
        interference = recipe.n_candidates and _Interference(recipe.n_incoming, recipe.n_replayed)
        self.interference = interference or None
        self.to_be_captured = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def load(self, jobs: Sequence[Job]) -> None:
        for name, t in self.state.items():
            t.copy_(torch.stack([j.state[name].to(self.device) for j in jobs]))
        for ours, theirs in ((self.first, "mean"), (self.second, "square")):
            for name, t in ours.items():
                t.zero_()
                if jobs[0].optimizer is not None:
                    given = [j.optimizer[f"{theirs}.{name}"].to(self.device) for j in jobs if j.optimizer is not None]
                    t.copy_(torch.stack(given))
        self.before.fill_(jobs[0].steps_before)
        for moments in self.optimizer.state.values():
            if "step" in moments:
                moments["step"].fill_(jobs[0].steps_before)
        self.pool.copy_(network_input(joined_pool(jobs, self.device)))
        self.labels.copy_(torch.stack([j.labels for j in jobs if j.labels is not None]))
        self.index.copy_(torch.stack([j.index for j in jobs if j.index is not None], dim=1))
        assert jobs[0].rates is not None
        self.rates.copy_(jobs[0].rates)
        self.keys.copy_(torch.tensor([j.seed for j in jobs], dtype=torch.int64))
        for name, t in self.extra.items():
            t.copy_(torch.stack([j.extra[name].to(self.device) for j in jobs]))
        self.cursor.zero_()
        if self.to_be_captured:
            self.to_be_captured = False
            with torch.enable_grad():
                self.graph = capture(self._step, self.device, before=self.cursor.zero_)
            self.load(jobs)  # the warm-up changed everything

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
        step = (self.before + self.n_steps).long()
        share = (time.perf_counter() - began) / len(losses)
        return [
            Trained(
                unstack(state, k), unstack(moments, k) | {"step": step.clone()}, losses[k], share, unstack(extra, k)
            )
            for k in range(len(losses))
        ]

    def view(self, index: Tensor) -> Step:
        """A step on these rows (K, B)."""
        images, labels = rows(self.pool, index), rows(self.labels, index)
        number = self._number()
        epoch = number / self.recipe.epoch_steps
        return Step(self.network, self.state, images, labels, index, self.keys, number, epoch, self.extra)

    def _number(self) -> Tensor:
        """Of the step, those of earlier jobs counted: so draws do not depend on how steps were cut into jobs."""
        return self.before.long() + self.cursor[0]

    def _step(self) -> None:
        rate = self.rates.index_select(0, self.cursor)[0]
        index = self.index.index_select(0, self.cursor)[0]
        if self.interference is not None:
            index = self.interference.choose(self, index, rate)
        step, mix = self.view(index), None
        if self.recipe.shift_and_flip:
            n = index.shape[1]
            u = uniforms(self.keys, step.number, 3 * n, stream=_SHIFT).view(-1, n, 3)
            step = step._replace(images=shifted_and_flipped(step.images, u))
        if self.recipe.cutmix:
            u = uniforms(self.keys, step.number, 4, stream=_CUTMIX)
            images, mix = cutmix(step.images, step.labels, u, self.recipe.cutmix)
            step = step._replace(images=images)
        technique = self.recipe.technique
        loss = technique.loss(step) if technique else plain_loss(step, mix)
        learned = [self.extra[name] for name in self.learned]
        gradients = torch.autograd.grad(loss.sum(), [*self.parameters.values(), *learned])
        with torch.no_grad():
            self._update(gradients[: len(self.parameters)], rate)
            for name, gradient in zip(self.learned, gradients[len(self.parameters) :], strict=True):
                assert technique is not None
                technique.update(step, name, self.extra[name], gradient)
            self.loss.copy_(loss)
            self.cursor += 1

    def _update(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """One step of the optimizer on all parameters."""
        clip, longest = self.recipe.clip, self.recipe.clip_norm
        if clip is not None:
            gradients = [g.clamp(-clip, clip) for g in gradients]
        if longest is not None:
            length = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()  # (K,)
            scale = (longest / length.clamp(min=1e-12)).clamp(max=1)
            gradients = [g * scale.view(-1, *(1,) * (g.ndim - 1)) for g in gradients]
        for p, gradient in zip(self.parameters.values(), gradients, strict=True):
            p.grad = gradient
        self.rate.copy_(rate)
        self.optimizer.step()


def _make_optimizer(
    recipe: Rehearsal, parameters: State, rate: Tensor, first: State, second: State, *, capturable: bool
) -> torch.optim.Optimizer:
    """Adam, or stochastic gradient descent with momentum, in one pass over all parameters, with these moments."""
    values, decay = list(parameters.values()), recipe.weight_decay
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(values, lr=rate, weight_decay=decay, fused=True, capturable=capturable)
        for name, p in parameters.items():
            step = torch.zeros((), device=p.device)
            optimizer.state[p] = {"step": step, "exp_avg": first[name], "exp_avg_sq": second[name]}
    else:
        optimizer = torch.optim.SGD(values, lr=rate, momentum=recipe.momentum, weight_decay=decay, fused=True)
        for name, p in parameters.items():
            optimizer.state[p] = {"momentum_buffer": first[name]}
    return optimizer
