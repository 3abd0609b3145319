"""ResNet-18 (He et al., 2016) as a function of its state; tensor names and initialisation as in torchvision.

The released code uses the ImageNet stem (7×7 stride 2, max-pool) on 32×32 images too. The small stem (3×3 stride 1, no
pool) is the usual one for small images. K networks run one after the other here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.nets.networks import State

N_STAGES = 4
BLOCKS_PER_STAGE = 2


class _Block(NamedTuple):
    name: str
    n_in: int
    n_out: int
    stride: int

    @property
    def has_projection(self) -> bool:
        return self.stride != 1 or self.n_in != self.n_out


@dataclass(frozen=True)
class ResNet18:
    """Images (channels, size, size) to `8 * width` features by global average pooling."""

    channels: int = 3
    size: int = 32
    stem: Literal["imagenet", "small"] = "imagenet"
    width: int = 64

    @property
    def n_features(self) -> int:
        return self.width << (N_STAGES - 1)

    def _blocks(self) -> Iterator[_Block]:
        n_in = self.width
        for stage in range(N_STAGES):
            n_out = self.width << stage
            for i in range(BLOCKS_PER_STAGE):
                yield _Block(f"layer{stage + 1}.{i}", n_in, n_out, 2 if stage and not i else 1)
                n_in = n_out

    def init(self, generator: torch.Generator) -> State:
        state: State = {}

        def conv(name: str, n_in: int, n_out: int, kernel: int) -> None:
            deviation = math.sqrt(2 / (n_out * kernel * kernel))
            state[f"{name}.weight"] = torch.empty(n_out, n_in, kernel, kernel).normal_(
                0, deviation, generator=generator
            )

        def norm(name: str, n: int) -> None:
            state[f"{name}.weight"], state[f"{name}.bias"] = torch.ones(n), torch.zeros(n)
            state[f"{name}.running_mean"], state[f"{name}.running_var"] = torch.zeros(n), torch.ones(n)

        conv("conv1", self.channels, self.width, 7 if self.stem == "imagenet" else 3)
        norm("bn1", self.width)
        for block in self._blocks():
            for i, n_in in ((1, block.n_in), (2, block.n_out)):
                conv(f"{block.name}.conv{i}", n_in, block.n_out, 3)
                norm(f"{block.name}.bn{i}", block.n_out)
            if block.has_projection:
                conv(f"{block.name}.downsample.0", block.n_in, block.n_out, 1)
                norm(f"{block.name}.downsample.1", block.n_out)
        return state

    def features(self, state: State, images: Tensor, *, training: bool) -> Tensor:
        # the gradient of `unbind` is one stack; that of K selections is K tensors of all K networks, mostly zeros
        by_name = {name: tensor.unbind() if len(images) > 1 else [tensor.squeeze(0)] for name, tensor in state.items()}
        one = [
            self._one({name: tensors[k] for name, tensors in by_name.items()}, own, training)
            for k, own in enumerate(images.unbind())
        ]
        return torch.stack(one)

    def _one(self, state: State, x: Tensor, training: bool) -> Tensor:
        training = training and x.shape[0] > 1  # batch statistics need more than one image

        def norm(name: str, x: Tensor) -> Tensor:
            mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
            return F.batch_norm(x, mean, variance, state[f"{name}.weight"], state[f"{name}.bias"], training)

        imagenet = self.stem == "imagenet"
        x = F.conv2d(x, state["conv1.weight"], stride=2 if imagenet else 1, padding=3 if imagenet else 1)
        x = norm("bn1", x).relu()
        if imagenet:
            x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for block in self._blocks():
            name, shortcut = block.name, x
            y = F.conv2d(x, state[f"{name}.conv1.weight"], stride=block.stride, padding=1)
            y = norm(f"{name}.bn1", y).relu()
            y = norm(f"{name}.bn2", F.conv2d(y, state[f"{name}.conv2.weight"], padding=1))
            if block.has_projection:
                shortcut = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=block.stride)
                shortcut = norm(f"{name}.downsample.1", shortcut)
            x = (y + shortcut).relu()
        return x.mean((2, 3))

    def activation_floats(self) -> int:
        side = math.ceil(self.size / 2) if self.stem == "imagenet" else self.size
        total = self.channels * self.size**2 + 3 * self.width * side**2
        side = math.ceil(side / 2) if self.stem == "imagenet" else side
        for block in self._blocks():
            side = math.ceil(side / block.stride)
            total += (9 if block.has_projection else 7) * block.n_out * side**2
        return total
