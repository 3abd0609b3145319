"""Triton kernels of a convolutional network's training step, for K networks at once, and what launches them.

Maps are (K, n, size, size, channels), contiguous, in the working type; weights (taps, in, out). Every network gets the
same operations in the same order whatever K is, and nothing is summed by atomics. Products sum in float32. The rows of
a tile are either successive places of successive images, or one place of many images; the latter skips the taps that
fall into the padding, which on maps of 4×4 and smaller are many, and on 1×1 all but one.
"""

# Triton compiles the kernels' bodies itself: annotations other than constexpr mean nothing there.
# mypy: ignore-errors

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from purereplay.nets.fused.kernels import adam, cut
from purereplay.nets.fused.parameters import BETA1, BETA2, EPSILON, Parameters

PLACES_UP_TO = 4  # maps up to so many pixels a side are computed place by place
ENOUGH_PROGRAMS = 64  # tiles shrink until one network has so many programs
WEIGHT_PROGRAMS = 96  # a weight gradient's long sum is split until one network has about so many programs
MAP_TILE = 4096  # elements of one program of the kernels that go over maps
UPDATE_BLOCK = 1024
N_TABLE = 6  # rows of a norm's table: scale, shift, mean, 1 / deviation; of its gradient: slope, constant
N_SUMS = 3  # rows of partial sums


@dataclass(frozen=True)
class Tiles:
    """How a product is cut into programs, and how those are compiled."""

    rows: int  # places; of a weight gradient: channels in
    columns: int  # channels out
    depth: int  # of one multiplication
    warps: int = 4
    stages: int = 3
    places: bool = False  # a tile's rows are one place of many images
    narrow: bool = False  # read 8 bytes at a time: unlike 16 they go through the first-level cache, which taps share
    swap: bool = False  # compute the transposed tile: few channels make narrow products, many rows wide ones
    taps: int = 1  # of one program of a weight gradient: 1, or 3 of a kernel row

    def options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


# (kind, channels in, channels out, output size, kernel) -> what measurements chose; kinds: as in `pick_tiles`
TILES: dict[tuple[str, int, int, int, int], Tiles] = {}


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


def _clamp(size: int, low: int, high: int) -> int:
    return min(max(triton.next_power_of_2(size), low), high)


def n_row_tiles(n: int, size: int, tiles: Tiles) -> int:
    return size * size * triton.cdiv(n, tiles.rows) if tiles.places else triton.cdiv(n * size * size, tiles.rows)


def pick_tiles(kind: str, geometry: Geometry, n: int, dtype: torch.dtype) -> Tiles:
    """Tile sizes from the shape of one network, unless TILES has them.

    Kinds: stem, stem_gradient, forward, data_gradient, weight_gradient.
    """
    g = geometry
    if chosen := TILES.get((kind, g.n_in, g.n_out, g.size_out, g.kernel)):
        return chosen
    stages = 2 if dtype == torch.float32 else 3
    if kind == "stem":
        return Tiles(_clamp(n * g.size_out**2, 16, 128), _clamp(g.n_out, 16, 64), 64, stages=stages, swap=True)
    if kind == "stem_gradient":
        depth = 32 if dtype == torch.float32 else 64
        return Tiles(_clamp(Packing.of(g).total, 16, 256), _clamp(g.n_out, 16, 64), depth, 8, stages, swap=True)
    if kind == "weight_gradient":
        side = 64 if g.n_in <= 64 or g.n_out <= 64 else 128
        taps = 3 if g.kernel == 3 and g.size_out > PLACES_UP_TO else 1
        rows, columns, depth = _clamp(g.n_in, 16, side), _clamp(g.n_out, 16, side), _clamp(n, 16, 64)
        return Tiles(rows, columns, depth, 4 if side == 64 else 8, stages, taps=taps)
    if kind == "forward":
        n_columns, channels, size, places = g.n_out, g.n_in, g.size_out, g.size_out <= PLACES_UP_TO
    else:
        n_columns, channels, size, places = g.n_in, g.n_out, g.size_in, g.size_in <= PLACES_UP_TO or g.stride > 1
    rows, columns = _clamp(n if places else n * size * size, 16, 128), _clamp(n_columns, 16, 128)
    n_tiles = n_row_tiles(n, size, Tiles(rows, columns, 0, places=places))
    while n_tiles * triton.cdiv(n_columns, columns) < ENOUGH_PROGRAMS and columns > 32:
        columns //= 2
    warps, swap = 8 if rows * columns > 8192 else 4, rows > columns
    return Tiles(rows, columns, _clamp(channels, 16, 64), warps, stages, places, swap=swap)


def n_weight_parts(kind: str, geometry: Geometry, n: int, tiles: Tiles) -> int:
    """Into how many parts the sum over images and places is split: enough programs, but each with a few steps."""
    g = geometry
    n_in = Packing.of(g).total if kind == "stem_gradient" else g.n_in
    n_programs = triton.cdiv(n_in, tiles.rows) * triton.cdiv(g.n_out, tiles.columns)
    n_steps = triton.cdiv(n * g.size_out**2, tiles.depth)
    if kind == "weight_gradient":
        n_programs *= g.kernel**2 // tiles.taps
        n_steps = triton.cdiv(n, tiles.depth) * g.size_out**2
    return max(1, min(triton.cdiv(WEIGHT_PROGRAMS, n_programs), n_steps // 4))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


# ------------------------------------------------------------------------------------------------------ convolution


@triton.jit
def locate(tile, n, SIZE: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr):
    """Image, y, x, map row and validity of a tile's rows; rows past the end repeat the last one."""
    if PLACES:
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
    """Along one axis, the taps of place `at` that fall into the source: the first, how many, where the first falls."""
    if BACKWARD:  # source = (at + padding - tap) / stride, where that is whole
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
    ROWS: tl.constexpr = T.columns if T.swap else T.rows
    COLUMNS: tl.constexpr = T.rows if T.swap else T.columns
    return tl.zeros((ROWS, COLUMNS), tl.float32)


@triton.jit
def multiply(a, b, total, T: tl.constexpr, PRECISION: tl.constexpr):
    if T.swap:
        return tl.dot(tl.trans(b), tl.trans(a), total, input_precision=PRECISION)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def multiply_over_rows(a, b, total, T: tl.constexpr, PRECISION: tl.constexpr):
    if T.swap:
        return tl.dot(tl.trans(b), a, total, input_precision=PRECISION)
    else:
        return tl.dot(tl.trans(a), b, total, input_precision=PRECISION)


@triton.jit
def unswap(total, T: tl.constexpr):
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
    zero,
    G: tl.constexpr,
    T: tl.constexpr,
    BACKWARD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """total += Σ_tap source[image, where the tap falls] @ weight[tap], or its transpose if BACKWARD."""
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
    if T.narrow:
        source_at += zero * 4  # the compiler does not know that it is 0, and relies on no more than 4 numbers
    weight_at = weight + at[:, None] * DEPTH_STEP + column[None, :] * COLUMN_STEP
    known = (column < N_COLUMNS) | (N_COLUMNS % T.columns == 0)
    if T.places:
        tap_y, n_y, source_y = find_taps(y, SIZE, G, BACKWARD)
        tap_x, n_x, source_x = find_taps(x, SIZE, G, BACKWARD)
        for step in range(n_y * n_x * CHUNKS):
            j_y, j_x, begin = step // CHUNKS // n_x, step // CHUNKS % n_x, (step % CHUNKS) * DEPTH
            deep = (at < CHANNELS - begin) | (CHANNELS % DEPTH == 0)
            place = ((source_y + j_y * WAY) * SIZE + source_x + j_x * WAY) * CHANNELS + begin
            tap = (tap_y + j_y * TAP_STEP) * G.kernel + tap_x + j_x * TAP_STEP
            a = tl.load(source_at + place, mask=deep[None, :], other=0.0)
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
            place = (j_y * SIZE + j_x) * (WAY * CHANNELS) + begin
            a = tl.load(source_at + place, mask=inside[:, None] & deep[None, :], other=0.0)
            tap_at = weight_at + ((j_y * G.kernel + j_x) * (CHANNELS * N_COLUMNS) + begin * DEPTH_STEP)
            b = tl.load(tap_at, mask=deep[:, None] & known[None, :], other=0.0)
            total = multiply(a, b, total, T, PRECISION)
    return total


@triton.jit
def store_counted(total, out, sums, row, inside, tile, column, n_tiles, CHANNELS: tl.constexpr):
    """Store a tile of a convolution, and its mean and sum of squared deviations per channel."""
    known = column < CHANNELS
    keep = inside[:, None] & known[None, :]
    value = total.to(out.dtype.element_ty)
    tl.store(out + row[:, None] * CHANNELS + column[None, :], value, mask=keep)
    value = tl.where(keep, value.to(tl.float32), 0.0)
    mean = tl.sum(value, 0) / tl.sum(inside.to(tl.float32), 0)
    deviation = tl.where(keep, value - mean[None, :], 0.0)
    tl.store(sums + tile * CHANNELS + column, mean, mask=known)
    tl.store(sums + (n_tiles + tile) * CHANNELS + column, tl.sum(deviation * deviation, 0), mask=known)


@triton.jit(do_not_specialize=["zero"])
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
    zero,
    G: tl.constexpr,
    T: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out[k] = x[k] convolved with weight[k], with the partial sums of its batch norm."""
    network = tl.program_id(1).to(tl.int64)
    COLUMN_TILES: tl.constexpr = (G.n_out + T.columns - 1) // T.columns
    tile = tl.program_id(0) // COLUMN_TILES
    column = (tl.program_id(0) % COLUMN_TILES) * T.columns + tl.arange(0, T.columns)
    image, at_y, at_x, row, inside = locate(tile, n, G.size_out, T.places, T.rows)
    x += network * n * (G.size_in * G.size_in * G.n_in)
    weight += network * weight_network + weight_offset
    total = add_taps(no_total(T), x, weight, image, at_y, at_x, column, zero, G, T, False, PRECISION)
    total = unswap(total, T)
    out += network * n * (G.size_out * G.size_out * G.n_out)
    store_counted(total, out, sums + network * sums_network, row, inside, tile, column, n_tiles, G.n_out)


def forward(geometry: Geometry, tiles: Tiles, x: Tensor, weight: Tensor, offset: int, out: Tensor, sums: Tensor) -> int:
    """Launch `forward_kernel`; weight: flat (K, P), the layer's begins at `offset`. Returns the number of row tiles."""
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
        0,
        geometry,
        tiles,
        _precision(x),
        **tiles.options(),
    )
    return n_tiles


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
    """Gate a tile of a gradient by the ReLU below it, store it, and sum it for the batch norms below that.

    The ReLU's output is `gate`, or else the norm of `raw`. sums: Σg, Σg (raw - mean), Σg (raw2 - mean2) per channel.
    """
    known = column < CHANNELS
    keep = inside[:, None] & known[None, :]
    place = row[:, None] * CHANNELS + column[None, :]
    value = tl.load(raw + place, mask=keep, other=0.0).to(tl.float32)
    if GATED:
        is_open = tl.load(gate + place, mask=keep, other=0.0) > 0
    else:
        scale = tl.load(table + column, mask=known, other=0.0)
        shift = tl.load(table + CHANNELS + column, mask=known, other=0.0)
        is_open = value * scale[None, :] + shift[None, :] > 0
    g = tl.where(is_open & keep, total, 0.0).to(out.dtype.element_ty)
    tl.store(out + place, g, mask=keep)
    g = g.to(tl.float32)
    mean = tl.load(table + 2 * CHANNELS + column, mask=known, other=0.0)
    sums += tile * CHANNELS + column
    tl.store(sums, tl.sum(g, 0), mask=known)
    tl.store(sums + n_tiles * CHANNELS, tl.sum(g * (value - mean[None, :]), 0), mask=known)
    if SECOND:
        value = tl.load(raw2 + place, mask=keep, other=0.0).to(tl.float32)
        mean = tl.load(table2 + 2 * CHANNELS + column, mask=known, other=0.0)
        tl.store(sums + 2 * n_tiles * CHANNELS, tl.sum(g * (value - mean[None, :]), 0), mask=known)


@triton.jit(do_not_specialize=["zero"])
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
    zero,
    G: tl.constexpr,
    G2: tl.constexpr,
    T: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    SECOND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a convolution's input, plus that of a projection G2 beside it or a residual, through a ReLU."""
    network = tl.program_id(1).to(tl.int64)
    COLUMN_TILES: tl.constexpr = (G.n_in + T.columns - 1) // T.columns
    tile = tl.program_id(0) // COLUMN_TILES
    column = (tl.program_id(0) % COLUMN_TILES) * T.columns + tl.arange(0, T.columns)
    image, at_y, at_x, row, inside = locate(tile, n, G.size_in, T.places, T.rows)
    weight += network * weight_network
    above, own = network * n * (G.size_out * G.size_out * G.n_out), network * n * (G.size_in * G.size_in * G.n_in)
    weight_at = weight + weight_offset
    total = add_taps(no_total(T), d + above, weight_at, image, at_y, at_x, column, zero, G, T, True, PRECISION)
    if G2 is not None:
        weight_at = weight + weight2_offset
        total = add_taps(total, d2 + above, weight_at, image, at_y, at_x, column, zero, G2, T, True, PRECISION)
    total = unswap(total, T)
    if RESIDUAL:
        place = own + row[:, None] * G.n_in + column[None, :]
        keep = inside[:, None] & (column < G.n_in)[None, :]
        total += tl.load(residual + place, mask=keep, other=0.0).to(tl.float32)
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


class Below(NamedTuple):
    """What a gradient meets on its way down: a ReLU (its output, or None: the norm of `raw`) and its batch norms."""

    raw: Tensor
    table: Tensor
    gate: Tensor | None = None
    raw2: Tensor | None = None
    table2: Tensor | None = None


class Projection(NamedTuple):
    """A block's projection on the way back: its geometry, its gradient and where its weight begins."""

    geometry: Geometry
    d: Tensor
    offset: int


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


def data_gradient(
    geometry: Geometry,
    tiles: Tiles,
    d: Tensor,
    weight: Tensor,
    offset: int,
    out: Tensor,
    sums: Tensor,
    below: Below,
    *,
    residual: Tensor | None = None,
    projection: Projection | None = None,
) -> int:
    """Launch `data_gradient_kernel`. Returns the number of row tiles."""
    n_tiles = n_row_tiles(d.shape[1], geometry.size_in, tiles)
    data_gradient_kernel[(n_tiles * triton.cdiv(geometry.n_in, tiles.columns), d.shape[0])](
        d,
        d if projection is None else projection.d,
        _or(residual, out),
        weight,
        out,
        sums,
        _or(below.gate, out),
        below.raw,
        below.table,
        _or(below.raw2, below.raw),
        _or(below.table2, below.table),
        d.shape[1],
        n_tiles,
        weight.stride(0),
        offset,
        0 if projection is None else projection.offset,
        sums.stride(0),
        0,
        geometry,
        None if projection is None else projection.geometry,
        tiles,
        residual is not None,
        below.gate is not None,
        below.raw2 is not None,
        _precision(d),
        **tiles.options(),
    )
    return n_tiles


@triton.jit
def find_places(tap, G: tl.constexpr):
    """Along one axis, the places from which a tap falls into the map: the first, and how many."""
    first = (tl.maximum(G.padding - tap, 0) + G.stride - 1) // G.stride
    return first, tl.minimum((G.size_in - 1 + G.padding - tap) // G.stride, G.size_out - 1) + 1 - first


@triton.jit(do_not_specialize=["zero"])
def weight_gradient_kernel(
    x,
    d,
    out,
    n,
    out_network,
    out_offset,
    part_size,
    zero,
    G: tl.constexpr,
    T: tl.constexpr,
    N_PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One part of a convolution's weight gradient, for one tap, or for three of a kernel row that share what they read.

    A step multiplies T.depth images at one place; the places from which no tap falls into the map are left out.
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
    first_y, n_y = find_places(tap_y, G)
    first_x, n_x = 0, G.size_out
    if T.taps == 1:
        first_x, n_x = find_places(tap_x, G)
    known_i = (i < G.n_in) | (G.n_in % IN == 0)
    known_o = (o < G.n_out) | (G.n_out % OUT == 0)
    x += network * n * (G.size_in * G.size_in * G.n_in) + i[None, :]
    if T.narrow:
        x += zero * 4
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
            # where a tap falls into the padding, no channel is known
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
        0,
        g,
        tiles,
        n_parts,
        _precision(x),
        **tiles.options(),
    )


# ------------------------------------------------------------------------------------------------------------- stem


@triton.jit
def load_patches(x, image, at_y, at_x, e, G: tl.constexpr, P: tl.constexpr):
    """(rows, len(e)) values under the kernel of images (n, size, size, pixel); e counts kernel row, pixel, channel."""
    tap_y, along = e // (P.span * P.pixel), e % (P.span * P.pixel)
    from_y = (at_y * G.stride - G.padding)[:, None] + tap_y[None, :]
    # in units, so that the compiler sees that a wide read is masked as a whole
    first = at_x * (G.stride // P.unit) - (G.padding + P.lead) // P.unit
    from_x = first[:, None] + (e // (P.pixel * P.unit) % (P.span // P.unit))[None, :]
    inside = (from_y >= 0) & (from_y < G.size_in) & (from_x >= 0) & (from_x < G.size_in // P.unit)
    place = (image * (G.size_in * G.size_in * P.pixel) + first * (P.unit * P.pixel))[:, None]
    place += from_y * (G.size_in * P.pixel) + along[None, :]
    return tl.load(x + place, mask=inside & (tap_y < G.kernel)[None, :], other=0.0)


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
    """The first convolution, of images with few channels: the depth of a product runs over kernel rows and pixels."""
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


def stem(geometry: Geometry, tiles: Tiles, x: Tensor, weight: Tensor, offset: int, out: Tensor, sums: Tensor) -> int:
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
        _precision(x),
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
    """One part of the first convolution's weight gradient; what the packing added gets gradient 0."""
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
        _precision(x),
        **tiles.options(),
    )


# ------------------------------------------------------------------------------------------------------- batch norm


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
    """Mean and variance from those of tiles (Chan et al.), measured from the first tile's mean; running statistics.

    A tile holds ROWS values, the last of each `group_tiles` what is left of `group_rows`.
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
    n_groups = geometry.size_out**2 if tiles.places else 1
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
        _clamp(n_tiles, 16, 512),
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
    """A norm's weight and bias gradients, and the slope and constant of its input's gradient."""
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
    """Launch `gradient_statistics_kernel`; which: 1 or 2, the row of `sums` that is this norm's."""
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
        _clamp(n_tiles, 16, 512),
        8,
    )


def _map_tile(channels: int, elements: int | None = None) -> tuple[int, int]:
    columns = _clamp(channels, 16, 256)
    return (elements or MAP_TILE) // columns, columns


def _map_grid(n_rows: int, x: Tensor, tile: tuple[int, int]) -> tuple[int, int, int]:
    return triton.cdiv(n_rows, tile[0]), x.shape[0], triton.cdiv(x.shape[-1], tile[1])


def _n_rows(x: Tensor) -> int:
    return x.shape[1] * x.shape[2] * x.shape[3]


@triton.jit
def map_tile(n_rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's rows and columns of a map, which columns there are, where the tile lies, and what of it there is."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    known = (column < CHANNELS) | (CHANNELS % COLUMNS == 0)
    place = tl.program_id(1).to(tl.int64) * n_rows * CHANNELS + (row[:, None] * CHANNELS + column[None, :])
    return row, column, known, place, (row < n_rows)[:, None] & known[None, :]


@triton.jit
def load_norm(table, column, known, CHANNELS: tl.constexpr):
    """Scale and shift of a norm, as rows."""
    at = table + tl.program_id(1) * (6 * CHANNELS) + column
    return tl.load(at, mask=known, other=0.0)[None, :], tl.load(at + CHANNELS, mask=known, other=0.0)[None, :]


@triton.jit
def load_slopes(table, column, known, CHANNELS: tl.constexpr):
    """The factors of a norm's input's gradient, scale · g + slope · raw + constant, as rows."""
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
    _, column, known, place, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    scale, shift = load_norm(table, column, known, CHANNELS)
    value = tl.load(raw + place, mask=keep, other=0.0).to(tl.float32) * scale + shift
    if ADD > 0:
        extra = tl.load(other + place, mask=keep, other=0.0).to(tl.float32)
        if ADD == 2:
            scale, shift = load_norm(other_table, column, known, CHANNELS)
            extra = extra * scale + shift
        value += extra
    tl.store(out + place, tl.maximum(value, 0.0).to(out.dtype.element_ty), mask=keep)


def normalise(
    raw: Tensor, table: Tensor, out: Tensor, other: Tensor | None = None, other_table: Tensor | None = None
) -> None:
    """Launch `normalise_kernel` over maps (K, n, size, size, C)."""
    tile = _map_tile(raw.shape[-1])
    add = 0 if other is None else 1 if other_table is None else 2
    normalise_kernel[_map_grid(_n_rows(raw), raw, tile)](
        raw, table, _or(other, raw), _or(other_table, table), out, _n_rows(raw), raw.shape[-1], add, *tile
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
    """The gradient of one or two norms' inputs from that of their outputs, in the place of the inputs."""
    _, column, known, place, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    gradient = tl.load(g + place, mask=keep, other=0.0).to(tl.float32)
    scale, slope, constant = load_slopes(table, column, known, CHANNELS)
    value = tl.load(raw + place, mask=keep, other=0.0).to(tl.float32)
    tl.store(raw + place, (scale * gradient + (slope * value + constant)).to(raw.dtype.element_ty), mask=keep)
    if SECOND:
        scale, slope, constant = load_slopes(table2, column, known, CHANNELS)
        value = tl.load(raw2 + place, mask=keep, other=0.0).to(tl.float32)
        tl.store(raw2 + place, (scale * gradient + (slope * value + constant)).to(raw.dtype.element_ty), mask=keep)


def normalise_gradient(
    g: Tensor, raw: Tensor, table: Tensor, raw2: Tensor | None = None, table2: Tensor | None = None
) -> None:
    """Launch `normalise_gradient_kernel`: `raw` (and `raw2`) become the gradients with respect to them."""
    tile, second = _map_tile(raw.shape[-1]), raw2 is not None
    normalise_gradient_kernel[_map_grid(_n_rows(raw), raw, tile)](
        g, raw, table, _or(raw2, raw), _or(table2, table), _n_rows(raw), raw.shape[-1], second, *tile
    )


# ---------------------------------------------------------------------------------------------------------- pooling


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
    """Norm, ReLU and 3×3 stride 2 max-pool in one; also the raw value at the maximum and which of the nine it was."""
    row, column, known, place, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
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
        better = (result > best) & inside  # of equals the first, as in torch
        best = tl.where(better, result, best)
        best_raw = tl.where(better, value, best_raw)
        best_index = tl.where(better, j, best_index)
    tl.store(out + place, best.to(out.dtype.element_ty), mask=keep)
    tl.store(out_raw + place, best_raw.to(out_raw.dtype.element_ty), mask=keep)
    tl.store(index + place, best_index.to(tl.uint8), mask=keep)


def max_pool(raw: Tensor, table: Tensor, out: Tensor, out_raw: Tensor, index: Tensor) -> None:
    """Launch `max_pool_kernel`: raw (K, n, size, size, C) to out, out_raw and index (K, n, pooled, pooled, C)."""
    tile, sizes = _map_tile(raw.shape[-1], 2048), (raw.shape[2], out.shape[2], raw.shape[-1])
    max_pool_kernel[_map_grid(_n_rows(out), raw, tile)](
        raw, table, out, out_raw, index, _n_rows(out), raw.shape[1], *sizes, *tile
    )


@triton.jit
def where_chosen(g, index, J: tl.constexpr):
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
    """Back through max-pool and norm: each pooled place does the 2×2 pixels from its centre to its neighbours."""
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
    tile, sizes = _map_tile(raw.shape[-1], 2048), (raw.shape[2], index.shape[2], raw.shape[-1])
    max_pool_gradient_kernel[_map_grid(_n_rows(index), raw, tile)](
        g, index, raw, table, _n_rows(index), raw.shape[1], *sizes, *tile
    )


@triton.jit
def mean_pool_kernel(
    x, out, n, PLACES: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """out[k, image] = the mean of x[k, image] over its places."""
    image, column, _, place, keep = map_tile(n, CHANNELS, ROWS, COLUMNS)
    at = x + tl.program_id(1).to(tl.int64) * n * (PLACES * CHANNELS)
    at += image[:, None] * (PLACES * CHANNELS) + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for j in range(PLACES):
        total += tl.load(at + j * CHANNELS, mask=keep, other=0.0).to(tl.float32)
    tl.store(out + place, (total / PLACES).to(out.dtype.element_ty), mask=keep)


def mean_pool(x: Tensor, out: Tensor) -> None:
    """Launch `mean_pool_kernel`: (K, n, size, size, C) -> (K, n, C)."""
    tile, n = _map_tile(x.shape[-1], 2048), x.shape[1]
    mean_pool_kernel[_map_grid(n, x, tile)](x, out, n, x.shape[2] * x.shape[3], x.shape[-1], *tile)


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
    PLACES: tl.constexpr,
    CHANNELS: tl.constexpr,
    GATED: tl.constexpr,
    SECOND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Spread the features' gradient over the places of the last map, through its ReLU."""
    network = tl.program_id(1).to(tl.int64)
    row, column, _, _, keep = map_tile(n_rows, CHANNELS, ROWS, COLUMNS)
    inside = row < n_rows
    row = tl.minimum(row, n_rows - 1)
    at = d + network * (n_rows // PLACES) * CHANNELS + (row // PLACES)[:, None] * CHANNELS + column[None, :]
    own = network * n_rows * CHANNELS
    pass_gradient(
        tl.load(at, mask=keep, other=0.0).to(tl.float32) / PLACES,
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
    """How many partial sums `mean_pool_gradient` writes for one network."""
    return N_SUMS * out.shape[-1] * triton.cdiv(_n_rows(out), _map_tile(out.shape[-1])[0])


def mean_pool_gradient(d: Tensor, out: Tensor, sums: Tensor, below: Below) -> int:
    """Launch `mean_pool_gradient_kernel`: (K, n, C) -> out (K, n, size, size, C). Returns the number of row tiles."""
    tile = _map_tile(out.shape[-1])
    grid = _map_grid(_n_rows(out), out, tile)
    mean_pool_gradient_kernel[grid](
        d,
        out,
        sums,
        _or(below.gate, out),
        below.raw,
        below.table,
        _or(below.raw2, below.raw),
        _or(below.table2, below.table),
        _n_rows(out),
        grid[0],
        sums.stride(0),
        out.shape[2] * out.shape[3],
        out.shape[-1],
        below.gate is not None,
        below.raw2 is not None,
        *tile,
    )
    return grid[0]


# ----------------------------------------------------------------------------------------------------------- update


@triton.jit
def update_kernel(
    gradient,
    blocks,
    weight,
    mean,
    square,
    half,
    rates,
    gradient_network,
    weight_network,
    BLOCK: tl.constexpr,
    CLIP: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Adam's step for one block of parameters: sum the parts of its gradient in order, then update."""
    network = tl.program_id(1).to(tl.int64)
    blocks += tl.program_id(0) * 5
    start, count = tl.multiple_of(tl.load(blocks), 16), tl.multiple_of(tl.load(blocks + 1), 16)
    source, part_size = tl.multiple_of(tl.load(blocks + 2), 16), tl.multiple_of(tl.load(blocks + 4), 16)
    at = tl.arange(0, BLOCK)
    inside = at < count
    gradient_at = gradient + network * gradient_network + source + at
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(tl.load(blocks + 3)):
        total += tl.load(gradient_at + part * part_size, mask=inside, other=0.0)
    total = cut(total, CLIP)
    place = network * weight_network + start + at
    adam(total, place, inside, weight, mean, square, half, rates + network * 2, BETA1, BETA2, EPSILON)


def update(gradient: Tensor, blocks: Tensor, parameters: Parameters, rates: Tensor, clip: float | None = None) -> None:
    """Launch `update_kernel`; rows of blocks (int32): parameter, count, gradient, parts, distance of parts.

    All but the parts are multiples of 16. Gradients are cut to ±clip.
    """
    weight, mean, square, half = parameters.weight, parameters.mean, parameters.square, parameters.half
    strides = (gradient.stride(0), weight.stride(0))
    update_kernel[(blocks.shape[0], weight.shape[0])](
        gradient, blocks, weight, mean, square, half, rates, *strides, UPDATE_BLOCK, clip or 0.0, BETA1, BETA2, EPSILON
    )
