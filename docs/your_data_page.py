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
    heads = ["data", "wrong, %", "estimated, %", "truth within the interval", "calibration error", "rejected, %"]
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
    text = f"Over all {len(own)} cells and seeds: noise estimated within 5 points of the truth in {near:.0%}, truth"
    return [f"{text} within the interval in {inside:.0%}, mean calibration error {error:.3f}."]


def mean(results: Results, data: str, kind: str, order: str, row: str, name: str) -> float | None:
    values = [each[name] for each in results.get((data, kind, order, row), ()) if each.get(name) is not None]
    return float(np.mean(values)) if values else None


def error(results: Results, data: str, kind: str, order: str, name: str) -> float:
    """Return the standard error of ours; 0 for one seed."""
    values = [each[name] for each in results[data, kind, order, OURS]]
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def margins(results: Results, order: str, rows: Iterable[str], name: str, their: str) -> dict[tuple[str, str], float]:
    """Return ours in one order minus the best of other rows, by data and noise."""
    found = {}
    for data, kind, own_order, row in results:
        ours = mean(results, data, kind, order, OURS, name)
        theirs = [own for other in rows if (own := mean(results, data, kind, their, other, name)) is not None]
        if (own_order, row) == (order, OURS) and ours is not None and theirs:
            found[data, kind] = ours - max(theirs)
    return found


def called(cell: tuple[str, str]) -> str:
    return f"{DATA[cell[0]]}, {NOISES[cell[1]]}"


def least(found: dict[tuple[str, str], float], unit: float = 100, digits: int = 1) -> str:
    """Return the smallest of some values with its cell."""
    cell = min(found, key=lambda own: found[own])
    return f"{unit * found[cell]:+.{digits}f} ({called(cell)})"


def demands(results: Results) -> list[str]:
    """Return the table of what was asked for, with what was measured."""
    peers = sorted({row for *_, row in results if row.startswith("cleanlab")})
    rows: list[tuple[str, str]] = []
    for order in ("shuffled", "folder"):
        for name, unit, digits, text in (("auroc", 1, 3, "AUROC"), ("accuracy", 100, 1, "accuracy, points")):
            found = margins(results, order, peers, name, "shuffled")
            good = sum(margin >= -error(results, *cell, order, name) for cell, margin in found.items())
            said = f"{good} of {len(found)} cells; least {least(found, unit, digits)}"
            rows.append((f"{text}, {order}: not below the best with cleanlab", said))
    found = margins(results, "classes", STREAMING, "accuracy", "classes")
    good = sum(margin >= 0.1 for margin in found.values())
    said = f"{good} of {len(found)} cells; least {least(found)} points"
    rows.append(("accuracy, class after class: 10 points above every streaming learner", said))
    areas = {
        (d, n): mean(results, d, n, "classes", OURS, "auroc") for d, n, o, r in results if (o, r) == ("classes", OURS)
    }
    known = {cell: area for cell, area in areas.items() if area is not None}
    low = "; ".join(f"{area:.3f} ({called(cell)})" for cell, area in known.items() if area < 0.9)
    said = f"{sum(area >= 0.9 for area in known.values())} of {len(known)} cells" + (f"; below: {low}" if low else "")
    rows.append(("AUROC, class after class: at least 0.90", said))
    clean = [each for (_, kind, _, row), many in results.items() if (kind, row) == ("none", OURS) for each in many]
    most = {name: 100 * max(each[name] for each in clean) for name in ("rejected", "noise_told")}
    rows.append(("no wrong labels: at most 10 % rejected", f"at most {most['rejected']:.1f} %"))
    rows.append(("no wrong labels: at most 5 % estimated", f"at most {most['noise_told']:.1f} %"))
    found = {
        c: m for c, m in margins(results, "shuffled", ["forest"], "accuracy", "shuffled").items() if c[1] == "none"
    }
    rows.append(("no wrong labels: accuracy at most one point below the plain forest", f"least {least(found)} points"))
    own = [each for (*_, row), many in results.items() if row == OURS for each in many]
    near = np.mean([abs(each["noise_told"] - each["wrong"]) <= 0.05 for each in own])
    rows.append(("noise estimated within 5 points in 80 % of all cells", f"{near:.0%} of {len(own)} cells and seeds"))
    rows.append(("mean calibration error at most 0.05", f"{np.mean([each['calibration_error'] for each in own]):.3f}"))
    vectors = tuple(DATA)[5:]
    for name, text in (("accuracy", "accuracy"), ("auroc", "AUROC")):
        found = {c: m for c, m in margins(results, "shuffled", peers, name, "shuffled").items() if c[0] in vectors}
        rows.append((f"vectors: {text} at most two points below the best peer", f"least {least(found)} points"))
    times = [each["cpu_seconds"] for (d, *_, r), m in results.items() if r == OURS and d in vectors
             for each in m if each.get("cpu_seconds")]  # fmt: skip
    rows.append(("vectors: at most twice the peer's time, or 10 s", f"at most {max(times):.1f} s of processor time"))
    rows += live_demands()
    return ["| asked for | measured |", "| --- | --- |", *(f"| {asked} | {said} |" for asked, said in rows)]


def live_demands() -> list[tuple[str, str]]:
    """Return what was asked for of the command line, from the results of docs/live.md."""
    folder, said = RESULTS.parent / "live", []
    for data, name in (("digits", "digits"), ("mnist", "MNIST"), ("cifar10", "CIFAR-10")):
        kept = [
            json.loads(path.read_text()) for path in sorted(folder.glob(f"learners/full-memory/{data}-seed-*.json"))
        ]
        steps = np.mean([[own["accuracy"], *own["accuracy_after_corrections"].values()] for own in kept], 0)
        said.append(f"{name} {' → '.join(f'{100 * step:.1f}' for step in steps)}")
    photos, pipe = (json.loads((folder / name).read_text()) for name in ("photos.json", "pipe.json"))
    return [
        ("accuracy in % before and after 200, 1,000 and all suspects are corrected: rising", "; ".join(said)),
        (
            "300 JPEG files of mixed sizes: under 2 minutes and 2 GB",
            f"{photos['seconds']:.0f} s, {photos['memory_mib']:.0f} MiB",
        ),
        ("100,000 samples by a pipe: time and memory flat", _flat(pipe["parts"])),
    ]


def _flat(parts: list[dict[str, float]]) -> str:
    times, memory = ([part[name] for part in parts] for name in ("ms_per_sample", "memory_mib"))
    return f"{min(times):.0f} to {max(times):.0f} ms per sample, {min(memory):.0f} to {max(memory):.0f} MiB"


def network() -> list[str]:
    """Return the result of benchmarks/network_opinion.py."""
    kept = json.loads((RESULTS.parent / "network-opinion.json").read_text())
    heads = ["network", "accuracy, points", "AUROC, points", "times the processor time", "seconds, at most"]
    lines = [heads, ["---"] * len(heads)]
    for name in ("64 units", "100 units"):
        more = [
            np.mean([100 * (own[name][m] - own["none"][m]) for own in kept.values()]) for m in ("accuracy", "auroc")
        ]
        times = [own[name]["cpu_seconds"] / own["none"]["cpu_seconds"] for own in kept.values()]
        most = max(own[name]["cpu_seconds"] for own in kept.values())
        lines.append(
            [name, *(f"{value:+.1f}" for value in more), f"{min(times):.1f} to {max(times):.1f}", f"{most:.0f}"]
        )
    return [f"| {' | '.join(line)} |" for line in lines]


def few() -> list[str]:
    """Return the results of benchmarks/few_images.py."""
    heads = ["digits", "error of the estimate, points", "AUROC", "truth within the interval"]
    heads = [heads[0], *(name for head in heads[1:] for name in (head, "before"))]
    lines = [heads, ["---"] * len(heads)]
    now, before = (
        [json.loads(line) for line in (RESULTS.parent / "opinions" / name).read_text().splitlines()]
        for name in ("few-images.jsonl", "few-images-before.jsonl")
    )
    for n in dict.fromkeys(row["n"] for row in now):
        line = [f"{n} images"]
        for of in (_error, _area, _inside):
            line += [of([row for row in rows if row["n"] == n]) for rows in (now, before)]
        lines.append(line)
    return [f"| {' | '.join(line)} |" for line in lines]


def _error(rows: list[dict[str, Any]]) -> str:
    return f"{100 * np.mean([abs(row['told'] - row['wrong']) for row in rows]):.1f}"


def _area(rows: list[dict[str, Any]]) -> str:
    return f"{np.mean([row['auroc'] for row in rows if row['auroc'] is not None]):.3f}"


def _inside(rows: list[dict[str, Any]]) -> str:
    return f"{np.mean([row['low'] <= row['wrong'] <= row['high'] for row in rows]):.0%}"


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
        "demands": demands(results),
        "network": network(),
        "few": few(),
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
