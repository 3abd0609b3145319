"""Write the tables of your-data.md, and draw reliability.svg, from results/your-data (`make tables`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "your-data"
PAGE, PICTURE = ROOT / "docs" / "your-data.md", ROOT / "docs" / "reliability.svg"
OURS, STREAMING = "purereplay", ("SGD partial_fit", "MLP partial_fit")
DATA = {
    "digits": "digits",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10n": "CIFAR-10N, pixels",
    "cifar10n-features": "CIFAR-10N, ImageNet features",
    "wine": "wine",
    "breast-cancer": "breast cancer",
    "digits-vectors": "digits as vectors",
    "classification-2": "make_classification, 2 classes",
    "classification-5": "make_classification, 5 classes",
}
NOISES = {"symmetric": "symmetric 30 %", "asymmetric": "asymmetric 20 %", "none": "none", "human": "people's"}
ORDERS = ("shuffled", "folder", "classes")

Results = dict[tuple[str, str, str, str], list[dict[str, Any]]]  # by data, noise, order and row


def read() -> Results:
    found: Results = {}
    for path in sorted(RESULTS.glob("*.json")):
        cell = json.loads(path.read_text())
        for row, values in cell["rows"].items():
            own = values | {"wrong": cell["wrong"], "seed": cell["seed"]}
            found.setdefault((cell["data"], cell["noise"], cell["order"], row), []).append(own)
    return found


def measured(own: list[dict[str, Any]], name: str, unit: float = 1, digits: int = 3) -> str:
    """Return the mean over seeds, ± its standard error."""
    values = [unit * each[name] for each in own if each.get(name) is not None]
    if not values:
        return "–"
    error = f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{error}"


def best(results: Results, data: str, noise: str, order: str, rows: Iterable[str], name: str, **form: Any) -> str:
    """Return the best of some rows, with its name."""
    means = {}
    for row in rows:
        values = [each[name] for each in results.get((data, noise, order, row), ()) if each.get(name) is not None]
        if values:
            means[row] = np.mean(values)
    if not means:
        return "–"
    row = max(means, key=lambda own: means[own])
    short = row.removeprefix("cleanlab + ").removesuffix(" partial_fit").replace("logistic regression", "regression")
    return f"{measured(results[data, noise, order, row], name, **form)} ({short})"


def comparison(results: Results, name: str, **form: Any) -> list[str]:
    """Return the table of one measure: ours in three orders, the best of cleanlab's rows, and others."""
    peers = sorted({row for *_, row in results if row.startswith("cleanlab")})
    heads = ["data", "wrong labels", *(f"ours, {order}" for order in ORDERS), "best with cleanlab"]
    heads += ["plain forest", "best streaming, classes"] if name == "accuracy" else []
    lines = [heads, ["---"] * len(heads)]
    for data, noise in ((d, n) for d in DATA for n in NOISES):
        if (data, noise, "shuffled", OURS) not in results or (name == "auroc" and noise == "none"):
            continue
        line = [DATA[data], NOISES[noise]]
        line += [measured(results.get((data, noise, order, OURS), []), name, **form) for order in ORDERS]
        line.append(best(results, data, noise, "shuffled", peers, name, **form))
        if name == "accuracy":
            line.append(measured(results.get((data, noise, "shuffled", "forest"), []), name, **form))
            line.append(best(results, data, noise, "classes", STREAMING, name, **form))
        lines.append(line)
    return [f"| {' | '.join(line)} |" for line in lines]


def noise(results: Results) -> list[str]:
    """Return the table of noise estimates and calibration of ours, shuffled."""
    heads = ["data", "wrong, %", "told, %", "truth within the interval", "calibration error", "rejected, %"]
    lines = [heads, ["---"] * len(heads)]
    for data, kind in ((d, n) for d in DATA for n in NOISES):
        own = results.get((data, kind, "shuffled", OURS))
        if not own:
            continue
        inside = sum(each["noise_low"] <= each["wrong"] <= each["noise_high"] for each in own)
        told, wrong = measured(own, "noise_told", unit=100, digits=1), measured(own, "wrong", unit=100, digits=1)
        line = [f"{DATA[data]}, {NOISES[kind]}", wrong.partition(" ")[0], told, f"{inside} of {len(own)}"]
        line += [measured(own, "calibration_error"), measured(own, "rejected", unit=100, digits=1)]
        lines.append(line)
    return [f"| {' | '.join(line)} |" for line in lines]


def summary(results: Results) -> list[str]:
    """Return the figures over all cells of ours."""
    own = [each for (*_, row), many in results.items() if row == OURS for each in many]
    near = np.mean([abs(each["noise_told"] - each["wrong"]) <= 0.05 for each in own])
    inside = np.mean([each["noise_low"] <= each["wrong"] <= each["noise_high"] for each in own])
    error = np.mean([each["calibration_error"] for each in own])
    text = (
        f"Over all {len(own)} cells and seeds: noise told within 5 points of the truth in {near:.0%}, truth within the"
    )
    return [f"{text} interval in {inside:.0%}, mean calibration error {error:.3f}."]


def draw(results: Results) -> None:
    """Draw the reliability curve: share of right labels by clean probability, by kind of data."""
    plt.rcParams |= {"font.family": "DejaVu Sans", "svg.hashsalt": "reliability", "svg.fonttype": "path"}
    figure, axes = plt.subplots(figsize=(5.4, 4.6))
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, label="perfectly calibrated")
    groups = {
        "digits, MNIST": ("digits", "mnist"),
        "CIFAR-10": ("cifar10",),
        "CIFAR-10N": ("cifar10n", "cifar10n-features"),
        "vectors": tuple(DATA)[5:],
    }
    for label, names in groups.items():
        bins: dict[int, list[tuple[float, float, int]]] = {}
        for (data, _, _, row), many in results.items():
            if row == OURS and data in names:
                for p, right, n in (point for each in many for point in each["reliability"]):
                    bins.setdefault(min(9, int(10 * p)), []).append((p, right, n))
        points = [(np.average([p for p, *_ in own], weights=[n for *_, n in own]),
                   np.average([r for _, r, _ in own], weights=[n for *_, n in own]))
                  for _, own in sorted(bins.items())]  # fmt: skip
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label)
    axes.set(xlabel="clean probability", ylabel="share of right labels", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def written(text: str, results: Results) -> str:
    """Return the page with its generated parts."""
    parts = {
        "auroc": comparison(results, "auroc"),
        "accuracy": comparison(results, "accuracy", unit=100, digits=1),
        "noise": noise(results),
        "summary": summary(results),
    }
    for name, lines in parts.items():
        pattern = rf"(<!-- part: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(
            pattern, lambda found, lines=lines: found[1] + "\n".join(lines) + "\n" + found[2], text, flags=re.S
        )
    return text


if __name__ == "__main__":
    kept = read()
    PAGE.write_text(written(PAGE.read_text(), kept))
    draw(kept)
