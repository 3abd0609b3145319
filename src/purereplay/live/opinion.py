"""The opinion of the learner `full-memory`: a map to features, a classifier, and the noise of the labels.

`form_opinion` judges samples together, each by models that were not trained on it (see `purify.opinions`). `Opinion`
judges samples that came later by the classifier and the noise matrix, and predicts labels. It is a few tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.forms import Form, check_forms
from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.live.images import Shape
from purereplay.live.store import Current, Store
from purereplay.live.verdicts import ALL, UNKNOWN, Estimate, Judgements, Noise, empty_judgements, fill
from purereplay.purify.opinions import (
    IMAGE_KINDS,
    FeatureMap,
    Model,
    NoiseTable,
    Verdicts,
    choose_model,
    judge_labels,
    posterior,
)
from purereplay.purify.opinions.feature_map import N_FITTED

_READ = 500  # images at once

Read = Callable[[NDArray[np.int64]], Tensor]  # rows of samples -> images uint8 (n, C, H, W), or features (n, dim)


@dataclass(frozen=True, eq=False)
class Opinion:
    """Models and estimates that were learned from a state's samples."""

    number: int  # of the revision
    basis: str  # corrections that were known, as `FullMemory` describes them
    feature_map: FeatureMap
    model: Model
    noise_matrix: NDArray[np.float64]  # (n_classes, n_classes): share of each true label by given label
    image_shape: Shape
    noise: Noise  # estimate for the user; empty in one that was loaded
    weights: dict[str, float]  # of the opinions; empty in one that was loaded

    @property
    def n_classes(self) -> int:
        return self.model.n_classes

    def probabilities(self, images: Tensor) -> Tensor:
        """Images uint8 (n, C, H, W), or features (n, dim) of an encoder -> class probabilities (n, n_classes)."""
        return torch.from_numpy(self.model.predict_proba(self.feature_map.transform(images)))

    def judge(self, images: Tensor, labels: NDArray[np.int64]) -> Judgements:
        """Judge samples that the classifier was not trained on.

        Of labels that it does not know, nothing can be said: they are accepted, as those that too few samples have.
        """
        rows = np.arange(len(labels))
        known = np.isin(labels, self.model.present)
        given = np.where(known, labels, 0)
        chances = self.probabilities(images).numpy()
        after = posterior(chances, self.noise_matrix, given, np.zeros(len(labels), bool))
        likely = np.where(known, after.argmax(1), UNKNOWN)
        right = self.noise_matrix.diagonal()[self.model.present].mean()  # as every label
        clean = np.where(known, after[rows, given], right)
        return Judgements(0, clean, (clean >= 0.5) | ~known, likely, np.where(known, after.max(1), 0.0))

    def tensors(self) -> dict[str, Tensor]:
        """Return the opinion as named tensors; the number of the revision makes their digest unique."""
        found = {f"map.{name}": t for name, t in self.feature_map.tensors().items()}
        found |= {f"model.{name}": t for name, t in self.model.tensors().items()}
        return found | {"noise": torch.from_numpy(self.noise_matrix), "revision": torch.tensor(self.number)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Opinion:
        """Return the same opinion with other tensors; ValueError if they are not those of one."""
        dim = 0 if self.feature_map.is_for_images else self.feature_map.n_inputs
        return _opinion(tensors, self.basis, self.image_shape, dim, self.n_classes)

    def facts(self) -> dict[str, Any]:
        """Return what is saved beside the tensors."""
        return {"basis": self.basis}


def load_opinion(store: Store, current: Current) -> Opinion:
    """Return the opinion of a state; UserError if its file is missing, damaged or that of another state."""
    options, encoder = store.image_settings.memory_options, store.image_settings.encoder
    dim = 0 if encoder is None else encoder.dim
    n_labels = len(store.labels())
    of_samples = min(current.taken, options.capacity) * (2**13 + 8 * dim) + 64 * dim**2
    most = 2**26 + of_samples + n_labels * (2**16 + 8 * dim) + 8 * n_labels**2
    remedy = "run `purereplay learn` on the state's images again, which recomputes it from the samples"
    try:
        saved = store.packed(current, most)
        return _opinion(saved.tensors, str(saved.facts["basis"]), store.image_settings.shape, dim, n_labels)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; {remedy}.") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{current.path} does not fit its state: {error}; {remedy}.") from None


def _opinion(tensors: dict[str, Tensor], basis: str, shape: Shape, dim: int, n_labels: int) -> Opinion:
    groups: dict[str, dict[str, Tensor]] = {"map": {}, "model": {}, "": {}}
    for name, t in tensors.items():
        group, _, own = name.partition(".")
        groups[group if own else ""][own or name] = t
    model, feature_map = Model.from_tensors(groups["model"]), FeatureMap.from_tensors(groups["map"])
    n = model.n_classes
    forms = {"noise": Form(torch.float64, (n, n), 0, 1), "revision": Form(torch.int64, (), 1)}
    check_forms(groups[""], forms)
    if n > n_labels or model.n_features != feature_map.n_features or feature_map.is_for_images == bool(dim):
        raise ValueError("its classifier is that of another state")
    if feature_map.n_inputs != dim if dim else feature_map.parts["filters"].shape[1] != shape[0]:
        raise ValueError("its features are those of other images")
    return Opinion(int(groups[""]["revision"]), basis, feature_map, model, groups[""]["noise"].numpy(), shape, {}, {})


class Known(NamedTuple):
    """Knowledge about the labels of samples."""

    given: NDArray[np.int64]  # (n,)
    labels: NDArray[np.int64]  # (n,): corrected by a person, or else given
    trusted: NDArray[np.bool_]  # (n,): corrected, or confirmed
    dropped: NDArray[np.bool_]  # (n,): nothing is learned from these

    @property
    def n_classes(self) -> int:
        """Number of labels, counted up to the last one."""
        return int(max(self.labels.max(), self.given.max())) + 1

    def part(self, rows: NDArray[np.int64]) -> Known:
        """Return what is known of some of the samples."""
        return Known(self.given[rows], self.labels[rows], self.trusted[rows], self.dropped[rows])


def form_opinion(
    read: Read,
    known: Known,
    n_classes: int,
    shape: Shape,
    *,
    seed: int,
    number: int,
    basis: str,
    watch: Progress | None = None,
) -> tuple[Opinion, Judgements]:
    """Judge samples together, and fit the classifier."""
    kept = np.flatnonzero(~known.dropped)
    if not len(kept):
        raise UserError("All samples of the state are dropped: nothing is left to learn from.")
    rng = np.random.default_rng(derive_seed(seed, "fitted"))
    feature_map = FeatureMap.fit(read(np.sort(rng.permutation(kept)[:N_FITTED])), seed)
    features = np.empty((len(kept), feature_map.n_features), np.float32)
    for start in range(0, len(kept), _READ):
        if watch:
            watch("features", start, len(kept))
        features[start : start + _READ] = feature_map.transform(read(kept[start : start + _READ]))
    given, labels, trusted, _ = known.part(kept)
    kinds = IMAGE_KINDS if feature_map.is_for_images else None  # None: those that suit vectors
    found = judge_labels(features, labels, n_classes, trusted=trusted, given=given, kinds=kinds, seed=seed, watch=watch)
    weights = np.where(trusted, 1.0, found.clean_probability)
    model = choose_model(features, labels, weights, n_classes, kinds=kinds, seed=seed, watch=watch)
    noise = _noise(found.noise)
    opinion = Opinion(number, basis, feature_map, model, found.noise_matrix, shape, noise, dict(found.opinions))
    judged = empty_judgements(0, len(known.labels))
    fill(judged, kept, _judgements(found))
    for start in range(0, len(rest := np.flatnonzero(known.dropped)), _READ):
        some = rest[start : start + _READ]
        fill(judged, some, opinion.judge(read(some), known.labels[some]))
    return opinion, judged


def _judgements(found: Verdicts) -> Judgements:
    n = len(found.accepted)
    chance = found.class_probability[np.arange(n), found.likely_label]
    likely = np.where(found.unjudged, UNKNOWN, found.likely_label)
    return Judgements(0, found.clean_probability, found.accepted, likely, chance)


def _noise(table: NoiseTable) -> Noise:
    """Return the estimates by given and likely label; those that nothing was counted for are left out."""
    found = {(ALL, ALL): table.overall}
    found |= {(given, ALL): rate for given, rate in enumerate(table.by_class)} | table.by_pair
    return {key: Estimate(e.n, e.rate, e.low, e.high) for key, e in found.items() if e.n}
