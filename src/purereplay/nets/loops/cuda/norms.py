"""Triton kernels of batch norm: statistics from partial sums of convolutions, normalisation with ReLU, gradients."""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.loops.cuda.shapes import Geometry, Tiles, fitting, or_placeholder

MAP_TILE = 4096  # elements per program of the kernels over maps
N_TABLE = 6  # rows of a norm's table: scale, shift, mean, 1 / deviation, and slope and constant of its gradient


@triton.jit
def statistics_kernel(
    sums,
    weight,
    running,
    table,
    n_tiles,
    group_tiles,
    group_rows,
    n_values,
    sums_network,
    weight_network,
    weight_offset,
    bias_offset,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    COLUMNS: tl.constexpr,
    MOMENTUM: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Mean and variance from those of tiles (Chan et al.), relative to the first tile's mean; running statistics.

    A tile holds ROWS values; the last of each `group_tiles` tiles holds the rest of `group_rows`.
    """
    network = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < CHANNELS
    own = sums + network * sums_network + column
    origin = tl.load(own, mask=known, other=0.0)
    first = tl.zeros((TILES, COLUMNS), tl.float32)
    second = tl.zeros((TILES, COLUMNS), tl.float32)
    for start in range(0, n_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        inside = (tile < n_tiles)[:, None] & known[None, :]
        at = own[None, :] + tile[:, None] * CHANNELS
        mean = tl.load(at, mask=inside, other=0.0) - origin[None, :]
        spread = tl.load(at + n_tiles * CHANNELS, mask=inside, other=0.0)
        count = tl.minimum(group_rows - (tile % group_tiles) * ROWS, ROWS).to(tl.float32)[:, None]
        first += tl.where(inside, count * mean, 0.0)
        second += tl.where(inside, spread + count * mean * mean, 0.0)
    offset = tl.sum(first, 0) / n_values
    mean = origin + offset
    variance = tl.maximum(tl.sum(second, 0) / n_values - offset * offset, 0.0)
    inverse = 1.0 / tl.sqrt(variance + EPSILON)
    weight += network * weight_network + column
    scale = tl.load(weight + weight_offset, mask=known, other=0.0) * inverse
    shift = tl.load(weight + bias_offset, mask=known, other=0.0) - mean * scale
    table += network * (6 * CHANNELS) + column
    tl.store(table, scale, mask=known)
    tl.store(table + CHANNELS, shift, mask=known)
    tl.store(table + 2 * CHANNELS, mean, mask=known)
    tl.store(table + 3 * CHANNELS, inverse, mask=known)
    running += network * (2 * CHANNELS) + column
    past = tl.load(running, mask=known, other=0.0)
    tl.store(running, past * (1 - MOMENTUM) + mean * MOMENTUM, mask=known)
    past = tl.load(running + CHANNELS, mask=known, other=0.0)
    unbiased = variance * (n_values / (n_values - 1.0))
    tl.store(running + CHANNELS, past * (1 - MOMENTUM) + unbiased * MOMENTUM, mask=known)


def statistics(
    geometry: Geometry,
    tiles: Tiles,
    sums: Tensor,
    n_tiles: int,
    n: int,
    weight: Tensor,
    offsets: tuple[int, int],
    running: Tensor,
    table: Tensor,
) -> None:
    """Launch `statistics_kernel`; running (K, 2, C), table (K, N_TABLE, C), offsets: of weight and bias in `weight`."""
    n_groups = geometry.size_out**2 if tiles.positionwise else 1
    n_values = n * geometry.size_out**2
    statistics_kernel[(triton.cdiv(geometry.n_out, 8), table.shape[0])](
        sums,
        weight,
        running,
        table,
        n_tiles,
        n_tiles // n_groups,
        n_values // n_groups,
        n_values,
        sums.stride(0),
        weight.stride(0),
        *offsets,
        geometry.n_out,
        tiles.rows,
        fitting(n_tiles, 16, 512),
        8,
        0.1,
        1e-5,
    )


@triton.jit
def gradient_statistics_kernel(
    sums,
    table,
    gradient,
    n_tiles,
    which,
    n_values,
    sums_network,
    gradient_network,
    weight_offset,
    bias_offset,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradients of a norm's weight and bias, and the slope and constant of its input's gradient."""
    network = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < CHANNELS
    own = sums + network * sums_network + column
    first = tl.zeros((TILES, COLUMNS), tl.float32)
    second = tl.zeros((TILES, COLUMNS), tl.float32)
    for start in range(0, n_tiles, TILES):
        tile = start + tl.arange(0, TILES)
        inside = (tile < n_tiles)[:, None] & known[None, :]
        at = own[None, :] + tile[:, None] * CHANNELS
        first += tl.load(at, mask=inside, other=0.0)
        second += tl.load(at + which * n_tiles * CHANNELS, mask=inside, other=0.0)
    table += network * (6 * CHANNELS) + column
    scale = tl.load(table, mask=known, other=0.0)
    mean = tl.load(table + 2 * CHANNELS, mask=known, other=0.0)
    inverse = tl.load(table + 3 * CHANNELS, mask=known, other=0.0)
    total, moment = tl.sum(first, 0), tl.sum(second, 0) * inverse
    gradient += network * gradient_network + column
    tl.store(gradient + weight_offset, moment, mask=known)
    tl.store(gradient + bias_offset, total, mask=known)
    slope = -scale * inverse * moment / n_values
    tl.store(table + 4 * CHANNELS, slope, mask=known)
    tl.store(table + 5 * CHANNELS, -scale * total / n_values - slope * mean, mask=known)


def gradient_statistics(
    sums: Tensor, n_tiles: int, which: int, n_values: int, table: Tensor, gradient: Tensor, offsets: tuple[int, int]
) -> None:
    """Launch `gradient_statistics_kernel`; which: 1 or 2, the row of `sums` of this norm."""
    channels = table.shape[2]
    gradient_statistics_kernel[(triton.cdiv(channels, 8), table.shape[0])](
        sums,
        table,
        gradient,
        n_tiles,
        which,
        n_values,
        sums.stride(0),
        gradient.stride(0),
        *offsets,
        channels,
        fitting(n_tiles, 16, 512),
        8,
    )


def cut_map(channels: int, elements: int | None = None) -> tuple[int, int]:
    """Rows and columns of a tile of a map."""
    columns = fitting(channels, 16, 256)
    return (elements or MAP_TILE) // columns, columns


def map_grid(n_rows: int, x: Tensor, tile: tuple[int, int]) -> tuple[int, int, int]:
    """Programs per axis: row tiles, networks, column tiles."""
    return triton.cdiv(n_rows, tile[0]), x.shape[0], triton.cdiv(x.shape[-1], tile[1])


def count_rows(x: Tensor) -> int:
    """Rows (images × positions) of a map (K, n, size, size, C)."""
    return x.shape[1] * x.shape[2] * x.shape[3]


@triton.jit
def map_tile(n_rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows and columns of a program's tile, mask of existing columns, offsets of its elements and their mask."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    known = (column < CHANNELS) | (CHANNELS % COLUMNS == 0)
    offset = tl.program_id(1).to(tl.int64) * n_rows * CHANNELS + (row[:, None] * CHANNELS + column[None, :])
    return row, column, known, offset, (row < n_rows)[:, None] & known[None, :]


@triton.jit
def load_norm(table, column, known, CHANNELS: tl.constexpr):
    """Scale and shift of a norm, as row vectors."""
    at = table + tl.program_id(1) * (6 * CHANNELS) + column
    return tl.load(at, mask=known, other=0.0)[None, :], tl.load(at + CHANNELS, mask=known, other=0.0)[None, :]


@triton.jit
def load_slopes(table, column, known, CHANNELS: tl.constexpr):
    """Coefficients of the gradient of a norm's input, scale · g + slope · raw + constant, as row vectors."""
    at = table + tl.program_id(1) * (6 * CHANNELS) + column
    scale, slope = tl.load(at, mask=known, other=0.0), tl.load(at + 4 * CHANNELS, mask=known, other=0.0)
    return scale[None, :], slope[None, :], tl.load(at + 5 * CHANNELS, mask=known, other=0.0)[None, :]


@triton.jit
def normalise_kernel(
    raw,
    table,
    other,
    other_table,
    out,
    n_rows,
    CHANNELS: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out = ReLU(norm(raw) [+ other, or + norm(other)]); ADD: 0, 1 or 2."""
    _, column, known, offset, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    scale, shift = load_norm(table, column, known, CHANNELS)
    value = tl.load(raw + offset, mask=keep, other=0.0).to(tl.float32) * scale + shift
    if ADD > 0:
        extra = tl.load(other + offset, mask=keep, other=0.0).to(tl.float32)
        if ADD == 2:
            scale, shift = load_norm(other_table, column, known, CHANNELS)
            extra = extra * scale + shift
        value += extra
    tl.store(out + offset, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=keep)


def normalise(
    raw: Tensor, table: Tensor, out: Tensor, other: Tensor | None = None, other_table: Tensor | None = None
) -> None:
    """Launch `normalise_kernel` over maps (K, n, size, size, C)."""
    tile = cut_map(raw.shape[-1])
    add = 0 if other is None else 1 if other_table is None else 2
    normalise_kernel[map_grid(count_rows(raw), raw, tile)](
        raw,
        table,
        or_placeholder(other, raw),
        or_placeholder(other_table, table),
        out,
        count_rows(raw),
        raw.shape[-1],
        add,
        *tile,
    )


@triton.jit
def normalise_gradient_kernel(
    g,
    raw,
    table,
    raw2,
    table2,
    n_rows,
    CHANNELS: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradients of the inputs of one or two norms from that of their outputs; they overwrite the inputs."""
    _, column, known, offset, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    gradient = tl.load(g + offset, mask=keep, other=0.0).to(tl.float32)
    scale, slope, constant = load_slopes(table, column, known, CHANNELS)
    value = tl.load(raw + offset, mask=keep, other=0.0).to(tl.float32)
    tl.store(raw + offset, (scale * gradient + (slope * value + constant)).to(raw.dtype.element_ty), mask=keep)
    if SECOND:
        scale, slope, constant = load_slopes(table2, column, known, CHANNELS)
        value = tl.load(raw2 + offset, mask=keep, other=0.0).to(tl.float32)
        tl.store(raw2 + offset, (scale * gradient + (slope * value + constant)).to(raw.dtype.element_ty), mask=keep)


def normalise_gradient(
    g: Tensor, raw: Tensor, table: Tensor, raw2: Tensor | None = None, table2: Tensor | None = None
) -> None:
    """Launch `normalise_gradient_kernel`: `raw` (and `raw2`) become the gradients with respect to them."""
    tile, second = cut_map(raw.shape[-1]), raw2 is not None
    normalise_gradient_kernel[map_grid(count_rows(raw), raw, tile)](
        g,
        raw,
        table,
        or_placeholder(raw2, raw),
        or_placeholder(table2, table),
        count_rows(raw),
        raw.shape[-1],
        second,
        *tile,
    )
