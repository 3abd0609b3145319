"""Layers of the head and the loss, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from purereplay.nets.jobs import Joint
from purereplay.nets.loops.cuda.kernels import (
    cross_entropy_kernel,
    joint_cross_entropy_kernel,
    similarity_gradient_kernel,
    similarity_kernel,
)
from purereplay.nets.loops.cuda.linear import Linear, SideStream, linear_shapes, matmul, power_of_two
from purereplay.nets.loops.cuda.parameters import Parameters
from purereplay.nets.losses import NEVER
from purereplay.nets.networks import CLASSES, HEAD, Network, State
from purereplay.nets.networks import Head as HeadShape

MAX_OUTPUTS = 256  # maximal width of a row within one tile
MAX_CLASSES = 1024  # of the layer for classes beside the head
_CLASS_TILE = 4096  # logits per program
_ROWS = 64  # views per program


def head_shapes(head: HeadShape, n_features: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the head's parameters, by name."""
    hidden = [("hidden", n_features, n_features)] if head.hidden else []
    return linear_shapes([*hidden, ("output", n_features, head.n_outputs)])


class _Layers:
    """Layers of the head: linear, or linear-ReLU-linear."""

    def __init__(self, head: HeadShape, n_rows: int, parameters: Parameters, clip: float | None = None) -> None:
        self.hidden = Linear(parameters, f"{HEAD}hidden", n_rows, clip=clip) if head.hidden else None
        self.output = Linear(parameters, f"{HEAD}output", n_rows, clip=clip)
        self.n_rows, self.n_networks, self.device = n_rows, parameters.half.shape[0], parameters.half.device
        self.losses = torch.zeros(self.n_networks, n_rows, device=self.device)

    def loss(self) -> Tensor:
        """Loss of the last step, per network (K,)."""
        return self.losses.mean(1)

    def before_output(self, features: Tensor) -> Tensor:
        """Input of the output layer."""
        self.features = features
        return self.hidden.forward(features, relu=True) if self.hidden else features

    def backward_from(self, d: Tensor, adam_scales: Tensor, side_stream: SideStream, gated: bool) -> Tensor:
        """Update the layers from the outputs' gradient; returns that of the features, 0 where `gated` ones are."""
        x = self.hidden.out if self.hidden else self.features
        d_x = self.output.backward(d, gate=x if self.hidden or gated else None)
        with side_stream:
            self.output.update(x, d, adam_scales)
        if self.hidden is None:
            return d_x
        d_features = self.hidden.backward(d_x, gate=self.features if gated else None)
        with side_stream:
            self.hidden.update(self.features, d_x, adam_scales)
        return d_features


class ContrastiveHead(_Layers):
    """Projection head with NT-Xent, whose gradient is multiplied by `scale`."""

    def __init__(
        self, head: HeadShape, n_rows: int, parameters: Parameters, temperature: float, scale: float = 1.0
    ) -> None:
        super().__init__(head, n_rows, parameters)
        self.temperature, self.scale, self.width = temperature, scale, power_of_two(head.n_outputs)
        # unit vectors need precision, not range
        unit = torch.float32 if parameters.half.dtype == torch.float32 else torch.float16
        self.z = torch.zeros(self.n_networks, n_rows, self.width, device=self.device, dtype=unit)
        self.norm, self.sums = (torch.zeros(self.n_networks, n_rows, device=self.device) for _ in range(2))
        self.grid = (-(-n_rows // _ROWS), self.n_networks)

    def forward(self, features: Tensor) -> None:
        x = self.before_output(features)
        matmul(x, self.output.weight, self.z, bias=self.output.bias, norm=self.norm)
        similarity_kernel[self.grid](
            self.z,
            self.sums,
            self.losses,
            self.n_rows,
            self.z.stride(0),
            TAU=self.temperature,
            WIDTH=self.width,
            ROWS=_ROWS,
            num_warps=4,
            num_stages=2,
        )

    def backward(self, adam_scales: Tensor, side_stream: SideStream, *, gated: bool) -> Tensor:
        d = self.output.out
        similarity_gradient_kernel[self.grid](
            self.z,
            self.norm,
            self.sums,
            d,
            self.n_rows,
            self.output.n_out,
            self.z.stride(0),
            d.stride(0),
            d.stride(1),
            TAU=self.temperature,
            SCALE=float(self.scale),
            WIDTH=self.width,
            ROWS=_ROWS,
            OTHERS=64,
            num_warps=4,
            num_stages=2,
        )
        return self.backward_from(d, adam_scales, side_stream, gated)


class SupervisedHead(_Layers):
    """Classification head with cross-entropy."""

    def __init__(
        self, head: HeadShape, n_rows: int, parameters: Parameters, clip: float | None, labels: Tensor
    ) -> None:
        super().__init__(head, n_rows, parameters, clip)
        self.labels = labels  # (K, n_images)
        self.index: Tensor  # (K, n_rows): images of the step, set by the loop
        self.logits = torch.zeros(self.n_networks, n_rows, head.n_outputs, device=self.device)

    def forward(self, features: Tensor) -> None:
        matmul(self.before_output(features), self.output.weight, self.logits, bias=self.output.bias)

    def backward(self, adam_scales: Tensor, side_stream: SideStream, *, gated: bool) -> Tensor:
        d = self.output.out
        cross_entropy_kernel[(-(-self.n_rows // 16), self.n_networks)](
            self.logits,
            self.labels,
            self.index,
            self.losses,
            d,
            self.n_rows,
            self.output.n_out,
            self.labels.shape[1],
            d.stride(1),
            ROWS=16,
            CLASSES=power_of_two(self.output.n_out),
            num_warps=4,
        )
        return self.backward_from(d, adam_scales, side_stream, gated)


class JointHead:
    """Projection head with NT-Xent, and beside it the layer for classes: cross-entropy on D and P, distillation on P.

    A part whose loss has no weight is neither computed nor updated.
    """

    def __init__(
        self, network: Network, n_rows: int, parameters: Parameters, recipe: Joint, n_delayed: int, targets: State
    ) -> None:
        k, device = parameters.half.shape[0], parameters.half.device
        self.recipe, self.n_rows = recipe, n_rows
        self.n_delayed = n_delayed  # rows of D in a view; those of P follow
        self.labels, self.weights = targets["labels"], targets["weights"]  # (K, n_images)
        self.allowed = targets["allowed"].view(torch.uint8)  # (K, 2, n_classes)
        self.distils = bool(recipe.distillation) and n_rows > 2 * n_delayed
        self.remembered = targets["remembered"] if self.distils else self.weights  # (K, n_images, n_classes), or unread
        self.known = targets["known"].view(torch.uint8) if self.distils else self.allowed  # (K, n_classes), or unread
        self.index: Tensor  # (K, n_rows / 2): images of the step, set by the loop
        self.projection: ContrastiveHead | None = None
        self.classes: Linear | None = None
        if recipe.contrastive:
            self.projection = ContrastiveHead(
                network.head, n_rows, parameters, recipe.temperature, scale=recipe.contrastive
            )
        if recipe.delayed or ((recipe.purified or recipe.distillation) and n_rows > 2 * n_delayed):
            self.classes = Linear(parameters, CLASSES.rstrip("."), n_rows, wants_input_gradient=self.projection is None)
        if self.projection is None and self.classes is None:
            raise ValueError("a joint job needs a loss whose weight is not 0")
        self.logits = torch.zeros(k, n_rows, network.n_classes, device=device)
        self.losses = torch.zeros(k, n_rows, device=device)  # summands of the cross-entropies

    def loss(self) -> Tensor:
        """Loss of the last step, per network (K,)."""
        loss = self.losses.sum(1)
        return loss if self.projection is None else loss + self.recipe.contrastive * self.projection.loss()

    def forward(self, features: Tensor) -> None:
        self.features = features
        if self.projection is not None:
            self.projection.forward(features)
        if self.classes is not None:
            matmul(features, self.classes.weight, self.logits, bias=self.classes.bias)

    def backward(self, adam_scales: Tensor, side_stream: SideStream, *, gated: bool) -> Tensor:
        d_features: Tensor | None = None
        if self.projection is not None:
            d_features = self.projection.backward(adam_scales, side_stream, gated=gated)
        if self.classes is not None:
            d = self._class_gradient(self.classes)
            d_features = self.classes.backward(d, gate=self.features if gated else None, add_to=d_features)
            with side_stream:
                self.classes.update(self.features, d, adam_scales)
        assert d_features is not None
        return d_features

    def _class_gradient(self, classes: Linear) -> Tensor:
        """Gradient of the logits; also writes `losses`."""
        d, width = classes.out, power_of_two(classes.n_out)
        rows = min(16, _CLASS_TILE // width)
        joint_cross_entropy_kernel[(-(-self.n_rows // rows), self.logits.shape[0])](
            self.logits,
            self.labels,
            self.weights,
            self.allowed,
            self.remembered,
            self.known,
            self.index,
            self.losses,
            d,
            self.n_rows,
            self.n_delayed,
            classes.n_out,
            self.labels.shape[1],
            d.stride(1),
            float(self.recipe.delayed),
            float(self.recipe.purified),
            float(self.recipe.distillation),
            DISTILS=self.distils,
            NEVER=NEVER,
            ROWS=rows,
            CLASSES=width,
            IMAGES=128,
            num_warps=4,
        )
        return d
