"""Runs side by side: a table of mean ± standard deviation over seeds, and a bar chart."""

from __future__ import annotations

import math
from pathlib import Path

from rich.table import Table

from purereplay.errors import UserError
from purereplay.evaluate.compare import MEASURES, Cell, Cells, describe_data, describe_learner
from purereplay.evaluate.records import Result, richest_first
from purereplay.evaluate.settings import RunSettings
from purereplay.report.pictures import draw_bars
from purereplay.report.pictures_lines import DrawnCurve, DrawnPanel, draw_panels
from purereplay.report.plain import escaped
from purereplay.report.terminal import out


def show_comparison(cells: Cells, measure: str, picture: Path | None, *, follow: bool = True) -> None:
    """Print a table with the best of each column in bold, and draw a chart; `follow` as in `pictures.save`."""
    learners, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    best = min if measure.startswith("forgetting") else max
    best_means = {column: best(cell.mean for (_, c), cell in cells.items() if c == column) for column in columns}
    table = Table("", *map(escaped, columns), box=None, padding=(0, 2, 0, 0))
    for shown in table.columns[1:]:
        shown.justify = "right"
    for name in learners:
        row = [cells.get((name, column)) for column in columns]
        texts = ["–" if cell is None else cell.text() for cell in row]
        is_best = [cell is not None and cell.mean == best_means[c] for c, cell in zip(columns, row, strict=True)]
        table.add_row(escaped(name), *(f"[bold]{t}[/bold]" if b else t for t, b in zip(texts, is_best, strict=True)))
    n_seeds = sorted({len(cell.values) for cell in cells.values()})
    seeds = " to ".join(str(n) for n in dict.fromkeys((n_seeds[0], n_seeds[-1])))
    over = f"mean ± standard deviation over {seeds} seeds" if n_seeds[-1] > 1 else "one seed"
    out.print(f"{MEASURES[measure]} in %, {over}")
    out.print(table)
    if picture is not None:
        bars = {name: [_bar(cells.get((name, column))) for column in columns] for name in learners}
        draw_bars(columns, bars, f"{MEASURES[measure]}, %", picture, follow=follow)
        out.print(f"drawn in {escaped(picture)}")


def draw_curves(runs: list[tuple[RunSettings, Result]], path: Path) -> None:
    """Draw the accuracy after each task of finished runs, with a band over seeds: a panel for each kind of data."""
    found: dict[str, dict[str, dict[int, Result]]] = {}  # data, learner, seed
    for settings, result in runs:
        if len(result.get("accuracy_after_task") or []) > 1:
            of_data = found.setdefault(describe_data(settings, result), {})
            by_seed = of_data.setdefault(describe_learner(settings, result), {})
            by_seed[settings.seed] = min(by_seed.get(settings.seed, result), result, key=richest_first)
    if not found:
        raise UserError("None of these holds a finished run that was evaluated after each task.")
    panels = []
    for data, learners in found.items():
        curves = []
        for name, by_seed in learners.items():
            after_task = [[100 * value for value in result["accuracy_after_task"]] for result in by_seed.values()]
            cells = [Cell(list(values)) for values in zip(*after_task, strict=False)]
            spreads = [math.nan if cell.spread is None else cell.spread for cell in cells]
            xs = [float(i + 1) for i in range(len(cells))]
            curves.append(DrawnCurve(name, xs, [cell.mean for cell in cells], spreads))
        panels.append(DrawnPanel(data, "tasks learned", "accuracy, %", curves))
    draw_panels(panels, "Accuracy after each task", "bands: standard deviation over seeds", [path])


def _bar(cell: Cell | None) -> tuple[float, float] | None:
    return None if cell is None else (cell.mean, math.nan if cell.spread is None else cell.spread)
