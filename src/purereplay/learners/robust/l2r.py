"""L2R: samples are weighted by how much training on them reduces the loss on clean data (Ren et al. 2018).

The weight of a sample is the negative gradient of the clean loss with respect to that weight, through one virtual step
from weights of zero, clipped at zero and scaled to a sum of 1 per batch. With weights of zero the virtual step changes
nothing. The gradient is therefore the product of two gradients at the same point, that of the clean loss and that of
the sample's own loss. The meta learning rate α is a common factor and cancels.

The clean samples are the only true labels that any learner receives: a fixed number per class, drawn from the training
data and removed from the stream, in runs with this loss only.

A choice where the papers leave it open: the virtual step is plain gradient descent, and so are GDumb's real steps with
this loss. With momentum, weights that concentrate on a few samples per batch make the training diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from purereplay.data.batch import Batch
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import State, is_trained, network_input
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, Technique, plain_loss


@dataclass(frozen=True, kw_only=True)
class LearningToReweight(Technique):
    """The loss of L2R; see the module."""

    batch_size: int = 100  # clean samples per step

    def loss(self, step: Step) -> Tensor:
        losses, weights = self.losses_and_weights(step)
        return (weights * losses).sum(1)

    def losses_and_weights(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return the loss and the weight of every sample (K, B).

        The product of the two gradients is the slope of a sample's loss in the direction of the clean gradient. One
        forward pass, in forward mode, gives the slopes of all samples.
        """
        trained = [name for name in step.state if is_trained(name)]
        clean = torch.autograd.grad(plain_loss(self._clean(step)).sum(), [step.state[name] for name in trained])
        with forward_ad.dual_level():
            along = {
                name: forward_ad.make_dual(step.state[name], direction)  # type: ignore[no-untyped-call]
                for name, direction in zip(trained, clean, strict=True)
            }
            dual = sample_losses(step.network.outputs(step.state | along, step.images, training=True), step.labels)
            losses, slopes = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
        helps = slopes.detach().clamp(min=0)
        return losses, helps / helps.sum(1, keepdim=True).clamp(min=1e-20)

    def _clean(self, step: Step) -> Step:
        """Return the same step on clean samples; statistics of batch norm do not change."""
        images, labels = step.extra["clean_images"], step.extra["clean_labels"]
        n = min(self.batch_size, labels.shape[1])
        chosen = (uniforms_per_key(step.keys, step.number, n, stream=RandomStream.CLEAN) * labels.shape[1]).long()
        state = {name: t if is_trained(name) else t.clone() for name, t in step.state.items()}
        return step._replace(
            state=state, images=network_input(rows(images, chosen)), labels=rows(labels, chosen), rows=chosen
        )


def clean_extra(clean: Batch) -> State:
    """Return the tensors that a job gives to this loss."""
    return {"clean_images": clean.images, "clean_labels": clean.labels.to(clean.images.device)}
