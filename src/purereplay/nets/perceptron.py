"""The training loop of perceptrons on the CPU: contrastive steps written out, several networks at a time.

The gradient needs no autograd and a step no new memory: one network's products go into buffers that stay in a core's
cache. Threads take the networks in turns, each with buffers of its own, so the answers depend neither on timing nor on
who trains beside whom; they are the plain loop's up to rounding. That loop (`loops`) is what this one is tested against.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from purereplay.nets.jobs import Contrastive, Job, Trained
from purereplay.nets.loops import drawn_at_once, joined_pool, network_bytes
from purereplay.nets.networks import BACKBONE, HEAD, MLP, Network, State
from purereplay.nets.steps import draw_numbers, draw_rows, learning_rate
from purereplay.nets.views import boxes, make_views

_SECONDS_AT_ONCE = 0.1  # of steps between two looks at the clock
_STEPS_A_TURN = 2  # of one network, before a thread looks for the next


def can_train(job: Job) -> bool:
    return isinstance(job.network.backbone, MLP) and isinstance(job.recipe, Contrastive)


class PerceptronLoop:
    """See `Loop`."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.n_bytes = len(jobs) * network_bytes(jobs[0])
        self.n_drawn = drawn_at_once(jobs[0], 1)
        self.load(jobs)
        self.buffers: list[_Buffers] = []  # one set per thread
        self.step_seconds = _SECONDS_AT_ONCE  # what a step of all networks took last

    def load(self, jobs: Sequence[Job]) -> None:
        self.networks = [_Training(job, self.n_drawn) for job in jobs]

    def advance(self, at_most: int) -> int:
        n = max(1, min(at_most, int(_SECONDS_AT_ONCE / self.step_seconds)))
        began = time.perf_counter()
        n_threads = torch.get_num_threads()
        n_workers = min(n_threads, len(self.networks))
        while len(self.buffers) < n_workers:
            self.buffers.append(_Buffers(self.networks[0]))
        turns = _Turns(self.networks, n)
        helpers = [
            threading.Thread(target=turns.work, args=(b, n_threads // n_workers)) for b in self.buffers[1:n_workers]
        ]
        try:
            for helper in helpers:
                helper.start()
            turns.work(self.buffers[0], n_threads // n_workers)
        finally:
            turns.waiting.clear()  # after an interrupt nobody goes on
            for helper in helpers:
                if helper.ident is not None:
                    helper.join()
            torch.set_num_threads(n_threads)
        if turns.errors:
            raise turns.errors[0]
        self.step_seconds = (time.perf_counter() - began) / n
        return n

    def answers(self, began: float) -> list[Trained]:
        share = (time.perf_counter() - began) / len(self.networks)
        return [network.answer(share) for network in self.networks]


class _Turns:
    """Networks that wait for their next steps; every thread takes the first, steps it and puts it back."""

    def __init__(self, networks: list[_Training], n_steps: int) -> None:
        self.waiting = deque((network, n_steps) for network in networks)
        self.errors: list[BaseException] = []

    def work(self, buffers: _Buffers, n_threads: int) -> None:
        """Take turns until none is left; products run on `n_threads` of this thread's own."""
        torch.set_num_threads(n_threads)
        try:
            with torch.no_grad():
                while True:
                    try:
                        network, left = self.waiting.popleft()
                    except IndexError:
                        return
                    n = min(left, _STEPS_A_TURN)
                    for _ in range(n):
                        buffers.step(network)
                    network.loss = buffers.loss()
                    if left > n:
                        self.waiting.append((network, left - n))
        except BaseException as error:
            self.errors.append(error)
            self.waiting.clear()


class _Training:
    """One network in training: its weights and moments, its images, its draws and how far it is."""

    def __init__(self, job: Job, n_drawn: int) -> None:
        assert isinstance(job.recipe, Contrastive)
        self.job, self.recipe, self.n_drawn = job, job.recipe, n_drawn
        self.state = {name: t.clone() for name, t in job.state.items()}
        given = job.optimizer
        self.mean, self.square = (
            {n: torch.zeros_like(t) if given is None else given[f"{m}.{n}"].clone() for n, t in self.state.items()}
            for m in ("mean", "square")
        )
        self.step = torch.tensor(float(job.steps_before))
        self.pool = joined_pool([job], torch.device("cpu"))[0].float() / 255
        self.key = torch.tensor([job.seed])
        self.done = 0
        self.loss = 0.0

    def draw(self) -> tuple[float, Tensor, Tensor]:
        """The next step's learning rate, rows (B,) and uniform numbers (2B, n_numbers)."""
        at = self.done % self.n_drawn
        if at == 0:
            job = self.job
            steps = torch.arange(self.done, self.done + self.n_drawn)
            n_replay = 0 if job.replay is None else job.replay.shape[0]
            self.rates = learning_rate(self.recipe, steps, job.steps_per_epoch, torch.tensor(job.start)).tolist()
            self.rows = draw_rows(self.recipe, job.images.shape[0], n_replay, self.key, steps)[:, 0]
            self.numbers = draw_numbers(self.recipe, self.rows.shape[-1], self.key, steps)[:, 0]
        self.done += 1
        return self.rates[at], self.rows[at], self.numbers[at]

    def answer(self, seconds: float) -> Trained:
        moments = {"mean": self.mean, "square": self.square}
        optimizer = {f"{m}.{name}": t for m, tensors in moments.items() for name, t in tensors.items()}
        return Trained(self.state, optimizer | {"step": self.step.long()}, self.loss, seconds)


class _Buffers:
    """The places of one network's step, from the views to the gradients."""

    def __init__(self, network: _Training) -> None:
        job, recipe = network.job, network.recipe
        self.network, self.recipe = job.network, recipe
        n = 2 * draw_rows(recipe, job.images.shape[0], network.pool.shape[0] - job.images.shape[0], network.key, torch.zeros(1, dtype=torch.long)).shape[-1]
        channels, height, width = job.images.shape[1:]
        self.images, self.halfway, self.views = (torch.empty(n, channels, height, width) for _ in range(3))
        self.pixels = torch.arange(max(height, width), dtype=torch.float32)
        self.to_rows, self.to_columns = torch.empty(n, height, height), torch.empty(n, width, width)
        self.one = torch.ones(())
        self.names = layer_names(job.network)
        widths = [channels * height * width] + [job.state[f"{name}.bias"].shape[0] for name in self.names]
        # what goes into each layer, and the projections
        self.values = [self.views.view(n, -1), *(torch.empty(n, w) for w in widths[1:])]
        self.gradients = [torch.empty(n, w) for w in widths]
        self.weights = [torch.empty(a, b) for a, b in pairwise(widths)]
        self.biases = [torch.empty(b) for b in widths[1:]]
        self.z, self.product = torch.empty(n, widths[-1]), torch.empty(n, widths[-1])
        self.length, self.inner = torch.empty(n, 1), torch.empty(n, 1)
        self.powers, self.shares = torch.empty(n, n), torch.empty(n, n)
        self.sums = torch.empty(n)

    def step(self, network: _Training) -> None:
        """One step of Adam on NT-Xent."""
        rate, index, numbers = network.draw()
        self.look(network.pool, index, numbers)
        self.project(network.state)
        self.pull()
        self.learn(network, rate)

    def look(self, pool: Tensor, index: Tensor, numbers: Tensor) -> None:
        """Two views of each row."""
        half = len(index)
        torch.index_select(pool, 0, index, out=self.images[:half])
        self.images[half:].copy_(self.images[:half])
        if self.recipe.views.jitter is None and pool.shape[1] == 1:
            x, width, y, height = boxes(numbers, self.recipe.views).unbind(-1)
            self.interpolate(self.to_rows, y, height)
            self.interpolate(self.to_columns, x, width)
            torch.bmm(self.to_rows, self.images[:, 0], out=self.halfway[:, 0])
            torch.bmm(self.halfway[:, 0], self.to_columns.transpose(1, 2), out=self.views[:, 0])
        else:
            self.views.copy_(make_views(self.images, numbers, self.recipe.views))
        if self.network.mean is not None and self.network.std is not None:
            for view, mean, std in zip(self.views.unbind(1), self.network.mean, self.network.std, strict=True):
                view.sub_(mean).div_(std)

    def interpolate(self, out: Tensor, start: Tensor, extent: Tensor) -> None:
        """As in `views`, in place."""
        size = out.shape[-1]
        pixel = self.pixels[:size]
        position = (start[:, None] + extent[:, None] * (pixel + 0.5) / size) * size - 0.5
        torch.sub(position.clamp_(0, size - 1)[:, :, None], pixel, out=out)
        torch.sub(self.one, out.abs_(), out=out)
        out.clamp_(min=0)

    def project(self, state: State) -> None:
        for i, name in enumerate(self.names):
            torch.addmm(state[f"{name}.bias"], self.values[i], state[f"{name}.weight"], out=self.values[i + 1])
            if i + 1 < len(self.names):
                self.values[i + 1].relu_()

    def pull(self) -> None:
        """The gradient of NT-Xent with respect to the projections; see `losses`."""
        projections, d = self.values[-1], self.gradients[-1]
        n, t = len(projections), self.recipe.temperature
        torch.linalg.vector_norm(projections, dim=1, keepdim=True, out=self.length).clamp_(min=1e-12)
        torch.div(projections, self.length, out=self.z)
        z = self.z
        torch.addmm(self.powers, z, z.T, beta=0, alpha=1 / t, out=self.powers)
        self.powers.exp_().fill_diagonal_(0)
        torch.sum(self.powers, 1, out=self.sums)
        share = self.sums.reciprocal()
        torch.add(share[:, None], share, out=self.shares)
        self.shares.mul_(self.powers)
        for side in (n // 2, -(n // 2)):
            self.shares.diagonal(side).sub_(2)
        torch.mm(self.shares, z, out=d)
        torch.mul(z, d, out=self.product)
        torch.sum(self.product, 1, keepdim=True, out=self.inner)
        d.addcmul_(z, self.inner, value=-1).div_(self.length.mul_(n * t))

    def learn(self, network: _Training, rate: float) -> None:
        """Backwards through the layers, Adam on each as soon as its gradient is there."""
        network.step += 1
        for i in reversed(range(len(self.names))):
            name = self.names[i]
            d, x = self.gradients[i + 1], self.values[i]
            weight, bias = f"{name}.weight", f"{name}.bias"
            if i:
                torch.mm(d, network.state[weight].T, out=self.gradients[i])
                torch.ops.aten.threshold_backward.grad_input(self.gradients[i], x, 0, grad_input=self.gradients[i])
            torch.mm(x.T, d, out=self.weights[i])
            torch.sum(d, 0, out=self.biases[i])
            torch._fused_adam_(
                [network.state[weight], network.state[bias]],
                [self.weights[i], self.biases[i]],
                [network.mean[weight], network.mean[bias]],
                [network.square[weight], network.square[bias]],
                [],
                [network.step] * 2,
                lr=rate, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
            )

    def loss(self) -> float:
        """NT-Xent of the last step."""
        n = len(self.sums)
        return float(self.sums.log().mean() - self.powers.diagonal(n // 2).log().mean())


def layer_names(network: Network) -> list[str]:
    assert isinstance(network.backbone, MLP)
    hidden = [f"{BACKBONE}layer{i + 1}" for i in range(len(network.backbone.hidden))]
    return hidden + [f"{HEAD}hidden"] * network.head.hidden + [f"{HEAD}output"]
