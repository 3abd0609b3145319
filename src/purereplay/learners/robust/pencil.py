"""PENCIL: the label of every sample is a distribution that is trained with the network (Yi & Wu 2019).

It starts as softmax(10 × the given label). Until epoch `stage1` the loss is cross-entropy with the given labels. Until
epoch `stage2` it is KL(prediction ‖ label distribution) / c + α · cross-entropy(given label, label distribution)
+ β · entropy(prediction) / c over c classes, and the distributions are updated with their own learning rate λ. After
that they are fixed, and the loss is the first term.

With the paper's α = 0.4 and ten classes the given label weighs four times as much as the prediction. A distribution
softens and rarely moves to another class; it can do so if α < 1 / c.

Choices where the papers leave them open, for an online learner with replay: its single pass over the stream is one
epoch, so the first stage does not end and the learner is plain replay (`epoch` "stream"). With "memory" an epoch is the
number of steps that replay needs for one pass over the memory (the MNIST stream with a memory of 300 has 200 of them),
and a sample keeps its distribution while it is in the memory; on validation data this does harm, since the labels
follow a network that forgets. GDumb's 100 epochs are passes over its memory and end within the second stage. λ = 600
belongs to batches of 128: `lr_batch` adapts it to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import State
from purereplay.nets.steps import rows
from purereplay.nets.technique import Step, Technique

_WHOLE_STREAM = 2**31  # steps: more than any stream has, so its single pass never ends an epoch
START = 10.0  # initial logit of the given label; the others are 0


@dataclass(frozen=True, kw_only=True)
class Pencil(Technique):
    """The loss of PENCIL; see the module."""

    alpha: float = 0.4
    beta: float = 0.1
    lr: float = 600.0  # λ, of the label distributions
    lr_batch: int | None = None  # batch size that λ was made for; None: λ is used as it is
    epoch: Literal["stream", "memory"] = "stream"  # of an online learner
    stage1: int = 70  # epochs
    stage2: int = 200

    learned: ClassVar[tuple[str, ...]] = ("label_logits",)

    def steps_of_epoch(self, steps_of_replay: int) -> int:
        return _WHOLE_STREAM if self.epoch == "stream" else steps_of_replay

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
        lr = self.lr if self.lr_batch is None else self.lr * step.labels.shape[1] / self.lr_batch
        value.sub_(lr * repairing[:, None, None] * gradient)
