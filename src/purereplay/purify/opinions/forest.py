"""A random forest of scikit-learn, kept as arrays; a sample is scored by the trees that did not draw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.forms import Form, check_forms

N_TREES = 100
_LEAF = 3  # least samples of a leaf
SMOOTHING = 0.01  # added to a class's share, so that its logarithm is finite

Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees, one after the other. A leaf is its own child."""

    roots: Whole  # (trees,), first node of each tree
    feature: Whole  # (nodes,); 0 at a leaf
    threshold: Real32  # (nodes,); left if the feature is at most this
    left: Whole  # (nodes,)
    right: Whole  # (nodes,)
    shares: Real32  # (nodes, n_classes)
    kind: ClassVar[str] = "forest"

    @classmethod
    def fit(cls, features: Real32, labels: Whole, weights: Real32, n_classes: int, seed: int) -> tuple[Self, Real]:
        """Return the model, and scores without the sample."""
        from sklearn.ensemble import RandomForestClassifier  # takes a second to import

        fitted = RandomForestClassifier(
            N_TREES, min_samples_leaf=min(_LEAF, max(1, len(labels) // 20)), random_state=seed % 2**32, n_jobs=1
        ).fit(features, labels, sample_weight=weights)
        parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in ("feature", "threshold", "left", "right")}
        shares, roots, n_nodes = [], [], 0
        for tree in (each.tree_ for each in fitted.estimators_):
            own = np.arange(tree.node_count)
            is_leaf = tree.children_left < 0
            parts["feature"].append(np.where(is_leaf, 0, tree.feature))
            parts["threshold"].append(tree.threshold.astype(np.float32))
            parts["left"].append(n_nodes + np.where(is_leaf, own, tree.children_left))
            parts["right"].append(n_nodes + np.where(is_leaf, own, tree.children_right))
            value = np.zeros((tree.node_count, n_classes), np.float32)
            value[:, fitted.classes_] = tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True)
            shares.append(value)
            roots.append(n_nodes)
            n_nodes += tree.node_count
        feature, left, right = (np.concatenate(parts[name]).astype(np.int64) for name in ("feature", "left", "right"))
        threshold = np.concatenate(parts["threshold"]).astype(np.float32)
        model = cls(np.array(roots), feature, threshold, left, right, np.concatenate(shares))
        drawn = [np.isin(np.arange(len(labels)), own) for own in fitted.estimators_samples_]
        return model, model._votes(features, drawn)

    def depth(self) -> int:
        """Return the largest number of steps from a root to a leaf."""
        nodes, n = self.roots, 0
        while len(after := np.unique(np.concatenate([self.left[nodes], self.right[nodes]]))):
            nodes = after[(self.left[after] != after)]
            n += 1
        return n

    def scores(self, features: Real32) -> Real:
        return self._votes(features, None)

    def _votes(self, features: Real32, drawn: list[NDArray[np.bool_]] | None) -> Real:
        """Return scores by all trees, or only by those that did not draw the sample."""
        n, n_classes = len(features), self.shares.shape[1]
        total, n_votes = np.zeros((n, n_classes)), np.zeros(n)
        rows = np.arange(n)
        for number, root in enumerate(self.roots):
            own = rows if drawn is None else rows[~drawn[number]]
            nodes = np.full(len(own), root)
            while True:
                goes_left = features[own, self.feature[nodes]] <= self.threshold[nodes]
                after = np.where(goes_left, self.left[nodes], self.right[nodes])
                if np.array_equal(after, nodes):
                    break
                nodes = after
            total[own] += self.shares[nodes]
            n_votes[own] += 1
        shares = (total + 1e-9) / (n_votes[:, None] + 1e-9 * n_classes)  # a sample that all trees drew: all equal
        scores: Real = np.log(shares / shares.sum(1, keepdims=True) + SMOOTHING)
        return scores

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.array(getattr(self, name))) for name in _NAMES}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], n_features: int, n_classes: int) -> Self:
        lengths = {name: t.shape[0] if t.ndim else 0 for name, t in tensors.items()}
        n, trees = lengths.get("feature", 0), lengths.get("roots", 0)
        forms = {
            "roots": Form(torch.int64, (trees,), 0, n - 1),
            "feature": Form(torch.int64, (n,), 0, n_features - 1),
            "threshold": Form(torch.float32, (n,), finite=True),
            "left": Form(torch.int64, (n,), 0, n - 1),
            "right": Form(torch.int64, (n,), 0, n - 1),
            "shares": Form(torch.float32, (n, n_classes), 0, 1, finite=True),
        }
        check_forms(tensors, forms)
        for side in ("left", "right"):  # children come after their parents, so every path ends
            if bool((tensors[side] < torch.arange(n)).any()):
                raise ValueError(f"the {side} child of a node of a tree comes before it")
        return cls(*(tensors[name].numpy() for name in _NAMES))


_NAMES = ("roots", "feature", "threshold", "left", "right", "shares")
