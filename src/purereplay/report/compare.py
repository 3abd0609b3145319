"""Many runs side by side: a table of mean ± standard deviation over seeds, and a bar chart."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from purereplay.errors import UserError
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings, changed_options
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.report.pictures import draw_bars
from purereplay.report.progress import out

MEASURES = {  # in result.json: in words
    "accuracy": "accuracy",
    "purity": "purity of the memory",
    "filtered_noise": "filtered noise",
    "forgetting": "forgetting",
}


class Cell(NamedTuple):
    """One measure, in %, of runs that differ by their seed alone."""

    values: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def spread(self) -> float | None:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def text(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.spread is None else f" ± {self.spread:.1f}")


Cells = dict[tuple[str, str], Cell]  # by who learned and what


def collect(paths: list[Path], measure: str) -> Cells:
    """The finished runs among the folders; within a cell only the seed differs."""
    if measure not in MEASURES:
        raise UserError(f"The measure {measure!r} is unknown: choose one of {', '.join(MEASURES)}.")
    values: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    n_finished = 0
    for path in paths:
        if not (path / "result.json").exists():
            continue
        directory, settings = RunDirectory.open(path)
        value = (directory.result() or {}).get(measure)
        n_finished += 1
        if value is not None:
            values[who(settings), what(settings)][settings.seed] = 100 * value
    if not n_finished:
        raise UserError("None of these folders holds a finished run.")
    if not values:
        raise UserError(f"None of these runs knows its {MEASURES[measure]}.")
    return {key: Cell(list(by_seed.values())) for key, by_seed in values.items()}


def who(settings: RunSettings) -> str:
    """The learner with all that was not left at its default."""
    robust = settings.options.robust if isinstance(settings.options, RivalSettings) else "none"
    parts = [settings.learner + ("" if robust == "none" else f" + {robust}")] + (
        [] if settings.preset == "default" else [settings.preset]
    )
    if settings.budget != 1 and not isinstance(settings.options, RivalSettings):  # theirs is not scaled
        parts.append(f"budget {settings.budget:g}")
    parts += [f"{name}={own}" for name, own in changed_options(settings).items() if name != "robust"]
    return ", ".join(parts)


def what(settings: RunSettings) -> str:
    noise = "own labels" if settings.noise == "none" else f"{settings.noise} {100 * settings.noise_rate:g} %"
    more = [] if settings.episode == "A" else [f"episode {settings.episode}"]
    return ", ".join([settings.dataset, noise, *more, *(["validation"] if settings.validation else [])])


def compare(paths: list[Path], measure: str, picture: Path | None) -> None:
    """Print the table, the best of each column in bold, and draw the chart."""
    cells = collect(paths, measure)
    learners, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    best = min if measure == "forgetting" else max
    winners = {column: best(cell.mean for (_, c), cell in cells.items() if c == column) for column in columns}
    table = Table("", *columns, box=None, padding=(0, 2, 0, 0))
    for shown in table.columns[1:]:
        shown.justify = "right"
    for name in learners:
        row = [cells.get((name, column)) for column in columns]
        texts = ["–" if cell is None else cell.text() for cell in row]
        is_best = [cell is not None and cell.mean == winners[c] for c, cell in zip(columns, row, strict=True)]
        table.add_row(name, *(f"[bold]{t}[/bold]" if b else t for t, b in zip(texts, is_best, strict=True)))
    n_seeds = sorted({len(cell.values) for cell in cells.values()})
    seeds = " to ".join(str(n) for n in dict.fromkeys((n_seeds[0], n_seeds[-1])))
    over = f"mean ± standard deviation over {seeds} seeds" if n_seeds[-1] > 1 else "one seed"
    out.print(f"{MEASURES[measure]} in %, {over}")
    out.print(table)
    if picture is not None:
        bars = {name: [_bar(cells.get((name, column))) for column in columns] for name in learners}
        draw_bars(columns, bars, f"{MEASURES[measure]}, %", picture)
        out.print(f"drawn in {picture}")


def _bar(cell: Cell | None) -> tuple[float, float] | None:
    return None if cell is None else (cell.mean, math.nan if cell.spread is None else cell.spread)
