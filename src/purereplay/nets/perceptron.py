"""The training loop of perceptrons on the CPU: contrastive steps written out, on threads that share the networks.

A step needs neither autograd nor new memory: its products go into places that are there, small enough to stay near the
core. The answers are those of the plain loop (`loops`) and of networks trained one by one up to rounding, and the same
bits each time on the same number of threads: which thread takes a group, and when, changes nothing in it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.nets.jobs import Contrastive, Job, Trained
from purereplay.nets.loops import PlainLoop, network_bytes
from purereplay.nets.networks import BACKBONE, HEAD, MLP, Network
from purereplay.nets.views import Views, boxes, make_views

_SECONDS_AT_ONCE = 0.5  # of steps between two looks at the clock, where threads wait for each other
_GROUP_FLOATS = 2**18  # of a layer: more leaves the cache, less has the threads wait for Python's lock
_STEPS_A_TURN = 10  # of a group, whose weights stay near its core meanwhile, before its thread looks for the next


def can_train(job: Job) -> bool:
    """Whether this loop is for such a job."""
    return isinstance(job.network.backbone, MLP) and isinstance(job.recipe, Contrastive)


class PerceptronLoop:
    """See `Loop`. No thread outlives a call."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.n_bytes = len(jobs) * network_bytes(jobs[0])
        self.n_threads = 0  # that the groups were made for
        self.groups: list[_Group] = []
        self.step_seconds = 0.1  # what a step of all networks took last; at first a guess

    def load(self, jobs: Sequence[Job]) -> None:
        if self.n_threads != torch.get_num_threads():
            self.n_threads = torch.get_num_threads()
            n_groups = _n_groups(jobs[0], len(jobs), self.n_threads)
            bounds = [i * len(jobs) // n_groups for i in range(n_groups + 1)]
            self.groups = [_Group(jobs[a:b]) for a, b in pairwise(bounds)]
        for group in self.groups:
            group.load(jobs[: len(group.keys)])
            jobs = jobs[len(group.keys) :]

    def advance(self, at_most: int) -> int:
        began = time.perf_counter()
        n_steps = max(1, min(at_most, int(_SECONDS_AT_ONCE / self.step_seconds)))
        n_workers = min(self.n_threads, len(self.groups))
        turns = _Turns(self.groups, n_steps, self.n_threads // n_workers)
        helpers = [threading.Thread(target=turns.work, daemon=True) for _ in range(n_workers - 1)]
        try:
            for helper in helpers:
                helper.start()
            turns.work()
            for helper in helpers:
                helper.join()
        finally:
            turns.stopped = True  # after an interrupt a thread may still be at work
            torch.set_num_threads(self.n_threads)  # also what threads that start later go by
            for helper in helpers:
                if helper.is_alive():
                    helper.join()
        if turns.errors:
            raise turns.errors[0]
        self.step_seconds = (time.perf_counter() - began) / n_steps
        return n_steps

    def answers(self, began: float) -> list[Trained]:
        trained = [answer for group in self.groups for answer in group.answers(began)]
        share = (time.perf_counter() - began) / len(trained)
        return [answer._replace(seconds=share) for answer in trained]


def _n_groups(job: Job, n_networks: int, n_threads: int) -> int:
    """As many for each thread, none larger than the cache."""
    assert isinstance(job.recipe, Contrastive)
    n_views = 2 * (min(job.recipe.batch_size, job.images.shape[0]) + job.recipe.replay_size)
    fit = max(1, _GROUP_FLOATS // (n_views * job.network.backbone.n_features))
    n_workers = min(n_threads, n_networks)
    return min(n_networks, n_workers * -(-n_networks // (n_workers * fit)))


class _Turns:
    """Groups that wait for their next steps; every thread takes the first, steps it and puts it back."""

    def __init__(self, groups: list[_Group], n_steps: int, n_threads: int) -> None:
        self.waiting = deque((group, n_steps) for group in groups)
        self.n_threads = n_threads
        self.errors: list[BaseException] = []
        self.stopped = False

    def work(self) -> None:
        """Take turns until nobody waits; the calling thread's operations run on `n_threads`."""
        torch.set_num_threads(self.n_threads)
        try:
            while self.waiting and not self.stopped:
                try:
                    group, n_left = self.waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                n = min(n_left, _STEPS_A_TURN)
                for _ in range(n):
                    group.advance(1)
                if n_left > n:
                    self.waiting.append((group, n_left - n))
        except BaseException as error:
            self.errors.append(error)
            self.stopped = True


class _Layer(NamedTuple):
    """A layer's places; gradients (`d_`) share theirs with those of other layers."""

    x: Tensor  # (K, n, in)
    weight: Tensor
    bias: Tensor  # (K, 1, out)
    y: Tensor  # (K, n, out), after the ReLU where there is one
    d_x: Tensor
    d_y: Tensor
    adam: tuple[list[Tensor], ...]  # of weight and bias: parameters, gradients, both moments, nothing, step count


class _Group(PlainLoop):
    """Networks that are stepped as one: the plain loop with another step, and the places that it writes to."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__(jobs, torch.device("cpu"), "float32")
        k, n = len(jobs), 2 * self.drawn[1].shape[-1]  # networks, views of each
        channels, height, width = jobs[0].images.shape[1:]
        self.images, self.views = (torch.empty(k * n, channels, height, width) for _ in range(2))
        self.halfway = torch.empty(k * n, height, width)
        self.to_rows, self.to_columns = torch.empty(k * n, height, height), torch.empty(k * n, width, width)
        self.one = torch.ones(())
        self.layers = self._make_layers(self.views.view(k, n, -1))
        self.z, self.product = (torch.empty_like(self.layers[-1].y) for _ in range(2))
        self.length, self.inner = (torch.empty(k, n, 1) for _ in range(2))
        self.powers, self.weights = (torch.empty(k, n, n) for _ in range(2))
        self.sums, self.share = (torch.empty(k, n) for _ in range(2))

    @property
    def crops_grey(self) -> bool:
        views = self.recipe.views if isinstance(self.recipe, Contrastive) else None
        return self.pool.shape[2] == 1 and isinstance(views, Views) and views.jitter is None

    @torch.no_grad()
    def answers(self, began: float) -> list[Trained]:
        positive = self.powers.diagonal(self.powers.shape[1] // 2, 1, 2)  # of view i and view i + B
        torch.sub(self.sums.log().mean(1), positive.log().mean(1), out=self.loss)
        return super().answers(began)

    def _make_layers(self, x: Tensor) -> list[_Layer]:
        names = _layer_names(self.network)
        own = [[self.parameters[f"{name}.{part}"] for part in ("weight", "bias")] for name in names]
        step = self.optimizer.state[next(iter(self.parameters.values()))]["step"]
        spare = [torch.empty(x.shape[0] * x.shape[1] * max(bias.shape[-1] for _, bias in own)) for _ in range(2)]
        gradients = [torch.empty(max(p.numel() for p in some)) for some in zip(*own, strict=True)]
        layers: list[_Layer] = []
        for i, parameters in enumerate(own):
            weight, bias = (p.detach() for p in parameters)
            y = torch.empty(*x.shape[:2], bias.shape[-1])
            moments = [self.optimizer.state[p] for p in parameters]
            adam: tuple[list[Tensor], ...] = (
                [weight, bias],
                [_place(g, p) for g, p in zip(gradients, (weight, bias), strict=True)],
                [m["exp_avg"] for m in moments],
                [m["exp_avg_sq"] for m in moments],
                [],
                [step, step],
            )
            d_x = layers[-1].d_y if layers else torch.empty(0)  # the images need none
            layers.append(_Layer(x, weight, bias[:, None], y, d_x, _place(spare[i % 2], y), adam))
            x = y
        return layers

    def _draw(self) -> None:
        super()._draw()
        rates, rows, *numbers = self.drawn
        assert isinstance(self.recipe, Contrastive)
        self.rates = rates.tolist()
        first = torch.arange(rows.shape[1])[:, None] * self.pool.shape[1]
        self.rows = (rows + first).repeat(1, 1, 2).flatten(1)  # (S, K * n): rows i and i + B are one image
        if self.crops_grey:
            assert isinstance(self.recipe.views, Views)
            box = boxes(numbers[0], self.recipe.views).flatten(1, 2)[..., None, None]  # (S, K * n, 4, 1, 1)
            height, width = self.pool.shape[-2:]
            self.heights, self.across_y = _positions(box[:, :, 2], box[:, :, 3], height)
            self.widths, self.across_x = _positions(box[:, :, 0], box[:, :, 1], width)

    @torch.no_grad()
    def _step(self) -> None:
        at = self.done % self.n_drawn
        self._look(at)
        for layer in self.layers:
            torch.bmm(layer.x, layer.weight, out=layer.y).add_(layer.bias)
            if layer is not self.layers[-1]:
                layer.y.relu_()
        self._pull()
        self._learn(self.rates[at])

    def _look(self, at: int) -> None:
        """Two views of each row; see `views`."""
        assert isinstance(self.recipe, Contrastive)
        torch.index_select(self.pool.flatten(0, 1), 0, self.rows[at], out=self.images)
        if self.crops_grey:
            self._interpolate(self.heights[at], self.across_y, self.to_rows)
            self._interpolate(self.widths[at], self.across_x, self.to_columns)
            torch.bmm(self.to_rows, self.images[:, 0], out=self.halfway)
            torch.bmm(self.halfway, self.to_columns.transpose(1, 2), out=self.views[:, 0])
        else:
            self.views.copy_(make_views(self.images, self.drawn[2][at].flatten(0, 1), self.recipe.views))
        if self.network.mean is not None and self.network.std is not None:
            for channel, mean, std in zip(self.views.unbind(1), self.network.mean, self.network.std, strict=True):
                channel.sub_(mean).div_(std)

    def _interpolate(self, position: Tensor, pixel: Tensor, out: Tensor) -> None:
        torch.sub(position, pixel, out=out)
        torch.sub(self.one, out.abs_(), out=out).relu_()

    def _pull(self) -> None:
        """The gradient of NT-Xent with respect to the projections; see `losses`."""
        assert isinstance(self.recipe, Contrastive)
        projections, d, z = self.layers[-1].y, self.layers[-1].d_y, self.z
        n, temperature = projections.shape[1], self.recipe.temperature
        torch.linalg.vector_norm(projections, dim=2, keepdim=True, out=self.length).clamp_(min=1e-12)
        torch.div(projections, self.length, out=z)
        torch.baddbmm(self.powers, z, z.transpose(1, 2), beta=0, alpha=1 / temperature, out=self.powers)
        self.powers.exp_().diagonal(dim1=1, dim2=2).zero_()
        torch.sum(self.powers, 2, out=self.sums)
        share = torch.reciprocal(self.sums, out=self.share)
        torch.add(share[:, :, None], share[:, None], out=self.weights).mul_(self.powers)  # p_ij + p_ji
        for side in (n // 2, -(n // 2)):
            self.weights.diagonal(side, 1, 2).sub_(2)
        torch.bmm(self.weights, z, out=d)
        torch.sum(torch.mul(z, d, out=self.product), 2, keepdim=True, out=self.inner)
        d.addcmul_(z, self.inner, value=-1).div_(self.length.mul_(n * temperature))

    def _learn(self, rate: float) -> None:
        """Back through the layers, Adam on each as soon as its gradient is there."""
        self.layers[0].adam[-1][0].add_(1)
        for i in reversed(range(len(self.layers))):
            x, weight, _, _, d_x, d_y, adam = self.layers[i]
            torch.sum(d_y, 1, out=adam[1][1])
            torch.bmm(x.transpose(1, 2), d_y, out=adam[1][0])
            if i:
                torch.bmm(d_y, weight.transpose(1, 2), out=d_x)
                torch.ops.aten.threshold_backward.grad_input(d_x, x, 0, grad_input=d_x)
            torch._fused_adam_(
                *adam,
                lr=rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )


def _place(flat: Tensor, like: Tensor) -> Tensor:
    """The beginning of `flat` in the shape of another tensor."""
    return flat[: like.numel()].view(like.shape)


def _positions(start: Tensor, extent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Where each of `size` pixels of a view lies in the image, (S, K * n, size, 1), and the image's pixels (size,)."""
    pixel = torch.arange(size, dtype=torch.float32)
    return ((start + extent * (pixel[:, None] + 0.5) / size) * size - 0.5).clamp_(0, size - 1), pixel


def _layer_names(network: Network) -> list[str]:
    assert isinstance(network.backbone, MLP)
    backbone = [f"{BACKBONE}layer{i + 1}" for i in range(len(network.backbone.hidden))]
    return [*backbone, *([f"{HEAD}hidden"] if network.head.hidden else []), f"{HEAD}output"]
