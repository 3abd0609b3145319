"""Pictures of curves: panels side by side, a band over seeds around each curve, and other people's numbers as rings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from purereplay.report.pictures import SERIES, save, tidy


class DrawnCurve(NamedTuple):
    """One curve, in the units of the axis."""

    label: str
    xs: list[float]
    means: list[float]
    spreads: list[float]  # half of the band's width; NaN: no band
    rings: dict[float, float] = {}  # noqa: RUF012  # numbers to compare with, by x


class DrawnPanel(NamedTuple):
    """Curves on common axes."""

    title: str
    x_label: str
    y_label: str
    curves: list[DrawnCurve]
    log_x: bool = False


def draw_panels(
    panels: Sequence[DrawnPanel], title: str, note: str, paths: Sequence[Path], *, rings: str = "paper"
) -> None:
    """Draw panels side by side, at most three in a row; `rings` names the numbers to compare with."""
    n_columns = min(3, len(panels))
    n_rows = -(-len(panels) // n_columns)
    width = max(7.0, 4.0 * n_columns)
    figure = Figure(figsize=(width, 3.3 * n_rows + 0.5), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel, rings)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(title, fontsize=11)
    figure.supxlabel(fill(note, int(18 * width)), fontsize=7, color="#5b6770")
    for path in paths:
        save(figure, path)


def _draw_panel(axes: Axes, panel: DrawnPanel, rings: str) -> None:
    drawn_rings = False
    for colour, curve in zip(SERIES * 2, panel.curves, strict=False):
        label = curve.label if curve.xs else f"{curve.label}: not measured"
        marker = "." if len(curve.xs) <= 20 else None
        axes.plot(curve.xs, curve.means, color=colour, marker=marker, label=label)
        means, spreads = np.array(curve.means), np.array(curve.spreads)
        if len(means) and not np.isnan(spreads).all():
            half = np.nan_to_num(spreads)
            axes.fill_between(curve.xs, means - half, means + half, color=colour, alpha=0.18, linewidth=0)
        if curve.rings:
            name = None if drawn_rings else rings
            axes.scatter(*_columns(curve.rings), s=42, facecolors="none", edgecolors=colour, label=name, zorder=3)
            drawn_rings = True
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(panel.title, fontsize=9)
    xs = sorted({x for curve in panel.curves for x in [*curve.xs, *curve.rings]})
    if panel.log_x:
        axes.set_xscale("log")
        axes.minorticks_off()
    if xs and len(xs) <= 7 and all(math.isclose(x, round(x)) for x in xs):
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
    tidy(axes)


def _columns(points: dict[float, float]) -> tuple[list[float], list[float]]:
    return list(points), list(points.values())


def draw_images(
    sheets: dict[str, NDArray[np.uint8]], title: str, note: str, paths: Sequence[Path], *, per_row: int = 10
) -> None:
    """Draw sheets of images (n, C, H, W), one below the other, each with its own heading."""
    n_rows = {name: max(1, -(-len(images) // per_row)) for name, images in sheets.items()}
    height = 0.55 * sum(n_rows.values()) + 0.4 * len(sheets) + 0.6
    figure = Figure(figsize=(0.55 * per_row, height), layout="constrained")
    grids = figure.subplots(len(sheets), 1, squeeze=False, height_ratios=list(n_rows.values()))
    for axes, (name, images) in zip(grids.flat, sheets.items(), strict=True):
        axes.set_axis_off()
        axes.set_title(name, fontsize=8, loc="left")
        axes.imshow(_sheet(images, per_row), cmap="gray", interpolation="nearest", vmin=0, vmax=255)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(note, fontsize=6, color="#5b6770")
    for path in paths:
        save(figure, path)


def _sheet(images: NDArray[np.uint8], per_row: int) -> NDArray[np.uint8]:
    """Return one picture of all images, white between them: (rows, columns, 3)."""
    _, channels, height, width = images.shape if len(images) else (0, 1, 1, 1)
    n_rows, gap = max(1, -(-len(images) // per_row)), max(1, width // 14)
    sheet = np.full((n_rows * (height + gap), per_row * (width + gap), 3), 255, np.uint8)
    for i, image in enumerate(images):
        top, left = i // per_row * (height + gap), i % per_row * (width + gap)
        own = np.moveaxis(image, 0, -1)
        sheet[top : top + height, left : left + width] = own if channels == 3 else np.repeat(own, 3, axis=-1)
    return sheet
