"""Pictures of a run, drawn from its metrics.jsonl."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purereplay.data.files import disk_errors, write_whole
from purereplay.data.own_folder import OwnFolder
from purereplay.errors import UserError
from purereplay.evaluate.results import PICTURE, RunDirectory

_INK, _GREEN, _RED, _GREY = "#22313f", "#2a9d62", "#c8553d", "#b8c1c9"


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
        axes.bar(places, [height for _, (height, _) in known], width, yerr=spreads, capsize=2, label=name)
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
        raise UserError(f"{path.name} is no picture file: use the ending .png, .svg or .pdf.") from None
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if follow:
        write_whole(path, drawn.getvalue())
    else:
        OwnFolder(path.parent).write(path.name, drawn.getvalue())


def _draw_accuracy(axes: Axes, tasks: list[dict[str, Any]]) -> None:
    if not tasks:
        return
    names = ["/".join(map(str, line["classes"][:5])) for line in tasks]
    for j in range(len(tasks) if len(tasks) > 1 else 0):  # how each task's own accuracy holds up
        later = [(i, line["task_accuracies"][j]) for i, line in enumerate(tasks) if i >= j]
        points = [(i, 100 * a) for i, a in later if a is not None]
        label = "on one task, since it was learned" if j == 0 else None
        axes.plot(*zip(*points, strict=True), color=_GREY, marker=".", linewidth=1, label=label)
    axes.plot([100 * line["accuracy"] for line in tasks], color=_GREEN, marker="o", label="on the whole test set")
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
        ("in what passed the filter", _RED, [line["passed_noise"] for line in buffers]),
        (
            "in the purified buffer" if has_filter else "in the memory",
            _GREEN,
            [None if (p := line["purity"]) is None else 1 - p for line in buffers],
        ),
    )
    for label, colour, values in curves:
        points = [(x, 100 * v) for x, v in zip(at, values, strict=True) if v is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=label)
    axes.set(xlabel="delayed buffers filled", ylabel="wrong labels, %", ylim=(0, None))
    tidy(axes)


def tidy(axes: Axes) -> None:
    """Give axes the look of all pictures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
    axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
