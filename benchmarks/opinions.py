"""How well wrong labels are found in single buffers without training: the Self-Centered filter, and agreement.

    python benchmarks/opinions.py --out results/opinions.jsonl      # CIFAR-10, ten buffers of 500 for each noise

Features are patches. The trusted samples are 50 of each class so far, as P holds them: 3 of the 50 have wrong labels.
They are training images that are not in the buffer. Test images are not used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from purereplay.data.datasets import given_labels, load
from purereplay.data.episodes import tasks_for
from purereplay.purify.agreement import label_agreement
from purereplay.purify.patches import patch_features
from purereplay.purify.self_centered import clean_probability

BUFFER, TRUSTED, WRONG = 500, 50, 3


def measure(dataset: str, noise: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the AUROC of each opinion on one buffer of every task that holds wrong labels."""
    data, dice = load(dataset), np.random.default_rng(seed)
    assert data.true_labels is not None
    given = given_labels(data, noise=noise, rate=0.4, seed=seed)
    right, seen = given == data.true_labels, []
    for number, task in enumerate(tasks_for(dataset, noise)):
        seen += task
        buffer = dice.permutation(np.flatnonzero(np.isin(given, task)))[:BUFFER]
        if right[buffer].all():
            continue
        trusted = np.concatenate([_trusted(given == c, right, buffer, dice) for c in seen])
        both = torch.from_numpy(data.images[np.concatenate([buffer, trusted])])
        labels = torch.from_numpy(given[np.concatenate([buffer, trusted])])
        alone, own = patch_features(both[:BUFFER], seed), labels[:BUFFER]
        opinions = {
            "filter": clean_probability(alone, own, seed=seed),
            "agreement within the buffer": label_agreement(patch_features(both[:BUFFER], seed, 64), own, BUFFER),
            "agreement with trusted samples": label_agreement(patch_features(both, seed, 64), labels, BUFFER),
        }
        found = {name: float(roc_auc_score(right[buffer], p.numpy())) for name, p in opinions.items()}
        yield {"dataset": dataset, "noise": noise, "noise_rate": 0.4, "seed": seed, "task": number, "auroc": found}


def _trusted(
    of_class: NDArray[np.bool_], right: NDArray[np.bool_], buffer: NDArray[np.int64], dice: np.random.Generator
) -> NDArray[np.int64]:
    """Return 50 samples of one given label, 3 of them wrong if there are wrong ones."""
    rest = np.setdiff1d(dice.permutation(np.flatnonzero(of_class)), buffer)
    wrong = dice.permutation(rest[~right[rest]])[:WRONG]
    return np.concatenate([wrong, dice.permutation(rest[right[rest]])[: TRUSTED - len(wrong)]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10", help="dataset")
    parser.add_argument("--seed", type=int, nargs="*", default=[11, 12], help="seeds")
    parser.add_argument("--out", type=Path, help="file for the results")
    arguments = parser.parse_args()
    lines = []
    for noise in ("symmetric", "asymmetric"):
        for seed in arguments.seed:
            for line in measure(arguments.data, noise, seed):
                lines.append(line)
                print(json.dumps(line), flush=True)
    for noise in ("symmetric", "asymmetric"):
        mine = [line["auroc"] for line in lines if line["noise"] == noise]
        print(noise, {name: f"{100 * np.mean([m[name] for m in mine]):.1f} %" for name in mine[0]})
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
