"""Moving average of the weights and of batch norm's running statistics of K networks, updated after every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purereplay.data.forms import prefixed
from purereplay.nets.loops.cuda.linear import CudaMLP, read_flat, write_flat
from purereplay.nets.loops.cuda.parameters import Parameters
from purereplay.nets.loops.cuda.resnet import CudaResNet
from purereplay.nets.networks import BACKBONE, State, part


class MovingAverage:
    """Tensors of the layout of `Parameters.weight` and of the backbone's statistics; `heads`: prefixes of layers."""

    def __init__(
        self, parameters: Parameters, backbone: CudaMLP | CudaResNet, heads: Sequence[str], decay: float
    ) -> None:
        self.parameters, self.backbone, self.heads, self.decay = parameters, backbone, heads, decay
        self.weight = torch.zeros_like(parameters.weight)
        self.statistics = [torch.zeros_like(t) for t in backbone.statistics()]
        self.whole: State = {}  # loaded averages of convolutions with unused taps

    def tensors(self) -> list[Tensor]:
        """Tensors that a step changes."""
        return [self.weight, *self.statistics]

    def load(self, average: State) -> None:
        """Load a stacked average, with the names and shapes of the networks' states."""
        backbone = part(average, BACKBONE)
        self.backbone.write_state(self.weight, self.statistics, backbone)
        self.whole = {name: backbone[name] for name in self.backbone.whole}
        for prefix in self.heads:
            write_flat(self.parameters, self.weight, prefix, part(average, prefix))

    def step(self) -> None:
        """Move the average towards the networks."""
        present = [self.parameters.weight, *self.backbone.statistics()]
        torch._foreach_lerp_(self.tensors(), present, 1 - self.decay)

    def read(self, n_steps: int) -> State:
        """Copy of the average after so many steps since `load`."""
        # unused taps are no parameters and never change: their average is known without steps
        moved = 1 - self.decay**n_steps
        whole = {name: t.lerp(self.backbone.whole[name], moved) for name, t in self.whole.items()}
        average = prefixed(BACKBONE, self.backbone.read_state(self.weight, self.statistics, whole))
        for prefix in self.heads:
            average |= prefixed(prefix, read_flat(self.parameters, self.weight, prefix))
        return average
