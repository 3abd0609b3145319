"""ResNet-18 (He et al., 2016) as a function of its state; tensor names and initialisation as in torchvision.

The released code uses the ImageNet stem (7×7 stride 2, max-pool) on 32×32 images too. The small stem (3×3 stride 1, no
pool) is the usual one for small images. K networks run one after the other, except for small batches on CUDA: there
their convolutions are batched matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.nets.networks import State

N_STAGES = 4
BLOCKS_PER_STAGE = 2
# positions of a batch's maps after the stem, up to which K networks are faster together than one after the other on an
# H200: for 20 images of 32×32 2.05 against 2.50 ms a network, for 100 images 8.4 against 5.9 ms
_FEW_POSITIONS = 20 * 32 * 32


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
        if training and self._is_faster_together(images):
            maps = self._maps(_SideBySide(state), images.transpose(1, 2))
            return maps.mean((3, 4)).transpose(1, 2)
        # the gradient of `unbind` is one stack; that of K selections is K tensors of all K networks, mostly zeros
        by_name = {name: tensor.unbind() if len(images) > 1 else [tensor.squeeze(0)] for name, tensor in state.items()}
        one = [
            self._maps(_Alone({name: tensors[k] for name, tensors in by_name.items()}, training), own).mean((2, 3))
            for k, own in enumerate(images.unbind())
        ]
        return torch.stack(one)

    def _is_faster_together(self, images: Tensor) -> bool:
        return images.is_cuda and images.shape[1] * self._stem_sides()[-1] ** 2 <= _FEW_POSITIONS

    def _stem_sides(self) -> tuple[int, int]:
        """Height of the maps before and after the pool of the stem."""
        if self.stem == "small":
            return self.size, self.size
        side = math.ceil(self.size / 2)
        return side, math.ceil(side / 2)

    def _maps(self, layers: _Layers, x: Tensor) -> Tensor:
        """Return the maps of the last block."""
        imagenet = self.stem == "imagenet"
        x = layers.conv("conv1", x, stride=2 if imagenet else 1, padding=3 if imagenet else 1)
        x = layers.norm("bn1", x).relu()
        if imagenet:
            x = layers.pool(x)
        for block in self._blocks():
            name, shortcut = block.name, x
            y = layers.norm(f"{name}.bn1", layers.conv(f"{name}.conv1", x, stride=block.stride, padding=1)).relu()
            y = layers.norm(f"{name}.bn2", layers.conv(f"{name}.conv2", y, stride=1, padding=1))
            if block.has_projection:
                projected = layers.conv(f"{name}.downsample.0", x, stride=block.stride, padding=0)
                shortcut = layers.norm(f"{name}.downsample.1", projected)
            x = (y + shortcut).relu()
        return x

    def activation_floats(self) -> int:
        before, side = self._stem_sides()
        total = self.channels * self.size**2 + 3 * self.width * before**2
        for block in self._blocks():
            side = math.ceil(side / block.stride)
            total += (9 if block.has_projection else 7) * block.n_out * side**2
        return total


class _Layers(Protocol):
    """Layers of one network or of several."""

    def conv(self, name: str, x: Tensor, *, stride: int, padding: int) -> Tensor: ...

    def norm(self, name: str, x: Tensor) -> Tensor: ...

    def pool(self, x: Tensor) -> Tensor: ...


class _Alone:
    """Layers of one network, on maps (B, C, H, W)."""

    def __init__(self, state: State, training: bool) -> None:
        self.state, self.training = state, training

    def conv(self, name: str, x: Tensor, *, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, self.state[f"{name}.weight"], stride=stride, padding=padding)

    def norm(self, name: str, x: Tensor) -> Tensor:
        training = self.training and x.shape[0] > 1  # batch statistics need more than one image
        return F.batch_norm(x, *_norm_tensors(self.state, name), training)

    def pool(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, kernel_size=3, stride=2, padding=1)


class _SideBySide:
    """Layers of K networks in training, on maps (K, C, B, H, W); the number of kernels does not depend on K."""

    def __init__(self, state: State) -> None:
        self.state = state

    def conv(self, name: str, x: Tensor, *, stride: int, padding: int) -> Tensor:
        weight = self.state[f"{name}.weight"]  # (K, C_out, C, kernel, kernel)
        k, _, n, size = x.shape[:4]
        out = (size + 2 * padding - weight.shape[-1]) // stride + 1
        # rows of the kernel that meet the image, not only its padding: the middle one if the image is one pixel
        first = max(0, padding - (out - 1) * stride)
        last = min(weight.shape[-1], size + padding)
        before, after = padding - first, (out - 1) * stride + last - padding - size
        x = F.pad(x, (before, after, before, after))
        patches = x.unfold(3, last - first, stride).unfold(4, last - first, stride)  # (K, C, B, out, out, rows, rows)
        columns = patches.permute(0, 1, 5, 6, 2, 3, 4).reshape(k, -1, n * out * out)
        product = torch.bmm(weight[..., first:last, first:last].flatten(2), columns)
        return product.view(k, -1, n, out, out)

    def norm(self, name: str, x: Tensor) -> Tensor:
        channels = x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:])  # of all networks
        mean, variance, weight, bias = (t.view(-1) for t in _norm_tensors(self.state, name))
        return F.batch_norm(channels, mean, variance, weight, bias, training=x.shape[2] > 1).view(x.shape)

    def pool(self, x: Tensor) -> Tensor:
        pooled = F.max_pool2d(x.flatten(0, 1), kernel_size=3, stride=2, padding=1)
        return pooled.view(*x.shape[:3], *pooled.shape[2:])


def _norm_tensors(state: State, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Running mean and variance, weight and bias of a batch norm, in the order of `F.batch_norm`."""
    mean, variance, weight, bias = (
        state[f"{name}.{which}"] for which in ("running_mean", "running_var", "weight", "bias")
    )
    return mean, variance, weight, bias
