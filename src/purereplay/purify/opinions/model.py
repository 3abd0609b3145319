"""Classifier from weighted labels: models of a few kinds, combined with weights chosen by out-of-sample predictions.

In: features float32 (n, d), labels int64 (n,), weights (n,), the clean probability of each label. Out: `Model`, whose
tensors can be saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from purereplay.data.forms import Form, check_forms
from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.errors import InputError
from purereplay.purify.opinions.inputs import checked_features, checked_labels
from purereplay.purify.opinions.members import (
    KINDS,
    Member,
    as_tensor,
    fit_members,
    fitted_rows,
    kinds_for,
    load_member,
)
from purereplay.purify.opinions.pool import Pool, fit_pool

_NEGLIGIBLE = 0.03  # share of all weights below which a member is left out
_LEAST_WEIGHT = 0.01
_POOL = ("weights", "scales", "correction", "bias")

Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Model:
    """A fitted classifier; classes without samples have the probability 0."""

    members: list[Member]
    pool: Pool
    present: Whole  # ascending numbers of the classes that it knows
    n_features: int
    n_classes: int

    def predict_proba(self, features: Real32) -> Real:
        """Return the probability of each class, float64 (n, n_classes)."""
        values = np.ascontiguousarray(features, np.float32)
        if values.ndim != 2 or values.shape[1] != self.n_features:
            raise InputError(f"Features have shape {values.shape}, but must be (n, {self.n_features}).")
        found = np.zeros((len(values), self.n_classes))
        if len(self.present) == 1:
            found[:, self.present] = 1
        elif len(values):
            found[:, self.present] = self.pool.probabilities([each.scores(values) for each in self.members])
        return found

    @property
    def kinds(self) -> dict[str, float]:
        """Weight of each kind of model, in all 1."""
        total = self.pool.weights.sum()
        return {each.kind: float(w / total) for each, w in zip(self.members, self.pool.weights, strict=True)}

    def tensors(self) -> dict[str, Tensor]:
        """Return the model as named tensors."""
        found = {f"{each.kind}.{name}": t for each in self.members for name, t in each.tensors().items()}
        found |= {f"pool.{name}": as_tensor(getattr(self.pool, name)) for name in _POOL}
        return found | {
            "present": as_tensor(self.present),
            "sizes": torch.tensor([self.n_features, self.n_classes], dtype=torch.int64),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """Return a saved model; ValueError with the reason if these are not the tensors of one."""
        sizes = tensors.get("sizes")
        check_forms({"sizes": sizes} if sizes is not None else {}, {"sizes": Form(torch.int64, (2,), 1, 2**24)})
        assert sizes is not None
        n_features, n_classes = sizes.tolist()
        present = tensors.get("present")
        k = present.shape[0] if present is not None and present.ndim == 1 else 0
        groups: dict[str, dict[str, Tensor]] = {}
        for name, t in tensors.items():
            kind, _, own = name.rpartition(".")
            groups.setdefault(kind, {})[own] = t
        plain, pool = groups.pop("", {}), groups.pop("pool", {})
        kinds = [kind for kind in KINDS if kind in groups]
        if len(kinds) != len(groups):
            raise ValueError(f"it holds {min(groups.keys() - set(kinds))!r}, which does not belong there")
        check_forms(
            {name: t for name, t in plain.items() if name != "sizes"},
            {"present": Form(torch.int64, (k,), 0, n_classes - 1)},
        )
        m = len(kinds)
        check_forms(
            pool,
            {
                "weights": Form(torch.float64, (m,), 0, finite=True),
                "scales": Form(torch.float64, (m,), 1e-12, finite=True),
                "correction": Form(torch.float64, (k, k), finite=True),
                "bias": Form(torch.float64, (k,), finite=True),
            },
        )
        if not k or (k > 1 and not m) or len(np.unique(plain["present"].numpy())) != k:
            raise ValueError("its classes or its models are missing")
        members = [load_member(kind, groups[kind], n_features, k) for kind in kinds]
        return cls(
            members, Pool(*(pool[name].numpy() for name in _POOL)), plain["present"].numpy(), n_features, n_classes
        )


def choose_model(
    features: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike,
    n_classes: int,
    *,
    kinds: Sequence[str] | None = None,
    seed: int = 0,
    watch: Progress | None = None,
) -> Model:
    """Fit a classifier on labels with weights in [0, 1], such as clean probabilities.

    The weights of the members maximise the likelihood of the labels that are believed, each scored without itself.

    Parameters:
        features: array of real, finite numbers (n, d), n ≥ 1, as for `judge_labels`
        labels: array of integers (n,), each from 0 to n_classes - 1
        weights: real numbers (n,) in [0, 1], how much each sample teaches; labels from 0.5 on are believed
        n_classes: number of classes, columns of the predicted probabilities
        kinds, seed, watch: as for `judge_labels`

    Returns:
        `Model`: `predict_proba(features)` returns float64 (n, n_classes); `kinds` has the weight of each kind of model
    """
    values = checked_features(features)
    given = checked_labels(labels, len(values), n_classes)
    heavy = np.asarray(weights, np.float64)
    if heavy.shape != given.shape or not ((heavy >= 0) & (heavy <= 1)).all():
        raise InputError(f"Weights must be {len(given)} numbers in [0, 1], one per sample.")
    if not len(given):
        raise InputError("A classifier needs at least one sample.")
    present, numbers = np.unique(given, return_inverse=True)
    k, d = len(present), values.shape[1]
    if k == 1:
        empty = Pool(np.zeros(0), np.zeros(0), np.zeros((1, 1)), np.zeros(1))
        return Model([], empty, present, d, n_classes)
    kinds = kinds or kinds_for(d, k)
    done = 0

    def step(name: str) -> None:
        nonlocal done
        if watch:
            watch(f"classifier: {name}", done, len(kinds))
        done += 1

    heavy = np.maximum(heavy, _LEAST_WEIGHT)
    fitted = fit_members(values, numbers, heavy, k, kinds, seed=derive_seed(seed, "classifier"), step=step)
    believed = np.flatnonzero(heavy >= 0.5)
    if len(np.unique(numbers[believed])) < 2:
        believed = np.arange(len(given))
    believed = believed[fitted_rows(len(believed), derive_seed(seed, "pool"))]
    members, scores = fitted.members, fitted.scores
    pool = _fitted(scores, numbers, believed)
    large = np.flatnonzero(pool.weights >= _NEGLIGIBLE * pool.weights.sum())
    if len(large) < len(members):
        members, scores = [members[i] for i in large], [scores[i] for i in large]
        pool = _fitted(scores, numbers, believed)
    if watch:
        watch("classifier", done, done)
    return Model(members, pool, present, d, n_classes)


def _fitted(scores: list[Real], numbers: Whole, believed: Whole) -> Pool:
    own = [part[believed] for part in scores]
    return fit_pool(own, numbers[believed], np.ones(len(believed), dtype=bool), np.eye(scores[0].shape[1])).pool
