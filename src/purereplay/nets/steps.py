"""The parts of one training step of K networks: learning rate, drawn batch, views, forward pass, loss.

All random numbers come from `draws`, by network and step. So the draws of many steps are made at once, and a step is a
pure function of its inputs that can be captured as a CUDA graph.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from purereplay.nets.draws import RandomStream, permutations, uniforms
from purereplay.nets.jobs import Contrastive, Drawn, Joint, Supervised
from purereplay.nets.losses import cross_entropy, logit_error, nt_xent, weighted_cross_entropy
from purereplay.nets.networks import Network, State
from purereplay.nets.views import make_views

_FULL_PRECISION = nullcontext()


def lr_at(recipe: Drawn, step: Tensor, steps_per_epoch: int, start: Tensor) -> Tensor:
    """Learning rate at `step`; `start` is the number of schedule epochs before step 0 (broadcast)."""
    full = torch.full_like(step + start, recipe.lr, dtype=torch.float32)
    if isinstance(recipe, Supervised):
        return full * recipe.decay ** (step // recipe.decay_every) if recipe.decay_every else full
    if recipe.schedule == "constant":
        return full
    # past its end the cosine rises again: the released code never restarts its schedule
    epoch = start + (step // steps_per_epoch - recipe.warm_epochs).clamp(min=0)
    return full * (1 + torch.cos(math.pi * epoch / recipe.epochs)) / 2


def draw_rows(recipe: Drawn, n: int, n_replay: int, n_held: Tensor, keys: Tensor, steps: Tensor) -> Tensor:
    """Rows of the pool (S, K, B), first of D and then of P, for steps (S,) and keys (K,).

    The pool holds `n` images of D (of P when finetuning), then `n_replay` places of P, of which the first `n_held` (K,)
    are drawn.
    """
    index = batch_index(keys, steps, n, recipe.batch_size)
    if isinstance(recipe, Supervised) or not n_replay:
        return index
    if recipe.replay_distinct:
        replay = distinct_index(keys, steps, n_replay, recipe.replay_size)
    else:
        replay = replay_index(keys, steps, n_held, recipe.replay_size)
    return torch.cat([index, n + replay], dim=-1)


def draw_numbers(recipe: Contrastive, n_rows: int, keys: Tensor, steps: Tensor) -> Tensor:
    """Uniform numbers (S, K, 2B, n_numbers) for two views of each of B rows."""
    n_numbers = recipe.views.n_numbers
    numbers = uniforms(keys, steps, 2 * n_rows * n_numbers, stream=RandomStream.VIEWS)
    return numbers.view(*numbers.shape[:2], -1, n_numbers)


def batch_index(keys: Tensor, steps: Tensor, n: int, size: int) -> Tensor:
    """Rows (S, K, size) of each step, from a new permutation per epoch; in order if a batch holds all n."""
    if size >= n:
        return torch.arange(n, device=keys.device).expand(steps.shape[0], keys.shape[0], n)
    per_epoch = n // size
    order = permutations(keys, steps // per_epoch, n, stream=RandomStream.ORDER)
    within = (steps % per_epoch * size)[:, None] + torch.arange(size, device=keys.device)  # (S, size)
    return order.gather(2, within[:, None].expand(-1, keys.shape[0], -1))


def replay_index(keys: Tensor, steps: Tensor, n: Tensor, size: int) -> Tensor:
    """Rows (S, K, size) of P, drawn with replacement from the first n (K,)."""
    return (uniforms(keys, steps, size, stream=RandomStream.REPLAY) * n[:, None]).long()


def distinct_index(keys: Tensor, steps: Tensor, n: int, size: int) -> Tensor:
    """Distinct rows (S, K, at most size) of P, drawn from the first n."""
    return permutations(keys, steps, n, stream=RandomStream.REPLAY)[..., :size]


def rows(pool: Tensor, index: Tensor) -> Tensor:
    """Select rows: pool (K, n, ...) and index (K, size) -> (K, size, ...)."""
    offset = torch.arange(pool.shape[0], device=pool.device)[:, None] * pool.shape[1]
    return pool.flatten(0, 1).index_select(0, (index + offset).flatten()).view(*index.shape, *pool.shape[2:])


def contrastive_loss(
    network: Network,
    state: State,
    recipe: Contrastive,
    pool: Tensor,
    index: Tensor,
    numbers: Tensor,
    autocast: AbstractContextManager[object] = _FULL_PRECISION,
) -> Tensor:
    """Loss per network (K,) on two views of the rows index (K, B) of pool (K, n, C, H, W), in [0, 1].

    `autocast` is the context of the forward pass, for lower precision. The loss itself is float32.
    """
    views = two_views(recipe, pool, index, numbers)
    with autocast:
        projections = network.outputs(state, views, training=True)
    return nt_xent(projections.float(), recipe.temperature)


def joint_loss(
    network: Network,
    state: State,
    recipe: Joint,
    pool: Tensor,
    targets: State,
    index: Tensor,
    numbers: Tensor,
    autocast: AbstractContextManager[object] = _FULL_PRECISION,
) -> Tensor:
    """Loss per network (K,) as `contrastive_loss`, with `JointJob.targets` stacked along a leading axis K."""
    views = two_views(recipe, pool, index, numbers)
    loss = torch.zeros(index.shape[0], device=index.device)
    if recipe.contrastive:
        with autocast:
            projections, logits = network.both_outputs(state, views, training=True)
        loss = loss + recipe.contrastive * nt_xent(projections.float(), recipe.temperature)
    else:
        with autocast:
            logits = network.logits(state, network.features(state, views, training=True))
    labels, weights = (rows(targets[name], index) for name in ("labels", "weights"))
    by_view = logits.float().view(labels.shape[0], 2, labels.shape[1], -1)
    n = index.shape[1] - recipe.replay_size  # rows of D; those of P follow
    for weight, which, allowed in (
        (recipe.delayed, slice(0, n), targets["allowed"][:, 0]),
        (recipe.purified, slice(n, None), targets["allowed"][:, 1]),
    ):
        if weight and labels[:, which].shape[1]:
            logits = by_view[:, :, which].flatten(1, 2)
            label, share = (t[:, which].repeat(1, 2) for t in (labels, weights))
            loss = loss + weight * weighted_cross_entropy(logits, label, share, allowed)
    if recipe.distillation and recipe.replay_size:
        wanted, label = rows(targets["remembered"], index[:, n:]).repeat(1, 2, 1), labels[:, n:].repeat(1, 2)
        loss = loss + recipe.distillation * logit_error(
            by_view[:, :, n:].flatten(1, 2), wanted, label, targets["known"]
        )
    return loss


def two_views(recipe: Contrastive, pool: Tensor, index: Tensor, numbers: Tensor) -> Tensor:
    """Two views (K, 2B, C, H, W) of the rows index (K, B); rows i and i + B are views of one image."""
    twice = rows(pool, torch.cat([index, index], dim=1))
    return make_views(twice.flatten(0, 1), numbers.flatten(0, 1), recipe.views).view(twice.shape)


def supervised_loss(
    network: Network,
    state: State,
    pool: Tensor,
    labels: Tensor,
    index: Tensor,
    autocast: AbstractContextManager[object] = _FULL_PRECISION,
) -> Tensor:
    """Loss per network (K,) on the rows index (K, B) of pool (K, n, C, H, W), in [0, 1], with labels (K, n)."""
    with autocast:
        logits = network.outputs(state, rows(pool, index), training=True)
    return cross_entropy(logits.float(), rows(labels, index))
