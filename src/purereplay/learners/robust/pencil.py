"""PENCIL: every sample's label is a distribution that is learned along (Yi & Wu 2019).

It begins as softmax(10 × the given label). Up to epoch `stage1` the given labels are learned by cross-entropy; up to
epoch `stage2` the loss is KL(prediction ‖ label distribution) / c + α · cross-entropy(given label, label distribution)
+ β · entropy(prediction) / c over c classes, and the distributions take steps of their own, of the rate λ; afterwards
they stay, and the first term is learned.

With the paper's α = 0.4 and ten classes the given label weighs four times as much as the prediction, so a label's
distribution softens and hardly ever turns to another class: it can do so where α < 1 / c.

Choices where an online learner has no epochs: one is as many steps as replay needs to go once through the memory (200
of them are the whole of the MNIST stream with its memory of 300). A sample that enters the memory keeps its
distribution as long as it stays there; everyone else's is forgotten. GDumb's 100 epochs end within the second stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.nets.networks import State
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, Technique, sample_losses

START = 10.0  # logit of the given label, the others' are 0


@dataclass(frozen=True, kw_only=True)
class Pencil(Technique):
    """See the module."""

    alpha: float = 0.4
    beta: float = 0.1
    lr: float = 600.0  # λ, of the label distributions
    stage1: int = 70  # epochs
    stage2: int = 200

    learned: ClassVar[tuple[str, ...]] = ("label_logits",)

    def per_sample(self, labels: Tensor, n_classes: int) -> State:
        return {"label_logits": START * F.one_hot(labels, n_classes).float()}

    def loss(self, step: Step) -> Tensor:
        logits = step.network.outputs(step.state, step.images, training=True)
        believed = rows(step.extra["label_logits"], step.rows).log_softmax(-1)  # (K, B, c)
        log_p = logits.log_softmax(-1)
        p = log_p.exp()
        fit = (p * (log_p - believed)).mean((1, 2))
        faith = -believed.gather(2, step.labels[..., None]).mean((1, 2))
        entropy = -(p * log_p).mean((1, 2))
        repairing = fit + self.alpha * faith + self.beta * entropy
        plain = sample_losses(logits, step.labels).mean(1)
        later = torch.where(step.epoch < self.stage2, repairing, fit)
        return torch.where(step.epoch < self.stage1, plain, later)

    def update(self, step: Step, name: str, value: Tensor, gradient: Tensor) -> None:
        repairing = (step.epoch >= self.stage1) & (step.epoch < self.stage2)
        value.sub_(self.lr * repairing[:, None, None] * gradient)
