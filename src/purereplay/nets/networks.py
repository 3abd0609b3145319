"""Networks as pure functions of (state, images): the expert, the base and the classifier (paper, section 5.1).

A state is a dict of named tensors. One network's tensors have their usual shapes. For K networks side by side every
tensor has a leading axis K, and `outputs` takes images (K, B, channels, height, width). So networks are stacked, split,
copied and saved by tensor operations, and K multilayer perceptrons are one batched matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from purereplay.data.forms import prefixed

State = dict[str, Tensor]
BACKBONE = "backbone."
HEAD = "head."
CLASSES = "classes."


class Backbone(Protocol):
    """Maps images to features; frozen and hashable, so that it can be part of a job's shape."""

    @property
    def n_features(self) -> int: ...

    def init(self, generator: torch.Generator) -> State: ...

    def features(self, state: State, images: Tensor, *, training: bool) -> Tensor: ...

    def activation_floats(self) -> int: ...


def linear_init(state: State, name: str, n_in: int, n_out: int, generator: torch.Generator) -> None:
    """Initialise a linear layer as PyTorch does by default; the weight is stored as (in, out)."""
    bound = 1 / math.sqrt(n_in)
    state[f"{name}.weight"] = torch.empty(n_in, n_out).uniform_(-bound, bound, generator=generator)
    state[f"{name}.bias"] = torch.empty(n_out).uniform_(-bound, bound, generator=generator)


def linear(state: State, name: str, x: Tensor) -> Tensor:
    """Linear layer of K networks, (K, B, in) -> (K, B, out)."""
    return torch.baddbmm(state[f"{name}.bias"][:, None], x, state[f"{name}.weight"])


@dataclass(frozen=True)
class MLP:
    """Hidden layers with ReLU over flattened images."""

    n_inputs: int
    hidden: tuple[int, ...] = (512, 512)

    @property
    def n_features(self) -> int:
        return self.hidden[-1]

    def init(self, generator: torch.Generator) -> State:
        state: State = {}
        for i, (n_in, n_out) in enumerate(zip((self.n_inputs, *self.hidden), self.hidden, strict=False)):
            linear_init(state, f"layer{i + 1}", n_in, n_out, generator)
        return state

    def features(self, state: State, images: Tensor, *, training: bool) -> Tensor:
        x = images.flatten(2)
        for i in range(len(self.hidden)):
            x = linear(state, f"layer{i + 1}", x).relu_()
        return x

    def activation_floats(self) -> int:
        return self.n_inputs + 2 * sum(self.hidden)


@dataclass(frozen=True)
class Head:
    """Layers above the features: linear, or linear-ReLU-linear with a hidden layer as wide as the features."""

    n_outputs: int
    hidden: bool = False

    def init(self, n_features: int, generator: torch.Generator) -> State:
        state: State = {}
        if self.hidden:
            linear_init(state, "hidden", n_features, n_features, generator)
        linear_init(state, "output", n_features, self.n_outputs, generator)
        return state

    def outputs(self, state: State, features: Tensor) -> Tensor:
        if self.hidden:
            features = linear(state, "hidden", features).relu_()
        return linear(state, "output", features)


@dataclass(frozen=True)
class Network:
    """A backbone and a head. Expert and base have a projection head, the classifier has a linear head."""

    backbone: Backbone
    head: Head
    mean: tuple[float, ...] | None = None  # per channel, of images in [0, 1]; None: not normalised
    std: tuple[float, ...] | None = None
    n_classes: int = 0  # outputs of a linear layer for classes beside the head; 0: there is none

    def init(self, seed: int) -> State:
        """Initial weights of one network, on the CPU: the same for every device."""
        generator = torch.Generator().manual_seed(seed)
        backbone = prefixed(BACKBONE, self.backbone.init(generator))
        state = backbone | prefixed(HEAD, self.head.init(self.backbone.n_features, generator))
        if self.n_classes:  # zeros: a class that is added later is as if it had been there from the start
            state[f"{CLASSES}weight"] = torch.zeros(self.backbone.n_features, self.n_classes)
            state[f"{CLASSES}bias"] = torch.zeros(self.n_classes)
        return state

    def fresh(self, seed: int, device: torch.device) -> State:
        """Initial weights of one network on a device."""
        return {name: t.to(device) for name, t in self.init(seed).items()}

    def features(self, state: State, images: Tensor, *, training: bool = False) -> Tensor:
        """Images float in [0, 1] (K, B, C, H, W) -> penultimate features (K, B, n_features)."""
        if self.mean is not None and self.std is not None:
            channels = zip(
                images.unbind(2), self.mean, self.std, strict=True
            )  # no tensor is created here: the step may be captured
            images = torch.stack([(x - mean) / std for x, mean, std in channels], dim=2)
        return self.backbone.features(part(state, BACKBONE), images, training=training)

    def outputs(self, state: State, images: Tensor, *, training: bool = False) -> Tensor:
        """Images float in [0, 1] (K, B, C, H, W) -> (K, B, n_outputs): projections or logits."""
        return self.head.outputs(part(state, HEAD), self.features(state, images, training=training))

    def both_outputs(self, state: State, images: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Images float in [0, 1] (K, B, C, H, W) -> outputs of the head (K, B, n_outputs), logits (K, B, n_classes)."""
        features = self.features(state, images, training=training)
        return self.head.outputs(part(state, HEAD), features), self.logits(state, features)

    def logits(self, state: State, features: Tensor) -> Tensor:
        """Penultimate features (K, B, n_features) -> logits of the layer for classes (K, B, n_classes)."""
        return linear(state, CLASSES.rstrip("."), features)

    def with_head(self, head: Head, state: State, seed: int) -> tuple[Network, State]:
        """Return the same backbone with copied weights and a newly initialised head (Algorithm 2)."""
        network = replace(self, head=head, n_classes=0)
        copied = {name: t.clone() for name, t in state.items() if name.startswith(BACKBONE)}
        device = next(iter(state.values())).device
        fresh = {name: t.to(device) for name, t in network.init(seed).items() if name.startswith(HEAD)}
        return network, copied | fresh

    def activation_floats(self) -> int:
        """Approximate count of floats that the forward pass of one image keeps for the backward pass."""
        width = self.backbone.n_features
        outputs = self.head.n_outputs + self.n_classes
        return self.backbone.activation_floats() + 2 * width * self.head.hidden + 2 * outputs


def network_input(images: Tensor) -> Tensor:
    """Convert uint8 images to floats in [0, 1]; feature vectors are returned unchanged."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def part(state: State, prefix: str) -> State:
    """Select the tensors whose names have a prefix, and remove it."""
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def is_trained(name: str) -> bool:
    """Whether the tensor of this name is a parameter, not a batch-norm statistic."""
    return not name.endswith(("running_mean", "running_var"))


def stack(states: list[State]) -> State:
    """Stack K states along a leading axis K."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def unstack(state: State, k: int) -> State:
    """Copy the k-th network out of a stack."""
    return {name: t[k].clone() for name, t in state.items()}
