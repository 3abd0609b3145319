"""Features told by what sets a buffer's images apart from each other, and features of two kinds together.

What all images have in common says nothing about their labels, but cosine similarities are made of it: it is taken off.
Of the rest the 32 main directions stay. The last ones are partly whitened, so that they count beside the first.

In: features (n, d) of one buffer. Out: features float32 for the Self-Centered filter.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_DIRECTIONS = 32
_WHITENING = 0.7  # 0: main directions as they are, 1: all of one size


def main_directions(features: Tensor) -> Tensor:
    """The images along their main directions, (n, at most 32); a function of the buffer alone."""
    deviation, mean = torch.std_mean(features, 0, correction=0)
    x = ((features - mean) / (deviation + 1e-6)).double()
    few_images = x.shape[0] <= x.shape[1]  # the smaller of two products with the same eigenvalues
    values, vectors = torch.linalg.eigh(x @ x.T if few_images else x.T @ x)
    size, directions = values[-_DIRECTIONS:].clamp(min=1e-12).sqrt(), vectors[:, -_DIRECTIONS:]
    directions = directions * size if few_images else x @ directions
    found: Tensor = directions / size**_WHITENING
    return found.float()


def concatenate_features(one: Tensor, other: Tensor) -> Tensor:
    """Features of two kinds as one, (n, d + e): their cosine similarity is the mean of the two kinds' similarities."""
    return torch.cat([F.normalize(one), F.normalize(other)], 1)
