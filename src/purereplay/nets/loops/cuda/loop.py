"""The training loop of hand-written kernels on CUDA: a step of K networks is a few kernels, many steps are one graph.

A chunk of steps is one CUDA graph: the draws and views of all its steps, then one step after the other. Products are
bfloat16 with float32 sums, NT-Xent uses float16 unit vectors, weights and moments are float32. A network's result
depends neither on the networks beside it nor on the length of a chunk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TypeGuard, cast

import torch
from torch import Tensor

from purereplay.data.forms import prefixed
from purereplay.nets.draws import RandomStream
from purereplay.nets.jobs import (
    Contrastive,
    ContrastiveJob,
    Drawn,
    DrawnJob,
    Job,
    Joint,
    JointJob,
    SupervisedJob,
    Trained,
)
from purereplay.nets.loops.base import joined_pool
from purereplay.nets.loops.cuda.average import MovingAverage
from purereplay.nets.loops.cuda.heads import (
    MAX_CLASSES,
    MAX_OUTPUTS,
    ContrastiveHead,
    JointHead,
    SupervisedHead,
    head_shapes,
)
from purereplay.nets.loops.cuda.linear import (
    CudaMLP,
    SideStream,
    linear_shapes,
    load_parameters,
    power_of_two,
    read_parameters,
)
from purereplay.nets.loops.cuda.parameters import BETA1, BETA2, Parameters
from purereplay.nets.loops.cuda.resnet import CudaResNet
from purereplay.nets.loops.cuda.view_kernels import draws_kernel, views_kernel
from purereplay.nets.networks import BACKBONE, CLASSES, HEAD, MLP, Backbone, State, is_trained, part, stack
from purereplay.nets.resnet import ResNet18
from purereplay.nets.steps import draw_rows, lr_at
from purereplay.nets.views import TRIES, Views

_STEPS_A_CHUNK = 50
_CHUNK_BYTES = 2**30  # for the views of a chunk
_MAX_GRID = 65535  # programs along a grid's second axis
_WORK_SECONDS = 0.1  # work queued on the device before the host waits for it


def can_train(job: Job) -> TypeGuard[DrawnJob]:
    """Whether this loop can train the job."""
    if isinstance(job, JointJob) and not _fits_joint_head(job):
        return False
    if not isinstance(job, ContrastiveJob | SupervisedJob) or job.images.dtype != torch.uint8:  # feature vectors
        return False
    backbone = job.network.backbone
    fits = isinstance(backbone, MLP) or (isinstance(backbone, ResNet18) and backbone.width % 2 == 0 and n_rows(job) > 1)
    return fits and job.network.head.n_outputs <= MAX_OUTPUTS and job.images.shape[1] in (1, 3)


def _fits_joint_head(job: JointJob) -> bool:
    """Whether the classes fit into a tile, and P is large enough for the recipe's rows of P."""
    recipe = job.recipe
    enough = recipe.replay_size if recipe.replay_distinct else min(1, recipe.replay_size)
    return 0 < job.network.n_classes <= MAX_CLASSES and job.n_replay >= enough


def n_rows(job: DrawnJob) -> int:
    """Views per step and network; images for a supervised job."""
    size = min(job.recipe.batch_size, job.images.shape[0])
    if not isinstance(job, ContrastiveJob):
        return size
    return 2 * (size + (job.recipe.replay_size if job.replay is not None else 0))


def cuda_bytes(job: DrawnJob) -> int:
    """Approximate memory of one network in this loop."""
    weights = sum(t.numel() for t in job.state.values())
    pool = (job.images.shape[0] + job.n_replay) * job.images[0].numel()
    average = 4 * weights if isinstance(job, JointJob) else 0
    return 14 * weights + average + pool + n_rows(job) * (4 * job.network.activation_floats() + 128)


def backbone_shapes(backbone: Backbone) -> dict[str, tuple[int, ...]]:
    """Shapes of the backbone's parameters, by name."""
    return CudaMLP.shapes(backbone) if isinstance(backbone, MLP) else CudaResNet.shapes(cast(ResNet18, backbone))


def make_backbone(backbone: Backbone, n_rows: int, parameters: Parameters, clip: float | None) -> CudaMLP | CudaResNet:
    if isinstance(backbone, MLP):
        return CudaMLP(backbone, n_rows, parameters, BACKBONE, clip)
    half = parameters.half
    return CudaResNet(
        cast(ResNet18, backbone), half.shape[0], n_rows, half.device, half.dtype, parameters, BACKBONE, clip
    )


class CudaLoop:
    """Loop of hand-written kernels; see `base.Loop`."""

    def __init__(self, jobs: Sequence[DrawnJob], device: torch.device, dtype: torch.dtype = torch.bfloat16) -> None:
        job, k = jobs[0], len(jobs)
        network = job.network
        recipe: Drawn = job.recipe
        self.device, self.network, self.recipe = device, network, recipe
        self.n_bytes = k * cuda_bytes(job)
        self.steps_per_epoch, self.n_images = job.steps_per_epoch, job.images.shape[0]
        self.n_replay = job.n_replay
        self.n_rows = n_rows(job)
        shapes = prefixed(BACKBONE, backbone_shapes(network.backbone))
        shapes |= prefixed(HEAD, head_shapes(network.head, network.backbone.n_features))
        self.heads = [HEAD]  # prefixes of the layers above the features
        if network.n_classes:
            shapes |= linear_shapes([(CLASSES.rstrip("."), network.backbone.n_features, network.n_classes)])
            self.heads.append(CLASSES)
        self.parameters = Parameters(shapes, k, device, dtype)
        self.pool = joined_pool(jobs, device)
        self.keys, self.start, self.before, self.n_held = (
            torch.zeros(k, dtype=torch.int64, device=device) for _ in range(4)
        )
        self.done = torch.zeros((), dtype=torch.int64, device=device)  # steps taken by this job
        clip = None if isinstance(recipe, Contrastive) else recipe.clip
        self.backbone = make_backbone(network.backbone, self.n_rows, self.parameters, clip)
        channels, height, width = job.images.shape[1:]
        self.pixel = self.backbone.pixel  # distance of neighbouring pixels of a view; 0: channel after channel
        shape = (height, width, self.pixel) if self.pixel else (channels * height * width,)
        a_step = k * self.n_rows * math.prod(shape) * dtype.itemsize
        self.chunk = max(1, min(_STEPS_A_CHUNK, job.n_steps, _CHUNK_BYTES // a_step, _MAX_GRID // k))
        self.views = torch.zeros(self.chunk, k, self.n_rows, *shape, device=device, dtype=dtype)
        self.adam_scales = torch.zeros(self.chunk, k, 2, device=device)
        self.side_stream = SideStream(device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by number of steps
        self.step_seconds = 0.0  # 0: not measured yet
        self.targets = stack([{n: t.to(device) for n, t in j.targets().items()} for j in jobs])
        self.average: MovingAverage | None = None
        self.head: ContrastiveHead | JointHead | SupervisedHead
        if isinstance(recipe, Joint):
            n_delayed = min(recipe.batch_size, self.n_images)
            self.head = JointHead(network, self.n_rows, self.parameters, recipe, n_delayed, self.targets)
            self.average = MovingAverage(self.parameters, self.backbone, self.heads, recipe.average)
        elif isinstance(recipe, Contrastive):
            self.head = ContrastiveHead(network.head, self.n_rows, self.parameters, recipe.temperature)
        else:
            self.head = SupervisedHead(network.head, self.n_rows, self.parameters, recipe.clip, self.targets["labels"])
            self.whole = torch.tensor([0.0, 1.0, 0.0, 1.0], device=device)  # box of the whole image

    @torch.no_grad()
    def load(self, jobs: Sequence[DrawnJob]) -> None:
        state = stack([{n: t.to(self.device) for n, t in j.state.items()} for j in jobs])
        mean, square = (stack([_moments(j, name, self.device) for j in jobs]) for name in ("mean", "square"))
        self.backbone.load(*(part(t, BACKBONE) for t in (state, mean, square)))
        for prefix in self.heads:
            load_parameters(self.parameters, prefix, *(part(t, prefix) for t in (state, mean, square)))
        self.parameters.refresh_half()
        self.pool.copy_(joined_pool(jobs, self.device))
        for ours, values in (
            (self.keys, [j.seed for j in jobs]),
            (self.start, [j.start if isinstance(j, ContrastiveJob) else 0 for j in jobs]),
            (self.before, [j.steps_before for j in jobs]),
            (self.n_held, [j.n_held if isinstance(j, ContrastiveJob) else 0 for j in jobs]),
        ):
            ours.copy_(torch.tensor(values, dtype=torch.int64))
        for name, t in self.targets.items():
            t.copy_(torch.stack([j.targets()[name] for j in jobs]))
        if self.average is not None:
            averages = [j.average for j in jobs if isinstance(j, JointJob)]
            self.average.load(stack([{n: t.to(self.device) for n, t in a.items()} for a in averages]))
        self.done.zero_()

    def advance(self, at_most: int) -> int:
        began = time.perf_counter()
        n = min(self.chunk, at_most)
        if self.device.type != "cuda":  # Triton's interpreter: for tests
            self.run_chunk(n)
            return n
        if n not in self.graphs:
            self.graphs[n] = self._capture(n)
        times = max(1, min(at_most // n, int(_WORK_SECONDS / (n * self.step_seconds)) if self.step_seconds else 1))
        for _ in range(times):
            self.graphs[n].replay()
        torch.cuda.synchronize(self.device)
        self.step_seconds = (time.perf_counter() - began) / (n * times)
        return n * times

    def answers(self, began: float) -> list[Trained]:
        losses = self.head.loss().tolist()
        steps = self.before + self.done
        state, mean, square = (prefixed(BACKBONE, t) for t in self.backbone.read())
        for prefix in self.heads:
            for ours, t in zip((state, mean, square), read_parameters(self.parameters, prefix), strict=True):
                ours |= prefixed(prefix, t)
        moments = prefixed("mean.", mean) | prefixed("square.", square)
        average = {} if self.average is None else self.average.read(int(self.done))
        share = (time.perf_counter() - began) / len(losses)
        return [
            Trained(
                of_network(state, k),
                of_network(moments, k) | {"step": steps[k]},
                losses[k],
                share,
                of_network(average, k),
            )
            for k in range(len(losses))
        ]

    def run_chunk(self, n: int) -> None:
        """Launch the next n steps on the current stream."""
        index = self._prepare(n)
        for i in range(n):
            if not isinstance(self.head, ContrastiveHead):
                self.head.index = index[i]
            self._step(self.views[i], self.adam_scales[i])

    def _prepare(self, n: int) -> Tensor:
        """Prepare draws, views and Adam's scales of the next n steps; returns the drawn rows (n, K, batch)."""
        steps = self.done + torch.arange(n, device=self.device)
        index = draw_rows(self.recipe, self.n_images, self.n_replay, self.n_held, self.keys, steps).contiguous()
        self._make_views(index, steps)
        lr = lr_at(self.recipe, steps[:, None], self.steps_per_epoch, self.start).double()
        t = (self.before + steps[:, None] + 1).double()
        self.adam_scales[:n, :, 0].copy_(lr / (1 - BETA1**t))
        self.adam_scales[:n, :, 1].copy_((1 - BETA2**t).rsqrt())
        self.done += n
        return index

    def _make_views(self, index: Tensor, steps: Tensor) -> None:
        """Make two views of each of the pool's rows index (S, K, B); supervised jobs use the images themselves."""
        channels, height, width = self.pool.shape[2:]
        additive = jitter = False
        if isinstance(self.recipe, Contrastive):
            views = self.recipe.views
            assert isinstance(views, Views)  # `can_train` excludes feature vectors
            jitter, additive = views.jitter is not None and channels == 3, views.jitter_kind == "additive"
            box, colour = draw_views(views, self.n_rows, self.keys, steps)
            index = torch.cat([index, index], -1)  # rows i and i + B are views of one image
        else:
            box = colour = self.whole.expand(*index.shape, 4).contiguous()
        mean, std = (3 * tuple(v) if v else 3 * (d,) for v, d in ((self.network.mean, 0.0), (self.network.std, 1.0)))
        views_kernel[(index.numel(),)](
            self.pool,
            index,
            box,
            colour,
            self.views,
            self.pool.shape[0],
            self.n_rows,
            self.pool.stride(0),
            self.views.stride(2),
            1 if self.pixel else height * width,
            self.pixel or 1,
            *mean[:3],
            *std[:3],
            CHANNELS=channels,
            HEIGHT=height,
            WIDTH=width,
            PIXELS=power_of_two(height * width),
            JITTER=jitter,
            ADDITIVE=additive,
            num_warps=4,
        )

    def _step(self, views: Tensor, adam_scales: Tensor) -> None:
        self.head.forward(self.backbone.forward(views))
        d = self.head.backward(adam_scales, self.side_stream, gated=self.backbone.gates_features)
        if isinstance(self.backbone, CudaMLP):
            self.backbone.backward(d, adam_scales, self.side_stream)
        else:
            self.backbone.backward(d, adam_scales)
        self.side_stream.join()
        if self.average is not None:
            self.average.step()

    def _capture(self, n: int) -> torch.cuda.CUDAGraph:
        """Capture the next n steps as a graph; changes of the warm-up are undone."""
        p = self.parameters
        changed = [p.weight, p.mean, p.square, self.done, *self.backbone.statistics()]
        changed += [] if self.average is None else self.average.tensors()
        kept = [t.clone() for t in changed]
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.run_chunk(1)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run_chunk(n)
        for ours, t in zip(changed, kept, strict=True):
            ours.copy_(t)
        p.refresh_half()
        return graph


def _moments(job: DrawnJob, which: str, device: torch.device) -> State:
    """One of Adam's moments of a job; zeros if it has no optimizer state."""
    if job.optimizer is not None:
        return {name: t.to(device) for name, t in part(job.optimizer, f"{which}.").items()}
    return {name: torch.zeros_like(t, device=device) for name, t in job.state.items() if is_trained(name)}


def draw_views(views: Views, n_views: int, keys: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `views.boxes` and `views.colours` from the uniforms of `steps.draw_numbers`."""
    shape = (*steps.shape, *keys.shape, n_views)
    box = torch.empty(*shape, 4, device=keys.device)
    colour = torch.empty(*shape, 5, device=keys.device) if views.jitter else box
    draws_kernel[(-(-n_views // 128), steps.shape[0] * keys.shape[0])](
        keys,
        steps,
        box,
        colour,
        keys.shape[0],
        n_views,
        *views.area,
        *(math.log(r) for r in views.ratio),
        views.flip,
        *(views.jitter or (0.0, 0.0, 0.0, 0.0)),
        views.jitter_probability,
        STREAM=int(RandomStream.VIEWS),
        TRIES=TRIES,
        N_NUMBERS=views.n_numbers,
        JITTER=views.jitter is not None,
        VIEWS=128,
        num_warps=4,
    )
    return box, colour


def of_network(state: State, k: int) -> State:
    """The k-th network of a stack, without copying."""
    return {name: t[k] for name, t in state.items()}
