"""Adam's step for convolutions and norms, whose gradients are stored in parts."""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
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
    adam_scales,
    gradient_network,
    weight_network,
    BLOCK: tl.constexpr,
    CLIP: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Adam's step for one block of parameters; the parts of its gradient are summed in order."""
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
    offset = network * weight_network + start + at
    adam(total, offset, inside, weight, mean, square, half, adam_scales + network * 2, BETA1, BETA2, EPSILON)


def update(
    gradient: Tensor, blocks: Tensor, parameters: Parameters, adam_scales: Tensor, clip: float | None = None
) -> None:
    """Launch `update_kernel`; rows of blocks (int32): parameter, count, gradient, parts, distance of parts.

    All but the number of parts are multiples of 16. Gradient values are clipped to ±clip.
    """
    weight, mean, square, half = parameters.weight, parameters.mean, parameters.square, parameters.half
    strides = (gradient.stride(0), weight.stride(0))
    update_kernel[(blocks.shape[0], weight.shape[0])](
        gradient,
        blocks,
        weight,
        mean,
        square,
        half,
        adam_scales,
        *strides,
        UPDATE_BLOCK,
        clip or 0.0,
        BETA1,
        BETA2,
        EPSILON,
    )
