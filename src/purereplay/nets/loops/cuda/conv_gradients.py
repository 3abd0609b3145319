"""Triton kernels of the gradients of convolutions with respect to their input and their weights; see `conv`."""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.loops.cuda.conv import add_taps, locate, multiply_over_rows, no_total, unswap
from purereplay.nets.loops.cuda.shapes import Geometry, Tiles, n_row_tiles, or_placeholder, precision_of

N_SUMS = 3  # rows of partial sums


@triton.jit
def pass_gradient(
    total,
    out,
    sums,
    gate,
    raw,
    table,
    raw2,
    table2,
    row,
    inside,
    tile,
    column,
    n_tiles,
    CHANNELS: tl.constexpr,
    GATED: tl.constexpr,
    SECOND: tl.constexpr,
):
    """Apply the gradient of the ReLU below to a tile, store it, and sum it for the batch norms below the ReLU.

    The ReLU's output is `gate` if GATED, else the norm of `raw`. sums: Σg, Σg (raw - mean), Σg (raw2 - mean2) per
    channel.
    """
    known = column < CHANNELS
    keep = inside[:, None] & known[None, :]
    offset = row[:, None] * CHANNELS + column[None, :]
    value = tl.load(raw + offset, mask=keep, other=0.0).to(tl.float32)
    if GATED:
        is_open = tl.load(gate + offset, mask=keep, other=0.0) > 0
    else:
        scale = tl.load(table + column, mask=known, other=0.0)
        shift = tl.load(table + CHANNELS + column, mask=known, other=0.0)
        is_open = value * scale[None, :] + shift[None, :] > 0
    g = tl.where(is_open & keep, total, 0.0).to(out.dtype.element_ty)
    tl.store(out + offset, g, mask=keep)
    g = g.to(tl.float32)
    mean = tl.load(table + 2 * CHANNELS + column, mask=known, other=0.0)
    sums += tile * CHANNELS + column
    tl.store(sums, tl.sum(g, 0), mask=known)
    tl.store(sums + n_tiles * CHANNELS, tl.sum(g * (value - mean[None, :]), 0), mask=known)
    if SECOND:
        value = tl.load(raw2 + offset, mask=keep, other=0.0).to(tl.float32)
        mean = tl.load(table2 + 2 * CHANNELS + column, mask=known, other=0.0)
        tl.store(sums + 2 * n_tiles * CHANNELS, tl.sum(g * (value - mean[None, :]), 0), mask=known)


@triton.jit
def data_gradient_kernel(
    d,
    d2,
    residual,
    weight,
    out,
    sums,
    gate,
    raw,
    table,
    raw2,
    table2,
    n,
    n_tiles,
    weight_network,
    weight_offset,
    weight2_offset,
    sums_network,
    G: tl.constexpr,
    G2: tl.constexpr,
    T: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    SECOND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradient of a convolution's input through a ReLU, plus that of a parallel projection G2 or of a residual."""
    network = tl.program_id(1).to(tl.int64)
    COLUMN_TILES: tl.constexpr = (G.n_in + T.columns - 1) // T.columns
    tile = tl.program_id(0) // COLUMN_TILES
    column = (tl.program_id(0) % COLUMN_TILES) * T.columns + tl.arange(0, T.columns)
    image, at_y, at_x, row, inside = locate(tile, n, G.size_in, T.positionwise, T.rows)
    weight += network * weight_network
    above, own = network * n * (G.size_out * G.size_out * G.n_out), network * n * (G.size_in * G.size_in * G.n_in)
    weight_at = weight + weight_offset
    total = add_taps(no_total(T), d + above, weight_at, image, at_y, at_x, column, G, T, True, PRECISION)
    if G2 is not None:
        weight_at = weight + weight2_offset
        total = add_taps(total, d2 + above, weight_at, image, at_y, at_x, column, G2, T, True, PRECISION)
    total = unswap(total, T)
    if RESIDUAL:
        offset = own + row[:, None] * G.n_in + column[None, :]
        keep = inside[:, None] & (column < G.n_in)[None, :]
        total += tl.load(residual + offset, mask=keep, other=0.0).to(tl.float32)
    pass_gradient(
        total,
        out + own,
        sums + network * sums_network,
        gate + own,
        raw + own,
        table + network * (6 * G.n_in),
        raw2 + own,
        table2 + network * (6 * G.n_in),
        row,
        inside,
        tile,
        column,
        n_tiles,
        G.n_in,
        GATED,
        SECOND,
    )


class LayerBelow(NamedTuple):
    """Layers below a gradient: a ReLU (its output `gate`; None: the norm of `raw`) and one or two batch norms."""

    raw: Tensor
    table: Tensor
    gate: Tensor | None = None
    raw2: Tensor | None = None
    table2: Tensor | None = None


class Projection(NamedTuple):
    """Projection of a block in the backward pass: geometry, gradient of its output, offset of its weight."""

    geometry: Geometry
    d: Tensor
    offset: int


def data_gradient(
    geometry: Geometry,
    tiles: Tiles,
    d: Tensor,
    weight: Tensor,
    offset: int,
    out: Tensor,
    sums: Tensor,
    below: LayerBelow,
    *,
    residual: Tensor | None = None,
    projection: Projection | None = None,
) -> int:
    """Launch `data_gradient_kernel`. Returns the number of row tiles."""
    n_tiles = n_row_tiles(d.shape[1], geometry.size_in, tiles)
    data_gradient_kernel[(n_tiles * triton.cdiv(geometry.n_in, tiles.columns), d.shape[0])](
        d,
        d if projection is None else projection.d,
        or_placeholder(residual, out),
        weight,
        out,
        sums,
        or_placeholder(below.gate, out),
        below.raw,
        below.table,
        or_placeholder(below.raw2, below.raw),
        or_placeholder(below.table2, below.table),
        d.shape[1],
        n_tiles,
        weight.stride(0),
        offset,
        0 if projection is None else projection.offset,
        sums.stride(0),
        geometry,
        None if projection is None else projection.geometry,
        tiles,
        residual is not None,
        below.gate is not None,
        below.raw2 is not None,
        precision_of(d),
        **tiles.options(),
    )
    return n_tiles


@triton.jit
def find_positions(tap, G: tl.constexpr):
    """Positions whose tap falls into the map, along one axis: the first, and their number."""
    first = (tl.maximum(G.padding - tap, 0) + G.stride - 1) // G.stride
    return first, tl.minimum((G.size_in - 1 + G.padding - tap) // G.stride, G.size_out - 1) + 1 - first


@triton.jit
def weight_gradient_kernel(
    x,
    d,
    out,
    n,
    out_network,
    out_offset,
    part_size,
    G: tl.constexpr,
    T: tl.constexpr,
    N_PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One part of a convolution's weight gradient, for one tap, or for three taps of a kernel row that share loads.

    A step multiplies T.depth images at one position. Positions whose taps all fall into the padding are skipped.
    """
    IN: tl.constexpr = T.rows
    OUT: tl.constexpr = T.columns
    IN_TILES: tl.constexpr = (G.n_in + IN - 1) // IN
    OUT_TILES: tl.constexpr = (G.n_out + OUT - 1) // OUT
    GROUPS: tl.constexpr = G.kernel * G.kernel // T.taps
    network = tl.program_id(1).to(tl.int64)
    program = tl.program_id(0)
    o = (program % OUT_TILES) * OUT + tl.arange(0, OUT)
    i = (program // OUT_TILES % IN_TILES) * IN + tl.arange(0, IN)
    group, part = program // (OUT_TILES * IN_TILES) % GROUPS, program // (OUT_TILES * IN_TILES * GROUPS)
    tap_y, tap_x = group * T.taps // G.kernel, group * T.taps % G.kernel
    first_y, n_y = find_positions(tap_y, G)
    first_x, n_x = 0, G.size_out
    if T.taps == 1:
        first_x, n_x = find_positions(tap_x, G)
    known_i = (i < G.n_in) | (G.n_in % IN == 0)
    known_o = (o < G.n_out) | (G.n_out % OUT == 0)
    x += network * n * (G.size_in * G.size_in * G.n_in) + i[None, :]
    d += network * n * (G.size_out * G.size_out * G.n_out) + o[None, :]
    total = no_total(T)
    if T.taps == 3:
        total1 = no_total(T)
        total2 = no_total(T)
    n_steps = tl.cdiv(n, T.depth) * n_y * n_x
    share = tl.cdiv(n_steps, N_PARTS)
    for step in range(part * share, tl.minimum((part + 1) * share, n_steps)):
        image = step // (n_y * n_x) * T.depth + tl.arange(0, T.depth)
        inside = image < n
        image = tl.minimum(image, n - 1)[:, None]
        at_y, at_x = first_y + step // n_x % n_y, first_x + step % n_x
        d_at = d + image * (G.size_out * G.size_out * G.n_out) + (at_y * G.size_out + at_x) * G.n_out
        b = tl.load(d_at, mask=inside[:, None] & known_o[None, :], other=0.0)
        from_y, from_x = at_y * G.stride - G.padding + tap_y, at_x * G.stride - G.padding + tap_x
        x_at = x + image * (G.size_in * G.size_in * G.n_in) + (from_y * G.size_in + from_x) * G.n_in
        if T.taps == 1:
            a = tl.load(x_at, mask=known_i[None, :], other=0.0)
            total = multiply_over_rows(a, b, total, T, PRECISION)
        else:
            # a tap in the padding masks all channels
            left, middle = tl.where(from_x >= 0, G.n_in, 0), tl.where(from_x + 1 < G.size_in, G.n_in, 0)
            right = tl.where(from_x + 2 < G.size_in, G.n_in, 0)
            a = tl.load(x_at, mask=i[None, :] < left, other=0.0)
            a1 = tl.load(x_at + G.n_in, mask=i[None, :] < middle, other=0.0)
            a2 = tl.load(x_at + 2 * G.n_in, mask=i[None, :] < right, other=0.0)
            total = multiply_over_rows(a, b, total, T, PRECISION)
            total1 = multiply_over_rows(a1, b, total1, T, PRECISION)
            total2 = multiply_over_rows(a2, b, total2, T, PRECISION)
    out += network * out_network + out_offset + part * part_size + group * (T.taps * G.n_in * G.n_out)
    out_at = out + i[:, None] * G.n_out + o[None, :]
    keep = (i < G.n_in)[:, None] & (o < G.n_out)[None, :]
    tl.store(out_at, unswap(total, T), mask=keep)
    if T.taps == 3:
        tl.store(out_at + G.n_in * G.n_out, unswap(total1, T), mask=keep)
        tl.store(out_at + 2 * G.n_in * G.n_out, unswap(total2, T), mask=keep)


def weight_gradient(
    geometry: Geometry, tiles: Tiles, x: Tensor, d: Tensor, out: Tensor, offset: int, part_size: int, n_parts: int
) -> None:
    """Launch `weight_gradient_kernel`: `n_parts` partial sums into out (K, …) from `offset`, `part_size` apart."""
    g = geometry
    n_tiles = triton.cdiv(g.n_in, tiles.rows) * triton.cdiv(g.n_out, tiles.columns) * (g.kernel**2 // tiles.taps)
    weight_gradient_kernel[(n_tiles * n_parts, x.shape[0])](
        x,
        d,
        out,
        x.shape[1],
        out.stride(0),
        offset,
        part_size,
        g,
        tiles,
        n_parts,
        precision_of(x),
        **tiles.options(),
    )
