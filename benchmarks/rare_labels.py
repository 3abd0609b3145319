"""Wrong labels that are found in data with many rare labels, of a few samples each.

    python benchmarks/rare_labels.py --code "$(git rev-parse --short HEAD)" --out results/live/rare-labels.jsonl

Digits 0 to 2 with 20 % wrong labels, and rare labels of a few images of any other digit. Adds one line per case.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from purereplay import SelfPurifiedClassifier

CASES = [(300, 0, 0), (300, 20, 3), (300, 20, 4), (300, 60, 3), (120, 20, 3)]  # usual samples, rare labels, their size


def measure(n_usual: int, n_rare: int, size: int, seed: int) -> dict[str, Any]:
    """Return how many wrong labels of the usual samples are rejected, and the estimated noise of all."""
    images, true = load_digits().images / 16, load_digits().target
    rng = np.random.default_rng(seed)
    usual = np.flatnonzero(true < 3)[:n_usual]
    wrong = rng.random(n_usual) < 0.2
    other = rng.choice(np.flatnonzero(true > 2), n_rare * size, replace=False)
    labels = np.concatenate([(true[usual] + wrong) % 3, 3 + np.repeat(np.arange(n_rare), size)])
    classifier = SelfPurifiedClassifier(random_state=seed).fit(images[np.concatenate([usual, other])], labels)
    found = classifier.suspects()
    rejected = np.zeros(len(labels), dtype=bool)
    rejected[found["id"][~found["passed"]].astype(int)] = True
    noise = classifier.noise_estimate().overall
    return {
        "usual": n_usual,
        "rare_labels": n_rare,
        "size": size,
        "seed": seed,
        "wrong": int(wrong.sum()),
        "wrong_rejected": int(rejected[:n_usual][wrong].sum()),
        "right_rejected": int(rejected[:n_usual][~wrong].sum()),
        "rare_rejected": int(rejected[n_usual:].sum()),
        "noise": [round(value, 4) for value in (noise.rate, noise.low, noise.high)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--code", default="", help="the code's version, kept in every line")
    arguments = parser.parse_args()
    for seed in (0, 1, 2):
        for case in CASES:
            row = {"code": arguments.code, **measure(*case, seed)}
            print(row, flush=True)
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
