"""JoCoR: two networks that are trained to agree, on the samples with the smallest losses (Wei et al. 2020).

The loss of a sample is (1 − λ)(CE₁ + CE₂) + λ (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)). Only the share R of a batch with the
smallest losses is trained on. R decreases linearly from 1 to 1 − forget over the first epochs.

Choices where the papers leave them open: for an online learner, an epoch is the number of steps that replay needs for
one pass over the memory. The first network predicts. The method needs the share of wrong labels, the setting
`jocor_forget`. Its default is the noise rate of the run, halved for asymmetric noise, which affects half the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.data.forms import prefixed
from purereplay.data.seeds import derive_seed
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import Network, State, part
from purereplay.nets.technique import Step, Technique

_FIRST, _SECOND = "first.", "second."


@dataclass(frozen=True)
class Twins(Network):
    """Two networks in one state; features and outputs are those of the first."""

    def init(self, seed: int) -> State:
        second = Network.init(self, derive_seed(seed, "second"))
        return prefixed(_FIRST, Network.init(self, seed)) | prefixed(_SECOND, second)

    def features(self, state: State, images: Tensor, *, training: bool = False) -> Tensor:
        return _plain(self).features(part(state, _FIRST), images, training=training)

    def outputs(self, state: State, images: Tensor, *, training: bool = False) -> Tensor:
        return _plain(self).outputs(part(state, _FIRST), images, training=training)

    def both(self, state: State, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of both networks in training, (K, B, classes) each."""
        one = _plain(self)
        first, second = (one.outputs(part(state, name), images, training=True) for name in (_FIRST, _SECOND))
        return first, second

    def activation_floats(self) -> int:
        return 2 * Network.activation_floats(self)


def _plain(twins: Network) -> Network:
    return Network(twins.backbone, twins.head, twins.mean, twins.std)


@dataclass(frozen=True, kw_only=True)
class JoCoR(Technique):
    """The loss of JoCoR; see the module."""

    forget: float  # share of a batch that is ignored at the end
    weight: float = 0.1  # λ
    epochs: int = 10  # over which R falls (Wei et al.: 10)

    def prepare(self, network: Network) -> Network:
        return Twins(network.backbone, network.head, network.mean, network.std)

    def loss(self, step: Step) -> Tensor:
        assert isinstance(step.network, Twins)
        losses = self.joint(*step.network.both(step.state, step.images), step.labels)
        n = losses.shape[1]
        share = 1 - self.forget * (step.epoch / self.epochs).clamp(max=1)[:, None]
        n_kept = (share * n + 1e-4).floor().clamp(min=1)  # an integer in spite of rounding
        rank = losses.detach().argsort(dim=1, stable=True).argsort(1)
        return torch.where(rank < n_kept, losses, torch.zeros_like(losses)).sum(1) / n_kept[:, 0]

    def joint(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample (K, B) from both networks' logits (K, B, classes)."""
        supervised = sample_losses(first, labels) + sample_losses(second, labels)
        p, q = first.log_softmax(-1), second.log_softmax(-1)
        disagreement = ((p.exp() - q.exp()) * (p - q)).sum(-1)  # KL both ways
        return (1 - self.weight) * supervised + self.weight * disagreement
