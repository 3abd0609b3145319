"""Pictures, all in one place: of runs and states, for files, the report, README and documents.

Colours are told apart by people with any colour vision, and lines by their marks too. In a report the colours are
variables of the page, which has a light and a dark set; files have light colours, for print.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import BytesIO, StringIO
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from purereplay.data.files import disk_errors, write_whole
from purereplay.data.own_folder import OwnFolder
from purereplay.errors import UserError
from purereplay.evaluate.results import PICTURE, RunDirectory

# ink, blue, orange and grey; the blue and the orange of Okabe and Ito
_INK, _BLUE, _ORANGE, _GREY = "#22313f", "#0072b2", "#d55e00", "#9aa5ad"
SERIES = (_BLUE, _ORANGE, "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_NAME = 60  # characters of a name in a picture
_MARKS = ("o", "s", "^", "D", "v", "P")
_VARIABLES = {_INK: "ink", _BLUE: "blue", _ORANGE: "orange", _GREY: "grey"}  # of the report's style sheet


def draw_run(run: Path, path: Path | None = None) -> Path:
    """Draw accuracy after each task on the left; noise in the stream, after the filter and in P on the right.

    Returns the picture's path. `path` None: run.png in the folder, where a link is not followed.
    """
    directory, settings = RunDirectory.open(run)
    lines = directory.read_lines()
    if not lines:
        raise UserError(f"{run} has no measurements yet.")
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_accuracy(left, [line for line in lines if line["event"] == "task"])
    _draw_noise(right, [line for line in lines if line["event"] == "buffer"])
    noise = "its own labels" if settings.noise == "none" else f"{settings.noise_rate:.0%} {settings.noise} noise"
    budget = "" if settings.budget == 1 else f", budget {settings.budget:g}"
    title = f"{settings.dataset}, {noise}: {settings.learner}, {settings.preset}{budget}, seed {settings.seed}"
    figure.suptitle(title, fontsize=10, color=_INK)
    save(figure, path or run / PICTURE, follow=path is not None)
    return path or run / PICTURE


def draw_bars(
    groups: list[str],
    bars: dict[str, list[tuple[float, float] | None]],
    title: str,
    path: Path,
    *,
    follow: bool = True,
) -> None:
    """Draw a group of bars for each of `groups`, one bar (height, spread or NaN) for each name in `bars`."""
    width = 0.8 / len(bars)
    figure = Figure(figsize=(max(5.0, 2.5 + 0.35 * len(groups) * len(bars)), 3.6), layout="constrained")
    axes = figure.subplots()
    for i, (name, heights) in enumerate(bars.items()):
        known = [(x, bar) for x, bar in enumerate(heights) if bar is not None]
        places = [x + (i - (len(bars) - 1) / 2) * width for x, _ in known]
        spreads = [spread for _, (_, spread) in known]
        colour = SERIES[i % len(SERIES)]
        axes.bar(places, [height for _, (height, _) in known], width, yerr=spreads, capsize=2, label=name, color=colour)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(title)
    tidy(axes)
    save(figure, path, follow=follow)


def save(figure: Figure, path: Path, *, follow: bool = True) -> None:
    """Write a picture, complete or not at all; the ending of the path decides its format.

    `follow`: whether the path may be a link, as one that the user names may be.
    """
    drawn = BytesIO()
    try:
        figure.savefig(drawn, dpi=130, format=path.suffix[1:] or "png")
    except ValueError:
        raise UserError(f"{path.name} is not a picture file: use the extension .png, .svg or .pdf.") from None
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if follow:
        write_whole(path, drawn.getvalue())
    else:
        OwnFolder(path.parent).write(path.name, drawn.getvalue())


def svg(figure: Figure) -> str:
    """Return a picture for a page: its colours are the page's, and its text is text."""
    drawn = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "purereplay", "font.family": "sans-serif"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = text[text.index("<svg") :]
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    return re.sub(r"<svg ", '<svg role="img" ', text, count=1)


def accuracy_figure(groups: dict[str, list[list[float]]]) -> Figure:
    """Accuracy in % after each task, one line per group: mean over its runs, with the spread as a band."""
    figure, axes = _figure(5.4, 3.2)
    for i, (name, runs) in enumerate(zip(_short_names(groups), groups.values(), strict=True)):
        values = 100 * np.array(runs)
        mean, at = values.mean(0), np.arange(1, values.shape[1] + 1)
        colour, mark = SERIES[i % len(SERIES)], _MARKS[i % len(_MARKS)]
        axes.plot(at, mean, color=colour, marker=mark, label=f"{name} (n = {len(runs)})")
        if len(runs) > 1:
            spread = values.std(0, ddof=1)
            axes.fill_between(at, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="tasks learned", ylabel="accuracy on all classes, %", ylim=(0, 102))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    return figure


def noise_figure(buffers: list[dict[str, Any]]) -> Figure:
    """Wrong labels in % by delayed buffer: in the buffer, in what passed the filter, and in the memory."""
    figure, axes = _figure(5.4, 3.2)
    _draw_noise(axes, buffers)
    return figure


def confusion_figure(counts: NDArray[np.int64], names: list[str]) -> Figure:
    """Share of each true label (row) that was predicted as each label (column)."""
    n = len(names)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure, axes = _figure(min(8.0, 2.2 + 0.36 * n), min(7.5, 1.8 + 0.34 * n))
    axes.pcolormesh(share, cmap="Blues", vmin=0, vmax=1, edgecolors="none", rasterized=n > 40)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    if n <= 25:
        for i, j in zip(*np.nonzero(share >= 0.005), strict=True):
            colour = "#ffffff" if share[i, j] > 0.5 else "#102030"
            axes.text(j + 0.5, i + 0.5, f"{100 * share[i, j]:.0f}", ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(np.arange(n) + 0.5, names, rotation=0 if max(map(len, names)) < 4 else 90, fontsize=8)
        axes.set_yticks(np.arange(n) + 0.5, names, fontsize=8)
    axes.set(xlabel="predicted", ylabel="true label")
    tidy(axes, legend=False)
    return figure


def balance_figure(names: list[str], right: list[int], wrong: list[int] | None) -> Figure:
    """Samples of each label in the purified buffer; with the truth, how many of them are wrong."""
    figure, axes = _figure(max(4.0, min(9.0, 1.5 + 0.3 * len(names))), 2.8)
    at = np.arange(len(names))
    axes.bar(at, right, color=_BLUE, label="right label")
    if wrong is not None:
        axes.bar(at, wrong, bottom=right, color=_ORANGE, hatch="//", edgecolor=_INK, label="wrong label")
    _name_labels(axes, names)
    axes.set_ylabel("samples")
    tidy(axes, legend=False)
    if wrong is not None:
        figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8, labelcolor=_INK)
    return figure


def rates_figure(names: list[str], rates: list[tuple[float, float, float]], ylabel: str) -> Figure:
    """Rates in [0, 1] with their intervals (rate, low, high), one per label; NaN is left out."""
    figure, axes = _figure(max(4.0, min(9.0, 1.5 + 0.3 * len(names))), 2.8)
    values = 100 * np.array(rates, np.float64).reshape(-1, 3)
    known = np.flatnonzero(~np.isnan(values[:, 0]))
    middle, low, high = values[known].T
    axes.errorbar(known, middle, [middle - low, high - middle], fmt="o", color=_BLUE, ecolor=_BLUE, capsize=3)
    _name_labels(axes, names)
    axes.set(ylabel=ylabel, ylim=(0, None))
    tidy(axes, legend=False)
    return figure


def times_figure(groups: dict[str, dict[str, float]]) -> Figure:
    """Seconds of each phase, one bar per group."""
    phases = list(dict.fromkeys(phase for seconds in groups.values() for phase in seconds if phase != "total"))
    figure, axes = _figure(7.5, 1.2 + 0.6 * len(groups))
    left = np.zeros(len(groups))
    for i, phase in enumerate(phases):
        widths = np.array([seconds.get(phase, 0.0) for seconds in groups.values()])
        axes.barh(np.arange(len(groups)), widths, left=left, color=SERIES[i % len(SERIES)], label=phase)
        left += widths
    axes.set_yticks(np.arange(len(groups)), [fill(name, 34) for name in _short_names(groups)], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    tidy(axes, legend=False)
    figure.legend(loc="outside upper right", ncols=4, frameon=False, fontsize=8, labelcolor=_INK)
    return figure


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _short_names(names: Iterable[str]) -> list[str]:
    """Return names that fit into a picture; those that are cut have a number."""
    return [name if len(name) <= _NAME else f"{name[: _NAME - 6]}… ({i})" for i, name in enumerate(names, 1)]


def _name_labels(axes: Axes, names: list[str]) -> None:
    """Write labels below the axis; many labels by their numbers."""
    if len(names) > 60:
        axes.set_xlabel("label, in order of first appearance")
        return
    short = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    axes.set_xticks(range(len(short)), short, rotation=0 if max(map(len, short), default=0) < 4 else 90, fontsize=8)


def _draw_accuracy(axes: Axes, tasks: list[dict[str, Any]]) -> None:
    if not tasks:
        return
    names = ["/".join(map(str, line["classes"][:5])) for line in tasks]
    for j in range(len(tasks) if len(tasks) > 1 else 0):  # how each task's own accuracy holds up
        later = [(i, line["task_accuracies"][j]) for i, line in enumerate(tasks) if i >= j]
        points = [(i, 100 * a) for i, a in later if a is not None]
        label = "on one task, since it was learned" if j == 0 else None
        axes.plot(*zip(*points, strict=True), color=_GREY, marker=".", linewidth=1, label=label)
    axes.plot([100 * line["accuracy"] for line in tasks], color=_BLUE, marker="o", label="on the whole test set")
    axes.set(xlabel="after the task with classes", ylabel="accuracy, %", ylim=(0, 102))
    axes.set_xticks(range(len(names)), names)
    tidy(axes)


def _draw_noise(axes: Axes, buffers: list[dict[str, Any]]) -> None:
    if not buffers or all(line["noise"] is None for line in buffers):
        axes.text(0.5, 0.5, "truth unknown", ha="center", va="center", color=_INK, transform=axes.transAxes)
        axes.set_axis_off()
        return
    at = [line["buffer"] for line in buffers]
    has_filter = any(line["n_passed"] is not None for line in buffers)
    curves = (
        ("in the delayed buffer", _GREY, [line["noise"] for line in buffers]),
        ("in what passed the filter", _ORANGE, [line["passed_noise"] for line in buffers]),
        (
            "in the purified buffer" if has_filter else "in the memory",
            _BLUE,
            [None if (p := line["purity"]) is None else 1 - p for line in buffers],
        ),
    )
    for label, colour, values in curves:
        points = [(x, 100 * v) for x, v in zip(at, values, strict=True) if v is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=label)
    axes.set(xlabel="delayed buffers filled", ylabel="wrong labels, %", ylim=(0, None))
    tidy(axes)


def tidy(axes: Axes, *, legend: bool = True) -> None:
    """Give axes the look of all pictures."""
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(_INK)
    axes.tick_params(colors=_INK)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(_INK)
    if legend:
        axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
