"""How well the filter finds wrong labels by ImageNet features, with and without preparation.

    python benchmarks/your_data.py --make-features features.npz --seeds 1
    python benchmarks/prepared_features.py features.npz --out results/prepared-features.json

The first 5,000 images of the file that have features are training images of CIFAR-10; test images are not used.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from purereplay import SelfCenteredFilter
from purereplay.data.datasets import load
from purereplay.data.noise import symmetric


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, help="file of `your_data.py --make-features`")
    parser.add_argument("--human-labels", type=Path, help="npz file with CIFAR-10N's worse_label")
    parser.add_argument("--out", type=Path, help="file for the results")
    arguments = parser.parse_args()
    with np.load(arguments.features) as held:
        rows, features = held["train_rows"][:5000], held["train_features"][:5000].astype(np.float32)
    truth = load("cifar10").true_labels
    assert truth is not None
    truth = truth[rows]
    given = {"symmetric 40 %": symmetric(truth, 0.4, np.random.default_rng(0), n_classes=10)}
    if arguments.human_labels is not None:
        given["CIFAR-10N, worst labels"] = np.load(arguments.human_labels)["worse_label"][rows]
    found = {}
    for noise, labels in given.items():
        for prepare in ("none", "directions"):
            clean = [
                SelfCenteredFilter(prepare=prepare, seed=seed).fit(features, labels).clean_probability_
                for seed in (1, 2, 3)
            ]
            auroc = [float(roc_auc_score(labels == truth, p)) for p in clean]
            found[f"{noise}, prepare={prepare}"] = auroc
            print(f"{noise}, prepare={prepare}: AUROC {np.mean(auroc):.3f}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
