"""Shapes of convolutions, and how their products are cut into programs."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

PLACES_UP_TO = 4  # maps up to so many pixels a side are computed place by place
ENOUGH_PROGRAMS = 64  # tiles shrink until one network has so many programs
WEIGHT_PROGRAMS = 96  # a weight gradient's long sum is split until one network has about so many programs


@dataclass(frozen=True)
class Tiles:
    """How a product is cut into programs, and how those are compiled."""

    rows: int  # places; of a weight gradient: channels in
    columns: int  # channels out
    depth: int  # of one multiplication
    warps: int = 4
    stages: int = 3
    places: bool = False  # a tile's rows are one place of many images
    swap: bool = False  # compute the transposed tile: few channels make narrow products, many rows wide ones
    taps: int = 1  # of one program of a weight gradient: 1, or 3 of a kernel row

    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Geometry:
    """A convolution of square maps; taps that see nothing but padding are cut off, `first` of them before the rest."""

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
    """How the first convolution reads images: `span` neighbouring pixels a kernel row, `lead` of them before it.

    The pixels before and behind the kernel have weight 0; they make the reads wide and aligned.
    """

    channels: int
    pixel: int  # channels with padding
    lead: int
    span: int
    unit: int  # neighbours that are inside or outside the image together
    total: int  # depth of the product

    @staticmethod
    def of(geometry: Geometry) -> "Packing":
        pixel = max(4, triton.next_power_of_2(geometry.n_in))
        even = geometry.stride == 2 and geometry.size_in % 2 == 0
        lead = geometry.padding % 2 if even else 0
        span = max(triton.next_power_of_2(geometry.kernel + lead), 2)
        return Packing(geometry.n_in, pixel, lead, span, 2 if even else 1, geometry.kernel * span * pixel)


def fitting(size: int, low: int, high: int) -> int:
    return min(max(int(triton.next_power_of_2(size)), low), high)


def n_row_tiles(n: int, size: int, tiles: Tiles) -> int:
    return int(size * size * triton.cdiv(n, tiles.rows) if tiles.places else triton.cdiv(n * size * size, tiles.rows))


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
        taps = 3 if g.kernel == 3 and g.size_out > PLACES_UP_TO else 1
        rows, columns, depth = fitting(g.n_in, 16, side), fitting(g.n_out, 16, side), fitting(n, 16, 64)
        return Tiles(rows, columns, depth, 4 if side == 64 else 8, stages, taps=taps)
    if kind == "forward":
        n_columns, channels, size, places = g.n_out, g.n_in, g.size_out, g.size_out <= PLACES_UP_TO
    else:
        n_columns, channels, size, places = g.n_in, g.n_out, g.size_in, g.size_in <= PLACES_UP_TO or g.stride > 1
    rows, columns = fitting(n if places else n * size * size, 16, 128), fitting(n_columns, 16, 128)
    n_tiles = n_row_tiles(n, size, Tiles(rows, columns, 0, places=places))
    while n_tiles * triton.cdiv(n_columns, columns) < ENOUGH_PROGRAMS and columns > 32:
        columns //= 2
    warps, swap = 8 if rows * columns > 8192 else 4, rows > columns
    return Tiles(rows, columns, fitting(channels, 16, 64), warps, stages, places, swap=swap)


def n_weight_parts(kind: str, geometry: Geometry, n: int, tiles: Tiles) -> int:
    """Into how many parts the sum over images and places is split: enough programs, but each with a few steps."""
    g = geometry
    n_in = Packing.of(g).total if kind == "stem_gradient" else g.n_in
    n_programs = triton.cdiv(n_in, tiles.rows) * triton.cdiv(g.n_out, tiles.columns)
    n_steps = triton.cdiv(n * g.size_out**2, tiles.depth)
    if kind == "weight_gradient":
        n_programs *= g.kernel**2 // tiles.taps
        n_steps = triton.cdiv(n, tiles.depth) * g.size_out**2
    return max(1, min(int(triton.cdiv(WEIGHT_PROGRAMS, n_programs)), int(n_steps // 4)))


def precision_of(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def or_else(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor
