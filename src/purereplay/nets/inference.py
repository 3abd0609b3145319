"""Inference with a trained network: features of images, and the classifier that a learner returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.data.batch import check_images
from purereplay.nets.networks import Network, State, network_input

_AT_ONCE = 2048  # images per forward pass


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


@dataclass(frozen=True, eq=False)
class Classifier:
    """The inference network ψ of Algorithm 2."""

    network: Network
    state: State
    image_shape: tuple[int, int, int]
    dtype: torch.dtype = torch.uint8  # of the images; float32: feature vectors

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
