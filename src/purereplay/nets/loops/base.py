"""What the training loops share: their protocol, their memory, and the capture of a step as a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from purereplay.nets.jobs import ContrastiveJob, DrawnJob, Job, ListedJob, Trained

log = logging.getLogger(__name__)

_DRAWN_AT_ONCE = 32  # steps whose random numbers are drawn in one go
_DRAWN_BYTES = 2**27  # and at most this much memory for them


AnyJob = TypeVar("AnyJob", bound=Job, contravariant=True)


class Loop(Protocol[AnyJob]):
    """K networks of one shape with everything that their step reads and writes, in place."""

    n_bytes: int

    def load(self, jobs: Sequence[AnyJob]) -> None:
        """Put the jobs' networks, moments, images and keys in the places that the step uses."""

    def advance(self, at_most: int) -> int:
        """Take some steps; returns how many."""

    def answers(self, began: float) -> list[Trained]:
        """Every job's network, moments and last loss, and its share of the time since then."""


def joined_pool(jobs: Sequence[Job], device: torch.device) -> Tensor:
    """The jobs' images, D and then P, (K, n + m, C, H, W), of the jobs' own dtype."""
    return torch.stack([job.pool() for job in jobs]).to(device)


def network_bytes(job: Job) -> int:
    """About how much memory one network of this job takes: weights, gradients, moments, images and activations."""
    weights = sum(t.numel() for t in job.state.values())
    image = job.images[0].numel()
    pool = (job.images.shape[0] + job.n_replay) * image
    if isinstance(job, ContrastiveJob):
        views = 2 * (min(job.recipe.batch_size, job.images.shape[0]) + job.recipe.replay_size)
        interpolation = job.images.shape[-1] ** 2 + job.images.shape[-2] ** 2
        work = views * (job.network.activation_floats() + 6 * image + 3 * interpolation + 4 * views)
    else:
        work = job.recipe.batch_size * (job.network.activation_floats() + image)
    extra = sum(t.numel() * t.element_size() for t in job.extra.values()) if isinstance(job, ListedJob) else 0
    return 4 * (4 * weights + pool + work) + 2 * extra


def drawn_at_once(job: DrawnJob, k: int) -> int:
    """How many steps' draws a loop of k such jobs keeps."""
    numbers = 2 * job.recipe.batch_size
    if isinstance(job, ContrastiveJob):
        numbers = 2 * (job.recipe.batch_size + job.recipe.replay_size) * job.recipe.views.n_numbers
    return max(1, min(_DRAWN_AT_ONCE, job.n_steps, _DRAWN_BYTES // (k * numbers * 8 * 4)))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether products of float32 numbers on CUDA may round them to TF32, for what is called or captured within."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def capture(
    step: Callable[[], None], device: torch.device, *, before: Callable[[], object]
) -> torch.cuda.CUDAGraph | None:
    """The step as a CUDA graph; None, with a warning, where it cannot be captured.

    It runs a few times to warm up, `before` being called each time.
    """
    try:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                before()
                step()
        torch.cuda.current_stream().wait_stream(side)
        before()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        log.warning("the training step could not be captured as a CUDA graph, the plain loop runs: %s", error)
        return None
