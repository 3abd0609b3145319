"""Triton kernels of convolutions of K networks: the forward pass, and parts shared with the gradients.

Maps are (K, n, size, size, channels), contiguous, in the working type; weights are (taps, in, out). A network's result
does not depend on K: the order of operations is fixed and no sum uses atomics. Products are summed in float32. The rows
of a tile are either successive positions of successive images, or one position of many images (`Tiles.positionwise`).
The latter skips taps that fall into the padding: many on maps up to 4×4, and all but one on 1×1.
"""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.loops.cuda.shapes import Geometry, Tiles, n_row_tiles, precision_of


@triton.jit
def locate(tile, n, SIZE: tl.constexpr, POSITIONWISE: tl.constexpr, ROWS: tl.constexpr):
    """Image, y, x, row of the map and validity of each row of a tile; rows past the end repeat the last one."""
    if POSITIONWISE:
        n_tiles = tl.cdiv(n, ROWS)
        image = (tile % n_tiles) * ROWS + tl.arange(0, ROWS)
        inside = image < n
        image = tl.minimum(image, n - 1)
        y, x = (tile // n_tiles) // SIZE, (tile // n_tiles) % SIZE
        row = image * (SIZE * SIZE) + (y * SIZE + x)
    else:
        row = tile * ROWS + tl.arange(0, ROWS)
        inside = row < n * (SIZE * SIZE)
        row = tl.minimum(row, n * (SIZE * SIZE) - 1)
        image, y, x = row // (SIZE * SIZE), row // SIZE % SIZE, row % SIZE
    return image, y, x, row, inside


@triton.jit
def find_taps(at, SIZE: tl.constexpr, G: tl.constexpr, BACKWARD: tl.constexpr):
    """Taps of position `at` that fall into the source, along one axis: the first, their number, its source position."""
    if BACKWARD:  # source = (at + padding - tap) / stride, if that is an integer
        reach = at + G.padding
        first = tl.maximum(reach - G.stride * (SIZE - 1), 0)
        first += (reach - first) % G.stride
        count = tl.maximum(tl.minimum(G.kernel - 1, reach) - first + G.stride, 0) // G.stride
        source = (reach - first) // G.stride
    else:
        low = at * G.stride - G.padding
        first = tl.maximum(-low, 0)
        count = tl.minimum(G.kernel, SIZE - low) - first
        source = low + first
    return first, count, source


@triton.jit
def no_total(T: tl.constexpr):
    """A tile of zeros to sum products into."""
    ROWS: tl.constexpr = T.columns if T.swap else T.rows
    COLUMNS: tl.constexpr = T.rows if T.swap else T.columns
    return tl.zeros((ROWS, COLUMNS), tl.float32)


@triton.jit
def multiply(a, b, total, T: tl.constexpr, PRECISION: tl.constexpr):
    """total + a @ b, transposed if T.swap."""
    if T.swap:
        return tl.dot(tl.trans(b), tl.trans(a), total, input_precision=PRECISION)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def multiply_over_rows(a, b, total, T: tl.constexpr, PRECISION: tl.constexpr):
    """total + aᵀ @ b, transposed if T.swap."""
    if T.swap:
        return tl.dot(tl.trans(b), a, total, input_precision=PRECISION)
    else:
        return tl.dot(tl.trans(a), b, total, input_precision=PRECISION)


@triton.jit
def unswap(total, T: tl.constexpr):
    """Undo the transposition of T.swap."""
    if T.swap:
        return tl.trans(total)
    else:
        return total


@triton.jit
def add_taps(
    total,
    source,
    weight,
    image,
    y,
    x,
    column,
    G: tl.constexpr,
    T: tl.constexpr,
    BACKWARD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """total += Σ_tap source[image, position of the tap] @ weight[tap], or @ weight[tap]ᵀ if BACKWARD."""
    SIZE: tl.constexpr = G.size_out if BACKWARD else G.size_in  # of the source
    CHANNELS: tl.constexpr = G.n_out if BACKWARD else G.n_in
    N_COLUMNS: tl.constexpr = G.n_in if BACKWARD else G.n_out
    DEPTH_STEP: tl.constexpr = 1 if BACKWARD else N_COLUMNS
    COLUMN_STEP: tl.constexpr = CHANNELS if BACKWARD else 1
    TAP_STEP: tl.constexpr = G.stride if BACKWARD else 1
    WAY: tl.constexpr = -1 if BACKWARD else 1
    DEPTH: tl.constexpr = T.depth
    CHUNKS: tl.constexpr = (CHANNELS + DEPTH - 1) // DEPTH
    at = tl.arange(0, DEPTH)
    source_at = source + image[:, None] * (SIZE * SIZE * CHANNELS) + at[None, :]
    weight_at = weight + at[:, None] * DEPTH_STEP + column[None, :] * COLUMN_STEP
    known = (column < N_COLUMNS) | (N_COLUMNS % T.columns == 0)
    if T.positionwise:
        tap_y, n_y, source_y = find_taps(y, SIZE, G, BACKWARD)
        tap_x, n_x, source_x = find_taps(x, SIZE, G, BACKWARD)
        for step in range(n_y * n_x * CHUNKS):
            j_y, j_x, begin = step // CHUNKS // n_x, step // CHUNKS % n_x, (step % CHUNKS) * DEPTH
            deep = (at < CHANNELS - begin) | (CHANNELS % DEPTH == 0)
            offset = ((source_y + j_y * WAY) * SIZE + source_x + j_x * WAY) * CHANNELS + begin
            tap = (tap_y + j_y * TAP_STEP) * G.kernel + tap_x + j_x * TAP_STEP
            a = tl.load(source_at + offset, mask=deep[None, :], other=0.0)
            tap_at = weight_at + (tap * (CHANNELS * N_COLUMNS) + begin * DEPTH_STEP)
            b = tl.load(tap_at, mask=deep[:, None] & known[None, :], other=0.0)
            total = multiply(a, b, total, T, PRECISION)
    else:
        source_y = y + G.padding if BACKWARD else y * G.stride - G.padding
        source_x = x + G.padding if BACKWARD else x * G.stride - G.padding
        source_at += ((source_y * SIZE + source_x) * CHANNELS)[:, None]
        for step in range(G.kernel * G.kernel * CHUNKS):
            j_y, j_x, begin = step // CHUNKS // G.kernel, step // CHUNKS % G.kernel, (step % CHUNKS) * DEPTH
            deep = (at < CHANNELS - begin) | (CHANNELS % DEPTH == 0)
            at_y, at_x = source_y + j_y * WAY, source_x + j_x * WAY
            inside = (at_y >= 0) & (at_y < SIZE) & (at_x >= 0) & (at_x < SIZE)
            offset = (j_y * SIZE + j_x) * (WAY * CHANNELS) + begin
            a = tl.load(source_at + offset, mask=inside[:, None] & deep[None, :], other=0.0)
            tap_at = weight_at + ((j_y * G.kernel + j_x) * (CHANNELS * N_COLUMNS) + begin * DEPTH_STEP)
            b = tl.load(tap_at, mask=deep[:, None] & known[None, :], other=0.0)
            total = multiply(a, b, total, T, PRECISION)
    return total


@triton.jit
def store_counted(total, out, sums, row, inside, tile, column, n_tiles, CHANNELS: tl.constexpr):
    """Store a tile of a convolution, its mean and its sum of squared deviations per channel."""
    known = column < CHANNELS
    keep = inside[:, None] & known[None, :]
    value = total.to(out.dtype.element_ty)
    tl.store(out + row[:, None] * CHANNELS + column[None, :], value, mask=keep)
    value = tl.where(keep, value.to(tl.float32), 0.0)
    mean = tl.sum(value, 0) / tl.sum(inside.to(tl.float32), 0)
    deviation = tl.where(keep, value - mean[None, :], 0.0)
    tl.store(sums + tile * CHANNELS + column, mean, mask=known)
    tl.store(sums + (n_tiles + tile) * CHANNELS + column, tl.sum(deviation * deviation, 0), mask=known)


@triton.jit
def forward_kernel(
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
    T: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[k] = x[k] convolved with weight[k], and the partial sums of its batch norm."""
    network = tl.program_id(1).to(tl.int64)
    COLUMN_TILES: tl.constexpr = (G.n_out + T.columns - 1) // T.columns
    tile = tl.program_id(0) // COLUMN_TILES
    column = (tl.program_id(0) % COLUMN_TILES) * T.columns + tl.arange(0, T.columns)
    image, at_y, at_x, row, inside = locate(tile, n, G.size_out, T.positionwise, T.rows)
    x += network * n * (G.size_in * G.size_in * G.n_in)
    weight += network * weight_network + weight_offset
    total = add_taps(no_total(T), x, weight, image, at_y, at_x, column, G, T, False, PRECISION)
    total = unswap(total, T)
    out += network * n * (G.size_out * G.size_out * G.n_out)
    store_counted(total, out, sums + network * sums_network, row, inside, tile, column, n_tiles, G.n_out)


def forward(geometry: Geometry, tiles: Tiles, x: Tensor, weight: Tensor, offset: int, out: Tensor, sums: Tensor) -> int:
    """Launch `forward_kernel`; weight: flat (K, P), the layer starts at `offset`. Returns the number of row tiles."""
    n_tiles = n_row_tiles(x.shape[1], geometry.size_out, tiles)
    forward_kernel[(n_tiles * triton.cdiv(geometry.n_out, tiles.columns), x.shape[0])](
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
        tiles,
        precision_of(x),
        **tiles.options(),
    )
    return n_tiles
