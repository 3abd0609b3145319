"""JoCoR: two networks that agree, on the samples they find easiest (Wei et al. 2020).

Each sample's loss is (1 − λ)(CE₁ + CE₂) + λ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)); of every batch the share R with the smallest
ones is learned from. R falls from 1 to 1 − forget over the first epochs, linearly.

Choices where an online learner has no epochs: one is as many steps as replay needs to go once through the memory. The
first network answers. What the method has to be told, the share of wrong labels, is the setting `jocor_forget`: where
it is not given, the rate of the noise that the run adds, halved for asymmetric noise, which touches half of the
classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.data.seeds import derive_seed
from purereplay.nets.networks import Network, State, part, prefixed
from purereplay.nets.technique import Step, Technique, sample_losses

_FIRST, _SECOND = "first.", "second."


@dataclass(frozen=True)
class Twins(Network):
    """Two networks of one kind under one state; to everyone else they are the first one."""

    def init(self, seed: int) -> State:
        second = Network.init(self, derive_seed(seed, "second"))
        return prefixed(_FIRST, Network.init(self, seed)) | prefixed(_SECOND, second)

    def features(self, state: State, images: Tensor, *, training: bool = False) -> Tensor:
        return _plain(self).features(part(state, _FIRST), images, training=training)

    def outputs(self, state: State, images: Tensor, *, training: bool = False) -> Tensor:
        return _plain(self).outputs(part(state, _FIRST), images, training=training)

    def both(self, state: State, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the two in training, (K, B, classes) each."""
        one = _plain(self)
        first, second = (one.outputs(part(state, name), images, training=True) for name in (_FIRST, _SECOND))
        return first, second

    def activation_floats(self) -> int:
        return 2 * Network.activation_floats(self)


def _plain(twins: Network) -> Network:
    return Network(twins.backbone, twins.head, twins.mean, twins.std)


@dataclass(frozen=True, kw_only=True)
class JoCoR(Technique):
    """See the module."""

    forget: float  # share of a batch that is passed by in the end
    weight: float = 0.1  # λ
    epochs: int = 10  # over which R falls (Wei et al.: 10)

    def prepare(self, network: Network) -> Network:
        return Twins(network.backbone, network.head, network.mean, network.std)

    def loss(self, step: Step) -> Tensor:
        assert isinstance(step.network, Twins)
        losses = self.joint(*step.network.both(step.state, step.images), step.labels)
        n = losses.shape[1]
        share = 1 - self.forget * (step.epoch / self.epochs).clamp(max=1)[:, None]
        n_kept = (share * n + 1e-4).floor().clamp(min=1)  # whole, whatever the rounding of the share
        rank = losses.detach().argsort(dim=1, stable=True).argsort(1)
        return torch.where(rank < n_kept, losses, torch.zeros_like(losses)).sum(1) / n_kept[:, 0]

    def joint(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        """Loss of every sample (K, B) from the two networks' logits (K, B, classes)."""
        supervised = sample_losses(first, labels) + sample_losses(second, labels)
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        apart = ((p.exp() - q.exp()) * (p - q)).sum(-1)  # KL both ways
        return (1 - self.weight) * supervised + self.weight * apart
