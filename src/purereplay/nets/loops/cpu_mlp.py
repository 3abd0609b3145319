"""The training loop of perceptrons on the CPU: threads that take the networks in turns, a few steps of one at a time.

The steps are those of `perceptron_step`. The answers are those of the plain loop (`loops`) up to rounding, and the
same bits each time on the same number of threads: which thread takes a network, and when, changes nothing in it.
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

from purereplay.nets.jobs import Contrastive, ContrastiveJob, DrawnJob, Job
from purereplay.nets.loops.cpu_mlp_step import (
    Crops,
    Places,
    Weights,
    compiled,
    cropped_steps,
    last_loss,
    make_places,
    step,
)
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.networks import BACKBONE, HEAD, MLP, Network, State
from purereplay.nets.views import Views, boxes, make_views

_SECONDS_AT_ONCE = 0.5  # of steps between two looks at the clock, where threads wait for each other
_STEPS_A_TURN = 10  # of a network, whose weights stay near its core meanwhile, before its thread looks for the next


def can_train(job: Job) -> TypeGuard[ContrastiveJob]:
    """Whether this loop is for such a job."""
    return isinstance(job.network.backbone, MLP) and isinstance(job, ContrastiveJob)


class CpuMlpLoop(PlainLoop):
    """See `Loop`: the plain loop with another step. No thread outlives a call."""

    recipe: Contrastive

    def __init__(self, jobs: Sequence[ContrastiveJob]) -> None:
        super().__init__(jobs, torch.device("cpu"), "float32")
        names = _layer_names(self.network, self.parameters)
        own = [[self.parameters[f"{name}.{part}"] for part in ("weight", "bias")] for name in names]
        self.networks = [self._weights(own, k) for k in range(len(jobs))]
        n_views = 2 * self.drawn[1].shape[-1]
        layers = [(weight.shape[1], weight.shape[2]) for weight, _ in own]
        self.make_places = partial(make_places, n_views, self.pool.shape[2:], layers)
        self.places: list[Places] = []  # one for each thread
        self.before = 0  # of Adam's steps, when the job began
        self.step_seconds = 0.1  # what a step of all networks took last; at first a guess
        self.steps, self.step = compiled(cropped_steps), compiled(step)

    def _weights(self, own: list[list[Tensor]], k: int) -> Weights:
        moments = [[self.optimizer.state[p] for p in layer] for layer in own]
        return Weights(
            parameters=[[p[k].detach() for p in layer] for layer in own],
            means=[[m["exp_avg"][k] for m in layer] for layer in moments],
            squares=[[m["exp_avg_sq"][k] for m in layer] for layer in moments],
            pool=self.pool[k],
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
        self.places += [self.make_places() for _ in range(n_workers - len(self.places))]
        turns = _Turns(self._turn, n_networks, n_steps, n_threads // n_workers)
        helpers = [threading.Thread(target=turns.work, args=[p], daemon=True) for p in self.places[1:n_workers]]
        try:
            for helper in helpers:
                helper.start()
            turns.work(self.places[0])
            for helper in helpers:
                helper.join()
        finally:
            turns.stopped = True  # after an interrupt a thread may still be at work
            torch.set_num_threads(n_threads)  # also what threads that start later go by
            for helper in helpers:
                if helper.is_alive():
                    helper.join()
        if turns.errors:
            raise turns.errors[0]
        self.done += n_steps
        for moments in self.optimizer.state.values():
            moments["step"].fill_(self.before + self.done)
        self.step_seconds = (time.perf_counter() - began) / n_steps
        return n_steps

    def _draw(self) -> None:
        super()._draw()
        lrs, rows, numbers = self.drawn
        self.lrs: list[float] = lrs.tolist()
        self.rows = rows.repeat(1, 1, 2)  # (S, K, n): rows i and i + B are one image
        self.crops: list[Crops] = []  # of grey images
        views = self.recipe.views
        if self.pool.shape[2] == 1 and isinstance(views, Views) and views.jitter is None:
            box = boxes(numbers, views)[..., None, None]  # (S, K, n, 4, 1, 1)
            height, width = self.pool.shape[-2:]
            heights = _positions(box[..., 2, :, :], box[..., 3, :, :], height)
            widths = _positions(box[..., 0, :, :], box[..., 1, :, :], width)
            drawn = (t.unbind(1) for t in (self.rows, heights, widths))
            self.crops = [Crops(*own) for own in zip(*drawn, strict=True)]

    @torch.no_grad()
    def _turn(self, places: Places, k: int, first: int, n_steps: int) -> None:
        """Steps of network k; `first` counts from where all networks are."""
        network, temperature = self.networks[k], self.recipe.temperature
        mean, std = list(self.network.mean or ()), list(self.network.std or ())
        at = self.done % self.n_drawn + first  # of those drawn
        count = self.before + self.done + first + 1  # of Adam's
        if self.crops:
            self.steps(network, places, self.crops[k], mean, std, self.lrs, temperature, at, count, n_steps)
        else:
            for i in range(n_steps):
                torch.index_select(network.pool, 0, self.rows[at + i, k], out=places.images)
                places.views.copy_(make_views(places.images, self.drawn[2][at + i, k], self.recipe.views))
                self.step(network, places, mean, std, self.lrs[at + i], temperature, count + i)
        self.loss[k] = last_loss(places)


class _Turns:
    """Networks that wait for their next steps; every thread takes the first, steps it and puts it back."""

    def __init__(
        self, turn: Callable[[Places, int, int, int], None], n_networks: int, n_steps: int, n_threads: int
    ) -> None:
        self.turn = turn
        self.n_steps = n_steps
        self.waiting = deque((k, 0) for k in range(n_networks))  # and how many steps are done
        self.n_threads = n_threads
        self.errors: list[BaseException] = []
        self.stopped = False

    def work(self, places: Places) -> None:
        """Take turns until nobody waits; the calling thread's operations run on `n_threads`."""
        torch.set_num_threads(self.n_threads)
        try:
            while self.waiting and not self.stopped:
                try:
                    k, done = self.waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                n = min(self.n_steps - done, _STEPS_A_TURN)
                self.turn(places, k, done, n)
                if done + n < self.n_steps:
                    self.waiting.append((k, done + n))
        except BaseException as error:
            self.errors.append(error)
            self.stopped = True


def _positions(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """Where each of `size` pixels of a view lies in the image, (S, K, n, size, 1)."""
    pixel = torch.arange(size, dtype=torch.float32)[:, None]
    return ((start + extent * (pixel + 0.5) / size) * size - 0.5).clamp_(0, size - 1)


def _layer_names(network: Network, parameters: State) -> list[str]:
    n_hidden = sum(name.startswith(f"{BACKBONE}layer") and name.endswith(".weight") for name in parameters)
    backbone = [f"{BACKBONE}layer{i + 1}" for i in range(n_hidden)]
    return [*backbone, *([f"{HEAD}hidden"] if network.head.hidden else []), f"{HEAD}output"]
