"""Contrastive steps of an MLP without autograd: views, layers, NT-Xent's gradient, backward pass, Adam.

All results are written to a preallocated workspace that stays in the cache. The functions use only what TorchScript
compiles, so that many steps are one call that releases Python's global lock to other threads. Compiled or not, results
have the same bits. Adam's lists are arguments: TorchScript would remove the call as dead code if they were made in
place.
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
    """One network and its images; weight (in, out) and bias (out,) of every layer."""

    parameters: list[list[Tensor]]
    means: list[list[Tensor]]  # Adam's moments
    squares: list[list[Tensor]]
    pool: Tensor  # (images, C, H, W)


class Crops(NamedTuple):
    """Rows of the pool and pixel positions of the views, for every step."""

    rows: Tensor  # (S, n), n the number of views
    heights: Tensor  # (S, n, H, 1)
    widths: Tensor  # (S, n, W, 1)


class Workspace(NamedTuple):
    """Buffers of one step, reused by every step of a thread; gradients (`d_`) share memory."""

    images: Tensor  # (n, C, H, W)
    views: Tensor
    halfway: Tensor  # (n, H, W)
    to_rows: Tensor  # (n, H, H)
    to_columns: Tensor  # (n, W, W)
    pixels: list[Tensor]  # indices of the image's rows (H,) and columns (W,)
    one: Tensor  # constant 1, for subtractions with an output argument
    x: list[Tensor]  # input of each layer (n, in), and the projections (n, d)
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


def make_workspace(n: int, image: Sequence[int], layers: Sequence[tuple[int, int]]) -> Workspace:
    """Allocate the buffers for n views of images (C, H, W) and layers of sizes (in, out)."""
    channels, height, width = image
    views = torch.empty(n, channels, height, width)
    spare = [torch.empty(n * max(n, *(out for _, out in layers))) for _ in range(2)]
    unused, d = spare[len(layers) % 2], layers[-1][1]  # the other one holds the gradient of the projections
    projections = torch.empty(
        max(n * d, *(into * out for into, out in layers))
    )  # later reused for the gradient of a weight
    d_bias = torch.empty(max(out for _, out in layers))
    return Workspace(
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
    workspace: Workspace,
    crops: Crops,
    mean: list[float],
    std: list[float],
    lrs: list[float],
    temperature: float,
    first: int,
    count: int,
    n_steps: int,
) -> None:
    """Take steps on crops of grey images: draws from row `first`, Adam's step count from `count`."""
    for i in range(n_steps):
        make_crops(network.pool, crops, workspace, first + i)
        step(network, workspace, mean, std, lrs[first + i], temperature, count + i)


def step(
    network: Weights,
    workspace: Workspace,
    mean: list[float],
    std: list[float],
    lr: float,
    temperature: float,
    count: int,
) -> None:
    """Take one step on `workspace.views` with Adam's step count `count`; `mean` and `std` normalise channels."""
    n_layers = len(network.parameters)
    normalise(workspace, mean, std)
    forward(network, workspace, n_layers)
    nt_xent_gradient(workspace, temperature)
    workspace.adam_step[0].fill_(count)  # one tensor for both
    for j in range(n_layers):
        i = n_layers - 1 - j
        backward_layer(network, workspace, i, lr)
        if i > 0:
            backward_relu(workspace, i)


def normalise(workspace: Workspace, mean: list[float], std: list[float]) -> None:
    """Normalise the channels of the views."""
    for channel in range(len(mean)):
        workspace.views.select(1, channel).sub_(mean[channel]).div_(std[channel])


def forward(network: Weights, workspace: Workspace, n: int) -> None:
    """Compute the outputs of the first n layers, with ReLU after each but the network's last one."""
    for i in range(n):
        weight, bias = network.parameters[i]
        y = workspace.x[i + 1]
        torch.mm(workspace.x[i], weight, out=y)
        y.add_(bias)
        if i + 1 < len(network.parameters):
            y.relu_()


def backward_layer(network: Weights, workspace: Workspace, i: int, lr: float) -> None:
    """Compute the gradient of layer i's input from that of its output, and train the layer."""
    x, d_y, gradients = workspace.x[i], workspace.d_y[i], workspace.gradients[i]
    torch.mm(x.t(), d_y, out=gradients[0])
    torch.sum(d_y, [0], out=gradients[1])
    if i > 0:
        torch.mm(d_y, network.parameters[i][0].t(), out=workspace.d_y[i - 1])
    adam(network.parameters[i], gradients, network.means[i], network.squares[i], workspace.adam_step, lr)


def backward_relu(workspace: Workspace, i: int) -> None:
    """Turn the gradient of layer i's input into that of the output of the layer before, without its ReLU."""
    d_x = workspace.d_y[i - 1]
    torch.ops.aten.threshold_backward(d_x, workspace.x[i], 0, grad_input=d_x)


def adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    lr: float,
) -> None:
    """Take a step of Adam; `steps` holds the step count for each parameter."""
    torch._fused_adam_(
        parameters,
        gradients,
        means,
        squares,
        [],
        steps,
        lr=lr,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def make_crops(pool: Tensor, crops: Crops, workspace: Workspace, i: int) -> None:
    """Make the views of step i; see `views`."""
    torch.index_select(pool, 0, crops.rows[i], out=workspace.images)
    _interpolate(crops.heights[i], workspace.pixels[0], workspace.one, workspace.to_rows)
    _interpolate(crops.widths[i], workspace.pixels[1], workspace.one, workspace.to_columns)
    torch.bmm(workspace.to_rows, workspace.images.select(1, 0), out=workspace.halfway)
    torch.bmm(workspace.halfway, workspace.to_columns.transpose(1, 2), out=workspace.views.select(1, 0))


def _interpolate(position: Tensor, pixel: Tensor, one: Tensor, out: Tensor) -> None:
    """Bilinear weights: max(0, 1 - |position - pixel|)."""
    torch.sub(position, pixel, out=out)
    torch.sub(one, out.abs_(), out=out)
    out.relu_()


def nt_xent_gradient(workspace: Workspace, temperature: float) -> None:
    """Gradient of NT-Xent with respect to the projections; see `losses`."""
    z, d, length = workspace.x[-1], workspace.d_y[-1], workspace.length
    powers, weights, sums, share = workspace.powers, workspace.weights, workspace.sums, workspace.share
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
    torch.mul(z, d, out=workspace.product)
    torch.sum(workspace.product, [1], True, out=workspace.inner)
    d.addcmul_(z, workspace.inner, value=-1)
    length.mul_(n * temperature)
    d.div_(length)


def last_loss(workspace: Workspace) -> Tensor:
    """Loss of the last step."""
    positive = workspace.powers.diagonal(workspace.powers.shape[0] // 2)  # of view i and view i + B
    return workspace.sums.log().mean() - positive.log().mean()


@cache
def compiled(function: Function) -> Function:
    """Compile the function by TorchScript, or return it unchanged if TorchScript is unavailable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that TorchScript is deprecated
            script: Function = torch.jit.script(function)
        return script
    except Exception as error:
        log.warning("training steps could not be compiled, running them uncompiled: %s", str(error)[:300])
        return function
