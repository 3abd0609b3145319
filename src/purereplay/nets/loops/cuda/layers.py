"""Convolutions of a ResNet-18 for the hand-written kernels, each with the buffers of K networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.nets.loops.cuda import conv_gradients, norms, shapes
from purereplay.nets.loops.cuda.conv_gradients import LayerBelow
from purereplay.nets.loops.cuda.parameters import Parameters
from purereplay.nets.loops.cuda.shapes import Geometry, Packing
from purereplay.nets.resnet import ResNet18


@dataclass(frozen=True)
class ConvSpec:
    """One convolution and the batch norm after it: their names and geometry."""

    conv: str
    norm: str
    geometry: Geometry
    is_stem: bool = False

    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight as the kernels read it."""
        g = self.geometry
        if not self.is_stem:
            return (g.kernel**2, g.n_in, g.n_out)
        packing = Packing.of(g)
        return (g.kernel, packing.span * packing.pixel, g.n_out)


def stem_spec(backbone: ResNet18) -> ConvSpec:
    kernel, stride, padding = (7, 2, 3) if backbone.stem == "imagenet" else (3, 1, 1)
    geometry = Geometry.of(backbone.channels, backbone.width, backbone.size, kernel, stride, padding)
    return ConvSpec("conv1", "bn1", geometry, is_stem=True)


def block_specs(backbone: ResNet18) -> Iterator[tuple[ConvSpec, ConvSpec, ConvSpec | None]]:
    """First and second convolution of every block, and the projection of its shortcut if it has one."""
    size = stem_spec(backbone).geometry.size_out
    size = -(-size // 2) if backbone.stem == "imagenet" else size
    for block in backbone._blocks():
        one = Geometry.of(block.n_in, block.n_out, size, 3, block.stride, 1)
        two = Geometry.of(block.n_out, block.n_out, one.size_out, 3, 1, 1)
        first = ConvSpec(f"{block.name}.conv1", f"{block.name}.bn1", one)
        second = ConvSpec(f"{block.name}.conv2", f"{block.name}.bn2", two)
        projection = None
        if block.has_projection:
            past = Geometry.of(block.n_in, block.n_out, size, 1, block.stride, 0)
            projection = ConvSpec(f"{block.name}.downsample.0", f"{block.name}.downsample.1", past)
        yield first, second, projection
        size = one.size_out


class Layer:
    """Buffers of a convolution: output `raw`, overwritten by its gradient; table and running statistics of its norm."""

    def __init__(
        self,
        spec: ConvSpec,
        k: int,
        n: int,
        device: torch.device,
        dtype: torch.dtype,
        parameters: Parameters,
        prefix: str,
    ) -> None:
        g = spec.geometry
        self.spec, self.geometry = spec, g
        self.offset = parameters.offsets[f"{prefix}{spec.conv}.weight"]
        norm = f"{prefix}{spec.norm}"
        self.norm_offsets = (parameters.offsets[f"{norm}.weight"], parameters.offsets[f"{norm}.bias"])
        self.raw = torch.zeros(k, n, g.size_out, g.size_out, g.n_out, device=device, dtype=dtype)
        self.table = torch.zeros(k, norms.N_TABLE, g.n_out, device=device)
        self.running = torch.zeros(k, 2, g.n_out, device=device)
        self.n, self.n_values = n, n * g.size_out**2
        kinds = ("stem", "stem_gradient") if spec.is_stem else ("forward", "weight_gradient")
        self.tiles, self.weight_tiles = (shapes.pick_tiles(kind, g, n, dtype) for kind in kinds)
        self.data_tiles = shapes.pick_tiles("data_gradient", g, n, dtype)  # unused by the stem
        self.n_sums = max(
            2 * g.n_out * shapes.n_row_tiles(n, g.size_out, self.tiles),
            conv_gradients.N_SUMS * g.n_in * shapes.n_row_tiles(n, g.size_in, self.data_tiles),
        )
        self.n_parts = shapes.n_weight_parts(kinds[1], g, n, self.weight_tiles)
        self.part_size = aligned(math.prod(spec.weight_shape()))
        self.gradient_offset = 0  # offsets of gradients, set by `CudaResNet`
        self.norm_gradient_offsets = (0, 0)


@dataclass
class Block:
    """A residual block; its input is the output of the block before, `hidden` lies between its convolutions."""

    first: Layer
    second: Layer
    projection: Layer | None
    hidden: Tensor
    out: Tensor

    def below(self) -> LayerBelow:
        """The layers that a gradient of the block's output passes first."""
        second, projection = self.second, self.projection
        if projection is None:
            return LayerBelow(second.raw, second.table, self.out)
        return LayerBelow(second.raw, second.table, self.out, projection.raw, projection.table)


def aligned(count: int) -> int:
    """Round up to a multiple of 16."""
    return -(-count // 16) * 16
