"""Weights and moments of K networks as flat tensors, which the kernels read and update in place."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in PyTorch
_ALIGN = 16  # every tensor starts at a multiple of this, for wide loads


class Parameters:
    """Named slices of (K, P) tensors: `weight`, Adam's `mean` and `square` in float32, and `half`.

    `half` holds the weights rounded to the type of the matrix products. Kernels that change `weight` also write `half`.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], k: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shapes = dict(shapes)
        self.offsets: dict[str, int] = {}
        total = 0
        for name, shape in shapes.items():
            self.offsets[name] = total
            total += -(-math.prod(shape) // _ALIGN) * _ALIGN
        self.weight, self.mean, self.square = (torch.zeros(k, total, device=device) for _ in range(3))
        self.half = self.weight if dtype == torch.float32 else torch.zeros(k, total, device=device, dtype=dtype)

    def view(self, flat: Tensor, name: str) -> Tensor:
        """One tensor of every network, (K, *shape), as a view into `weight`, `mean`, `square` or `half`."""
        shape, offset = self.shapes[name], self.offsets[name]
        return flat[:, offset : offset + math.prod(shape)].view(-1, *shape)

    def refresh_half(self) -> None:
        """Round `weight` into `half`, after `weight` was written from outside the kernels."""
        if self.half is not self.weight:
            self.half.copy_(self.weight)
