"""Triton kernels that draw random numbers and make views from them: crops, flips and colour jitter.

They compute `draws.uniforms` and `views.make_views` for K networks and many steps at once.
"""

# Triton compiles the kernels: apart from constexpr, annotations have no meaning in them.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def mix(z):
    """The mixing function of SplitMix64; see `draws`."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def uniform(start, position):
    """The number of `draws.uniforms` at one position of the sequence that starts at `start`."""
    bits = mix(start + (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15) >> 40
    return bits.to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def draws_kernel(
    keys,
    steps,
    boxes,
    colours,
    n_networks,
    n_views,
    area_low,
    area_high,
    ratio_low,
    ratio_high,
    flip,
    jitter0,
    jitter1,
    jitter2,
    jitter3,
    jitter_probability,
    STREAM: tl.constexpr,
    TRIES: tl.constexpr,
    N_NUMBERS: tl.constexpr,
    JITTER: tl.constexpr,
    VIEWS: tl.constexpr,
):
    """Draw uniforms for keys (K,) at steps (S,) and compute `views.boxes` and `views.colours` from them.

    Writes boxes (S, K, n_views, 4) and colours (S, K, n_views, 5).
    """
    step = tl.load(steps + tl.program_id(1) // n_networks).to(tl.uint64)
    key = tl.load(keys + tl.program_id(1) % n_networks).to(tl.uint64)
    start = mix(key ^ mix(step * 0x9E3779B97F4A7C15 + (STREAM + 1)))
    view = tl.program_id(0) * VIEWS + tl.arange(0, VIEWS)
    first = view * N_NUMBERS
    w = tl.zeros((VIEWS,), tl.float32)
    h = tl.zeros((VIEWS,), tl.float32)
    fits = tl.zeros((VIEWS,), tl.int1)
    for i in tl.static_range(TRIES):  # the first box that fits; if none does, the last one
        area = area_low + (area_high - area_low) * uniform(start, first + i)
        ratio = tl.exp(ratio_low + (ratio_high - ratio_low) * uniform(start, first + TRIES + i))
        wide, high = tl.sqrt(area * ratio), tl.sqrt(area / ratio)
        w, h = tl.where(fits, w, wide), tl.where(fits, h, high)
        fits = fits | ((wide <= 1) & (high <= 1))
    w, h = tl.minimum(w, 1.0), tl.minimum(h, 1.0)
    left = uniform(start, first + 2 * TRIES) * (1 - w)
    top = uniform(start, first + 2 * TRIES + 1) * (1 - h)
    flipped = uniform(start, first + 2 * TRIES + 2) < flip
    offset, real = tl.program_id(1).to(tl.int64) * n_views + view, view < n_views
    tl.store(boxes + offset * 4, tl.where(flipped, left + w, left), mask=real)
    tl.store(boxes + offset * 4 + 1, tl.where(flipped, -w, w), mask=real)
    tl.store(boxes + offset * 4 + 2, top, mask=real)
    tl.store(boxes + offset * 4 + 3, h, mask=real)
    if JITTER:
        last = first + 2 * TRIES + 3
        tl.store(colours + offset * 5, 1 + jitter0 * (2 * uniform(start, last) - 1), mask=real)
        tl.store(colours + offset * 5 + 1, 1 + jitter1 * (2 * uniform(start, last + 1) - 1), mask=real)
        tl.store(colours + offset * 5 + 2, 1 + jitter2 * (2 * uniform(start, last + 2) - 1), mask=real)
        tl.store(colours + offset * 5 + 3, jitter3 * (2 * uniform(start, last + 3) - 1), mask=real)
        apply = uniform(start, last + 4) < jitter_probability
        tl.store(colours + offset * 5 + 4, apply.to(tl.float32), mask=real)


@triton.jit
def grey(r, g, b):
    return 0.299 * r + 0.587 * g + 0.114 * b


@triton.jit
def clamp01(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def read_pixels(image, y0, y1, x0, x1, wy, wx, inside, WIDTH: tl.constexpr):
    """Bilinear samples of one channel of a uint8 image, in [0, 1]."""
    a = tl.load(image + y0 * WIDTH + x0, mask=inside, other=0).to(tl.float32)
    b = tl.load(image + y0 * WIDTH + x1, mask=inside, other=0).to(tl.float32)
    c = tl.load(image + y1 * WIDTH + x0, mask=inside, other=0).to(tl.float32)
    d = tl.load(image + y1 * WIDTH + x1, mask=inside, other=0).to(tl.float32)
    top, bottom = a + (b - a) * wx, c + (d - c) * wx
    return (top + (bottom - top) * wy) / 255.0


@triton.jit
def hue_channel(value, chroma, hue, OFFSET: tl.constexpr):
    """One channel of an HSV colour; see `views`."""
    k = hue + OFFSET
    k = k - 6.0 * tl.floor(k / 6.0)
    return value - chroma * clamp01(tl.minimum(k, 4.0 - k))


@triton.jit
def views_kernel(
    pool,
    index,
    boxes,
    colours,
    out,
    n_networks,
    n_views,
    pool_network,
    out_view,
    out_channel,
    out_pixel,
    mean0,
    mean1,
    mean2,
    std0,
    std1,
    std2,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PIXELS: tl.constexpr,
    JITTER: tl.constexpr,
    ADDITIVE: tl.constexpr,
):
    """Crop, flip, jitter and normalise one view per program: `views.make_views` on uint8 images.

    pool (K, n, C, H, W); index (S, K, n_views): rows of the pool; boxes (S, K, n_views, 4): start and extent in x
    and in y; colours (S, K, n_views, 5): factors, hue rotation, whether to jitter. out (S, K, n_views, …).
    """
    view = tl.program_id(0).to(tl.int64)
    network = (view // n_views) % n_networks
    image = pool + network * pool_network + tl.load(index + view) * (CHANNELS * HEIGHT * WIDTH)
    pixel = tl.arange(0, PIXELS)
    inside = pixel < HEIGHT * WIDTH
    x, y = (pixel % WIDTH).to(tl.float32), (pixel // WIDTH).to(tl.float32)
    x = (tl.load(boxes + view * 4) + tl.load(boxes + view * 4 + 1) * (x + 0.5) / WIDTH) * WIDTH - 0.5
    y = (tl.load(boxes + view * 4 + 2) + tl.load(boxes + view * 4 + 3) * (y + 0.5) / HEIGHT) * HEIGHT - 0.5
    x, y = tl.minimum(tl.maximum(x, 0.0), WIDTH - 1.0), tl.minimum(tl.maximum(y, 0.0), HEIGHT - 1.0)
    x0, y0 = x.to(tl.int32), y.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, WIDTH - 1), tl.minimum(y0 + 1, HEIGHT - 1)
    wx, wy = x - x0.to(tl.float32), y - y0.to(tl.float32)
    offset = out + view * out_view + pixel * out_pixel
    r = read_pixels(image, y0, y1, x0, x1, wy, wx, inside, WIDTH)
    if CHANNELS == 1:
        tl.store(offset, ((r - mean0) / std0).to(out.dtype.element_ty), mask=inside)
    else:
        g = read_pixels(image + HEIGHT * WIDTH, y0, y1, x0, x1, wy, wx, inside, WIDTH)
        b = read_pixels(image + 2 * HEIGHT * WIDTH, y0, y1, x0, x1, wy, wx, inside, WIDTH)
        if JITTER:
            brightness, contrast = tl.load(colours + view * 5), tl.load(colours + view * 5 + 1)
            saturation, turn = tl.load(colours + view * 5 + 2), tl.load(colours + view * 5 + 3)
            if tl.load(colours + view * 5 + 4) > 0:
                if ADDITIVE:
                    r, g, b = clamp01(r + brightness - 1), clamp01(g + brightness - 1), clamp01(b + brightness - 1)
                    r, g, b = clamp01(r * contrast), clamp01(g * contrast), clamp01(b * contrast)
                else:
                    r, g, b = clamp01(r * brightness), clamp01(g * brightness), clamp01(b * brightness)
                    middle = tl.sum(tl.where(inside, grey(r, g, b), 0.0), 0) / (HEIGHT * WIDTH) * (1 - contrast)
                    r, g, b = (
                        clamp01(contrast * r + middle),
                        clamp01(contrast * g + middle),
                        clamp01(contrast * b + middle),
                    )
                    own = grey(r, g, b) * (1 - saturation)
                    r, g, b = (
                        clamp01(saturation * r + own),
                        clamp01(saturation * g + own),
                        clamp01(saturation * b + own),
                    )
                value = tl.maximum(r, tl.maximum(g, b))
                chroma = value - tl.minimum(r, tl.minimum(g, b))
                safe = tl.maximum(chroma, 1e-6)
                hue = tl.where(value == g, (b - r) / safe + 2.0, (r - g) / safe + 4.0)
                hue = tl.where(value == r, (g - b) / safe, hue) + 6.0 * turn
                if ADDITIVE:
                    chroma = tl.minimum(chroma * saturation, value)
                r = hue_channel(value, chroma, hue, 5.0)
                g = hue_channel(value, chroma, hue, 3.0)
                b = hue_channel(value, chroma, hue, 1.0)
        tl.store(offset, ((r - mean0) / std0).to(out.dtype.element_ty), mask=inside)
        tl.store(offset + out_channel, ((g - mean1) / std1).to(out.dtype.element_ty), mask=inside)
        tl.store(offset + 2 * out_channel, ((b - mean2) / std2).to(out.dtype.element_ty), mask=inside)
