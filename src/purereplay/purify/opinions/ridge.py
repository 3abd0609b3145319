"""Ridge regression of the labels on the features, with predictions that leave each sample out in closed form.

`LinearRidge` regresses on the features themselves, `KernelRidge` on similarities exp(-g · distance²) to at most 1,000
of the samples (Nyström's method). The strength of the ridge is that with the least squared error of the predictions
without the sample; g is chosen in the same way on 500 samples.

With weights w, design X and Z = X (XᵀWX + λ)⁻¹ᐟ², the residual without sample i is residual_i / (1 - w_i |Z_i|²).

A regression of 0 and 1 estimates a probability, but may be negative. Scores are the logarithms of a smooth positive
part: log(softplus(s / t) · t) with t = 1 / n_classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from torch import Tensor

from purereplay.data.forms import Form, check_forms
from purereplay.data.seeds import derive_seed

N_LANDMARKS = 1000
_WIDTHS = (0.5, 1.5)  # g in units of 1 / median squared distance
_N_TRIED = 500  # samples by which g is chosen
_KERNEL_STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_LINEAR_STRENGTHS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # in units of the sum of squares of a feature
_JITTER = 1e-5  # added to the diagonal of the landmarks' kernel, which is 1
_MOST_LEVERAGE = 0.999
_ROWS_AT_ONCE = 2000

Array = TypeVar("Array", NDArray[np.float32], NDArray[np.float64])
Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]


class _Solution(NamedTuple):
    error: float  # weighted squared error of the predictions without the sample
    coefficients: Real32  # (columns of the design, n_classes)
    mean: Real32  # (n_classes,)
    left_out: Real  # regressions without the sample, (n, n_classes)


@dataclass(frozen=True)
class LinearRidge:
    """Regression on the features."""

    coefficients: Real32  # (d, n_classes)
    mean: Real32  # (n_classes,), at features of zero
    kind: ClassVar[str] = "linear"

    @classmethod
    def fit(cls, features: Real32, labels: Whole, weights: Real32, n_classes: int, seed: int) -> tuple[Self, Real]:
        """Return the model, and scores without the sample."""
        design = _with_constant(features)
        unit = max(float((features.astype(np.float64) ** 2).sum(0).mean()), 1e-9)
        best = _solve(design, _one_hot(labels, n_classes), weights, tuple(unit * s for s in _LINEAR_STRENGTHS))
        return cls(best.coefficients[:-1], best.mean + best.coefficients[-1]), _logarithms(best.left_out)

    def scores(self, features: Real32) -> Real:
        return _logarithms(features.astype(np.float64) @ self.coefficients + self.mean)

    def tensors(self) -> dict[str, Tensor]:
        return {"coefficients": torch.from_numpy(self.coefficients.copy()), "mean": torch.from_numpy(self.mean.copy())}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_features: int, n_classes: int) -> Self:
        forms = {
            "coefficients": Form(torch.float32, (n_features, n_classes), finite=True),
            "mean": Form(torch.float32, (n_classes,), finite=True),
        }
        check_forms(tensors, forms)
        return cls(tensors["coefficients"].numpy(), tensors["mean"].numpy())


@dataclass(frozen=True)
class KernelRidge:
    """Regression on similarities to landmarks."""

    landmarks: Real32  # (m, d)
    coefficients: Real32  # (m, n_classes)
    mean: Real32  # (n_classes,), far from all landmarks
    width: float  # g
    kind: ClassVar[str] = "kernel"

    @classmethod
    def fit(cls, features: Real32, labels: Whole, weights: Real32, n_classes: int, seed: int) -> tuple[Self, Real]:
        """Return the model, and scores without the sample."""
        rng = np.random.default_rng(derive_seed(seed, "landmarks"))
        order = rng.permutation(len(features))
        landmarks = features[np.sort(order[:N_LANDMARKS])]
        unit = _median_distance(landmarks)
        some = np.sort(order[:_N_TRIED])
        errors = [
            cls._solved(features[some], features[some], labels[some], weights[some], n_classes, w / unit)[0].error
            for w in _WIDTHS
        ]
        g = _WIDTHS[int(np.argmin(errors))] / unit
        best, root = cls._solved(features, landmarks, labels, weights, n_classes, g)
        model = cls(landmarks, root @ best.coefficients[:-1], best.mean + best.coefficients[-1], g)
        return model, _logarithms(best.left_out)

    @staticmethod
    def _solved(
        features: Real32, landmarks: Real32, labels: Whole, weights: Real32, n_classes: int, g: float
    ) -> tuple[_Solution, Real32]:
        """Return the regression on similarities to landmarks, and the matrix that makes them a design."""
        root = _inverse_root(_similarity(landmarks, landmarks, g))
        design = np.concatenate([_similarity(rows, landmarks, g) @ root for rows in _pieces(features)])
        return _solve(_with_constant(design), _one_hot(labels, n_classes), weights, _KERNEL_STRENGTHS), root

    def scores(self, features: Real32) -> Real:
        parts = [
            np.exp(-self.width * self._known.squared_distances(rows)) @ self.coefficients for rows in _pieces(features)
        ]
        return _logarithms(np.concatenate(parts) + self.mean)

    @cached_property
    def _known(self) -> KnownPoints:
        return KnownPoints(self.landmarks)

    def tensors(self) -> dict[str, Tensor]:
        arrays = {"landmarks": self.landmarks, "coefficients": self.coefficients, "mean": self.mean}
        found = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in arrays.items()}
        return found | {"width": torch.tensor(self.width, dtype=torch.float64)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_features: int, n_classes: int) -> Self:
        n = tensors["landmarks"].shape[0] if "landmarks" in tensors and tensors["landmarks"].ndim else 0
        forms = {
            "landmarks": Form(torch.float32, (n, n_features), finite=True),
            "coefficients": Form(torch.float32, (n, n_classes), finite=True),
            "mean": Form(torch.float32, (n_classes,), finite=True),
            "width": Form(torch.float64, (), least=0, finite=True),
        }
        check_forms(tensors, forms)
        landmarks, coefficients, mean = (tensors[name].numpy() for name in ("landmarks", "coefficients", "mean"))
        return cls(landmarks, coefficients, mean, float(tensors["width"]))


def _solve(design: Real32, wanted: Real32, weights: Real32, strengths: tuple[float, ...]) -> _Solution:
    """Return the regression of the best strength; the last column of the design is constant."""
    mean = weights @ wanted / weights.sum()
    target = wanted - mean
    weighted = design * weights[:, None]
    values, vectors = np.linalg.eigh((weighted.T @ design).astype(np.float64))
    turned = design @ vectors.astype(np.float32)  # (n, columns)
    values = np.maximum(values, 0)
    products = turned.T @ (target * weights[:, None])
    squares = np.square(turned)
    best: _Solution | None = None
    for strength in strengths:
        inverse = (1 / (values + strength)).astype(np.float32)
        rotated = inverse[:, None] * products
        leverage = np.minimum(squares @ inverse * weights, _MOST_LEVERAGE)
        residual = (target - turned @ rotated) / (1 - leverage)[:, None]
        error = float((weights @ np.square(residual)).sum(dtype=np.float64))
        if best is None or error < best.error:
            coefficients = vectors.astype(np.float32) @ rotated
            best = _Solution(error, coefficients, mean, (wanted - residual).astype(np.float64))
    assert best is not None
    return best


def _logarithms(regressions: NDArray[np.floating]) -> Real:
    t = 1 / max(2, regressions.shape[1])
    found: Real = np.log(np.logaddexp(0, np.maximum(regressions.astype(np.float64) / t, -30)) * t)
    return found


def _one_hot(labels: Whole, n_classes: int) -> Real32:
    wanted = np.zeros((len(labels), n_classes), np.float32)
    wanted[np.arange(len(labels)), labels] = 1
    return wanted


def _with_constant(design: Real32) -> Real32:
    return np.concatenate([design, np.ones((len(design), 1), np.float32)], 1, dtype=np.float32)


def _similarity(rows: Real32, landmarks: Real32, g: float) -> Real32:
    found: Real32 = np.exp(np.float32(-g) * squared_distances(rows, landmarks))
    return found


def squared_distances(rows: Array, others: Array, squares: Array | None = None) -> Array:
    """Return squared distances between all pairs, (n, m); `squares` are those of the others' lengths, if known."""
    lengths = (others * others).sum(1) if squares is None else squares
    found: Array = (rows * rows).sum(1)[:, None] + lengths - 2 * (rows @ others.T)
    return np.maximum(found, 0, out=found)


class KnownPoints:
    """Points (m, d) in the form that distances to new ones need: a server asks for these with every request.

    Distances are computed in float64, so that the other rows of a call do not matter.
    """

    def __init__(self, points: Real32) -> None:
        self.points = points.astype(np.float64)
        self.squares: Real = (self.points * self.points).sum(1)

    def squared_distances(self, rows: Real32) -> Real:
        """Return squared distances of rows (n, d) to the points, (n, m)."""
        return squared_distances(rows.astype(np.float64), self.points, self.squares)


def _median_distance(landmarks: Real32) -> float:
    some = landmarks[:500]
    distances = squared_distances(some, some)[np.triu_indices(len(some), 1)]
    median = float(np.median(distances)) if len(distances) else 0.0
    return median if median > 1e-12 else 1.0


def _inverse_root(kernel: Real32) -> Real32:
    """Return R with R Rᵀ = (kernel + a little)⁻¹, (m, m)."""
    lower = np.linalg.cholesky(kernel.astype(np.float64) + _JITTER * np.eye(len(kernel)))
    found: Real32 = solve_triangular(lower, np.eye(len(kernel)), lower=True).T.astype(np.float32)
    return found


def _pieces(features: Real32) -> list[Real32]:
    return [features[i : i + _ROWS_AT_ONCE] for i in range(0, max(1, len(features)), _ROWS_AT_ONCE)]
