"""Main directions of a buffer's features, and concatenation of several kinds of features.

What all images of a buffer have in common says nothing about their labels, but dominates cosine similarities, so the
mean is subtracted. Of the rest the 32 main directions are kept, partly whitened, so that minor directions count too.

In: features (n, d) of one buffer. Out: features float32 for the Self-Centered filter.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

N_DIRECTIONS = 32
_WHITENING = 0.7  # 0: main directions unchanged, 1: all of unit variance


def main_directions(features: Tensor, n_directions: int = N_DIRECTIONS) -> Tensor:
    """Return the projection on the main directions, (n, at most n_directions); it depends on the buffer alone."""
    deviation, mean = torch.std_mean(features, 0, correction=0)
    x = ((features - mean) / (deviation + 1e-6)).double()
    few_images = x.shape[0] <= x.shape[1]  # the smaller of two products with the same eigenvalues
    values, vectors = torch.linalg.eigh(x @ x.T if few_images else x.T @ x)
    size, directions = values[-n_directions:].clamp(min=1e-12).sqrt(), vectors[:, -n_directions:]
    directions = directions * size if few_images else x @ directions
    found: Tensor = directions / size**_WHITENING
    return found.float()


def concatenate_features(*kinds: Tensor) -> Tensor:
    """Return several kinds of features, (n, d) each, as one whose cosine similarity is the mean of theirs."""
    return torch.cat([F.normalize(kind) for kind in kinds], 1)
