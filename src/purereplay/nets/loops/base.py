"""Parts shared by the training loops: their protocol, their memory, and the capture of a step as a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from purereplay.nets.jobs import ContrastiveJob, DrawnJob, Job, ListedJob, Trained

log = logging.getLogger(__name__)

_DRAWN_AT_ONCE = 32  # steps whose random numbers are drawn at once
_DRAWN_BYTES = 2**27  # memory limit of these numbers


AnyJob = TypeVar("AnyJob", bound=Job, contravariant=True)


class Loop(Protocol[AnyJob]):
    """K networks of one shape, with all buffers of their training step."""

    n_bytes: int

    def load(self, jobs: Sequence[AnyJob]) -> None:
        """Copy the networks, moments, images and keys of jobs into the buffers of the step."""

    def advance(self, at_most: int) -> int:
        """Take at least one and at most `at_most` steps; returns their number."""

    def answers(self, began: float) -> list[Trained]:
        """Network, moments and last loss of every job, and its share of the time since `began`."""


def joined_pool(jobs: Sequence[Job], device: torch.device) -> Tensor:
    """Images of the jobs, first D and then P, (K, n + m, C, H, W), in their own dtype."""
    return torch.stack([job.pool() for job in jobs]).to(device)


def network_bytes(job: Job) -> int:
    """Approximate memory of one network of this job: weights, gradients, moments, images and activations."""
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
    """Number of steps whose draws a loop of k such jobs holds."""
    numbers = 2 * job.recipe.batch_size
    if isinstance(job, ContrastiveJob):
        numbers = 2 * (job.recipe.batch_size + job.recipe.replay_size) * job.recipe.views.n_numbers
    return max(1, min(_DRAWN_AT_ONCE, job.n_steps, _DRAWN_BYTES // (k * numbers * 8 * 4)))


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in float32 products on CUDA, for calls and captures within the context."""
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
    """Capture the step as a CUDA graph; returns None, with a warning, if that fails.

    The step first runs three times to warm up. `before` is called before each run.
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
        log.warning("the training step could not be captured as a CUDA graph, running it step by step: %s", error)
        return None
