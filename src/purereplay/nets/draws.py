"""Random numbers as a pure function of (key, step, position): the draws inside a training step.

Each of K networks has its own key, so its numbers do not depend on the networks trained beside it. No generator state
has to be saved to resume a run. CPU and GPU draw the same numbers. A step captured as a CUDA graph only needs its
counter advanced. The mixing function is SplitMix64 (Steele, Lea & Flood, 2014).
"""

from enum import IntEnum

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


class RandomStream(IntEnum):
    """The numbered streams of random numbers, one per purpose; results depend on the values."""

    ORDER = 0  # order of D within an epoch
    REPLAY = 1  # rows of P in a contrastive step
    VIEWS = 2  # crops, flips and colour jitter
    CUTMIX = 3  # boxes of CutMix
    SHIFT = 4  # shifts and flips of a supervised step
    CLEAN = 5  # clean samples of L2R
    FISHER_LABELS = 6  # labels sampled for EWC's Fisher information
    MEMORY_REPLAY = 7  # slots of a replay memory
    STEP_VIEWS = 8  # views of a supervised step
    MIXUP = 9  # partners and weights of mixup


def _shift_right(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts in the sign bit; the mix needs zeros


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def uniforms(keys: Tensor, step: Tensor, n: int, *, stream: RandomStream) -> Tensor:
    """Uniform numbers in [0, 1), float32 (*steps, K, n), for keys int64 (K,) at `step` int64 (*steps).

    Different streams at the same key and step are independent.
    """
    return _numbers(_mix(keys ^ _mix(step * _GOLDEN + (stream + 1))[..., None]), n)


def _numbers(start: Tensor, n: int) -> Tensor:
    """n uniform numbers for every start int64 (...): float32 (..., n)."""
    position = torch.arange(1, n + 1, device=start.device) * _GOLDEN
    bits = _shift_right(_mix(start[..., None] + position), 40)  # the highest 24 bits: the precision of float32
    return bits.float() * 2.0**-24


def uniforms_per_key(keys: Tensor, steps: Tensor, n: int, *, stream: RandomStream) -> Tensor:
    """Uniform numbers, float32 (K, n), for keys int64 (K,) at one step per key, int64 (K,)."""
    return _numbers(_mix(keys ^ _mix(steps * _GOLDEN + (stream + 1))), n)


def permutations(keys: Tensor, step: Tensor, n: int, *, stream: RandomStream) -> Tensor:
    """A random permutation of range(n) for each step and key, int64 (*steps, K, n)."""
    return uniforms(keys, step, n, stream=stream).argsort(dim=-1, stable=True)
