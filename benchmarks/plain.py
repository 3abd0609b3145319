"""Plain PyTorch and numpy implementations of the same work: the reference of the benchmarks."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from purereplay.nets.views import colour_jitter


class Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.bn2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)
        same = stride == 1 and n_in == n_out
        projection = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))
        self.shortcut = nn.Identity() if same else projection

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def resnet18(stem: str) -> nn.Module:
    """Return a network with a projection head 512-512-256."""
    first = [nn.Conv2d(3, 64, 7, 2, 3, bias=False)] if stem == "imagenet" else [nn.Conv2d(3, 64, 3, 1, 1, bias=False)]
    first += [nn.BatchNorm2d(64), nn.ReLU()] + ([nn.MaxPool2d(3, 2, 1)] if stem == "imagenet" else [])
    sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Block(*size) for size in [*sizes, (512, 512, 1)]]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256)]
    return nn.Sequential(*first, *blocks, *head)


def perceptron(n_inputs: int, hidden: int) -> nn.Module:
    """Return a network with a projection head hidden-hidden-256."""
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in ((n_inputs, hidden), (hidden, hidden), (hidden, hidden)):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 256))


def views(images: Tensor) -> Tensor:
    """Return a random resized crop, flip and colour jitter of each image (n, C, H, W) in [0, 1]."""
    n, device = len(images), images.device
    area = torch.empty(3, n, device=device).uniform_(0.08, 1)
    ratio = torch.empty(3, n, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    w, h = (area * ratio).sqrt(), (area / ratio).sqrt()
    fits = (w <= 1) & (h <= 1)
    which = torch.where(fits[0], 0, torch.where(fits[1], 1, 2))[None]
    w, h = w.gather(0, which)[0].clamp(max=1), h.gather(0, which)[0].clamp(max=1)
    transform = torch.zeros(n, 2, 3, device=device)
    transform[:, 0, 0] = w * torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)
    transform[:, 1, 1] = h
    transform[:, 0, 2] = (2 * torch.rand(n, device=device) - 1) * (1 - w)
    transform[:, 1, 2] = (2 * torch.rand(n, device=device) - 1) * (1 - h)
    grid = F.affine_grid(transform, list(images.shape), align_corners=False)
    x = F.grid_sample(images, grid, align_corners=False, padding_mode="border")
    if images.shape[1] == 1:
        return x
    u = torch.rand(5, n, 1, 1, 1, device=device)
    jittered = colour_jitter(x, 0.5 + u[0], 0.5 + u[1], 0.5 + u[2], 0.4 * u[3] - 0.2, "factors")
    return torch.where(u[4] < 0.5, jittered, x)


class PlainTraining:
    """Contrastive training of one network, one step at a time; with labels as in Pure Replay's base.

    The first half of the images is then D and the second half P.
    """

    def __init__(self, network: nn.Module, images: Tensor, labels: Tensor | None = None) -> None:
        self.network, self.images, self.labels = network.to(images.device), images, labels
        self.backbone, self.head = network[:-3], network[-3:]  # type: ignore[index]
        self.classes = nn.Linear(self.head[0].in_features, 10, device=images.device)
        weights = [*network.parameters(), *(self.classes.parameters() if labels is not None else [])]
        self.average = [w.detach().clone() for w in weights] if labels is not None else []
        self.optimizer = torch.optim.Adam(weights, lr=3e-4)

    def step(self) -> None:
        x = self.images.float() / 255
        features = self.backbone(torch.cat([views(x), views(x)]))
        z = F.normalize(self.head(features), dim=1)
        n = len(z)
        similarity = (z @ z.T / 0.5).masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), -torch.inf)
        loss = F.cross_entropy(similarity, torch.arange(n, device=z.device).roll(n // 2))
        if self.labels is not None:
            logits = self.classes(features).view(2, 2, n // 4, 10)  # views, D and P, images, classes
            for part, labels in enumerate(self.labels.view(2, -1)):
                loss = loss + F.cross_entropy(logits[:, part].reshape(-1, 10), labels.repeat(2))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.average:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.optimizer.param_groups[0]["params"], 0.01)


def plain_clean_probability(
    features: NDArray[np.float64], labels: NDArray[np.int64], n_graphs: int
) -> NDArray[np.float64]:
    """Self-Centered filter: one graph after the other, `eigh`, EM with scipy's beta densities; returns (n,)."""
    rng = np.random.default_rng(0)
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    result = np.zeros(len(labels))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        weights = np.maximum(features[own] @ features[own].T, 0)
        for _ in range(n_graphs):
            triangle = np.tril(rng.random(weights.shape) < weights, -1)
            graph = np.maximum((triangle | triangle.T | np.eye(len(own), dtype=bool)).astype(float), 1e-5)
            scores = np.abs(np.linalg.eigh(graph)[1][:, -1])
            result[own] += plain_posterior(scores) / n_graphs
    return result


def plain_posterior(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the posterior (n,) of the higher component after 10 EM steps on the trimmed scores."""
    low, high = np.percentile(scores, [5, 95])
    x = np.clip((scores - low) / (high - low), 1e-3, 1 - 1e-3)
    kept = x[(scores >= low) & (scores <= high)]
    parameters = [(1.0, 2.0, 0.5), (2.0, 1.0, 0.5)]
    for _ in range(10):
        joint = np.array([w * stats.beta.pdf(kept, a, b) for a, b, w in parameters])
        gamma = joint / joint.sum(0)
        parameters = []
        for g in gamma:
            mean = np.average(kept, weights=g)
            common = mean * (1 - mean) / np.average((kept - mean) ** 2, weights=g) - 1
            parameters.append((mean * common, (1 - mean) * common, g.mean()))
    noisy, clean = sorted(parameters, key=lambda p: p[0] / (p[0] + p[1]))
    joint = np.array([w * stats.beta.pdf(x, a, b) for a, b, w in (noisy, clean)])
    return joint[1] / joint.sum(0)
