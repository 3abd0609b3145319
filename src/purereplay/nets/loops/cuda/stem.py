"""Triton kernels of the first convolution, which loads several neighbouring pixels at once; see `shapes.Packing`."""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.loops.cuda.conv import locate, multiply, multiply_over_rows, no_total, store_counted, unswap
from purereplay.nets.loops.cuda.shapes import Geometry, Packing, Tiles, n_row_tiles, precision_of


@triton.jit
def load_patches(x, image, at_y, at_x, e, G: tl.constexpr, P: tl.constexpr):
    """Values (rows, len(e)) under the kernel of images (n, size, size, pixel); e: kernel row, pixel, channel."""
    tap_y, along = e // (P.span * P.pixel), e % (P.span * P.pixel)
    from_y = (at_y * G.stride - G.padding)[:, None] + tap_y[None, :]
    # in units, so that the compiler masks a wide load as a whole
    first = at_x * (G.stride // P.unit) - (G.padding + P.lead) // P.unit
    from_x = first[:, None] + (e // (P.pixel * P.unit) % (P.span // P.unit))[None, :]
    inside = (from_y >= 0) & (from_y < G.size_in) & (from_x >= 0) & (from_x < G.size_in // P.unit)
    offset = (image * (G.size_in * G.size_in * P.pixel) + first * (P.unit * P.pixel))[:, None]
    offset += from_y * (G.size_in * P.pixel) + along[None, :]
    return tl.load(x + offset, mask=inside & (tap_y < G.kernel)[None, :], other=0.0)


@triton.jit
def stem_kernel(
    x,
    weight,
    out,
    sums,
    n,
    n_tiles,
    weight_network,
    weight_offset,
    sums_network,
    G: tl.constexpr,
    P: tl.constexpr,
    T: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """First convolution; the depth of the product runs over kernel rows, pixels and channels."""
    COLUMN_TILES: tl.constexpr = (G.n_out + T.columns - 1) // T.columns
    network = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // COLUMN_TILES
    column = (tl.program_id(0) % COLUMN_TILES) * T.columns + tl.arange(0, T.columns)
    known = (column < G.n_out) | (G.n_out % T.columns == 0)
    image, at_y, at_x, row, inside = locate(tile, n, G.size_out, False, T.rows)
    x += network * n * (G.size_in * G.size_in * P.pixel)
    weight += network * weight_network + weight_offset
    total = no_total(T)
    for begin in range(0, P.total, T.depth):
        e = begin + tl.arange(0, T.depth)
        a = load_patches(x, image, at_y, at_x, e, G, P)
        deep = (e < P.total) | (P.total % T.depth == 0)
        weight_at = weight + e[:, None] * G.n_out + column[None, :]
        b = tl.load(weight_at, mask=deep[:, None] & known[None, :], other=0.0)
        total = multiply(a, b, total, T, PRECISION)
    total = unswap(total, T)
    out += network * n * (G.size_out * G.size_out * G.n_out)
    store_counted(total, out, sums + network * sums_network, row, inside, tile, column, n_tiles, G.n_out)


def stem_forward(
    geometry: Geometry, tiles: Tiles, x: Tensor, weight: Tensor, offset: int, out: Tensor, sums: Tensor
) -> int:
    """Launch `stem_kernel` on images (K, n, size, size, pixel). Returns the number of row tiles."""
    n_tiles = n_row_tiles(x.shape[1], geometry.size_out, tiles)
    stem_kernel[(n_tiles * triton.cdiv(geometry.n_out, tiles.columns), x.shape[0])](
        x,
        weight,
        out,
        sums,
        x.shape[1],
        n_tiles,
        weight.stride(0),
        offset,
        sums.stride(0),
        geometry,
        Packing.of(geometry),
        tiles,
        precision_of(x),
        **tiles.options(),
    )
    return n_tiles


@triton.jit
def stem_gradient_kernel(
    x,
    d,
    out,
    n,
    out_network,
    out_offset,
    part_size,
    G: tl.constexpr,
    P: tl.constexpr,
    T: tl.constexpr,
    N_PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One part of the first convolution's weight gradient; pixels added by the packing get gradient 0."""
    IN: tl.constexpr = T.rows
    OUT: tl.constexpr = T.columns
    IN_TILES: tl.constexpr = (P.total + IN - 1) // IN
    OUT_TILES: tl.constexpr = (G.n_out + OUT - 1) // OUT
    network = tl.program_id(1).to(tl.int64)
    program = tl.program_id(0)
    o = (program % OUT_TILES) * OUT + tl.arange(0, OUT)
    e = (program // OUT_TILES % IN_TILES) * IN + tl.arange(0, IN)
    part = program // (OUT_TILES * IN_TILES)
    known = (o < G.n_out) | (G.n_out % OUT == 0)
    x += network * n * (G.size_in * G.size_in * P.pixel)
    d += network * n * (G.size_out * G.size_out * G.n_out) + o[None, :]
    total = no_total(T)
    n_steps = tl.cdiv(n * (G.size_out * G.size_out), T.depth)
    share = tl.cdiv(n_steps, N_PARTS)
    for step in range(part * share, tl.minimum((part + 1) * share, n_steps)):
        image, at_y, at_x, row, inside = locate(step, n, G.size_out, False, T.depth)
        a = load_patches(x, image, at_y, at_x, e, G, P)
        b = tl.load(d + row[:, None] * G.n_out, mask=inside[:, None] & known[None, :], other=0.0)
        total = multiply_over_rows(a, b, total, T, PRECISION)
    pixel = e % (P.span * P.pixel) // P.pixel
    real = (pixel >= P.lead) & (pixel < P.lead + G.kernel) & (e % P.pixel < P.channels)
    total = tl.where(real[:, None], unswap(total, T), 0.0)
    out += network * out_network + out_offset + part * part_size
    tl.store(out + e[:, None] * G.n_out + o[None, :], total, mask=(e < P.total)[:, None] & (o < G.n_out)[None, :])


def stem_gradient(
    geometry: Geometry, tiles: Tiles, x: Tensor, d: Tensor, out: Tensor, offset: int, part_size: int, n_parts: int
) -> None:
    """Launch `stem_gradient_kernel`: `n_parts` partial sums into out (K, …) from `offset`, `part_size` apart."""
    packing = Packing.of(geometry)
    n_tiles = triton.cdiv(packing.total, tiles.rows) * triton.cdiv(geometry.n_out, tiles.columns)
    stem_gradient_kernel[(n_tiles * n_parts, x.shape[0])](
        x,
        d,
        out,
        x.shape[1],
        out.stride(0),
        offset,
        part_size,
        geometry,
        packing,
        tiles,
        n_parts,
        precision_of(x),
        **tiles.options(),
    )
