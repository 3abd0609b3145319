"""The paper's figures, each a small declaration: panels of curves, and the runs behind every point.

A curve either follows one run from task to task, or has a run for every value on the horizontal axis. The paper prints
no numbers of its figures; where one of its tables has the number of a point, that is drawn beside ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from purereplay.evaluate.compare import Cell, has_each_task
from purereplay.evaluate.identity import RunKey, run_key
from purereplay.evaluate.records import Result
from purereplay.evaluate.settings import RunSettings, resolve
from purereplay.paper.cells import Choice, table_cells
from purereplay.paper.numbers import Column, paper_table

Curve = Callable[[Result], list[float] | None]  # the values of one run from task to task, shares


def after_each_task(result: Result) -> list[float] | None:
    """Return the accuracy on all classes after each task; None if the run was evaluated at the end only."""
    values: list[float] = result.get("accuracy_after_task", [])
    return values if has_each_task(result) else None


def on_the_first_task(result: Result) -> list[float] | None:
    """Return the accuracy on the first task's classes after each task; results of version 0.1.0 do not have it."""
    matrix = result.get("accuracy_matrix")
    if matrix is None or len(matrix) != len(matrix[0]) or any(row[0] is None for row in matrix):
        return None
    return [row[0] for row in matrix]


class Series(NamedTuple):
    """One curve: a run that is followed from task to task, or one run per value of x."""

    label: str
    runs: tuple[RunSettings, ...]  # of seed 1
    xs: tuple[float, ...] = ()  # of each run; () with a `curve`: the number of the task
    curve: Curve | None = None
    measure: str = "accuracy"
    paper: dict[float, float] = {}  # noqa: RUF012  # the paper's numbers, %, by x

    def points(self, finished: dict[RunKey, Result], seeds: set[int] | None = None) -> dict[float, Cell]:
        """Return the measured values over seeds, %, by x."""
        found: dict[float, list[float]] = {}
        for number, run in enumerate(self.runs):
            for result in _results_of(run, finished, seeds):
                values = self.curve(result) if self.curve else None
                own = result.get(self.measure)
                if values is not None:
                    for i, value in enumerate(values):
                        found.setdefault(i + 1, []).append(100 * value)
                elif self.curve is None and own is not None:
                    found.setdefault(self.xs[number], []).append(100 * own)
        return {x: Cell(found[x]) for x in sorted(found)}

    def is_measured(self, result: Result | None) -> bool:
        """Return whether a result has what the curve shows."""
        if result is None:
            return False
        return (self.curve(result) if self.curve else result.get(self.measure)) is not None


class Panel(NamedTuple):
    """Curves on common axes."""

    title: str
    series: tuple[Series, ...]
    x_label: str
    y_label: str = "accuracy, %"

    @property
    def dataset(self) -> str:
        return self.series[0].runs[0].dataset


class PaperFigure(NamedTuple):
    """One of the paper's figures."""

    name: str
    title: str
    panels: Callable[[Choice], list[Panel]]


def _run(choice: Choice, dataset: str, learner: str, noise: Column, **options: str) -> RunSettings:
    return resolve(
        dataset=dataset,
        noise=noise.noise,
        noise_rate=noise.rate,
        learner=learner,
        budget=choice.budget,
        device=choice.device,
        precision=choice.precision,
        overrides=options,
    )


def _symmetric(percent: int) -> Column:
    return Column("symmetric", percent / 100) if percent else Column("none", 0.0)


def _in_paper(table: str, dataset: str, method: str, by_x: dict[float, Column]) -> dict[float, float]:
    values = paper_table(table, dataset).values
    return {x: values[method, noise] for x, noise in by_x.items() if (method, noise) in values}


_TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "webvision14": "WebVision"}


def _forgetting(choice: Choice) -> list[Panel]:
    def series(dataset: str, percent: int) -> Series:
        run = _run(choice, dataset, "crs", _symmetric(percent))
        return Series(f"{percent} % noise", (run,), curve=on_the_first_task)

    return [
        Panel(
            _TITLES[dataset],
            tuple(series(dataset, percent) for percent in (0, 20, 40, 60)),
            "tasks learned",
            "accuracy on the first task, %",
        )
        for dataset in ("mnist", "cifar10")
    ]


def _base(choice: Choice) -> list[Panel]:
    percents = (20, 40, 60)

    def series(dataset: str, learner: str, label: str) -> Series:
        runs = tuple(_run(choice, dataset, learner, _symmetric(percent)) for percent in percents)
        theirs = _in_paper("overall_accuracy", dataset, "SPR", {p: _symmetric(p) for p in percents})
        return Series(label, runs, xs=percents, paper=theirs if learner == "spr" else {})

    return [
        Panel(
            _TITLES[dataset],
            (series(dataset, "spr", "self-supervised"), series(dataset, "supervised-base", "supervised")),
            "symmetric noise, %",
        )
        for dataset in ("mnist", "cifar10")
    ]


def _by_task(
    choice: Choice, dataset: str, noise: Column, rows: dict[str, tuple[str, dict[str, str]]], table: str = ""
) -> tuple[Series, ...]:
    """Return a curve of accuracies after each task for every row: name of the row in `table`, learner, settings."""
    found = []
    for label, (learner, options) in rows.items():
        run = _run(choice, dataset, learner, noise, **options)
        theirs = _in_paper(table, dataset, label, {_n_tasks(dataset): noise}) if table else {}
        found.append(Series(label, (run,), curve=after_each_task, paper=theirs))
    return tuple(found)


def _n_tasks(dataset: str) -> int:
    return 7 if dataset == "webvision14" else 5


def _intermittent(choice: Choice) -> list[Panel]:
    rows: dict[str, tuple[str, dict[str, str]]] = {
        "continual": ("spr", {}),
        "intermittent": ("spr", {"self_replay": "task-end"}),
    }
    return [
        Panel(f"{_TITLES[name]}, 40 % noise", _by_task(choice, name, _symmetric(40), rows), "tasks learned")
        for name in ("mnist", "cifar10")
    ]


def _ensemble_size(choice: Choice) -> list[Panel]:
    sizes, noise = (1, 5, 10, 20, 40), _symmetric(60)

    def panel(dataset: str) -> Panel:
        runs = tuple(_run(choice, dataset, "self-centered-filter", noise, graphs=str(n)) for n in sizes)
        theirs = {
            **_in_paper("filtering_e5", dataset, "SPR", {5: noise}),
            **_in_paper("filtering_e20", dataset, "SPR", {20: noise}),
        }
        sampled = Series("sampled graphs", runs, xs=sizes, measure="filtered_noise", paper=theirs)
        weighted = _run(choice, dataset, "self-centered-filter", noise, graphs="0")
        fixed = _in_paper("filtering_e5", dataset, "Non-stochastic", dict.fromkeys((1, 40), noise))
        # one run, drawn at both ends
        static = Series("the graph itself", (weighted, weighted), xs=(1, 40), measure="filtered_noise", paper=fixed)
        return Panel(f"{_TITLES[dataset]}, 60 % noise", (sampled, static), "sampled graphs", "filtered noise, %")

    return [panel("mnist"), panel("cifar10")]


def _robustness(choice: Choice) -> list[Panel]:
    rows: dict[str, tuple[str, dict[str, str]]] = {
        "Self-Replay": ("self-replay", {}),
        "GDumb": ("gdumb", {"memory": "reservoir"}),
    }
    return [
        Panel(f"{_TITLES[name]}, {p} % noise", _by_task(choice, name, _symmetric(p), rows), "tasks learned")
        for name in ("mnist", "cifar10")
        for p in (40, 60)
    ]


def _delayed_buffer(choice: Choice) -> list[Panel]:
    rows: dict[str, tuple[str, dict[str, str]]] = {
        "SR with DB": ("spr", {}),
        "SR without DB": ("spr", {"replay": "purified"}),
    }
    table = "self_replay_delayed_buffer"
    return [
        Panel(f"{_TITLES[name]}, {p} % noise", _by_task(choice, name, _symmetric(p), rows, table), "tasks learned")
        for name in ("mnist", "cifar10")
        for p in (20, 40, 60)
    ]


def top_three(dataset: str, column: Column) -> list[str]:
    """Return the three rows of the paper's table of accuracies that are best in a column, without bounds and parts."""
    parts = ("Multitask", "Multitask (clean)", "Self-Replay", "Self-Centered filter")
    values = {m: v for (m, c), v in paper_table("overall_accuracy", dataset).values.items() if c == column}
    return sorted((m for m in values if m not in parts), key=lambda method: -values[method])[:3]


def _variance(choice: Choice) -> list[Panel]:
    panels = []
    for dataset in ("mnist", "cifar10", "webvision14"):
        table = paper_table("overall_accuracy", dataset)
        column = table.columns[0] if dataset == "webvision14" else _symmetric(40)
        cells = {cell.method: cell for cell in table_cells(table, choice) if cell.column == column}
        series = tuple(
            Series(m, cells[m].runs, curve=after_each_task, paper={_n_tasks(dataset): cells[m].value})
            for m in top_three(dataset, column)
        )
        noise = "real noise" if dataset == "webvision14" else "40 % noise"
        panels.append(Panel(f"{_TITLES[dataset]}, {noise}", series, "tasks learned"))
    return panels


FIGURES = {
    figure.name: figure
    for figure in (
        PaperFigure("forgetting", "Replay forgets the first task faster with wrong labels (figure 1)", _forgetting),
        PaperFigure("supervised_base", "Self-supervised against supervised base (figure 3a)", _base),
        PaperFigure("intermittent", "Continual against intermittent Self-Replay (figure 3b)", _intermittent),
        PaperFigure("ensemble_size", "Filtered noise by the number of sampled graphs (appendix)", _ensemble_size),
        PaperFigure("noise_robustness", "Self-Replay and GDumb, both on a plain reservoir (appendix)", _robustness),
        PaperFigure("delayed_buffer", "Self-Replay with and without D (appendix)", _delayed_buffer),
        PaperFigure("variance", "Accuracy of the three best methods, by task (appendix)", _variance),
    )
}


def figure_runs(panels: Iterable[Panel]) -> list[tuple[Series, RunSettings]]:
    """Return every run of some panels with the curve that needs it."""
    return [(series, run) for panel in panels for series in panel.series for run in series.runs]


def _results_of(run: RunSettings, finished: dict[RunKey, Result], seeds: set[int] | None) -> list[Result]:
    cell = run_key(run).cell
    keys = sorted(key for key in finished if key.cell == cell and (seeds is None or key.seed in seeds))
    return [finished[key] for key in keys]


def panel_table(panel: Panel, finished: dict[RunKey, Result], seeds: set[int] | None = None) -> list[dict[str, Any]]:
    """Return the measured points of a panel as rows: curve, x, mean, spread, number of seeds, the paper's number."""
    rows: list[dict[str, Any]] = []
    for series in panel.series:
        points = series.points(finished, seeds)
        for x in sorted({*points, *series.paper}):
            cell = points.get(x)
            rows.append(
                {
                    "panel": panel.title,
                    "curve": series.label,
                    "x": x,
                    "mean": None if cell is None else round(cell.mean, 3),
                    "spread": None if cell is None or cell.spread is None else round(cell.spread, 3),
                    "seeds": 0 if cell is None else len(cell.values),
                    "paper": series.paper.get(x),
                }
            )
    return rows
