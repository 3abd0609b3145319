"""L2R: samples are weighted by how much learning from them helps on clean data (Ren et al. 2018).

The weight of a sample is the negative gradient of the clean loss with respect to it, through one virtual step from
weights of zero, cut at zero and scaled so that a batch's weights sum to 1. At zero the virtual step goes nowhere, so
this gradient is the product of two gradients at the same point, the clean loss's and the sample's own; the meta rate α
is a factor of all of them and drops out.

The clean samples are the only true labels that any learner is given: so many of each class, drawn from the training
data and taken out of the stream, in runs that ask for this technique and in no others.

A choice where the papers leave it open: the virtual step is one of plain gradient descent, and so are GDumb's real ones
under this technique. With its momentum, weights that fall on a few samples of each batch make the training diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.networks import State, is_trained, network_input
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, Technique, plain_loss, sample_losses


@dataclass(frozen=True, kw_only=True)
class LearningToReweight(Technique):
    """See the module."""

    batch_size: int = 100  # clean samples in a step

    def loss(self, step: Step) -> Tensor:
        losses = sample_losses(step.network.outputs(step.state, step.images, training=True), step.labels)
        return (self.weights(step, losses) * losses).sum(1)

    def weights(self, step: Step, losses: Tensor) -> Tensor:
        """The weight of every sample, (K, B), from their losses at the step's parameters; the losses can go on."""
        parameters = [t for name, t in step.state.items() if is_trained(name)]
        toward = torch.autograd.grad(plain_loss(self._clean(step)).sum(), parameters)
        # two times backwards: the first one's result is linear in `each`, and its slope is what is wanted
        each = torch.zeros_like(losses, requires_grad=True)
        gradients = torch.autograd.grad((each * losses).sum(), parameters, create_graph=True)
        agreement = torch.stack([(a * b).sum() for a, b in zip(gradients, toward, strict=True)]).sum()
        [slope] = torch.autograd.grad(agreement, each, retain_graph=True)
        helps = slope.clamp(min=0)
        return helps / helps.sum(1, keepdim=True).clamp(min=1e-20)

    def _clean(self, step: Step) -> Step:
        """The same step on clean samples; batch norm's statistics are not touched."""
        images, labels = step.extra["clean_images"], step.extra["clean_labels"]
        n = min(self.batch_size, labels.shape[1])
        chosen = (uniforms_per_key(step.keys, step.number, n, stream=RandomStream.CLEAN) * labels.shape[1]).long()
        state = {name: t if is_trained(name) else t.clone() for name, t in step.state.items()}
        return step._replace(
            state=state, images=network_input(rows(images, chosen)), labels=rows(labels, chosen), rows=chosen
        )


def clean_extra(clean: Batch) -> State:
    """What a job brings for it."""
    return {"clean_images": clean.images, "clean_labels": clean.labels.to(clean.images.device)}
