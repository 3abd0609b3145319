"""SL: symmetric cross-entropy (Wang et al. 2019), α CE + β reverse CE.

The reverse term exchanges prediction and label, with log 0 set to −4. It is therefore 4 (1 − p) for the probability p
of the given label. It is bounded, while cross-entropy grows without limit if the prediction contradicts the label.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from purereplay.nets.technique import Step, Technique

LOG_ZERO = -4.0


@dataclass(frozen=True, kw_only=True)
class SymmetricLearning(Technique):
    """The loss of SL; see the module."""

    alpha: float = 1.0
    beta: float = 1.0

    def loss(self, step: Step) -> Tensor:
        log_p = step.network.outputs(step.state, step.images, training=True).log_softmax(-1)
        of_label = log_p.gather(2, step.labels[..., None])[..., 0]  # (K, B)
        reverse = -LOG_ZERO * (1 - of_label.exp())
        return (self.beta * reverse - self.alpha * of_label).mean(1)
