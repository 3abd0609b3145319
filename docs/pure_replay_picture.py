"""Draw pure-replay.svg: what Pure Replay adds to Self-Purified Replay; and its curve of steps (`make picture`)."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from architecture import INK, PALE, Stop, arrow, box, note
from matplotlib.patches import FancyBboxPatch
from table_parts import read_results

from purereplay.report.pictures_lines import DrawnCurve, DrawnPanel, draw_panels

PICTURE = Path(__file__).parent / "pure-replay.svg"
STEPS_PICTURE = Path(__file__).parent / "figures" / "pure-replay-steps.png"
SIZE = 13.0, 6.4
ADDED = "#b03a48"

DELAYED = Stop(0, 0, "memory/", "Delayed buffer D", "images and given\nlabels, some of\nthem wrong")
FEATURES = Stop(1, 0, "purify/", "Features", "patches, and the\naverage's projections")
FILTER = Stop(2, 0, "purify/", "Self-Centered filter", "graphs, centrality,\nbeta mixture")
CLEAN = Stop(3, 0, "purify/", "Clean probability", "filter's, sharpened by\nopinion and agreement")
PURIFIED = Stop(3, 1, "memory/", "Purified buffer P", "class-balanced, most\nprobably clean\nsamples")
BASE = Stop(2, 1, "nets/", "Base", "NT-Xent on D and P,\nlabels of P, labels\nof D by probability")
AVERAGE = Stop(1, 1, "nets/", "Moving average", "of the base's\nweights, updated at\nevery step")
CLASSIFIER = Stop(0, 1, "nets/", "Classifier", "logistic regression\non P's features,\nat any moment")


def draw(path: Path) -> None:
    plt.rcParams |= {"font.family": "DejaVu Sans", "svg.hashsalt": "pure-replay", "svg.fonttype": "path"}
    figure = plt.figure(figsize=SIZE, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, SIZE[0]), ylim=(0.4, SIZE[1] + 0.4))
    axes.axis("off")
    for stop in (DELAYED, FEATURES, FILTER, CLEAN, PURIFIED, BASE, AVERAGE, CLASSIFIER):
        box(axes, stop)
    for start, end in (
        (DELAYED.side(1, 0), FEATURES.side(-1, 0)),
        (FEATURES.side(1, 0), FILTER.side(-1, 0)),
        (FILTER.side(1, 0), CLEAN.side(-1, 0)),
        (CLEAN.side(0.3, -1), PURIFIED.side(0.3, 1)),
        (PURIFIED.side(-1, 0), BASE.side(1, 0)),
        (AVERAGE.side(-1, 0), CLASSIFIER.side(1, 0)),
    ):
        arrow(axes, start, end)
    arrow(axes, DELAYED.side(0.7, -1), BASE.side(-0.75, 1))
    arrow(axes, BASE.side(-1, 0), AVERAGE.side(1, 0), color=ADDED)
    arrow(axes, AVERAGE.side(-0.2, 1), FEATURES.side(-0.2, -1), color=ADDED)
    arrow(axes, AVERAGE.side(0.6, 1), CLEAN.side(-0.8, -1), color=ADDED)
    arrow(axes, CLEAN.side(-0.4, -1), BASE.side(0.6, 1), color=ADDED)
    note(axes, (4.7, 4.05), "projections", ha="right", color=ADDED)
    note(axes, (7.2, 4.62), "opinion of the\ngiven label", ha="left", color=ADDED)
    note(axes, (9.75, 4.05), "weights of D's labels", ha="left", color=ADDED)
    note(axes, CLEAN.side(0.36, -1.5), "passed", ha="left")
    axes.add_patch(
        FancyBboxPatch((0.3, 0.75), 12.4, 0.62, boxstyle="round,pad=0,rounding_size=0.1", fc="#f7f8f9", ec=PALE, lw=1)
    )
    words = "Red: added to Self-Purified Replay. The labels in the base's loss and the agreement are new, too."
    axes.text(SIZE[0] / 2, 1.06, words, ha="center", va="center", fontsize=11.5, color=INK)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_steps(path: Path) -> None:
    """Draw accuracy and AUROC on the digits by the base's passes over each delayed buffer."""
    results = read_results("pure-replay/digits-steps.jsonl")
    panels = []
    for measure, y_label in (("accuracy", "accuracy, %"), ("auroc", "AUROC of the clean probability, %")):
        curves = []
        for noise in ("symmetric", "asymmetric"):
            points: dict[float, list[float]] = {}
            for r in results:
                if r["noise"] == noise:
                    points.setdefault(r["options"]["base_epochs"], []).append(100 * r[measure])
            xs = sorted(points)
            spreads = [float(np.std(points[x], ddof=1)) for x in xs]
            curves.append(DrawnCurve(f"{noise} 40 %", xs, [float(np.mean(points[x])) for x in xs], spreads))
        x_label = "passes over each delayed buffer (base_epochs)"
        panels.append(DrawnPanel("digits", x_label, y_label, curves, log_x=True))
    note = "Validation data, preset demo, seeds 11 to 16, mean and standard deviation."
    draw_panels(panels, "Pure Replay: steps per buffer", note, [path])


if __name__ == "__main__":
    draw(PICTURE)
    draw_steps(STEPS_PICTURE)
