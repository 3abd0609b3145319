"""Speed of the Self-Centered filter, beside a plain implementation in the same run.

Two labels, 5 graphs, 128-d features; in every label 60 % of the samples form a cluster and 40 % are scattered. Prints
the median milliseconds of `clean_probability` after a warm-up (the lowest of three such medians, since other work on
the machine only ever adds), and how many times longer the plain code takes: one graph after the other,
`numpy.linalg.eigh`, and EM with `scipy.stats.beta`. The targets are for 2 otherwise idle CPU cores.

    python benchmarks/filter_speed.py [--json FILE] [--repeats 11] [--device cpu]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from purereplay.purify.self_centered import clean_probability

TARGETS_MS = {300: 20.0, 500: 40.0, 1000: 120.0, 5000: None}  # buffer → milliseconds; None: for information
N_GRAPHS = 5
PLAIN_UP_TO = 1000  # the plain code would take minutes beyond


def made_up_buffer(n: int, seed: int = 0, d: int = 128) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features (n, d) and labels (n,) of two classes, 60 % of each in a cluster and 40 % scattered."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    clustered = rng.random(n) < 0.6
    features = rng.normal(size=(n, d)) + clustered[:, None] * rng.normal(size=(2, d))[labels]
    return features, labels


def plain_clean_probability(
    features: NDArray[np.float64], labels: NDArray[np.int64], n_graphs: int
) -> NDArray[np.float64]:
    """The same filter as one would first write it: (n,)."""
    rng = np.random.default_rng(0)
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    result = np.zeros(len(labels))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        weights = np.maximum(features[own] @ features[own].T, 0)
        for _ in range(n_graphs):
            triangle = np.tril(rng.random(weights.shape) < weights, -1)
            graph = np.maximum((triangle | triangle.T | np.eye(len(own), dtype=bool)).astype(float), 1e-5)
            scores = np.abs(np.linalg.eigh(graph)[1][:, -1])
            result[own] += plain_posterior(scores) / n_graphs
    return result


def plain_posterior(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Posterior (n,) of the higher component after 10 EM steps on the trimmed scores."""
    low, high = np.percentile(scores, [5, 95])
    x = np.clip((scores - low) / (high - low), 1e-3, 1 - 1e-3)
    kept = x[(scores >= low) & (scores <= high)]
    parameters = [(1.0, 2.0, 0.5), (2.0, 1.0, 0.5)]
    for _ in range(10):
        joint = np.array([w * stats.beta.pdf(kept, a, b) for a, b, w in parameters])
        gamma = joint / joint.sum(0)
        parameters = []
        for g in gamma:
            mean = np.average(kept, weights=g)
            common = mean * (1 - mean) / np.average((kept - mean) ** 2, weights=g) - 1
            parameters.append((mean * common, (1 - mean) * common, g.mean()))
    noisy, clean = sorted(parameters, key=lambda p: p[0] / (p[0] + p[1]))
    joint = np.array([w * stats.beta.pdf(x, a, b) for a, b, w in (noisy, clean)])
    return joint[1] / joint.sum(0)


def median_ms(work: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of `work` over `repeats`, after two warm-up calls (one when there are few repeats)."""
    for _ in range(2 if repeats > 3 else 1):
        work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def measure(n: int, repeats: int, device: str) -> dict[str, object]:
    """One row of the table."""
    features, labels = made_up_buffer(n)
    # numpy in, numpy out: the answer is waited for, on a GPU too
    target = TARGETS_MS[n]
    n_rounds = 3 if target else 1
    ours = min(
        median_ms(lambda: clean_probability(features, labels, N_GRAPHS, device=device), repeats)
        for _ in range(n_rounds)
    )
    plain = None
    if n <= PLAIN_UP_TO:
        plain = min(median_ms(lambda: plain_clean_probability(features, labels, N_GRAPHS), 3) for _ in range(n_rounds))
    return {
        "buffer": n,
        "median_ms": round(ours, 2),
        "target_ms": target,
        "met": None if target is None else ours <= target,
        "plain_ms": None if plain is None else round(plain, 1),
        "ratio": None if plain is None else round(plain / ours, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the Self-Centered filter.")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(2)
    rows = [measure(n, options.repeats, options.device) for n in TARGETS_MS]
    print(f"clean_probability, 2 labels, {N_GRAPHS} graphs, 128-d features, {options.device}, 2 threads")
    print("".join(f"{name:>12}" for name in rows[0]))
    for row in rows:
        print("".join(f"{'-' if value is None else str(value):>12}" for value in row.values()))
    if options.json:
        options.json.write_text(json.dumps({"device": options.device, "threads": 2, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
