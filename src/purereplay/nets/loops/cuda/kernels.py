"""Triton kernels of K networks: matrix products, NT-Xent, cross-entropy and their gradients, Adam.

Tensors have a leading axis K. A network's result does not depend on K, bit for bit: the order of operations is fixed
and no sum uses atomics. Operands of products have the working type (bfloat16; float32 in tests); sums are float32.
"""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a,
    b,
    bias,
    gate,
    out,
    norm,
    n_rows,
    n_columns,
    depth,
    a_network,
    a_row,
    a_depth,
    b_network,
    b_depth,
    b_column,
    bias_network,
    out_network,
    out_row,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NORMALISE: tl.constexpr,
    ADD: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """out[k] = f(a[k] @ b[k] + bias[k]); f: ReLU, or zero where `gate` is not positive, or rows scaled to length 1.

    With ADD, the values in `out` are added to the product.
    """
    network = tl.program_id(1).to(tl.int64)
    n_column_tiles = tl.cdiv(n_columns, COLUMNS)
    row = (tl.program_id(0) // n_column_tiles) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % n_column_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, DEPTH)
    # masked, not clamped: Triton then recognises contiguous elements and loads 16 bytes at once
    real_row, real_column = row < n_rows, column < n_columns
    a_at = a + network * a_network + row[:, None] * a_row + at[None, :] * a_depth
    b_at = b + network * b_network + at[:, None] * b_depth + column[None, :] * b_column
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        left = depth - start
        x = tl.load(a_at, mask=(at[None, :] < left) & real_row[:, None], other=0.0)
        y = tl.load(b_at, mask=(at[:, None] < left) & real_column[None, :], other=0.0)
        total = tl.dot(x, y, total, input_precision=PRECISION)
        a_at += DEPTH * a_depth
        b_at += DEPTH * b_depth
    if HAS_BIAS:
        total += tl.load(bias + network * bias_network + column, mask=real_column, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    offset = network * out_network + row[:, None] * out_row + column[None, :]
    inside = real_row[:, None] & real_column[None, :]
    if ADD:
        total += tl.load(out + offset, mask=inside, other=0.0).to(tl.float32)
    if HAS_GATE:
        total = tl.where(tl.load(gate + offset, mask=inside, other=0.0) > 0, total, 0.0)
    if NORMALISE:  # one tile holds whole rows; columns past the end are 0 and are also stored
        length = tl.maximum(tl.sqrt(tl.sum(total * total, 1)), 1e-12)
        tl.store(norm + network * n_rows + row, length, mask=real_row)
        total = total / length[:, None]
        inside = real_row[:, None] & (column[None, :] < COLUMNS)
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def adam(gradient, offset, inside, weight, mean, square, half, adam_scales, BETA1, BETA2, EPSILON):
    """Adam's step for a block of weights at `offset`; adam_scales: lr / (1 - BETA1^t), 1 / sqrt(1 - BETA2^t)."""
    m = BETA1 * tl.load(mean + offset, mask=inside, other=0.0) + (1 - BETA1) * gradient
    s = BETA2 * tl.load(square + offset, mask=inside, other=0.0) + (1 - BETA2) * gradient * gradient
    w = tl.load(weight + offset, mask=inside, other=0.0)
    w = w - tl.load(adam_scales) * m / (tl.sqrt(s) * tl.load(adam_scales + 1) + EPSILON)
    tl.store(mean + offset, m, mask=inside)
    tl.store(square + offset, s, mask=inside)
    tl.store(weight + offset, w, mask=inside)
    tl.store(half + offset, w.to(half.dtype.element_ty), mask=inside)


@triton.jit
def cut(gradient, CLIP: tl.constexpr):
    """Clip gradient values to ±CLIP; 0: no clipping."""
    if CLIP > 0:
        gradient = tl.minimum(tl.maximum(gradient, -CLIP), CLIP)
    return gradient


@triton.jit
def update_linear_kernel(
    x,
    d,
    weight,
    mean,
    square,
    half,
    adam_scales,
    n_rows,
    n_in,
    n_out,
    x_network,
    x_row,
    d_network,
    d_row,
    p_network,
    weight_offset,
    bias_offset,
    PRECISION: tl.constexpr,
    CLIP: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Adam's step for a linear layer; the gradients x[k]ᵀ @ d[k] and column sums of d[k] are not stored.

    The last programs of a network update the bias.
    """
    network = tl.program_id(1).to(tl.int64)
    n_out_tiles = tl.cdiv(n_out, OUT)
    tile_in = tl.program_id(0) // n_out_tiles
    o = (tl.program_id(0) % n_out_tiles) * OUT + tl.arange(0, OUT)
    row = tl.arange(0, ROWS)
    scales = adam_scales + network * 2
    # pointers of this network, so that offsets fit into 32 bits
    weight += network * p_network
    mean += network * p_network
    square += network * p_network
    half += network * p_network
    d_at = d + network * d_network + row[:, None] * d_row + o[None, :]
    if tile_in * IN < n_in:
        i = tile_in * IN + tl.arange(0, IN)
        x_at = x + network * x_network + row[:, None] * x_row + i[None, :]
        offset = weight_offset + i[:, None] * n_out + o[None, :]
        inside = (i[:, None] < n_in) & (o[None, :] < n_out)
        total = tl.zeros((IN, OUT), tl.float32)
        for start in range(0, n_rows, ROWS):
            real_row = row[:, None] < n_rows - start
            a = tl.load(x_at, mask=real_row & (i[None, :] < n_in), other=0.0)
            b = tl.load(d_at, mask=real_row & (o[None, :] < n_out), other=0.0)
            total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
            x_at += ROWS * x_row
            d_at += ROWS * d_row
        total = cut(total, CLIP)
        adam(total, offset, inside, weight, mean, square, half, scales, BETA1, BETA2, EPSILON)
    else:
        sums = tl.zeros((OUT,), tl.float32)
        for start in range(0, n_rows, ROWS):
            b = tl.load(d_at, mask=(row[:, None] < n_rows - start) & (o[None, :] < n_out), other=0.0)
            sums += tl.sum(b.to(tl.float32), 0)
            d_at += ROWS * d_row
        sums = cut(sums, CLIP)
        adam(sums, bias_offset + o, o < n_out, weight, mean, square, half, scales, BETA1, BETA2, EPSILON)


@triton.jit
def similarity_kernel(z, sums, losses, n, z_network, TAU: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """NT-Xent of unit rows z[k] (n, WIDTH): log Σ_{j≠i} exp(z_i·z_j / τ) and loss of every row i."""
    network = tl.program_id(1).to(tl.int64)
    own = z + network * z_network
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    safe = tl.minimum(row, n - 1)
    zi = tl.load(own + safe[:, None] * WIDTH + column[None, :])
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, n, ROWS):
        other = start + tl.arange(0, ROWS)
        zj = tl.load(own + tl.minimum(other, n - 1)[:, None] * WIDTH + column[None, :])
        s = tl.dot(zi, tl.trans(zj), input_precision="ieee") / TAU
        s = tl.where((other[None, :] < n) & (other[None, :] != row[:, None]), s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(s - higher[:, None]), 1)
        top = higher
    result = top + tl.log(total)
    partner = tl.load(own + ((safe + n // 2) % n)[:, None] * WIDTH + column[None, :])
    positive = tl.sum(zi.to(tl.float32) * partner.to(tl.float32), 1) / TAU
    tl.store(sums + network * n + row, result, mask=row < n)
    tl.store(losses + network * n + row, result - positive, mask=row < n)


@triton.jit
def similarity_gradient_kernel(
    z,
    norm,
    sums,
    d,
    n,
    n_outputs,
    z_network,
    d_network,
    d_row,
    TAU: tl.constexpr,
    SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Gradient of SCALE × the mean NT-Xent loss by the rows before normalisation to length 1, into d[k]."""
    network = tl.program_id(1).to(tl.int64)
    own = z + network * z_network
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    safe = tl.minimum(row, n - 1)
    zi = tl.load(own + safe[:, None] * WIDTH + column[None, :])
    sum_i = tl.load(sums + network * n + safe)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, n, OTHERS):
        other = start + tl.arange(0, OTHERS)
        safe_other = tl.minimum(other, n - 1)
        zj = tl.load(own + safe_other[:, None] * WIDTH + column[None, :])
        sum_j = tl.load(sums + network * n + safe_other)
        s = tl.dot(zi, tl.trans(zj), input_precision="ieee") / TAU
        share = tl.exp(s - sum_i[:, None]) + tl.exp(s - sum_j[None, :])
        share = tl.where((other[None, :] < n) & (other[None, :] != row[:, None]), share, 0.0)
        # a share is about 1/n; times 256 it is within the range of float16
        total = tl.dot((share * 256.0).to(zj.dtype), zj, total, input_precision="ieee")
    partner = tl.load(own + ((safe + n // 2) % n)[:, None] * WIDTH + column[None, :])
    g = (total / 256.0 - 2.0 * partner.to(tl.float32)) / (TAU * n)
    unit = zi.to(tl.float32)
    g = (g - unit * tl.sum(unit * g, 1)[:, None]) / tl.load(norm + network * n + safe)[:, None]
    if SCALE != 1:
        g *= SCALE
    inside = (row[:, None] < n) & (column[None, :] < n_outputs)
    tl.store(d + network * d_network + row[:, None] * d_row + column[None, :], g.to(d.dtype.element_ty), inside)


@triton.jit
def cross_entropy_kernel(
    logits,
    labels,
    index,
    losses,
    d,
    n_rows,
    n_classes,
    n_images,
    d_row,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """Cross-entropy of logits[k] (n_rows, n_classes) float32 with labels[k][index[k]], and its gradient into d[k]."""
    network = tl.program_id(1).to(tl.int64)
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CLASSES)
    real = row < n_rows
    image = tl.load(index + network * n_rows + row, mask=real, other=0)
    label = tl.load(labels + network * n_images + image, mask=real, other=0)
    offset = network * n_rows * n_classes + row[:, None] * n_classes + column[None, :]
    inside = real[:, None] & (column[None, :] < n_classes)
    x = tl.load(logits + offset, mask=inside, other=-float("inf"))
    x = tl.where(real[:, None], x, 0.0)
    top = tl.max(x, 1)
    shares = tl.exp(x - top[:, None])
    total = tl.sum(shares, 1)
    hit = column[None, :] == label[:, None]
    loss = top + tl.log(total) - tl.sum(tl.where(hit, x, 0.0), 1)
    tl.store(losses + network * n_rows + row, loss, mask=real)
    g = (shares / total[:, None] - hit.to(tl.float32)) / n_rows
    offset = network * n_rows * d_row + row[:, None] * d_row + column[None, :]
    tl.store(d + offset, g.to(d.dtype.element_ty), mask=inside)


@triton.jit
def joint_cross_entropy_kernel(
    logits,
    labels,
    weights,
    allowed,
    remembered,
    known,
    index,
    losses,
    d,
    n_rows,
    n_delayed,
    n_classes,
    n_images,
    d_row,
    delayed,
    purified,
    distillation,
    DISTILS: tl.constexpr,
    NEVER: tl.constexpr,
    ROWS: tl.constexpr,
    CLASSES: tl.constexpr,
    IMAGES: tl.constexpr,
):
    """The losses of `steps.joint_loss` on logits, a summand per row, and their gradient into d[k].

    Logits (n_rows, n_classes) float32, labels and weights (n_images,), allowed (2, n_classes), index (n_rows / 2,): all
    of network k. Rows i and i + n_rows / 2 are views of the image index[k][i]; the first `n_delayed` images are of D.
    With DISTILS also remembered (n_images, n_classes) and known (n_classes,).
    """
    network = tl.program_id(1).to(tl.int64)
    n = n_rows // 2
    index += network * n
    labels += network * n_images
    weights += network * n_images
    at = tl.arange(0, IMAGES)
    of_delayed, of_purified = tl.zeros((IMAGES,), tl.float32), tl.zeros((IMAGES,), tl.float32)
    for start in range(0, n, IMAGES):
        left = n - start
        weight = tl.load(weights + tl.load(index + start + at, mask=at < left, other=0), mask=at < left, other=0.0)
        of_delayed += tl.where(start + at < n_delayed, weight, 0.0)
        of_purified += tl.where(start + at < n_delayed, 0.0, weight)
    # a weight counts twice, once per view
    delayed_share = delayed / tl.maximum(2 * tl.sum(of_delayed, 0), 1.0)
    purified_share = purified / tl.maximum(2 * tl.sum(of_purified, 0), 1.0)

    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CLASSES)
    real, inside = row < n_rows, (row[:, None] < n_rows) & (column[None, :] < n_classes)
    place = row % n
    group = (place >= n_delayed).to(tl.int32)  # 0: D, 1: P
    image = tl.load(index + place, mask=real, other=0)
    label = tl.load(labels + image, mask=real, other=0)
    share = tl.load(weights + image, mask=real, other=0.0) * tl.where(group == 0, delayed_share, purified_share)
    allowed_at = allowed + network * 2 * n_classes + group[:, None] * n_classes + column[None, :]
    takes_part = tl.load(allowed_at, mask=inside, other=0) != 0
    given = tl.load(logits + network * n_rows * n_classes + row[:, None] * n_classes + column[None, :], mask=inside)
    x = tl.where(takes_part, given, NEVER)
    x = tl.where(column[None, :] < n_classes, x, -float("inf"))
    top = tl.max(x, 1)
    shares = tl.exp(x - top[:, None])
    total = tl.sum(shares, 1)
    hit = column[None, :] == label[:, None]
    loss = (top + tl.log(total) - tl.sum(tl.where(hit, x, 0.0), 1)) * share
    g = tl.where(takes_part, shares / total[:, None] - hit.to(tl.float32), 0.0) * share[:, None]
    if DISTILS:
        known += network * n_classes
        is_known = tl.load(known + column, mask=column < n_classes, other=0) != 0
        concerns = (group == 1) & (tl.load(known + label, mask=real, other=0) != 0)
        wanted_at = remembered + network * n_images * n_classes + image[:, None] * n_classes + column[None, :]
        error = given - tl.load(wanted_at, mask=inside, other=0.0)
        error = tl.where(is_known[None, :] & concerns[:, None] & inside, error, 0.0)
        scale = distillation / (2 * (n - n_delayed) * tl.maximum(tl.sum(is_known.to(tl.float32), 0), 1.0))
        loss += scale * tl.sum(error * error, 1)
        g += 2 * scale * error
    tl.store(losses + network * n_rows + row, loss, mask=real)
    offset = network * n_rows * d_row + row[:, None] * d_row + column[None, :]
    tl.store(d + offset, g.to(d.dtype.element_ty), mask=inside)
