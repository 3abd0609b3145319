"""Noise estimated from few labels, on the digits, beside the truth; also after changes that should not matter.

    python benchmarks/few_images.py --out results/opinions/few-images.jsonl      # 490 cases, three minutes on one core
    python benchmarks/few_images.py --table results/opinions/few-images.jsonl    # print the means of files

A case is (number of images, noise, draw). It is judged three times: as it is, with features that differ by 1e-7, and in
another order. The judge sees images and given labels only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from purereplay.purify.opinions import IMAGE_KINDS, FeatureMap, judge_labels

SIZES = (60, 80, 100, 150, 200, 300, 400)
NOISES = (*(("symmetric", rate) for rate in (0.0, 0.1, 0.2, 0.3, 0.45)), ("asymmetric", 0.2), ("asymmetric", 0.4))
TAKEN_FOR = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}  # with asymmetric noise
DRAWS = 10
Whole = NDArray[np.int64]
Row = dict[str, object]


def case(n: int, noise: str, rate: float, draw: int) -> tuple[NDArray[np.float32], Whole, Whole, np.random.Generator]:
    """Return features, given labels and true labels of n digits, and the generator for what follows."""
    rng = np.random.default_rng([n, int(100 * rate), noise == "asymmetric", draw])
    data = load_digits()
    rows = rng.permutation(len(data.target))[:n]
    true = data.target[rows]
    wrong = rng.random(n) < rate
    other = (true + rng.integers(1, 10, n)) % 10
    if noise == "asymmetric":
        other = np.array([TAKEN_FOR.get(int(label), int(label)) for label in true])
    images = torch.from_numpy(np.uint8(data.images[rows] * 15))[:, None]
    return FeatureMap.fit(images).transform(images), np.where(wrong, other, true).astype(np.int64), true, rng


def measure() -> Iterator[Row]:
    for n in SIZES:
        for noise, rate in NOISES:
            for draw in range(DRAWS):
                features, given, true, rng = case(n, noise, rate, draw)
                near = (features.astype(np.float64) * (1 + 1e-7 * rng.normal(size=features.shape))).astype(np.float32)
                order = rng.permutation(n)
                found, nearly, reordered = (
                    judge_labels(x, y, 10, kinds=IMAGE_KINDS)
                    for x, y in ((features, given), (near, given), (features[order], given[order]))
                )
                right, told = given == true, found.noise.overall
                yield {
                    "n": n,
                    "noise": noise,
                    "rate": rate,
                    "draw": draw,
                    "wrong": float((~right).mean()),
                    "told": told.rate,
                    "low": told.low,
                    "high": told.high,
                    "told_nearly": nearly.noise.overall.rate,
                    "told_reordered": reordered.noise.overall.rate,
                    "auroc": roc_auc_score(right, found.clean_probability) if 0 < right.sum() < n else None,
                    "brier": float(np.square(right - found.clean_probability).mean()),
                    "right_rejected": float((~found.accepted[right]).mean()),
                }


def table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    groups = {"all": rows}
    groups |= {f"{n} images": [r for r in rows if r["n"] == n] for n in SIZES}
    groups |= {f"{k} {v:g}": [r for r in rows if (r["noise"], r["rate"]) == (k, v)] for k, v in NOISES}
    print(f"{path}\n{'':16}  error   bias   AUROC  Brier  in interval  right rejected  moved by 1e-7")
    for name, some in groups.items():
        errors = np.array([r["told"] - r["wrong"] for r in some])
        areas = [r["auroc"] for r in some if r["auroc"] is not None]
        inside = np.mean([r["low"] <= r["wrong"] <= r["high"] for r in some])
        moved = np.mean([abs(r["told_nearly"] - r["told"]) > 0.05 for r in some])
        area = f"{np.mean(areas):.3f}" if areas else "–"
        print(
            f"{name:16}  {np.abs(errors).mean():.3f}  {errors.mean():+.3f}  {area:>5}  "
            f"{np.mean([r['brier'] for r in some]):.3f}  {inside:11.2f}  "
            f"{np.mean([r['right_rejected'] for r in some]):14.3f}  {moved:13.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Noise estimated from few labels, beside the truth.")
    parser.add_argument("--out", type=Path, help="file to write, one case per line")
    parser.add_argument("--table", type=Path, nargs="+", help="print the means of kept files and do nothing else")
    options = parser.parse_args()
    if options.table:
        for path in options.table:
            table(path)
        return
    if options.out is None:
        parser.error("--out FILE or --table FILE is needed")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as file:
        for row in measure():
            file.write(json.dumps(row) + "\n")
            file.flush()
    table(options.out)


if __name__ == "__main__":
    main()
