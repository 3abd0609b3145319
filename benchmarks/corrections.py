"""Accuracy on digits after corrections, for many draws of the noise: does a corrected label ever do harm?

    python benchmarks/corrections.py --out results/live/corrections.json
    python benchmarks/corrections.py --reviewing --out results/review/gain.json

The samples are judged and the classifier is chosen as `learn` and `correct` do it, without a state. Of the labels of
1,500 digits 30 % are wrong. Then the first 200 and 1,000 by clean probability, and all, get their true labels. The
other 297 digits are the last ones, which other people wrote, as in docs/live.md, or random ones.

With --reviewing the first 100 samples, all rejected ones, and all get their true labels: what a reviewer buys, for
1,500 and for 300 random digits with 30, 40 and 60 % wrong labels. All other digits are test digits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from purereplay.data.noise import corrupt
from purereplay.purify.opinions import IMAGE_KINDS, FeatureMap, choose_model, judge_labels

N_LEARN, RATE, STEPS, SEEDS = 1500, 0.3, (0, 200, 1000, 1500), range(21, 29)


REVIEWED = [(n, rate) for n in (1500, 300) for rate in (0.3, 0.4, 0.6)]
REVIEWING = (0, 100, None, 1500)  # None: all that are rejected


def measure(
    seed: int, *, is_random: bool, n_learn: int = N_LEARN, rate: float = RATE, steps: Sequence[int | None] = STEPS
) -> list[float]:
    """Return the accuracy after each step."""
    images, truth = (load_digits().images * 15.9).astype(np.uint8)[:, None], load_digits().target.astype(np.int64)
    dice = np.random.default_rng(seed)
    rows = dice.permutation(len(truth)) if is_random else np.arange(len(truth))
    learn, new = rows[:n_learn], rows[n_learn:]
    given = corrupt("symmetric", truth[learn], rate, dice, n_classes=10, mapping=None)
    feature_map = FeatureMap.fit(images[learn], seed)
    features, others = feature_map.transform(images[learn]), feature_map.transform(images[new])
    labels, trusted, order, found = given.copy(), np.zeros(len(given), bool), np.arange(0), []
    n_rejected = 0
    for step in steps:
        n = n_rejected if step is None else step
        labels[order[:n]], trusted[order[:n]] = truth[learn][order[:n]], True
        verdicts = judge_labels(features, labels, 10, trusted=trusted, given=given, kinds=IMAGE_KINDS, seed=seed)
        weights = np.where(trusted, 1.0, verdicts.clean_probability)
        model = choose_model(features, labels, weights, 10, kinds=IMAGE_KINDS, seed=seed)
        found.append(float((model.predict_proba(others).argmax(1) == truth[new]).mean()))
        if not len(order):
            order = np.argsort(verdicts.clean_probability, kind="stable")
            n_rejected = int((~verdicts.accepted).sum())
    return found


def _reviewing(n_learn: int, rate: float) -> dict[str, Any]:
    accuracy = {seed: measure(seed, is_random=True, n_learn=n_learn, rate=rate, steps=REVIEWING) for seed in SEEDS}
    values = 100 * np.array(list(accuracy.values()))
    gains = values[:, 1:] - values[:, :1]
    print(
        n_learn,
        rate,
        values.mean(0).round(2),
        "gains",
        gains.mean(0).round(2),
        gains.std(0, ddof=1).round(2),
        flush=True,
    )
    return {"samples": n_learn, "wrong": rate, "steps": ["none", "first 100", "rejected", "all"], "accuracy": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--reviewing", action="store_true", help="for several numbers of samples and wrong labels")
    options = parser.parse_args()
    if options.reviewing:
        rows = [_reviewing(n, rate) for n, rate in REVIEWED]
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
        return
    result = {}
    for name, is_random in (("last digits", False), ("random digits", True)):
        result[name] = {seed: measure(seed, is_random=is_random) for seed in SEEDS}
        print(name, np.mean(list(result[name].values()), 0).round(4), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"steps": STEPS, "accuracy": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
