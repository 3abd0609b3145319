"""Classifiers as PyTorch modules, from images to probabilities, for `torch.export` and ONNX.

The arithmetic is that of `purify.opinions` and `nets`: features in float32, models in float64. Averages over parts of
an image are products with matrices, since ONNX has no adaptive pooling.

In: images uint8 (n, C, H, W), or vectors (n, d). Out: probabilities float32 (n, labels).
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purereplay.data.scale import CLIP
from purereplay.live.opinion import Opinion
from purereplay.live.predict import Predictor
from purereplay.nets.inference import Classifier
from purereplay.nets.networks import network_input
from purereplay.purify import patches
from purereplay.purify.opinions import FeatureMap, Model
from purereplay.purify.opinions.forest import SMOOTHING, Forest
from purereplay.purify.opinions.members import Member
from purereplay.purify.opinions.neighbours import N_NEIGHBOURS, Neighbours
from purereplay.purify.opinions.ridge import KernelRidge, LinearRidge


def graph_of(classifier: Predictor) -> nn.Module:
    """Return a classifier as a module."""
    if isinstance(classifier, Opinion):
        return FullMemoryGraph(classifier).eval()
    assert isinstance(classifier, Classifier)
    return NetworkGraph(classifier).eval()


class NetworkGraph(nn.Module):
    """The network of `spr` and `pure-replay`."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.network = classifier.network
        self.names = list(classifier.state)
        for i, name in enumerate(self.names):
            self.register_buffer(f"t{i}", classifier.state[name].detach().cpu().unsqueeze(0).clone())

    def forward(self, images: Tensor) -> Tensor:
        state = {name: cast(Tensor, getattr(self, f"t{i}")) for i, name in enumerate(self.names)}
        return self.network.outputs(state, network_input(images).unsqueeze(0))[0].softmax(-1)


class FullMemoryGraph(nn.Module):
    """The features, the models and the pool of `full-memory`."""

    def __init__(self, opinion: Opinion) -> None:
        super().__init__()
        model = opinion.model
        images = opinion.feature_map.is_for_images
        self.features = (
            _PatchFeatures(opinion.feature_map, opinion.image_shape) if images else _VectorFeatures(opinion.feature_map)
        )
        self.members = nn.ModuleList(_member(member) for member in model.members)
        self.pool = _Pool(model)

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        return cast(Tensor, self.pool(features, [member(features) for member in self.members]))


class _PatchFeatures(nn.Module):
    """Responses of images to patches, along their main directions; see `purify.patches`."""

    filters: Tensor
    whole: Tensor
    offset: Tensor
    mean: Tensor
    scale: Tensor
    directions: Tensor
    shrink: tuple[Tensor, Tensor]
    rows: Tensor
    columns: Tensor
    down_rows: Tensor
    down_columns: Tensor

    def __init__(self, feature_map: FeatureMap, shape: tuple[int, int, int]) -> None:
        super().__init__()
        for name in ("filters", "mean", "scale", "directions"):
            self.register_buffer(name, feature_map.parts[name].clone())
        self.register_buffer("offset", feature_map.parts["offset"].view(-1, 1, 1).clone())
        self.register_buffer("whole", self.filters.sum((1, 2, 3)).view(-1, 1, 1))
        small = patches.shrunk_size(shape[1:])
        self.shrinks = small != tuple(shape[1:])
        self.size = self.filters.shape[-1]
        self.register_buffer("down_rows", _averages(shape[1], small[0]).T)
        self.register_buffer("down_columns", _averages(shape[2], small[1]).T)
        left = [n - self.size + 1 for n in small]
        self.register_buffer("rows", _averages(left[0], patches.GRID).T)
        self.register_buffer("columns", _averages(left[1], patches.GRID).T)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.float() / 255
        if self.shrinks:
            pixels = _averaged(pixels, self.down_rows, self.down_columns)
        mean = F.avg_pool2d(pixels.mean(1, keepdim=True), self.size, 1)
        square = F.avg_pool2d(pixels.square().mean(1, keepdim=True), self.size, 1)
        contrast = ((square - mean.square()).clamp(min=0) + patches.CONTRAST).sqrt()
        response = (F.conv2d(pixels, self.filters) - mean * self.whole) / contrast - self.offset
        both = torch.cat([F.relu(response - patches.THRESHOLD), F.relu(-response - patches.THRESHOLD)], 1)
        pooled = _averaged(both, self.rows, self.columns).flatten(1)
        return ((pooled - self.mean) / self.scale) @ self.directions


class _VectorFeatures(nn.Module):
    """Standardised vectors, along their main directions if there are many."""

    mean: Tensor
    scale: Tensor
    directions: Tensor

    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        self.has_directions = "directions" in feature_map.parts
        for name in ("mean", "scale", *(["directions"] if self.has_directions else [])):
            self.register_buffer(name, feature_map.parts[name].clone())

    def forward(self, vectors: Tensor) -> Tensor:
        clipped = ((vectors.double() - self.mean) / self.scale).clamp(-CLIP, CLIP).float()
        return clipped @ self.directions if self.has_directions else clipped


def _averaged(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return images (n, C, H, W) averaged by matrices (H, h) and (W, w), as (n, C, h, w).

    Products have two axes and the matrix on the right: onnxruntime refuses others if there are no images.
    """
    turned = _times(images, columns).transpose(2, 3)
    return _times(turned, rows).transpose(2, 3)


def _times(images: Tensor, matrix: Tensor) -> Tensor:
    n, channels, height, width = images.shape
    return (images.reshape(n * channels * height, width) @ matrix).reshape(n, channels, height, matrix.shape[1])


def _averages(n: int, parts: int) -> Tensor:
    """Return the matrix (parts, n) that averages n values over parts, as adaptive pooling does."""
    matrix = torch.zeros(parts, n)
    for i in range(parts):
        start, stop = i * n // parts, -(-(i + 1) * n // parts)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix


def _member(member: Member) -> nn.Module:
    if isinstance(member, LinearRidge):
        return _Linear(member)
    if isinstance(member, KernelRidge):
        return _Kernel(member)
    if isinstance(member, Neighbours):
        return _Neighbours(member)
    assert isinstance(member, Forest)
    return _Forest(member)


def _double(array: object) -> Tensor:
    return torch.from_numpy(np.array(array, np.float64))


class _Linear(nn.Module):
    coefficients: Tensor
    mean: Tensor

    def __init__(self, member: LinearRidge) -> None:
        super().__init__()
        self.register_buffer("coefficients", _double(member.coefficients))
        self.register_buffer("mean", _double(member.mean))

    def forward(self, features: Tensor) -> Tensor:
        return _logarithms(features.double() @ self.coefficients + self.mean)


class _Kernel(nn.Module):
    landmarks: Tensor
    coefficients: Tensor
    mean: Tensor

    def __init__(self, member: KernelRidge) -> None:
        super().__init__()
        self.register_buffer("landmarks", _double(member.landmarks))
        self.register_buffer("coefficients", _double(member.coefficients))
        self.register_buffer("mean", _double(member.mean))
        self.width = float(member.width)

    def forward(self, features: Tensor) -> Tensor:
        similar = torch.exp(-self.width * _squared_distances(features.double(), self.landmarks))
        return _logarithms(similar @ self.coefficients + self.mean)


class _Neighbours(nn.Module):
    known: Tensor
    votes: Tensor
    prior: Tensor

    def __init__(self, member: Neighbours) -> None:
        super().__init__()
        votes = np.zeros((len(member.labels), member.n_classes))
        votes[np.arange(len(votes)), member.labels] = member.weights
        self.register_buffer("known", _double(member.features))
        self.register_buffer("votes", _double(votes))
        self.register_buffer("prior", _double(member.prior()))
        self.k = min(N_NEIGHBOURS, len(votes))

    def forward(self, features: Tensor) -> Tensor:
        distances = _squared_distances(features.double(), self.known)
        near = torch.topk(distances, self.k, dim=1, largest=False).indices
        votes = self.votes[near].sum(1) + self.prior
        return torch.log(votes / votes.sum(1, keepdim=True))


class _Forest(nn.Module):
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    shares: Tensor
    roots: Tensor

    def __init__(self, member: Forest) -> None:
        super().__init__()
        for name in ("feature", "threshold", "left", "right", "roots"):
            self.register_buffer(name, torch.from_numpy(np.array(getattr(member, name))))
        self.register_buffer("shares", _double(member.shares))
        self.depth = member.depth()

    def forward(self, features: Tensor) -> Tensor:
        nodes = self.roots.unsqueeze(0).expand(features.shape[0], -1)
        for _ in range(self.depth):
            goes_left = torch.gather(features, 1, self.feature[nodes]) <= self.threshold[nodes]
            nodes = torch.where(goes_left, self.left[nodes], self.right[nodes])
        n_trees, n_classes = len(self.roots), self.shares.shape[1]
        shares = (self.shares[nodes].sum(1) + 1e-9) / (n_trees + 1e-9 * n_classes)
        return torch.log(shares / shares.sum(1, keepdim=True) + SMOOTHING)


class _Pool(nn.Module):
    """Probabilities from the scores of all members; classes without samples have 0."""

    weights: Tensor
    scales: Tensor
    correction: Tensor
    bias: Tensor
    spread: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        for name in ("weights", "scales", "bias"):
            self.register_buffer(name, _double(getattr(model.pool, name)))
        self.register_buffer("correction", _double(model.pool.correction).T.contiguous())
        spread = np.zeros((len(model.present), model.n_classes))
        spread[np.arange(len(model.present)), model.present] = 1
        self.register_buffer("spread", _double(spread))

    def forward(self, features: Tensor, scores: list[Tensor]) -> Tensor:
        if not scores:  # one class
            return features[:, :1].float() * 0 + self.spread.float()
        inputs = torch.stack([own / self.scales[i] for i, own in enumerate(scores)])
        combined = (inputs * self.weights.view(-1, 1, 1)).sum(0)
        mean = inputs.mean(0)
        found = (combined + mean @ self.correction + self.bias).softmax(1)
        return (found @ self.spread).float()


def _logarithms(regressions: Tensor) -> Tensor:
    """Return the logarithm of a smooth positive part; log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))."""
    t = 1 / max(2, regressions.shape[1])
    x = (regressions / t).clamp(min=-30)
    return torch.log((x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))) * t)


def _squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    found = rows.square().sum(1, keepdim=True) + others.square().sum(1) - 2 * (rows @ others.T)
    return found.clamp(min=0)
