"""Models that give opinions: each is fitted on all samples, and scores every one of them as if it had been left out.

No folds are needed. The regressions have a closed form for the prediction without a sample, neighbours leave the sample
itself out, and a forest asks the trees that did not draw it. So one fit gives the model and the opinions.

In: features float32 (n, d), labels int64 (n,), weights float32 (n,). Out: a model, and scores float64 (n, n_classes)
on the scale of logarithms of probabilities, high = more likely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.seeds import derive_seed
from purereplay.purify.opinions.forest import Forest
from purereplay.purify.opinions.neighbours import Neighbours
from purereplay.purify.opinions.ridge import KernelRidge, LinearRidge

MOST_FITTED = 20_000  # samples that models are fitted on; the others are only scored
_MOST_FOREST_FEATURES = 128  # trees look at single features, which say little if there are many
_MOST_FOREST_CLASSES = 64  # a leaf holds a number per class

Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]


class Member(Protocol):
    """A fitted model."""

    kind: str

    def scores(self, features: Real32) -> Real:
        """Return scores (n, n_classes) of samples that it was not fitted on."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the model as named tensors."""


class Fitted(NamedTuple):
    """Fitted models, and their out-of-sample scores of all samples, (n, n_classes) each."""

    members: list[Member]
    scores: list[Real]


KINDS: dict[str, Any] = {each.kind: each for each in (KernelRidge, LinearRidge, Neighbours, Forest)}


IMAGE_KINDS = ("kernel", "linear", "neighbours")


def kinds_for(n_features: int, n_classes: int) -> tuple[str, ...]:
    """Return the kinds of models that suit vectors; images have `IMAGE_KINDS`."""
    forest = n_features <= _MOST_FOREST_FEATURES and n_classes <= _MOST_FOREST_CLASSES
    return (*IMAGE_KINDS, "forest") if forest else IMAGE_KINDS


def fit_members(
    features: Real32,
    labels: Whole,
    weights: Real,
    n_classes: int,
    kinds: Sequence[str],
    *,
    seed: int,
    step: Callable[[str], None] | None = None,
) -> Fitted:
    """Fit a model of each kind; of more than 20,000 samples a random part is fitted, and the rest scored by it."""
    rows = fitted_rows(len(labels), seed)
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    members: list[Member] = []
    scores: list[Real] = []
    for kind in kinds:
        if step:
            step(kind)
        own = derive_seed(seed, kind)
        member, left_out = KINDS[kind].fit(
            features[rows], labels[rows], weights[rows].astype(np.float32), n_classes, own
        )
        of_all = np.empty((len(labels), n_classes))
        of_all[rows] = left_out
        if len(rest):
            of_all[rest] = member.scores(features[rest])
        members.append(member)
        scores.append(of_all)
    return Fitted(members, scores)


def fitted_rows(n: int, seed: int) -> Whole:
    """Return the ascending rows that models are fitted on."""
    if n <= MOST_FITTED:
        return np.arange(n)
    rng = np.random.default_rng(derive_seed(seed, "fitted rows"))
    return np.sort(rng.choice(n, MOST_FITTED, replace=False))


def load_member(kind: str, tensors: dict[str, Tensor], n_features: int, n_classes: int) -> Member:
    """Return a saved model; ValueError with the reason if these are not the tensors of one."""
    if kind not in KINDS:
        raise ValueError(f"a model of kind {kind!r} is unknown")
    member: Member = KINDS[kind].from_tensors(tensors, n_features, n_classes)
    return member


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a copy of an array as a tensor."""
    return torch.from_numpy(np.array(array, order="C"))
