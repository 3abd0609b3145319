"""Centrality against numpy's eigenvectors, networkx and hard spectra."""

import networkx
import numpy as np
import pytest
import torch

from purereplay.purify.centrality import principal_eigenvector


def random_graphs(n: int, n_graphs: int = 3, density: float = 0.3, seed: int = 0) -> torch.Tensor:
    triangle = np.tril(np.random.default_rng(seed).random((n_graphs, n, n)) < density, -1)
    return torch.from_numpy(np.maximum(triangle | triangle.transpose(0, 2, 1) | np.eye(n, dtype=bool), 1e-5))


def eigh(matrix: np.ndarray) -> np.ndarray:
    return np.abs(np.linalg.eigh(matrix)[1][:, -1])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20, 150])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
def test_equals_numpy_eigh(n: int, density: float):
    matrices = random_graphs(n, density=density)
    found = principal_eigenvector(matrices)
    values = np.linalg.eigvalsh(matrices.numpy())
    assert found.converged.all() and found.vector.isfinite().all()
    assert np.allclose(found.value, values[:, -1], rtol=1e-9)
    assert torch.allclose(found.vector.norm(dim=1), torch.ones(3).double())
    assert (found.vector > 0).all()
    image = torch.einsum("rij,rj->ri", matrices, found.vector)
    residual = (image - found.value[:, None] * found.vector).norm(dim=1)
    assert (residual <= 1e-9 * found.value).all()
    for vector, matrix, spectrum in zip(found.vector.numpy(), matrices.numpy(), values, strict=True):
        if n == 1 or spectrum[-1] - spectrum[-2] > 1e-3 * spectrum[-1]:  # else the vector itself is not determined
            assert np.allclose(vector, eigh(matrix), atol=1e-6)


def test_equals_networkx():
    matrix = random_graphs(60, 1)[0]
    oracle = networkx.eigenvector_centrality(networkx.from_numpy_array(matrix.numpy()), 1000, 1e-10, weight="weight")
    found = principal_eigenvector(matrix[None]).vector[0]
    assert np.allclose(found, [oracle[i] for i in range(60)], atol=1e-7)


def test_two_clusters_of_nearly_equal_size():
    # second eigenvalue at 97 % of the first: the plain power method would need some 700 products
    chances = np.full((200, 200), 0.01)
    chances[:102, :102] = chances[102:, 102:] = 0.9
    triangle = np.tril(np.random.default_rng(0).random((200, 200)) < chances, -1)
    matrix = np.maximum(triangle | triangle.T | np.eye(200, dtype=bool), 1e-5)
    spectrum = np.linalg.eigvalsh(matrix)
    assert spectrum[-2] / spectrum[-1] > 0.95
    found = principal_eigenvector(torch.from_numpy(matrix)[None], max_restarts=10)
    assert found.converged.all()
    assert np.allclose(found.vector[0], eigh(matrix), atol=1e-6)


def test_padding_stays_zero_and_moves_nothing():
    small = random_graphs(17)
    padded = torch.zeros(3, 40, 40, dtype=torch.float64)
    padded[:, :17, :17] = small
    found = principal_eigenvector(padded)
    assert (found.vector[:, 17:] == 0).all()
    assert torch.allclose(found.vector[:, :17], principal_eigenvector(small).vector, atol=1e-8)


def test_a_matrix_does_not_depend_on_its_neighbours():
    easy, hard = random_graphs(50, density=0.9), random_graphs(50, density=0.03)
    rough = {"tolerance": 1e-2, "n_powers": 2}  # the easy ones are done after a restart or two, far from the last bit
    alone, together = principal_eigenvector(easy, **rough), principal_eigenvector(torch.cat([easy, hard]), **rough)
    assert torch.allclose(together.vector[:3], alone.vector, rtol=0, atol=1e-13)
    assert torch.allclose(together.value[:3], alone.value, rtol=1e-13)
    assert alone.converged.all() and together.converged[:3].all()
    assert (alone.vector - principal_eigenvector(easy).vector).abs().max() > 1e-9


def test_says_when_it_did_not_converge():
    matrices = random_graphs(80, density=0.05)
    found = principal_eigenvector(matrices, n_powers=2, max_restarts=1)
    assert not found.converged.any()
    mixed = principal_eigenvector(torch.cat([matrices, torch.ones(1, 80, 80).double()]), n_powers=2, max_restarts=1)
    assert mixed.converged.tolist() == [False] * 3 + [True]
    assert found.vector.isfinite().all() and (found.vector > 0).all()
