"""Triton kernels of the max-pool after the stem, of the final mean over positions, and of their gradients."""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.loops.cuda.conv_gradients import N_SUMS, LayerBelow, pass_gradient
from purereplay.nets.loops.cuda.norms import count_rows, cut_map, load_norm, load_slopes, map_grid, map_tile
from purereplay.nets.loops.cuda.shapes import or_placeholder


@triton.jit
def max_pool_kernel(
    raw,
    table,
    out,
    out_raw,
    index,
    n_rows,
    n,
    SIZE: tl.constexpr,
    POOLED: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Norm, ReLU and 3×3 stride 2 max-pool; also stores the raw value at the maximum and its index (0 to 8)."""
    row, column, known, offset, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    scale, shift = load_norm(table, column, known, CHANNELS)
    y, x = row // POOLED % POOLED * 2 - 1, row % POOLED * 2 - 1
    raw += tl.program_id(1).to(tl.int64) * n * (SIZE * SIZE * CHANNELS)
    raw_at = raw + ((row // (POOLED * POOLED)) * (SIZE * SIZE) + y * SIZE + x)[:, None] * CHANNELS + column[None, :]
    best = tl.full((ROWS, COLUMNS), -float("inf"), tl.float32)
    best_raw = tl.zeros((ROWS, COLUMNS), tl.float32)
    best_index = tl.zeros((ROWS, COLUMNS), tl.int32)
    for j in tl.static_range(9):
        from_y, from_x = y + j // 3, x + j % 3
        inside = keep & ((from_y >= 0) & (from_y < SIZE) & (from_x >= 0) & (from_x < SIZE))[:, None]
        value = tl.load(raw_at + (j // 3 * SIZE + j % 3) * CHANNELS, mask=inside, other=0.0).to(tl.float32)
        result = tl.maximum(value * scale + shift, 0.0)
        better = (result > best) & inside  # the first of equal values, as in torch
        best = tl.where(better, result, best)
        best_raw = tl.where(better, value, best_raw)
        best_index = tl.where(better, j, best_index)
    tl.store(out + offset, best.to(out.dtype.element_ty), mask=keep)
    tl.store(out_raw + offset, best_raw.to(out_raw.dtype.element_ty), mask=keep)
    tl.store(index + offset, best_index.to(tl.uint8), mask=keep)


def max_pool(raw: Tensor, table: Tensor, out: Tensor, out_raw: Tensor, index: Tensor) -> None:
    """Launch `max_pool_kernel`: raw (K, n, size, size, C) to out, out_raw and index (K, n, pooled, pooled, C)."""
    tile, sizes = cut_map(raw.shape[-1], 2048), (raw.shape[2], out.shape[2], raw.shape[-1])
    max_pool_kernel[map_grid(count_rows(out), raw, tile)](
        raw, table, out, out_raw, index, count_rows(out), raw.shape[1], *sizes, *tile
    )


@triton.jit
def where_chosen(g, index, J: tl.constexpr):
    """g where the maximum has index J, else 0."""
    return tl.where(index == J, g, 0.0)


@triton.jit
def max_pool_gradient_kernel(
    g,
    index,
    raw,
    table,
    n_rows,
    n,
    SIZE: tl.constexpr,
    POOLED: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient of max-pool and norm; each pooled position computes the 2×2 pixels from its centre."""
    row, column, known, here, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    scale, slope, constant = load_slopes(table, column, known, CHANNELS)
    y, x = row // POOLED % POOLED, row % POOLED
    right, down = keep & (x + 1 < POOLED)[:, None], keep & (y + 1 < POOLED)[:, None]
    there = here + POOLED * CHANNELS
    g00 = tl.load(g + here, mask=keep, other=0.0).to(tl.float32)
    g01 = tl.load(g + here + CHANNELS, mask=right, other=0.0).to(tl.float32)
    g10 = tl.load(g + there, mask=down, other=0.0).to(tl.float32)
    g11 = tl.load(g + there + CHANNELS, mask=down & right, other=0.0).to(tl.float32)
    i00 = tl.load(index + here, mask=keep, other=0)
    i01 = tl.load(index + here + CHANNELS, mask=right, other=0)
    i10 = tl.load(index + there, mask=down, other=0)
    i11 = tl.load(index + there + CHANNELS, mask=down & right, other=0)
    raw += tl.program_id(1).to(tl.int64) * n * (SIZE * SIZE * CHANNELS)
    raw_at = raw + ((row // (POOLED * POOLED)) * (SIZE * SIZE) + (y * SIZE + x) * 2)[:, None] * CHANNELS
    raw_at += column[None, :]
    for j in tl.static_range(4):
        if j == 0:
            gradient = where_chosen(g00, i00, 4)
        elif j == 1:
            gradient = where_chosen(g00, i00, 5) + where_chosen(g01, i01, 3)
        elif j == 2:
            gradient = where_chosen(g00, i00, 7) + where_chosen(g10, i10, 1)
        else:
            gradient = where_chosen(g00, i00, 8) + where_chosen(g01, i01, 6)
            gradient += where_chosen(g10, i10, 2) + where_chosen(g11, i11, 0)
        inside = keep & ((y * 2 + j // 2 < SIZE) & (x * 2 + j % 2 < SIZE))[:, None]
        at = raw_at + (j // 2 * SIZE + j % 2) * CHANNELS
        value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, (scale * gradient + (slope * value + constant)).to(raw.dtype.element_ty), mask=inside)


def max_pool_gradient(g: Tensor, index: Tensor, raw: Tensor, table: Tensor) -> None:
    """Launch `max_pool_gradient_kernel`: `raw` becomes the gradient with respect to it; g is already gated."""
    tile, sizes = cut_map(raw.shape[-1], 2048), (raw.shape[2], index.shape[2], raw.shape[-1])
    max_pool_gradient_kernel[map_grid(count_rows(index), raw, tile)](
        g, index, raw, table, count_rows(index), raw.shape[1], *sizes, *tile
    )


@triton.jit
def mean_pool_kernel(
    x, out, n, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """out[k, image] = mean of x[k, image] over its positions."""
    image, column, _, offset, keep = map_tile(n, CHANNELS, ROWS, COLUMNS)
    at = x + tl.program_id(1).to(tl.int64) * n * (POSITIONS * CHANNELS)
    at += image[:, None] * (POSITIONS * CHANNELS) + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for j in range(POSITIONS):
        total += tl.load(at + j * CHANNELS, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + offset, (total / POSITIONS).to(out.dtype.element_ty), mask=keep)


def mean_pool(x: Tensor, out: Tensor) -> None:
    """Launch `mean_pool_kernel`: (K, n, size, size, C) -> (K, n, C)."""
    tile, n = cut_map(x.shape[-1], 2048), x.shape[1]
    mean_pool_kernel[map_grid(n, x, tile)](x, out, n, x.shape[2] * x.shape[3], x.shape[-1], *tile)


@triton.jit
def mean_pool_gradient_kernel(
    d,
    out,
    sums,
    gate,
    raw,
    table,
    raw2,
    table2,
    n_rows,
    n_tiles,
    sums_network,
    POSITIONS: tl.constexpr,
    CHANNELS: tl.constexpr,
    GATED: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Spread the gradient of the features over the positions of the last map, through its ReLU."""
    network = tl.program_id(1).to(tl.int64)
    row, column, _, _, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    inside = row < n_rows
    row = tl.minimum(row, n_rows - 1)
    at = d + network * (n_rows // POSITIONS) * CHANNELS + (row // POSITIONS)[:, None] * CHANNELS + column[None, :]
    own = network * n_rows * CHANNELS
    pass_gradient(
        tl.load(at, mask=keep, other=0.0).to(tl.float32) / POSITIONS,
        out + own,
        sums + network * sums_network,
        gate + own,
        raw + own,
        table + network * (6 * CHANNELS),
        raw2 + own,
        table2 + network * (6 * CHANNELS),
        row,
        inside,
        tl.program_id(0),
        column,
        n_tiles,
        CHANNELS,
        GATED,
        SECOND,
    )


def n_mean_pool_sums(out: Tensor) -> int:
    """Number of partial sums that `mean_pool_gradient` writes per network."""
    return N_SUMS * out.shape[-1] * triton.cdiv(count_rows(out), cut_map(out.shape[-1])[0])


def mean_pool_gradient(d: Tensor, out: Tensor, sums: Tensor, below: LayerBelow) -> int:
    """Launch `mean_pool_gradient_kernel`: (K, n, C) -> out (K, n, size, size, C). Returns the number of row tiles."""
    tile = cut_map(out.shape[-1])
    grid = map_grid(count_rows(out), out, tile)
    mean_pool_gradient_kernel[grid](
        d,
        out,
        sums,
        or_placeholder(below.gate, out),
        below.raw,
        below.table,
        or_placeholder(below.raw2, below.raw),
        or_placeholder(below.table2, below.table),
        count_rows(out),
        grid[0],
        sums.stride(0),
        out.shape[2] * out.shape[3],
        out.shape[-1],
        below.gate is not None,
        below.raw2 is not None,
        *tile,
    )
    return grid[0]
