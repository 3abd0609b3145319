"""Draw architecture.svg: the rooms of the code, and the way of one sample through them (`make picture`).

A box is one stop of the sample. Its colour and its first line name the room. Coordinates are in inches.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

PICTURE = Path(__file__).parent / "architecture.svg"
SIZE = 13.0, 7.6
BOX = 2.35, 1.65  # width, height
COLUMNS = 1.35, 5.1, 8.2, 11.3  # centres
ROWS = 5.75, 2.9
INK, PALE = "#1f2a36", "#5d6b79"
ROOMS = {  # line, fill
    "data/": ("#44688a", "#e9f0f6"),
    "memory/": ("#2b8a5e", "#e6f4ec"),
    "nets/": ("#b5651d", "#fbefe2"),
    "purify/": ("#7a4b9e", "#f2eaf8"),
    "evaluate/": ("#b03a48", "#fae9eb"),
}


class Stop(NamedTuple):
    """A box: place in the grid, room, title and text."""

    column: int
    row: int
    room: str
    title: str
    text: str

    @property
    def centre(self) -> tuple[float, float]:
        return COLUMNS[self.column], ROWS[self.row]

    def side(self, dx: float, dy: float) -> tuple[float, float]:
        """A point on the border; dx, dy in [-1, 1]."""
        x, y = self.centre
        return x + dx * BOX[0] / 2, y + dy * BOX[1] / 2


STREAM = Stop(0, 0, "data/", "Stream", "images, given labels,\nindices; some labels\nare wrong")
DELAYED = Stop(1, 0, "memory/", "Delayed buffer D", "samples wait\nuntil D is full")
EXPERT = Stop(2, 0, "nets/", "Expert", "trained on D\nwithout labels,\ngives features")
FILTER = Stop(3, 0, "purify/", "Self-Centered filter", "graphs, centrality,\nbeta mixture: clean\nprobability")
PURIFIED = Stop(3, 1, "memory/", "Purified buffer P", "class-balanced, most\nprobably clean\nsamples")
BASE = Stop(2, 1, "nets/", "Base", "Self-Replay: trained\non D and P\nwithout labels")
CLASSIFIER = Stop(1, 1, "nets/", "Classifier", "copy of the base,\nfinetuned on P\nwith its labels")
JUDGE = Stop(0, 1, "evaluate/", "Judge", "accuracy, purity,\nfiltered noise,\nforgetting")
STOPS = (STREAM, DELAYED, EXPERT, FILTER, PURIFIED, BASE, CLASSIFIER, JUDGE)


def draw(path: Path) -> None:
    plt.rcParams |= {"font.family": "DejaVu Sans", "svg.hashsalt": "architecture", "svg.fonttype": "path"}
    figure = plt.figure(figsize=SIZE, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, SIZE[0]), ylim=(0, SIZE[1]))
    axes.axis("off")
    _frame(axes)
    for stop in STOPS:
        box(axes, stop)
    _arrows(axes)
    axes.text(
        SIZE[0] / 2,
        0.3,
        "Your own images take the same way: live/ reads them from a folder, a list or a pipe. There is no judge then.",
        ha="center",
        va="center",
        fontsize=11.5,
        color=INK,
    )
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _frame(axes: Axes) -> None:
    """The learner around its stops, and the engine below them."""
    left, right, low, high = 3.65, 12.8, 0.65, 7.35
    patch = FancyBboxPatch(
        (left, low), right - left, high - low, boxstyle="round,pad=0,rounding_size=0.15", fc="#f7f8f9", ec=PALE, lw=1.2
    )
    axes.add_patch(patch)
    axes.text(left + 0.25, high - 0.27, "learners/spr/", fontsize=12, weight="bold", color=PALE, va="center")
    axes.text(
        right - 0.25,
        high - 0.27,
        "sees given labels only; requests training, never trains",
        fontsize=11,
        color=PALE,
        va="center",
        ha="right",
    )
    line, fill = ROOMS["nets/"]
    x, y, width, height = COLUMNS[1] - BOX[0] / 2, 0.85, COLUMNS[3] - COLUMNS[1] + BOX[0], 0.5
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.1", fc=fill, ec=line, lw=1.2)
    )
    axes.text(
        x + width / 2,
        y + height / 2,
        "nets/engine.py trains the requested networks; those of one shape side by side, also of several runs",
        ha="center",
        va="center",
        fontsize=11,
        color=INK,
    )


def box(axes: Axes, stop: Stop) -> None:
    line, fill = ROOMS[stop.room]
    corner = stop.side(-1, -1)
    axes.add_patch(FancyBboxPatch(corner, *BOX, boxstyle="round,pad=0,rounding_size=0.12", fc=fill, ec=line, lw=1.5))
    x, top = stop.centre[0], stop.side(0, 1)[1]
    axes.text(x, top - 0.2, stop.room, ha="center", va="center", fontsize=10, color=line, weight="bold")
    axes.text(x, top - 0.5, stop.title, ha="center", va="center", fontsize=12.5, color=INK, weight="bold")
    axes.text(x, top - 1.13, stop.text, ha="center", va="center", fontsize=11, color=INK, linespacing=1.3)


def _arrows(axes: Axes) -> None:
    arrow(axes, STREAM.side(1, 0), DELAYED.side(-1, 0))
    arrow(axes, DELAYED.side(1, 0), EXPERT.side(-1, 0))
    arrow(axes, EXPERT.side(1, 0), FILTER.side(-1, 0))
    arrow(axes, FILTER.side(0, -1), PURIFIED.side(0, 1))
    note(axes, FILTER.side(0.06, -1.38), "passed", ha="left")
    note(axes, FILTER.side(-0.1, -1.38), "rejected: recorded only", ha="right")
    arrow(axes, DELAYED.side(0.6, -1), BASE.side(-0.6, 1))
    note(axes, (6.45, 4.1), "images of D", ha="right")
    arrow(axes, PURIFIED.side(-1, 0.2), BASE.side(1, 0.2))
    arrow(axes, BASE.side(-1, 0.2), CLASSIFIER.side(1, 0.2))
    arrow(axes, PURIFIED.side(-0.5, -1), CLASSIFIER.side(0.5, -1), bend=-0.09)
    note(axes, (8.2, 1.57), "samples of P with their labels", ha="center")
    arrow(axes, CLASSIFIER.side(-1, 0), JUDGE.side(1, 0))
    note(axes, (3.09, 3.02), "predictions,\nreports", ha="center", va="bottom")
    arrow(axes, STREAM.side(0, -1), JUDGE.side(0, 1), color=ROOMS["evaluate/"][0], dashed=True)
    note(axes, (1.47, 4.33), "true labels go\nto the judge only", ha="left", color=ROOMS["evaluate/"][0])


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    bend: float = 0.0,
    color: str = INK,
    dashed: bool = False,
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=16,
            lw=1.6,
            color=color,
            linestyle="--" if dashed else "-",
            connectionstyle=f"arc3,rad={bend}",
            shrinkA=2,
            shrinkB=2,
        )
    )


def note(axes: Axes, at: tuple[float, float], text: str, *, ha: str, va: str = "center", color: str = PALE) -> None:
    axes.text(*at, text, ha=ha, va=va, fontsize=10.5, color=color, linespacing=1.25)


if __name__ == "__main__":
    draw(PICTURE)
