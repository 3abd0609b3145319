"""Accuracy on digits after corrections, for many draws of the noise: does a corrected label ever do harm?

    python benchmarks/corrections.py --out results/live/corrections.json

The samples are judged and the classifier is chosen as `learn` and `correct` do it, without a state. Of the labels of
1,500 digits 30 % are wrong. Then the first 200 and 1,000 by clean probability, and all, get their true labels. The
other 297 digits are the last ones, which other people wrote, as in docs/live.md, or random ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from purereplay.data.noise import corrupt
from purereplay.purify.opinions import IMAGE_KINDS, FeatureMap, choose_model, judge_labels

N_LEARN, RATE, STEPS, SEEDS = 1500, 0.3, (0, 200, 1000, 1500), range(21, 29)


def measure(seed: int, *, is_random: bool) -> list[float]:
    """Return the accuracy after each step."""
    images, truth = (load_digits().images * 15.9).astype(np.uint8)[:, None], load_digits().target.astype(np.int64)
    dice = np.random.default_rng(seed)
    rows = dice.permutation(len(truth)) if is_random else np.arange(len(truth))
    learn, new = rows[:N_LEARN], rows[N_LEARN:]
    given = corrupt("symmetric", truth[learn], RATE, dice, n_classes=10, mapping=None)
    feature_map = FeatureMap.fit(images[learn], seed)
    features, others = feature_map.transform(images[learn]), feature_map.transform(images[new])
    labels, trusted, order, found = given.copy(), np.zeros(len(given), bool), np.arange(0), []
    for n in STEPS:
        labels[order[:n]], trusted[order[:n]] = truth[learn][order[:n]], True
        verdicts = judge_labels(features, labels, 10, trusted=trusted, given=given, kinds=IMAGE_KINDS, seed=seed)
        weights = np.where(trusted, 1.0, verdicts.clean_probability)
        model = choose_model(features, labels, weights, 10, kinds=IMAGE_KINDS, seed=seed)
        found.append(float((model.predict_proba(others).argmax(1) == truth[new]).mean()))
        if not len(order):
            order = np.argsort(verdicts.clean_probability, kind="stable")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    result = {}
    for name, is_random in (("last digits", False), ("random digits", True)):
        result[name] = {seed: measure(seed, is_random=is_random) for seed in SEEDS}
        print(name, np.mean(list(result[name].values()), 0).round(4), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"steps": STEPS, "accuracy": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
