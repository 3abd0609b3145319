"""Geometry of convolutions, and the tile sizes of their kernels."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

POSITIONWISE_UP_TO = 4  # maps up to this size are computed position by position
ENOUGH_PROGRAMS = 64  # tiles shrink until one network has this many programs
WEIGHT_PROGRAMS = 96  # sums of weight gradients are split until one network has about this many programs


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of a product, and the compilation options of its kernel."""

    rows: int  # positions; of a weight gradient: input channels
    columns: int  # output channels
    depth: int  # of one multiplication
    warps: int = 4
    stages: int = 3
    positionwise: bool = False  # the rows of a tile are one position of many images
    swap: bool = False  # compute the transposed tile: faster if rows exceed columns
    taps: int = 1  # per program of a weight gradient: 1, or the 3 of a kernel row

    def options(self) -> dict[str, int]:
        """Launch options of Triton."""
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Geometry:
    """A convolution of square maps, without the taps that see only padding; `first` of them precede the others."""

    n_in: int
    n_out: int
    size_in: int
    size_out: int
    kernel: int
    stride: int
    padding: int
    first: int = 0

    @staticmethod
    def of(n_in: int, n_out: int, size: int, kernel: int, stride: int, padding: int) -> "Geometry":
        size_out = (size + 2 * padding - kernel) // stride + 1
        used = [tap for tap in range(kernel) if any(0 <= at * stride - padding + tap < size for at in range(size_out))]
        first = used[0]
        return Geometry(n_in, n_out, size, size_out, used[-1] - first + 1, stride, padding - first, first)


@dataclass(frozen=True)
class Packing:
    """Loads of the first convolution: `span` neighbouring pixels per kernel row, `lead` of them before the kernel.

    The pixels before and after the kernel have weight 0. They make the loads wide and aligned.
    """

    channels: int
    pixel: int  # channels with padding
    lead: int
    span: int
    unit: int  # neighbouring pixels that are inside or outside the image together
    total: int  # depth of the product

    @staticmethod
    def of(geometry: Geometry) -> "Packing":
        pixel = max(4, triton.next_power_of_2(geometry.n_in))
        even = geometry.stride == 2 and geometry.size_in % 2 == 0
        lead = geometry.padding % 2 if even else 0
        span = max(triton.next_power_of_2(geometry.kernel + lead), 2)
        return Packing(geometry.n_in, pixel, lead, span, 2 if even else 1, geometry.kernel * span * pixel)


def fitting(size: int, low: int, high: int) -> int:
    """The next power of two, within [low, high]."""
    return min(max(int(triton.next_power_of_2(size)), low), high)


def n_row_tiles(n: int, size: int, tiles: Tiles) -> int:
    """Row tiles of n maps of this size."""
    return int(
        size * size * triton.cdiv(n, tiles.rows) if tiles.positionwise else triton.cdiv(n * size * size, tiles.rows)
    )


def pick_tiles(kind: str, geometry: Geometry, n: int, dtype: torch.dtype) -> Tiles:
    """Tile sizes from the shape of one network.

    Kinds: stem, stem_gradient, forward, data_gradient, weight_gradient.
    """
    g = geometry
    stages = 2 if dtype == torch.float32 else 3
    if kind == "stem":
        return Tiles(fitting(n * g.size_out**2, 16, 128), fitting(g.n_out, 16, 64), 64, stages=stages, swap=True)
    if kind == "stem_gradient":
        depth = 32 if dtype == torch.float32 else 64
        return Tiles(fitting(Packing.of(g).total, 16, 256), fitting(g.n_out, 16, 64), depth, 8, stages, swap=True)
    if kind == "weight_gradient":
        side = 64 if g.n_in <= 64 or g.n_out <= 64 else 128
        taps = 3 if g.kernel == 3 and g.size_out > POSITIONWISE_UP_TO else 1
        rows, columns, depth = fitting(g.n_in, 16, side), fitting(g.n_out, 16, side), fitting(n, 16, 64)
        return Tiles(rows, columns, depth, 4 if side == 64 else 8, stages, taps=taps)
    if kind == "forward":
        n_columns, channels, size, positionwise = g.n_out, g.n_in, g.size_out, g.size_out <= POSITIONWISE_UP_TO
    else:
        n_columns, channels, size, positionwise = (
            g.n_in,
            g.n_out,
            g.size_in,
            g.size_in <= POSITIONWISE_UP_TO or g.stride > 1,
        )
    rows, columns = fitting(n if positionwise else n * size * size, 16, 128), fitting(n_columns, 16, 128)
    n_tiles = n_row_tiles(n, size, Tiles(rows, columns, 0, positionwise=positionwise))
    while n_tiles * triton.cdiv(n_columns, columns) < ENOUGH_PROGRAMS and columns > 32:
        columns //= 2
    warps, swap = 8 if rows * columns > 8192 else 4, rows > columns
    return Tiles(rows, columns, fitting(channels, 16, 64), warps, stages, positionwise, swap=swap)


def n_weight_parts(kind: str, geometry: Geometry, n: int, tiles: Tiles) -> int:
    """Parts of the sum over images and positions: enough programs, but at least four steps per program."""
    g = geometry
    n_in = Packing.of(g).total if kind == "stem_gradient" else g.n_in
    n_programs = triton.cdiv(n_in, tiles.rows) * triton.cdiv(g.n_out, tiles.columns)
    n_steps = triton.cdiv(n * g.size_out**2, tiles.depth)
    if kind == "weight_gradient":
        n_programs *= g.kernel**2 // tiles.taps
        n_steps = triton.cdiv(n, tiles.depth) * g.size_out**2
    return max(1, min(int(triton.cdiv(WEIGHT_PROGRAMS, n_programs)), int(n_steps // 4)))


def precision_of(x: Tensor) -> str:
    """Triton's input precision for operands of this type."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


def or_placeholder(tensor: Tensor | None, placeholder: Tensor) -> Tensor:
    """Return the tensor, or a placeholder if it is None: kernels need a pointer for every argument."""
    return placeholder if tensor is None else tensor
