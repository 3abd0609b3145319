"""Eigenvector centrality: a vertex is central if it is connected to vertices that are central themselves.

In: adjacency matrices, many at once. Out: their principal eigenvectors, one score per vertex (high = central = clean),
for the beta mixture. Paper: section "Self-Centered Filter", Eq. A c = λ c, solved there by the power method.

Departure from the paper, in speed only: the powers A v, A² v, … are kept, and the best vector of the space they span is
taken (Rayleigh-Ritz; a restarted Lanczos iteration). It needs about the square root of the power method's number of
products with A.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Centrality(NamedTuple):
    """Principal eigenvectors of R matrices."""

    vector: Tensor  # float (R, N): positive, unit L2 norm; 0 where padded
    value: Tensor  # float (R,): the largest eigenvalue
    converged: Tensor  # bool (R,): the residual is below the tolerance; if not, `vector` is the best one found


def principal_eigenvector(
    matrices: Tensor, *, tolerance: float = 1e-9, n_powers: int = 8, max_restarts: int = 50
) -> Centrality:
    """Return the principal eigenvectors of symmetric (R, N, N) with positive entries; all-zero rows are padding.

    Stops when ‖A c - λ c‖ ≤ tolerance · λ for every matrix. A converged matrix is removed from the batch, so its result
    does not depend on the rest of the batch, and slow matrices cost nothing for the others.
    """
    vector = _unit(matrices.sum(-1))  # one power of the all-ones vector; stays 0 where padded
    value = vector.new_zeros(len(vector))
    left = torch.arange(len(vector), device=vector.device)  # rows whose matrices are still in the batch
    for _ in range(max_restarts):
        found, image, ritz_value = _best_of_powers(matrices, vector[left], n_powers)
        residual = (image - ritz_value[:, None] * found).norm(dim=-1)
        # the image A c is one power ahead of c, and positive where c has a rounding error below zero
        vector[left], value[left] = _unit(image), ritz_value
        stays = (~(residual <= tolerance * ritz_value)).nonzero()[:, 0]  # NaN never converges
        if len(stays) < len(left):
            left, matrices = left[stays], matrices[stays]
        if not len(left):
            break
    done = torch.ones_like(value, dtype=torch.bool).index_fill_(0, left, False)
    return Centrality(vector.abs(), value, done)


def _best_of_powers(matrices: Tensor, start: Tensor, n_powers: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Ritz vector c (R, N) of the span of start, A start, …, its image A c, and the Ritz value (R,)."""
    n_powers = min(n_powers, start.shape[1])
    basis = start.new_zeros(start.shape[0], n_powers, start.shape[1])  # orthonormal rows
    images = torch.zeros_like(basis)  # their products with A
    direction = start
    for j in range(n_powers):
        basis[:, j] = direction
        images[:, j] = torch.bmm(direction[:, None], matrices)[:, 0]  # A is symmetric
        direction, known = images[:, j], basis[:, : j + 1]
        for _ in range(2):  # twice is enough for orthogonality to the last bits
            direction = direction - torch.bmm(torch.bmm(direction[:, None], known.mT), known)[:, 0]
        length = direction.norm(dim=-1, keepdim=True)
        # the image adds no new direction: the space is complete, further rows stay 0
        fresh = length > 1e-13 * images[:, j].norm(dim=-1, keepdim=True)
        direction = torch.where(fresh, direction / length, 0.0)
    small = torch.bmm(basis, images.mT)
    values, vectors = torch.linalg.eigh((small + small.mT) / 2)
    best = vectors[:, None, :, -1]  # (R, 1, n_powers)
    sign = torch.where(torch.bmm(best, basis).sum((1, 2), keepdim=True) < 0, -1.0, 1.0)
    best = best * sign
    return torch.bmm(best, basis)[:, 0], torch.bmm(best, images)[:, 0], values[:, -1]


def _unit(vectors: Tensor) -> Tensor:
    length: Tensor = vectors.norm(dim=-1, keepdim=True)
    return vectors / length
