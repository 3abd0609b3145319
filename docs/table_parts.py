"""Parts of the tables in tables.py: reading results, rows, what a column shows, kinds of tables.

Shares are shown in %, as mean ± standard deviation over seeds. Every result is read by `read_results`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from purereplay.evaluate import records
from purereplay.evaluate.compare import Cell
from purereplay.paper import beside
from purereplay.paper.numbers import Column as Noise
from purereplay.paper.numbers import paper_table, paper_tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

Result = dict[str, Any]
Lines = list[list[str]]  # the heading first

# --- reading results ---

# fields that older files lack
MISSING: Result = {"judged_on": "test", "changed": {}, "robust": "none", "filter": "self-centered", "graphs": 5}
CORRECTIONS: dict[str, Callable[[Result], Result]] = {  # of `changed`
    # `changed` compares with the default of its time, which was another
    "cifar10-baselines": lambda changed: {},
}


@cache
def read_results(pattern: str) -> tuple[Result, ...]:
    """Results of the files that match a pattern below results/, with today's names and without gaps."""
    paths = sorted(RESULTS.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"No file matches results/{pattern}.")
    return tuple(
        _completed(result, path.relative_to(RESULTS).as_posix())
        for path in paths
        for result in (_read_live(path) if pattern.startswith("live/") else records.read_results([path]))
    )


def _read_live(path: Path) -> list[Result]:
    """Results of benchmarks/live.py, which are no runs."""
    return [json.loads(path.read_text())]


def _completed(result: Result, name: str) -> Result:
    result = MISSING | result
    changed = result["changed"]
    for start, correct in CORRECTIONS.items():
        changed = correct(changed) if name.startswith(start) else changed
    return result | {"changed": changed}


# --- rows, cells ---


@dataclass(frozen=True, kw_only=True)
class Runs:
    """A row: the results in some files that have the given values; `measure` for columns that name none."""

    files: str  # patterns below results/, separated by spaces
    where: Mapping[str, Any] = field(default_factory=dict)
    measure: str = "accuracy"

    def results(self) -> list[Result]:
        found = [result for pattern in self.files.split() for result in read_results(pattern)]
        found = [result for result in found if all(result.get(name) == value for name, value in self.where.items())]
        if not found:
            raise ValueError(f"No result of {self.files} has {dict(self.where)}.")
        return found


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A row: the paper's numbers for a method."""

    dataset: str
    method: str = "SPR"
    measure: str = "accuracy"

    def results(self) -> list[Result]:
        found: dict[Noise, Result] = {}
        for name in ("overall_accuracy", "noise_free", "filtering_e5"):
            table = paper_table(name, self.dataset)
            for (method, noise), value in table.values.items():
                if method == self.method:
                    own = found.setdefault(noise, {"noise": noise.noise, "noise_rate": noise.rate, "seed": 0})
                    own[table.measure] = value / 100
        return list(found.values())


Row = Runs | Paper
ColumnCell = Callable[[Row], str]


def key_of(result: Result) -> tuple[Any, ...]:
    return result.get("noise"), result.get("noise_rate"), result["seed"]


def values_of(row: Row, measure: str | None = None, noise: Noise | None = None) -> dict[tuple[Any, ...], float]:
    """The measure of each run in %, by noise and seed; a result without it is left out."""
    values: dict[tuple[Any, ...], float] = {}
    for result in row.results():
        if noise in (None, Noise(result.get("noise", ""), result.get("noise_rate", 0))):
            value = result.get(measure or row.measure)
            if key_of(result) in values:
                raise ValueError(f"Two results of {row} have the noise and seed {key_of(result)}.")
            if value is not None:
                values[key_of(result)] = 100 * value
    return values


def mean(measure: str | None = None, noise: Noise | None = None, *, spread: bool = True) -> ColumnCell:
    def cell(row: Row) -> str:
        values = list(values_of(row, measure, noise).values())
        return "–" if not values else Cell(values).text() if spread else f"{np.mean(values):.1f}"

    return cell


NOISES = [Noise("symmetric", 0.2), Noise("symmetric", 0.4), Noise("symmetric", 0.6)]
NOISES += [Noise("asymmetric", 0.2), Noise("asymmetric", 0.4)]


def in_paper(*names: str, method: str = "SPR") -> ColumnCell:
    """The number of the first of these tables of the paper that has the dataset of a row; – if none has the number."""

    def cell(row: Row) -> str:
        [(dataset, noise)] = {(r["dataset"], Noise(r["noise"], r["noise_rate"])) for r in row.results()}
        known = {(table.name, table.dataset) for table in paper_tables()}
        values = next((paper_table(name, dataset).values for name in names if (name, dataset) in known), {})
        return f"{values[method, noise]:.1f}" if (method, noise) in values else "–"

    return cell


def mean_over_noises(row: Row) -> str:
    by_noise = [list(values_of(row, noise=noise).values()) for noise in NOISES]
    return "–" if not all(by_noise) else f"{np.mean([np.mean(values) for values in by_noise]):.1f}"


def each_seed(row: Row) -> str:
    values = values_of(row)
    return ", ".join(f"{values[key]:.1f}" for key in sorted(values))


def share_of_class(number: int) -> ColumnCell:
    def cell(row: Row) -> str:
        return f"{100 * np.mean([result['class_accuracies'][number] for result in row.results()]):.0f}"

    return cell


def n_runs(row: Row) -> str:
    return str(len(row.results()))


def field_of(name: str) -> ColumnCell:
    def cell(row: Row) -> str:
        return ", ".join(sorted({str(result[name]) for result in row.results()}))

    return cell


def seconds(phase: str) -> ColumnCell:
    """A run's mean share of the wall time."""

    def cell(row: Row) -> str:
        values = [result["seconds"].get(phase, 0.0) for result in row.results()]
        return f"{np.mean(values):.1f}" if any(values) else "–"

    return cell


def steps_a_second(phase: str) -> ColumnCell:
    def cell(row: Row) -> str:
        steps = sum(result["steps"].get(phase, 0) for result in row.results())
        return f"{steps / sum(result['seconds'][phase] for result in row.results()):,.0f}" if steps else "–"

    return cell


def p_value(other: Callable[[Row], Row], measure: str | None = None) -> ColumnCell:
    """The p-value of a t-test against the row that `other` names, paired by noise and seed."""

    def cell(row: Row) -> str:
        if isinstance(row, Paper) or other(row) == row:
            return "–"
        ours, theirs = values_of(row, measure), values_of(other(row), measure)
        if ours.keys() != theirs.keys():
            raise ValueError(f"{row} and {other(row)} differ in their noises or seeds.")
        p = stats.ttest_rel([ours[key] for key in ours], [theirs[key] for key in ours]).pvalue
        return "< 0.0001" if p < 1e-4 else f"{p:.2g}" if p < 0.01 else f"{p:.2f}"

    return cell


# --- kinds of tables ---


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of runs, columns that each show something of them."""

    head: str
    rows: Mapping[str, Row]
    columns: Mapping[str, ColumnCell]

    def lines(self) -> Lines:
        shown = [[name, *(cell(row) for cell in self.columns.values())] for name, row in self.rows.items()]
        return [[self.head, *self.columns], *shown]


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of the code, each with its description."""

    head: str
    described: Mapping[str, str]

    def lines(self) -> Lines:
        return [[self.head, "description"], *([f"`{name}`", text] for name, text in self.described.items())]


@dataclass(frozen=True, kw_only=True)
class Opinions:
    """Mean AUROC of each opinion in the results of benchmarks/opinions.py, by noise."""

    file: str

    def lines(self) -> Lines:
        measured = [json.loads(line) for line in (RESULTS / self.file).read_text().splitlines()]
        noises = list(dict.fromkeys(line["noise"] for line in measured))
        rows = []
        for name in measured[0]["auroc"]:
            found = {noise: [m["auroc"][name] for m in measured if m["noise"] == noise] for noise in noises}
            rows.append([name, *(f"{100 * sum(values) / len(values):.1f}" for values in found.values())])
        return [["AUROC, %", *noises], *rows]


@dataclass(frozen=True, kw_only=True)
class Ideas:
    """Results of benchmarks/pure_replay_ideas.py, by noise."""

    file: str
    names: Mapping[str, str]  # of the rows, by idea

    def lines(self) -> Lines:
        measured = [json.loads(line) for line in (RESULTS / self.file).read_text().splitlines()]
        noises = list(dict.fromkeys(line["noise"] for line in measured))
        columns = [(noise, measure) for noise in noises for measure in ("accuracy", "auroc")]
        rows = []
        for idea, name in self.names.items():
            own = [line for line in measured if line["idea"] == idea]
            cells = [Cell([100 * m[measure] for m in own if m["noise"] == noise]).text() for noise, measure in columns]
            rows.append([name, *cells])
        return [
            ["digits, preset default, %", *(f"{n} 40: {'AUROC' if m == 'auroc' else m}" for n, m in columns)],
            *rows,
        ]


@dataclass(frozen=True, kw_only=True)
class BesidePaper:
    """A table of the paper with our cells, as `purereplay paper --markdown` prints it."""

    files: str
    dataset: str
    name: str = "overall_accuracy"
    combined: bool = True  # with the rows of two methods: CRS + L2R

    def lines(self) -> Lines:
        lines = beside.beside(paper_table(self.name, self.dataset), self.cells())
        return lines if self.combined else [line for line in lines if "+" not in line[0]]

    def cells(self) -> beside.Cells:
        results = [result for pattern in self.files.split() for result in read_results(pattern)]
        return beside.cells_of(paper_table(self.name, self.dataset), results)

    def verdicts(self) -> dict[tuple[str, Noise], str]:
        """By cell: "better", "worse", or "" within three points."""
        theirs = paper_table(self.name, self.dataset).values
        cells = {key: cell for key, cell in self.cells().items() if key in theirs}
        return {key: beside.verdict(cell.mean, theirs[key]).strip(", ") for key, cell in cells.items()}


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Number of the paper's cells that were measured at full scale, by verdict."""

    tables: Mapping[str, BesidePaper]

    def lines(self) -> Lines:
        head = ["table of the paper", "cells", "measured", f"within {beside.CLOSE:g} points", "better", "worse"]
        rows, rest = [], sum(len(table.values) for table in paper_tables())
        for name, table in self.tables.items():
            n, verdicts = len(paper_table(table.name, table.dataset).values), list(table.verdicts().values())
            rest -= n
            counts = [n, len(verdicts), *(verdicts.count(v) for v in ("", "better", "worse"))]
            rows.append([name, *map(str, counts)])
        named = {(table.name, table.dataset) for table in self.tables.values()}
        files = " ".join(dict.fromkeys(table.files for table in self.tables.values()))
        others = [t for t in paper_tables() if (t.name, t.dataset) not in named]
        verdicts = [
            v for t in others for v in BesidePaper(files=files, dataset=t.dataset, name=t.name).verdicts().values()
        ]
        counts = [rest, len(verdicts), *(verdicts.count(v) for v in ("", "better", "worse"))]
        return [head, *rows, ["every other table", *map(str, counts)]]


@dataclass(frozen=True, kw_only=True)
class Misses:
    """Groups of methods with cells that are worse than the paper's: how many, and the mean of those."""

    table: BesidePaper
    groups: Mapping[str, str]  # name -> methods, separated by commas

    def lines(self) -> Lines:
        verdicts, cells = self.table.verdicts(), self.table.cells()
        theirs = paper_table(self.table.name, self.table.dataset).values
        missed, rows = {key for key, verdict in verdicts.items() if verdict == "worse"}, []
        for name, methods in self.groups.items():
            own = [key for key in verdicts if key[0] in methods.split(",")]
            worse = [key for key in own if key in missed]
            if not worse:
                raise ValueError(f"No cell of {name} is worse: take the group out of the table of misses.")
            missed -= set(worse)
            means = [f"{np.mean([of[key] for key in worse]):.1f}" for of in (_means(cells), theirs)]
            rows.append([name, f"{len(worse)} of {len(own)}", *means])
        if missed:
            raise ValueError(f"The table of misses leaves out {sorted(missed)}.")
        return [["method", "cells that are worse", "their mean accuracy here, %", "in the paper, %"], *rows]


def _means(cells: beside.Cells) -> dict[tuple[str, Noise], float]:
    return {key: cell.mean for key, cell in cells.items()}
