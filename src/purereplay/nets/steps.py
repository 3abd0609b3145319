"""One training step of K networks, as operations on whole batches: draw, view, forward, loss.

Everything random comes from `draws`, keyed by network and step, so a step is a pure function of its inputs and can
be captured once and replayed.
"""

import math

import torch
from torch import Tensor

from purereplay.nets.draws import permutations, uniforms
from purereplay.nets.jobs import Contrastive, Recipe, Supervised
from purereplay.nets.losses import cross_entropy, nt_xent
from purereplay.nets.networks import Network, State
from purereplay.nets.views import make_views

_ORDER, _REPLAY, _VIEWS = 0, 1, 2  # the streams of draws


def learning_rate(recipe: Recipe, step: Tensor, steps_per_epoch: int, start: Tensor) -> Tensor:
    """The rate at `step` (), a pure function of the step; `start` () is the number of schedule epochs gone before."""
    full = torch.full_like(step, recipe.learning_rate, dtype=torch.float32)
    if isinstance(recipe, Supervised):
        return full * recipe.decay ** (step // recipe.decay_every) if recipe.decay_every else full
    if recipe.schedule == "constant":
        return full
    # past its end the cosine rises again: that is the never-restarted schedule of the released code
    epoch = start + (step // steps_per_epoch - recipe.warm_epochs).clamp(min=0)
    return full * (1 + torch.cos(math.pi * epoch / recipe.epochs)) / 2


def batch_index(keys: Tensor, step: Tensor, n: int, size: int) -> Tensor | None:
    """Rows (K, size) of this step, from a fresh permutation each epoch; None when a batch is everything."""
    if size >= n:
        return None
    per_epoch = n // size
    order = permutations(keys, step // per_epoch, n, stream=_ORDER)
    within = step % per_epoch * size + torch.arange(size, device=keys.device)
    return order[:, within]


def replay_index(keys: Tensor, step: Tensor, n: int, size: int, distinct: bool) -> Tensor:
    """Rows (K, size) of the purified part, with replacement or distinct."""
    if distinct:
        return permutations(keys, step, n, stream=_REPLAY)[:, : min(size, n)]
    return (uniforms(keys, step, size, stream=_REPLAY) * n).long()


def rows(pool: Tensor, index: Tensor | None) -> Tensor:
    """pool (K, n, ...) and index (K, size) -> (K, size, ...)."""
    if index is None:
        return pool
    offset = torch.arange(pool.shape[0], device=pool.device)[:, None] * pool.shape[1]
    return pool.flatten(0, 1).index_select(0, (index + offset).flatten()).view(*index.shape, *pool.shape[2:])


def contrastive_loss(
    network: Network,
    state: State,
    recipe: Contrastive,
    images: Tensor,
    replay: Tensor | None,
    keys: Tensor,
    step: Tensor,
) -> Tensor:
    """Loss per network (K,) on two views of a batch from images (K, n, C, H, W) and replay (K, m, C, H, W)."""
    batch = rows(images, batch_index(keys, step, images.shape[1], recipe.batch_size))
    if replay is not None:
        index = replay_index(keys, step, replay.shape[1], recipe.replay_size, recipe.replay_distinct)
        batch = torch.cat([batch, rows(replay, index)], dim=1)
    k, b = batch.shape[:2]
    n_numbers = recipe.views.n_numbers
    numbers = uniforms(keys, step, 2 * b * n_numbers, stream=_VIEWS).view(k * 2 * b, n_numbers)
    twice = torch.cat([batch, batch], dim=1).flatten(0, 1)  # rows i and i + b are one image
    views = make_views(twice, numbers, recipe.views).view(k, 2 * b, *batch.shape[2:])
    return nt_xent(network.outputs(state, views, training=True), recipe.temperature)


def supervised_loss(
    network: Network, state: State, recipe: Supervised, images: Tensor, labels: Tensor, keys: Tensor, step: Tensor
) -> Tensor:
    """Loss per network (K,) on a batch from images (K, n, C, H, W) with labels (K, n)."""
    index = batch_index(keys, step, images.shape[1], recipe.batch_size)
    logits = network.outputs(state, rows(images, index), training=True)
    return cross_entropy(logits, rows(labels, index))
