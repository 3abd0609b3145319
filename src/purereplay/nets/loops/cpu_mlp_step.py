"""A perceptron's contrastive steps written out: views, layers, NT-Xent's gradient, back through the layers, Adam.

They need neither autograd nor new memory: everything goes into places that are there and stay near the core. The
functions are in the part of Python that TorchScript compiles, so that many steps are one call without Python's lock
and other threads take theirs meanwhile. Compiled or not, the answers are the same to the last bit. (TorchScript leaves
out Adam as useless if its lists are made on the spot: they come from outside.)
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

log = logging.getLogger(__name__)
Function = TypeVar("Function", bound=Callable[..., None])


class Weights(NamedTuple):
    """One network with its images; of every layer the weight (in, out) and the bias (out,)."""

    parameters: list[list[Tensor]]
    means: list[list[Tensor]]  # Adam's moments
    squares: list[list[Tensor]]
    pool: Tensor  # (images, C, H, W)


class Crops(NamedTuple):
    """Of every step the rows of the pool, and where each view's pixels lie in its image."""

    rows: Tensor  # (S, n), n the number of views
    heights: Tensor  # (S, n, H, 1)
    widths: Tensor  # (S, n, W, 1)


class Places(NamedTuple):
    """What a step of a network writes to, and the next network's step again; gradients (`d_`) share theirs."""

    images: Tensor  # (n, C, H, W)
    views: Tensor
    halfway: Tensor  # (n, H, W)
    to_rows: Tensor  # (n, H, H)
    to_columns: Tensor  # (n, W, W)
    pixels: list[Tensor]  # numbers of the image's rows (H,) and of its columns (W,)
    one: Tensor  # from which others are subtracted, into a place
    x: list[Tensor]  # what goes into each layer (n, in), and at last the projections (n, d)
    d_y: list[Tensor]  # (n, out)
    gradients: list[list[Tensor]]  # of weight and bias
    adam_step: list[Tensor]  # for weight and bias
    product: Tensor  # (n, d)
    length: Tensor  # (n, 1)
    inner: Tensor
    powers: Tensor  # (n, n)
    weights: Tensor
    sums: Tensor  # (n,)
    share: Tensor


def make_places(n: int, image: Sequence[int], layers: Sequence[tuple[int, int]]) -> Places:
    """For n views of images (C, H, W) and layers with so many numbers in and out."""
    channels, height, width = image
    views = torch.empty(n, channels, height, width)
    spare = [torch.empty(n * max(n, *(out for _, out in layers))) for _ in range(2)]
    unused, d = spare[len(layers) % 2], layers[-1][1]  # while the projections' gradient is in the other
    projections = torch.empty(max(n * d, *(into * out for into, out in layers)))  # and later a weight's gradient
    d_bias = torch.empty(max(out for _, out in layers))
    return Places(
        images=torch.empty_like(views),
        views=views,
        halfway=torch.empty(n, height, width),
        to_rows=torch.empty(n, height, height),
        to_columns=torch.empty(n, width, width),
        pixels=[torch.arange(size, dtype=torch.float32) for size in (height, width)],
        one=torch.ones(()),
        x=[views.view(n, -1), *(torch.empty(n, out) for _, out in layers[:-1]), projections[: n * d].view(n, d)],
        d_y=[spare[i % 2][: n * out].view(n, out) for i, (_, out) in enumerate(layers)],
        gradients=[[projections[: into * out].view(into, out), d_bias[:out]] for into, out in layers],
        adam_step=[torch.zeros(())] * 2,
        product=unused[: n * d].view(n, d),
        length=torch.empty(n, 1),
        inner=torch.empty(n, 1),
        powers=torch.empty(n, n),
        weights=unused[: n * n].view(n, n),
        sums=torch.empty(n),
        share=torch.empty(n),
    )


def cropped_steps(
    network: Weights,
    places: Places,
    crops: Crops,
    mean: list[float],
    std: list[float],
    lrs: list[float],
    temperature: float,
    first: int,
    count: int,
    n_steps: int,
) -> None:
    """Steps on crops of grey images: the `first` and the following of those drawn, the `count`-th of Adam's."""
    for i in range(n_steps):
        _crop(network.pool, crops, places, first + i)
        step(network, places, mean, std, lrs[first + i], temperature, count + i)


def step(
    network: Weights,
    places: Places,
    mean: list[float],
    std: list[float],
    lr: float,
    temperature: float,
    count: int,
) -> None:
    """One step on the views at hand, the `count`-th of Adam's; their channels are normalised first, if at all."""
    for channel in range(len(mean)):
        places.views.select(1, channel).sub_(mean[channel]).div_(std[channel])
    n_layers = len(network.parameters)
    for i in range(n_layers):
        weight, bias = network.parameters[i]
        y = places.x[i + 1]
        torch.mm(places.x[i], weight, out=y)
        y.add_(bias)
        if i + 1 < n_layers:
            y.relu_()
    _pull(places, temperature)
    places.adam_step[0].fill_(count)  # one number for both
    for j in range(n_layers):
        i = n_layers - 1 - j
        x, d_y, gradients = places.x[i], places.d_y[i], places.gradients[i]
        torch.mm(x.t(), d_y, out=gradients[0])
        torch.sum(d_y, [0], out=gradients[1])
        if i > 0:
            d_x = places.d_y[i - 1]
            torch.mm(d_y, network.parameters[i][0].t(), out=d_x)
            torch.ops.aten.threshold_backward(d_x, x, 0, grad_input=d_x)
        torch._fused_adam_(
            network.parameters[i],
            gradients,
            network.means[i],
            network.squares[i],
            [],
            places.adam_step,
            lr=lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


def _crop(pool: Tensor, crops: Crops, places: Places, i: int) -> None:
    """The views of step i; see `views`."""
    torch.index_select(pool, 0, crops.rows[i], out=places.images)
    _interpolate(crops.heights[i], places.pixels[0], places.one, places.to_rows)
    _interpolate(crops.widths[i], places.pixels[1], places.one, places.to_columns)
    torch.bmm(places.to_rows, places.images.select(1, 0), out=places.halfway)
    torch.bmm(places.halfway, places.to_columns.transpose(1, 2), out=places.views.select(1, 0))


def _interpolate(position: Tensor, pixel: Tensor, one: Tensor, out: Tensor) -> None:
    torch.sub(position, pixel, out=out)
    torch.sub(one, out.abs_(), out=out)
    out.relu_()


def _pull(places: Places, temperature: float) -> None:
    """The gradient of NT-Xent with respect to the projections; see `losses`."""
    z, d, length = places.x[-1], places.d_y[-1], places.length
    powers, weights, sums, share = places.powers, places.weights, places.sums, places.share
    n = z.shape[0]
    torch.linalg.vector_norm(z, 2.0, [1], True, out=length)
    length.clamp_(min=1e-12)
    z.div_(length)
    torch.addmm(powers, z, z.t(), beta=0, alpha=1 / temperature, out=powers)
    powers.exp_()
    powers.diagonal().zero_()
    torch.sum(powers, [1], out=sums)
    torch.reciprocal(sums, out=share)
    torch.add(share[:, None], share, out=weights)
    weights.mul_(powers)  # p_ij + p_ji
    weights.diagonal(n // 2).sub_(2)
    weights.diagonal(-(n // 2)).sub_(2)
    torch.mm(weights, z, out=d)
    torch.mul(z, d, out=places.product)
    torch.sum(places.product, [1], True, out=places.inner)
    d.addcmul_(z, places.inner, value=-1)
    length.mul_(n * temperature)
    d.div_(length)


def last_loss(places: Places) -> Tensor:
    """The loss of the step that was taken last."""
    positive = places.powers.diagonal(places.powers.shape[0] // 2)  # of view i and view i + B
    return places.sums.log().mean() - positive.log().mean()


@cache
def compiled(function: Function) -> Function:
    """The function as TorchScript, or as it is where that is not to be had."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is no longer developed
            script: Function = torch.jit.script(function)
        return script
    except Exception as error:
        log.warning("training steps could not be compiled, they run as they are: %s", str(error)[:300])
        return function
