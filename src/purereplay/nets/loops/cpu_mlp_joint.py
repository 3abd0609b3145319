"""Joint steps of an MLP without autograd: the contrastive step of `cpu_mlp_step`, with labels and a moving average.

The layer for classes reads the same features as the projection head. Its gradient is added to theirs. See
`steps.joint_loss` for the loss. As there, the functions use only what TorchScript compiles.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.nets.loops.cpu_mlp_step import (
    Crops,
    Weights,
    Workspace,
    adam,
    backward_layer,
    backward_relu,
    forward,
    last_loss,
    make_crops,
    normalise,
    nt_xent_gradient,
)


class Shares(NamedTuple):
    """Numbers of the recipe, the same for all networks."""

    n_backbone: int  # layers below the features
    n_delayed: int  # images of D in a step; those of P follow
    contrastive: float  # weights of the losses
    delayed: float
    purified: float
    distillation: float
    decay: float  # of the moving average
    never: float  # logit of a class that takes no part; TorchScript reads no constant of a module


class Taught(NamedTuple):
    """The layer for classes of one network, its labels, and its moving average."""

    shares: Shares
    parameters: list[Tensor]  # weight (in, classes) and bias (classes,)
    gradients: list[Tensor]
    means: list[Tensor]  # Adam's moments
    squares: list[Tensor]
    present: list[Tensor]  # every tensor of the network
    average: list[Tensor]
    labels: Tensor  # int64 (images,), of the pool
    weights: Tensor  # float32 (images,)
    allowed: Tensor  # bool (2, classes): of D, of P
    remembered: Tensor  # float32 (images, classes): logits that distillation keeps
    known: Tensor  # bool (classes,)
    loss: Tensor  # (): of the last step, without NT-Xent


def cropped_joint_steps(
    network: Weights,
    taught: Taught,
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
        at = first + i
        make_crops(network.pool, crops, workspace, at)
        joint_step(network, taught, workspace, crops.rows[at], mean, std, lrs[at], temperature, count + i)


def joint_step(
    network: Weights,
    taught: Taught,
    workspace: Workspace,
    rows: Tensor,
    mean: list[float],
    std: list[float],
    lr: float,
    temperature: float,
    count: int,
) -> None:
    """Take one step on `workspace.views`, which are those of `rows` (n,) of the pool; see `cpu_mlp_step.step`."""
    n_layers, shares = len(network.parameters), taught.shares
    normalise(workspace, mean, std)
    forward(network, workspace, n_layers if shares.contrastive > 0 else shares.n_backbone)
    features, d_features = workspace.x[shares.n_backbone], workspace.d_y[shares.n_backbone - 1]
    weight, bias = taught.parameters
    logits = torch.mm(features, weight).add_(bias)  # not addmm, which TorchScript splits, with another rounding
    d_logits = _label_gradient(logits, taught, rows)
    workspace.adam_step[0].fill_(count)
    if shares.contrastive > 0:
        nt_xent_gradient(workspace, temperature)
        workspace.d_y[-1].mul_(shares.contrastive)
        for j in range(n_layers - shares.n_backbone):
            i = n_layers - 1 - j
            backward_layer(network, workspace, i, lr)
            if i > shares.n_backbone:
                backward_relu(workspace, i)
        d_features.addmm_(d_logits, weight.t())
    else:
        torch.mm(d_logits, weight.t(), out=d_features)
    torch.mm(features.t(), d_logits, out=taught.gradients[0])
    torch.sum(d_logits, [0], out=taught.gradients[1])
    adam(taught.parameters, taught.gradients, taught.means, taught.squares, workspace.adam_step, lr)
    for j in range(shares.n_backbone):
        i = shares.n_backbone - j
        backward_relu(workspace, i)
        backward_layer(network, workspace, i - 1, lr)
    for average, present in zip(taught.average, taught.present):  # noqa: B905  # TorchScript knows no `strict`
        average.lerp_(present, 1 - shares.decay)


def _label_gradient(logits: Tensor, taught: Taught, rows: Tensor) -> Tensor:
    """Gradient of the losses on labels with respect to the logits (n, classes), and the losses themselves."""
    n, n_classes = logits.shape
    batch, shares = n // 2, taught.shares
    n_purified = batch - shares.n_delayed
    labels, weights = taught.labels.index_select(0, rows), taught.weights.index_select(0, rows).view(2, batch)
    factors = torch.empty(2, batch)
    barred = torch.empty(2, batch, n_classes, dtype=torch.bool)
    for part in range(2):
        start = 0 if part == 0 else shares.n_delayed
        length = shares.n_delayed if part == 0 else n_purified
        own = weights.narrow(1, start, length)
        share = shares.delayed if part == 0 else shares.purified
        factors.narrow(1, start, length).copy_(own / own.sum().clamp(min=1) * share)
        barred.narrow(1, start, length).copy_(taught.allowed[part].logical_not())
    chances = logits.masked_fill(barred.view(n, n_classes), shares.never).log_softmax(1)
    picked, factor = labels[:, None], factors.view(n, 1)
    taught.loss.copy_(-(chances.gather(1, picked) * factor).sum())
    gradient = chances.exp().scatter_add(1, picked, torch.full((n, 1), -1.0)).mul_(factor)
    gradient.masked_fill_(barred.view(n, n_classes), 0.0)
    if shares.distillation > 0 and n_purified > 0:
        own_rows = rows.view(2, batch).narrow(1, shares.n_delayed, n_purified).reshape(-1)
        takes_part = taught.known.index_select(0, taught.labels.index_select(0, own_rows))[:, None] & taught.known
        own_logits = logits.view(2, batch, n_classes).narrow(1, shares.n_delayed, n_purified).reshape(-1, n_classes)
        errors = (own_logits - taught.remembered.index_select(0, own_rows)) * takes_part
        scale = shares.distillation / (2 * n_purified * taught.known.sum().clamp(min=1))
        taught.loss.add_(errors.square().sum() * scale)
        added = (2 * errors * scale).view(2, n_purified, n_classes)
        gradient.view(2, batch, n_classes).narrow(1, shares.n_delayed, n_purified).add_(added)
    return gradient


def last_joint_loss(workspace: Workspace, taught: Taught) -> Tensor:
    """Loss of the last step."""
    contrastive = taught.shares.contrastive
    return taught.loss + contrastive * last_loss(workspace) if contrastive else taught.loss
