"""One training step of K networks, as operations on whole batches: draw, view, forward, loss.

Everything random comes from `draws`, keyed by network and step, so many steps' draws are made in one go and a step is
a pure function of its inputs that can be captured once and replayed.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from purereplay.nets.draws import RandomStream, permutations, uniforms
from purereplay.nets.jobs import Contrastive, Drawn, Supervised
from purereplay.nets.losses import cross_entropy, nt_xent
from purereplay.nets.networks import Network, State
from purereplay.nets.views import make_views

_AS_IT_IS = nullcontext()


def lr_at(recipe: Drawn, step: Tensor, steps_per_epoch: int, start: Tensor) -> Tensor:
    """The rate at `step`, a pure function of it; `start` is the number of schedule epochs gone before (broadcast)."""
    full = torch.full_like(step + start, recipe.lr, dtype=torch.float32)
    if isinstance(recipe, Supervised):
        return full * recipe.decay ** (step // recipe.decay_every) if recipe.decay_every else full
    if recipe.schedule == "constant":
        return full
    # past its end the cosine rises again: that is the never-restarted schedule of the released code
    epoch = start + (step // steps_per_epoch - recipe.warm_epochs).clamp(min=0)
    return full * (1 + torch.cos(math.pi * epoch / recipe.epochs)) / 2


def draw_rows(recipe: Drawn, n: int, n_replay: int, keys: Tensor, steps: Tensor) -> Tensor:
    """Rows of the pool (S, K, B), D first and then P, for `steps` (S,) of networks with these keys (K,).

    `n` images of D (or, with labels, of P) and `n_replay` of P. Many steps' draws are made at once: they depend on
    nothing that is trained.
    """
    index = batch_index(keys, steps, n, recipe.batch_size)
    if isinstance(recipe, Supervised) or not n_replay:
        return index
    replay = replay_index(keys, steps, n_replay, recipe.replay_size, recipe.replay_distinct)
    return torch.cat([index, n + replay], dim=-1)


def draw_numbers(recipe: Contrastive, n_rows: int, keys: Tensor, steps: Tensor) -> Tensor:
    """Uniform numbers (S, K, 2B, n_numbers), from which two views of each of B rows are made."""
    n_numbers = recipe.views.n_numbers
    numbers = uniforms(keys, steps, 2 * n_rows * n_numbers, stream=RandomStream.VIEWS)
    return numbers.view(*numbers.shape[:2], -1, n_numbers)


def batch_index(keys: Tensor, steps: Tensor, n: int, size: int) -> Tensor:
    """Rows (S, K, size) of each step, from a fresh permutation each epoch; in order when a batch is everything."""
    if size >= n:
        return torch.arange(n, device=keys.device).expand(steps.shape[0], keys.shape[0], n)
    per_epoch = n // size
    order = permutations(keys, steps // per_epoch, n, stream=RandomStream.ORDER)
    within = (steps % per_epoch * size)[:, None] + torch.arange(size, device=keys.device)  # (S, size)
    return order.gather(2, within[:, None].expand(-1, keys.shape[0], -1))


def replay_index(keys: Tensor, steps: Tensor, n: int, size: int, distinct: bool) -> Tensor:
    """Rows (S, K, size) of the purified part, with replacement or distinct."""
    if distinct:
        return permutations(keys, steps, n, stream=RandomStream.REPLAY)[..., : min(size, n)]
    return (uniforms(keys, steps, size, stream=RandomStream.REPLAY) * n).long()


def rows(pool: Tensor, index: Tensor) -> Tensor:
    """pool (K, n, ...) and index (K, size) -> (K, size, ...)."""
    offset = torch.arange(pool.shape[0], device=pool.device)[:, None] * pool.shape[1]
    return pool.flatten(0, 1).index_select(0, (index + offset).flatten()).view(*index.shape, *pool.shape[2:])


def contrastive_loss(
    network: Network,
    state: State,
    recipe: Contrastive,
    pool: Tensor,
    index: Tensor,
    numbers: Tensor,
    lowered: AbstractContextManager[object] = _AS_IT_IS,
) -> Tensor:
    """Loss per network (K,) on two views of the rows index (K, B) of pool (K, n, C, H, W), in [0, 1].

    `lowered` is the context of the networks' products: lower precision, if any. The loss itself is float32.
    """
    twice = rows(pool, torch.cat([index, index], dim=1))  # rows i and i + B are one image
    views = make_views(twice.flatten(0, 1), numbers.flatten(0, 1), recipe.views).view(twice.shape)
    with lowered:
        projections = network.outputs(state, views, training=True)
    return nt_xent(projections.float(), recipe.temperature)


def supervised_loss(
    network: Network,
    state: State,
    pool: Tensor,
    labels: Tensor,
    index: Tensor,
    lowered: AbstractContextManager[object] = _AS_IT_IS,
) -> Tensor:
    """Loss per network (K,) on the rows index (K, B) of pool (K, n, C, H, W), in [0, 1], with labels (K, n)."""
    with lowered:
        logits = network.outputs(state, rows(pool, index), training=True)
    return cross_entropy(logits.float(), rows(labels, index))
