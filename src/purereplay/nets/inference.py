"""Inference with a trained network: features of images, a linear probe, and the classifier that a learner returns."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.data.batch import check_images
from purereplay.nets.networks import Network, State, network_input

_AT_ONCE = 2048  # images per forward pass
_PROBE_STEPS = 200  # iterations of L-BFGS
_PROBE_DECAY = 0.01  # weight of half the squared weights, for standardised features
UNLIKELY = -1e4  # logit of a class that cannot be predicted


def grad_mode_kept() -> AbstractContextManager[object]:
    """Return a context in which gradients can be taken, and after which the thread has its former grad mode.

    `torch.no_grad` and PyTorch's optimizers change the mode and restore it in Python. An interrupt in between would
    leave the caller's thread without gradients. This context is left by a function of C, which is never interrupted.
    """
    guard: AbstractContextManager[object] = torch._C._InferenceMode(False)
    return guard


@torch.no_grad()
def embed(network: Network, state: State, images: Tensor, *, penultimate: bool = False) -> Tensor:
    """Images uint8 (n, C, H, W) -> projections (n, n_outputs), or penultimate features (n, n_features).

    Feature vectors, float32 (n, D, 1, 1), are treated as images of one pixel.
    """
    one = {name: t.unsqueeze(0) for name, t in state.items()}
    device = next(iter(state.values())).device
    read = network.features if penultimate else network.outputs
    parts = [read(one, network_input(part.to(device)).unsqueeze(0))[0] for part in torch.split(images, _AT_ONCE)]
    width = network.backbone.n_features if penultimate else network.head.n_outputs
    return torch.cat(parts) if parts else torch.empty(0, width, device=device)


def linear_probe(features: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression of labels (n,) on features (n, d); returns weight (d, n_classes) and bias.

    Classes without a label are never predicted.
    """
    x, y = features.double(), labels.to(features.device)
    deviation, mean = torch.std_mean(x, 0, correction=0)
    deviation = deviation + 1e-6
    x = (x - mean) / deviation
    present = torch.unique(y)
    target = torch.searchsorted(present, y)
    weight = torch.zeros(x.shape[1], len(present), dtype=x.dtype, device=x.device, requires_grad=True)
    bias = torch.zeros(len(present), dtype=x.dtype, device=x.device, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=_PROBE_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ weight + bias, target) + _PROBE_DECAY / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        solver.step(loss)  # type: ignore[no-untyped-call]
    found = weight.detach() / deviation[:, None]
    all_weights = found.new_zeros(found.shape[0], n_classes).index_copy(1, present, found)
    offset = bias.detach() - mean @ found
    all_biases = found.new_full((n_classes,), UNLIKELY).index_copy(0, present, offset)
    return all_weights.float(), all_biases.float()


@dataclass(frozen=True, eq=False)
class Classifier:
    """The inference network ψ of Algorithm 2."""

    network: Network
    state: State
    image_shape: tuple[int, int, int]
    dtype: torch.dtype = torch.uint8  # of the images; float32: feature vectors

    @property
    def n_classes(self) -> int:
        """Number of classes that it knows."""
        return self.network.head.n_outputs

    def logits(self, images: Tensor) -> Tensor:
        """Images uint8 (n, C, H, W) -> logits (n, n_classes)."""
        check_images(images, self.image_shape, self.dtype)
        return embed(self.network, self.state, images)

    def probabilities(self, images: Tensor) -> Tensor:
        """Images uint8 (n, C, H, W) -> class probabilities (n, n_classes)."""
        return self.logits(images).softmax(-1)

    def predict(self, images: Tensor) -> Tensor:
        """Images uint8 (n, C, H, W) -> labels int64 (n,)."""
        return self.logits(images).argmax(-1)
