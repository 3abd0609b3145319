"""Supervised training on batches that the learner has chosen: what every rival of Self-Purified Replay asks for.

The learner says for each step which rows of the job's images it takes and at which rate, so replay, epochs, restarts
and reservoirs are its own business. A technique against label noise may change the loss; `Interference` lets a step
choose what it replays (MIR). K jobs of one shape run side by side, on CUDA as one captured step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.nets.draws import uniforms
from purereplay.nets.jobs import Job, Rehearsal, Trained
from purereplay.nets.loops import capture, joined_pool, network_bytes
from purereplay.nets.networks import Network, State, is_trained, network_input, prefixed, stack, unstack
from purereplay.nets.steps import rows

_CUTMIX = 3  # the stream of draws
_STEPS_AT_ONCE = 50  # between two looks at the clock on CUDA


class Step(NamedTuple):
    """What a technique sees of one step of K networks."""

    network: Network
    state: State  # (K, ...) each
    images: Tensor  # float in [0, 1], (K, B, C, H, W)
    labels: Tensor  # int64 (K, B)
    rows: Tensor  # int64 (K, B): of the job's images
    progress: Tensor  # (): share of the job's steps that is over
    extra: State  # (K, ...) each: what the job brought for the technique


class Technique(Protocol):
    """A way to learn from labels that may be wrong; frozen, so that it can be part of a job's shape."""

    @property
    def learned(self) -> tuple[str, ...]:
        """Names in `extra` that get gradients and are handed back."""

    def loss(self, step: Step) -> Tensor:
        """Loss per network (K,)."""

    def update(self, name: str, value: Tensor, gradient: Tensor) -> None:
        """One step for a learned extra, in place."""


def sample_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every sample, (K, B), of logits (K, B, classes) and labels (K, B)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def plain_loss(step: Step, mix: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Mean cross-entropy; `mix` are CutMix's other labels (K, B) and the share (K, 1) of the own ones."""
    logits = step.network.outputs(step.state, step.images, training=True)
    losses = sample_losses(logits, step.labels)
    if mix is not None:
        other, share = mix
        losses = share * losses + (1 - share) * sample_losses(logits, other)
    return losses.mean(1)


def cutmix(images: Tensor, labels: Tensor, u: Tensor, probability: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Paste a box of another image of the batch into each, all boxes of a network alike (Yun et al., 2019; α = 1).

    images (K, B, C, H, W), labels (K, B), uniforms u (K, 4). Returns images, and for the loss the labels of the others
    and the share of the own ones; with probability 1 - `probability` nothing is pasted.
    """
    batch, height, width = images.shape[1], *images.shape[-2:]
    share, x, y, apply = u.unbind(1)
    side = torch.where(apply < probability, (1 - share).sqrt(), torch.zeros_like(share))  # of the box, per axis
    column, row = (torch.arange(n, device=images.device) for n in (width, height))
    inside = torch.ones(images.shape[0], height, width, dtype=torch.bool, device=images.device)
    for centre, at, n, shape in ((x, column, width, (1, 1, -1)), (y, row, height, (1, -1, 1))):
        middle, half = (centre * n)[:, None, None], (side * n / 2)[:, None, None]
        at = at.view(shape)
        inside = inside & (at >= (middle - half).floor()) & (at < (middle + half).floor())
    own = 1 - inside.double().mean((1, 2)).to(images.dtype)
    mixed = torch.where(inside[:, None, None], images.roll(1, 1), images)
    return mixed, (labels.roll(1, 1) if batch > 1 else labels, own[:, None])


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
        gradients = torch.autograd.grad(loss, [loop.parameters[n] for n in names])
        with torch.no_grad():
            virtual = dict(loop.state)
            for name, g in zip(names, gradients, strict=True):
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
        self.pool = torch.zeros(k, *job.images.shape, device=device)
        self.labels = torch.zeros(k, job.images.shape[0], dtype=torch.int64, device=device)
        self.index = torch.zeros(self.n_steps, k, job.index.shape[1], dtype=torch.int64, device=device)
        self.rates = torch.zeros(self.n_steps, device=device)
        self.keys = torch.zeros(k, dtype=torch.int64, device=device)
        self.extra = {n: torch.zeros(k, *t.shape, dtype=t.dtype, device=device) for n, t in job.extra.items()}
        self.learned = recipe.technique.learned if recipe.technique else ()
        for name in self.learned:
            self.extra[name].requires_grad_()
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.before = torch.zeros((), device=device)  # steps of the optimizer that lie behind
        self.loss = torch.zeros(k, device=device)
        interference = recipe.n_candidates and _Interference(recipe.n_incoming, recipe.n_replayed)
        self.interference = interference or None
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
        self.pool.copy_(network_input(joined_pool(jobs, self.device)))
        self.labels.copy_(torch.stack([j.labels for j in jobs if j.labels is not None]))
        self.index.copy_(torch.stack([j.index for j in jobs if j.index is not None], dim=1))
        assert jobs[0].rates is not None
        self.rates.copy_(jobs[0].rates)
        self.keys.copy_(torch.tensor([j.seed for j in jobs], dtype=torch.int64))
        for name, t in self.extra.items():
            t.copy_(torch.stack([j.extra[name].to(self.device) for j in jobs]))
        self.cursor.zero_()
        if self.device.type == "cuda" and self.graph is None:
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
        extra = {n: self.extra[n].detach() for n in self.learned}
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
        progress = self.cursor[0] / self.n_steps
        return Step(self.network, self.state, images, labels, index, progress, self.extra)

    def _step(self) -> None:
        rate = self.rates.index_select(0, self.cursor)[0]
        index = self.index.index_select(0, self.cursor)[0]
        if self.interference is not None:
            index = self.interference.choose(self, index, rate)
        step, mix = self.view(index), None
        if self.recipe.cutmix:
            u = uniforms(self.keys, self.cursor[0], 4, stream=_CUTMIX)
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
                technique.update(name, self.extra[name], gradient)
            self.loss.copy_(loss)
            self.cursor += 1

    def _update(self, gradients: Sequence[Tensor], rate: Tensor) -> None:
        """Adam, or stochastic gradient descent with momentum, on all parameters."""
        r, t = self.recipe, self.before + self.cursor[0] + 1
        for (name, p), gradient in zip(self.parameters.items(), gradients, strict=True):
            g = gradient if r.clip is None else gradient.clamp(-r.clip, r.clip)
            g = g + r.weight_decay * p if r.weight_decay else g
            if r.optimizer == "sgd":
                self.first[name].mul_(r.momentum).add_(g)
                p.sub_(rate * self.first[name])
            else:
                m, s = self.first[name].lerp_(g, 0.1), self.second[name].lerp_(g * g, 0.001)
                p.sub_(rate / (1 - 0.9**t) * m / ((s / (1 - 0.999**t)).sqrt() + 1e-8))
