"""Adam on the weights of convolutions and norms, whose gradients come in parts."""

# Triton compiles the kernels' bodies itself: annotations other than constexpr mean nothing there.
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.loops.cuda.kernels import adam, cut
from purereplay.nets.loops.cuda.parameters import BETA1, BETA2, EPSILON, Parameters

UPDATE_BLOCK = 1024


@triton.jit
def update_kernel(
    gradient,
    blocks,
    weight,
    mean,
    square,
    half,
    rates,
    gradient_network,
    weight_network,
    BLOCK: tl.constexpr,
    CLIP: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Adam's step for one block of parameters: sum the parts of its gradient in order, then update."""
    network = tl.program_id(1).to(tl.int64)
    blocks += tl.program_id(0) * 5
    start, count = tl.multiple_of(tl.load(blocks), 16), tl.multiple_of(tl.load(blocks + 1), 16)
    source, part_size = tl.multiple_of(tl.load(blocks + 2), 16), tl.multiple_of(tl.load(blocks + 4), 16)
    at = tl.arange(0, BLOCK)
    inside = at < count
    gradient_at = gradient + network * gradient_network + source + at
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(tl.load(blocks + 3)):
        total += tl.load(gradient_at + part * part_size, mask=inside, other=0.0)
    total = cut(total, CLIP)
    place = network * weight_network + start + at
    adam(total, place, inside, weight, mean, square, half, rates + network * 2, BETA1, BETA2, EPSILON)


def update(gradient: Tensor, blocks: Tensor, parameters: Parameters, rates: Tensor, clip: float | None = None) -> None:
    """Launch `update_kernel`; rows of blocks (int32): parameter, count, gradient, parts, distance of parts.

    All but the parts are multiples of 16. Gradients are cut to ±clip.
    """
    weight, mean, square, half = parameters.weight, parameters.mean, parameters.square, parameters.half
    strides = (gradient.stride(0), weight.stride(0))
    update_kernel[(blocks.shape[0], weight.shape[0])](
        gradient, blocks, weight, mean, square, half, rates, *strides, UPDATE_BLOCK, clip or 0.0, BETA1, BETA2, EPSILON
    )
