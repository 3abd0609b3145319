"""A small network of scikit-learn as one more opinion about vectors: does it help?

    python benchmarks/network_opinion.py --out results/network-opinion.json     # five sets, three seeds, two networks

Its scores are those of four folds. The splits and the noise are those of other seeds than the ones that
docs/your-data.md reports. The result has means over seeds, and the processor time of judging and choosing a model.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from purereplay.purify.opinions import FeatureMap, choose_model, judge_labels, members
from your_data import VECTORS, Cell, samples_of

SEEDS, N_FOLDS, LEAST = (11, 12, 13), 4, 1e-4
NETWORKS = {
    "64 units": {"hidden_layer_sizes": (64,), "alpha": 0.01, "max_iter": 60},
    "100 units": {"hidden_layer_sizes": (100,), "alpha": 0.1, "max_iter": 100},
}

Real = NDArray[np.float64]
Real32 = NDArray[np.float32]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Network:
    """A fitted network, with the interface of `members.Member`."""

    model: Any
    n_classes: int
    kind: ClassVar[str] = "network"
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def fit(cls, features: Real32, labels: Whole, weights: Real32, n_classes: int, seed: int) -> tuple[Self, Real]:
        """Return the model, and scores without the sample's fold."""

        def fitted(rows: NDArray[np.bool_], number: int) -> Self:
            model = MLPClassifier(**cls.options, batch_size=min(64, rows.sum()), random_state=seed % 2**31 + number)
            return cls(model.fit(features[rows], labels[rows], sample_weight=weights[rows]), n_classes)

        folds = np.random.default_rng(seed).permutation(len(labels)) % N_FOLDS
        scores = np.empty((len(labels), n_classes))
        for fold in range(N_FOLDS):
            scores[folds == fold] = fitted(folds != fold, fold).scores(features[folds == fold])
        return fitted(np.ones(len(labels), bool), N_FOLDS), scores

    def scores(self, features: Real32) -> Real:
        found = np.full((len(features), self.n_classes), LEAST)
        found[:, self.model.classes_] = self.model.predict_proba(features)
        scores: Real = np.log(np.maximum(found, LEAST))
        return scores


def measure(data: str, seed: int, network: str | None) -> dict[str, float]:
    """Judge one set with the usual opinions, and with a network if one is named."""
    found = samples_of(Cell(data, "symmetric", "shuffled", seed), argparse.Namespace())
    n_classes, right = int(found.truth.max()) + 1, found.given == found.truth
    feature_map = FeatureMap.fit(found.x)
    features, new = feature_map.transform(found.x), feature_map.transform(found.test_x)
    kinds = members.kinds_for(features.shape[1], n_classes)
    if network is not None:
        Network.options, kinds = NETWORKS[network], (*kinds, Network.kind)
    began = time.process_time()
    verdicts = judge_labels(features, found.given, n_classes, kinds=kinds, seed=seed)
    model = choose_model(features, found.given, verdicts.clean_probability, n_classes, kinds=kinds, seed=seed)
    seconds = time.process_time() - began
    return {
        "auroc": float(roc_auc_score(right, verdicts.clean_probability)),
        "accuracy": float((model.predict_proba(new).argmax(1) == found.test_truth).mean()),
        "cpu_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # networks that have not converged
    members.KINDS[Network.kind] = Network
    result: dict[str, dict[str, dict[str, float]]] = {}
    for data in VECTORS:
        for network in (None, *NETWORKS):
            seeds = [measure(data, seed, network) for seed in SEEDS]
            means = {name: float(np.mean([own[name] for own in seeds])) for name in seeds[0]}
            result.setdefault(data, {})[network or "none"] = means
            print(data, network, {name: round(value, 4) for name, value in means.items()}, flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
