"""Features of a user's samples, fitted once and applied to any number of them.

Images: responses to whitened random patches of some of the images (see `purify.patches`), reduced to their main
directions. Vectors: standardised, and clipped at ten standard deviations; those of more than 256 features, such as an
encoder's, are reduced to their main directions too. The map is a few tensors, so it can be saved.

In: images uint8 (n, C, H, W), or vectors of real numbers (n, d). Out: features float32 (n, D).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from purereplay.data.forms import Form, Forms, check_forms
from purereplay.data.progress import Progress
from purereplay.data.scale import CLIP, fit_scale
from purereplay.data.seeds import derive_seed
from purereplay.errors import InputError
from purereplay.purify import patches

N_FITTED = 3000  # samples that a map of images is fitted on
N_DIRECTIONS = 256  # features of an image
# with as many directions as images, the others would tell the label of the one that is left out
_IMAGES_A_DIRECTION = 3
# of vectors; results/encoders/main-directions.jsonl has the gain: AUROC 0.98 instead of 0.67 with 500 samples
_VECTORS_A_DIRECTION = 10
_WHITENING = 0.5  # 0: main directions unchanged, 1: all of unit variance
_ROWS_AT_ONCE = 500  # fixed, so that a sample's features do not depend on the number of samples

Real32 = NDArray[np.float32]


@dataclass(frozen=True)
class FeatureMap:
    """A fitted map from samples to features; `tensors` holds all of it.

    Images: `filters`, `offset`, `mean`, `scale`, `directions`. Vectors: `mean`, `scale`, and `directions` if there are
    many features. Both: `n_fitted`, the number of samples that it was fitted on.
    """

    parts: dict[str, Tensor]

    @classmethod
    def fit(cls, samples: Tensor | NDArray[np.generic], seed: int = 0) -> Self:
        """Fit a map on samples; of more than 3,000 images a random part is used."""
        given = _as_tensor(samples)
        if given.ndim == 4:
            return cls(_fit_images(given, seed))
        return cls(_fit_vectors(given, seed))

    @property
    def is_for_images(self) -> bool:
        """Whether the map takes images, not vectors."""
        return "filters" in self.parts

    @property
    def n_fitted(self) -> int:
        """Number of samples that the map was fitted on."""
        return int(self.parts["n_fitted"])

    @property
    def n_features(self) -> int:
        """Number of features of a sample."""
        return int(self.parts["directions"].shape[1] if "directions" in self.parts else self.parts["mean"].shape[0])

    @property
    def n_inputs(self) -> int:
        """Number of features of a vector before it is mapped; of images, the number of responses."""
        return int(self.parts["mean"].shape[0])

    def fits(self, shape: tuple[int, int, int], *, is_vectors: bool) -> bool:
        """Return whether the map takes samples of this shape; vectors are (d, 1, 1)."""
        if is_vectors or not self.is_for_images:
            return is_vectors and not self.is_for_images and self.n_inputs == shape[0]
        _, channels, size, _ = self.parts["filters"].shape
        return bool(
            channels == shape[0] and size == patches.patch_size(torch.empty(0, *patches.shrunk_size(shape[1:])))
        )

    def transform(self, samples: Tensor | NDArray[np.generic], watch: Progress | None = None) -> Real32:
        """Return the features of samples, float32 (n, D)."""
        given, found = _as_tensor(samples), np.empty((len(samples), self.n_features), np.float32)
        if (given.ndim == 4) != self.is_for_images:
            kinds = ("vectors", "images") if self.is_for_images else ("images", "vectors")
            raise InputError(f"The samples are {kinds[0]}, but the features were fitted on {kinds[1]}.")
        for start in range(0, len(given), _ROWS_AT_ONCE):
            if watch:
                watch("features", start, len(given))
            rows = slice(start, start + _ROWS_AT_ONCE)
            found[rows] = (self._of_images if self.is_for_images else self._of_vectors)(given[rows]).numpy()
        return found

    def _of_images(self, images: Tensor) -> Tensor:
        filters, offset, mean, scale, directions = (
            self.parts[name] for name in ("filters", "offset", "mean", "scale", "directions")
        )
        responses = patches.responses(patches.shrunk(images), filters, offset)
        return ((responses - mean) / scale) @ directions

    def _of_vectors(self, vectors: Tensor) -> Tensor:
        scaled = (vectors.double() - self.parts["mean"]) / self.parts["scale"]
        clipped = scaled.clamp(-CLIP, CLIP).float()
        return clipped @ self.parts["directions"] if "directions" in self.parts else clipped

    def tensors(self) -> dict[str, Tensor]:
        """Return the map as named tensors."""
        return dict(self.parts)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """Return a saved map; ValueError with the reason if these are not the tensors of one."""
        check_forms(tensors, _forms(tensors))
        return cls(dict(tensors))


def _as_tensor(samples: Tensor | NDArray[np.generic]) -> Tensor:
    given = samples if isinstance(samples, Tensor) else torch.from_numpy(np.ascontiguousarray(samples))
    given = given.detach().cpu()
    if given.ndim == 4 and given.dtype != torch.uint8 and tuple(given.shape[2:]) == (1, 1):
        given = given[:, :, 0, 0]  # vectors in the form of the estimator
    if given.ndim not in (2, 4) or (given.ndim == 4 and given.dtype != torch.uint8):
        raise InputError(
            f"Samples must be images uint8 (n, channels, height, width) or vectors (n, d), not {given.dtype} "
            f"of shape {tuple(given.shape)}."
        )
    return given


def _fit_images(images: Tensor, seed: int) -> dict[str, Tensor]:
    if len(images) > N_FITTED:
        rng = np.random.default_rng(derive_seed(seed, "fitted images"))
        images = images[torch.from_numpy(np.sort(rng.choice(len(images), N_FITTED, replace=False)))]
    pixels = patches.shrunk(images)
    generator = torch.Generator().manual_seed(derive_seed(seed, "patches"))
    filters, offset = patches.make_filters(pixels, patches.patch_size(pixels), generator)
    parts = [patches.responses(some, filters, offset) for some in torch.split(pixels, _ROWS_AT_ONCE)]
    responses = torch.cat(parts)
    deviation, mean = torch.std_mean(responses, 0, correction=0)
    scale = deviation + 1e-6
    x = ((responses - mean) / scale).double()
    size, vectors = _main_directions(x, min(N_DIRECTIONS, max(1, len(x) // _IMAGES_A_DIRECTION)))
    directions = vectors / torch.where(size > 1e-5, size**_WHITENING, torch.inf)
    return {
        "filters": filters,
        "offset": offset,
        "mean": mean,
        "scale": scale,
        "directions": directions.float(),
        "n_fitted": torch.tensor(len(images)),
    }


def _main_directions(x: Tensor, n_directions: int) -> tuple[Tensor, Tensor]:
    """Return the standard deviations along the main directions of centred rows (n, d), and these, (d, n_directions)."""
    few_rows = len(x) <= x.shape[1]  # the smaller of two products with the same eigenvalues
    product = (x @ x.T if few_rows else x.T @ x) / len(x)
    largest = (max(0, len(product) - n_directions), len(product) - 1)
    values, vectors = map(torch.from_numpy, eigh(product.numpy(), subset_by_index=largest))
    size = values.clamp(min=1e-12).sqrt()
    if few_rows:
        vectors = x.T @ vectors / (size * len(x) ** 0.5)
    return size, vectors


def _fit_vectors(vectors: Tensor, seed: int) -> dict[str, Tensor]:
    values = vectors.double()
    mean, scale = fit_scale(values)
    found = {"mean": mean, "scale": scale, "n_fitted": torch.tensor(len(values))}
    if values.shape[1] > N_DIRECTIONS:
        rows = torch.arange(len(values))
        if len(values) > N_FITTED:
            rng = np.random.default_rng(derive_seed(seed, "fitted vectors"))
            rows = torch.from_numpy(np.sort(rng.choice(len(values), N_FITTED, replace=False)))
        x = ((values[rows] - mean) / scale).clamp(-CLIP, CLIP)
        _, directions = _main_directions(x, min(N_DIRECTIONS, max(1, len(values) // _VECTORS_A_DIRECTION)))
        found["directions"] = directions.float()
    return found


def _forms(tensors: dict[str, Tensor]) -> Forms:
    """Return the forms of a saved map, with sizes read from its own tensors."""
    counted = Form(torch.int64, (), 1)
    if "filters" not in tensors:
        shape = tuple(tensors["mean"].shape) if "mean" in tensors else (0,)
        shape = shape if len(shape) == 1 else (0,)
        forms = {
            "mean": Form(torch.float64, shape, finite=True),
            "scale": Form(torch.float64, shape, least=5e-324, finite=True),
            "n_fitted": counted,
        }
        if "directions" in tensors:  # maps of earlier versions have none
            own = tuple(tensors["directions"].shape)
            forms["directions"] = Form(torch.float32, (*shape, own[1] if len(own) == 2 else 0), finite=True)
        return forms
    filters = tuple(tensors["filters"].shape)
    filters = filters if len(filters) == 4 else (0, 0, 0, 0)
    directions = tuple(tensors["directions"].shape) if "directions" in tensors else (0, 0)
    n_directions = directions[1] if len(directions) == 2 else 0
    n_responses = 2 * patches.GRID**2 * filters[0]
    return {
        "filters": Form(torch.float32, filters, finite=True),
        "offset": Form(torch.float32, filters[:1], finite=True),
        "mean": Form(torch.float32, (n_responses,), finite=True),
        "scale": Form(torch.float32, (n_responses,), least=1e-9, finite=True),
        "directions": Form(torch.float32, (n_responses, n_directions), finite=True),
        "n_fitted": counted,
    }
