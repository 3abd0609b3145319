"""Our numbers beside the paper's: which method of the paper a run is, and a verdict for every cell.

Runs come as folders, or as files of results: one result a file (.json), or one a line (.jsonl).
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.table import Table

from purereplay.errors import UserError
from purereplay.evaluate.results import RunDirectory
from purereplay.learners.settings import LEARNERS
from purereplay.paper.numbers import Column, PaperTable, paper_table
from purereplay.report.compare import Cell
from purereplay.report.progress import out

CLOSE = 3.0  # points within which a cell counts as reproduced
_LEARNERS = {
    "spr": "SPR",
    "self-replay": "Self-Replay",
    "self-centered-filter": "Self-Centered filter",
    "multitask": "Multitask",
    "finetune": "Finetune",
    "ewc": "EWC",
    "crs": "CRS",
    "prs": "PRS",
    "mir": "MIR",
    "gdumb": "GDumb",
}
_EPISODES = {"episode_b": "B", "episode_c": "C"}
_TECHNIQUES = {"l2r": "L2R", "pencil": "Pencil", "sl": "SL", "jocor": "JoCoR"}

Result = dict[str, Any]
Cells = dict[tuple[str, Column], Cell]


def show(name: str, dataset: str, paths: list[Path], *, markdown: bool, budget: float = 1.0) -> None:
    """Print a table of the paper with our cells and a verdict on each."""
    table = paper_table(name, dataset)
    results = read_results(paths)
    cells = cells_of(table, results, budget)
    if not cells:
        raise UserError(f"None of these runs has a place in the table {name} of {dataset}.")
    lines = beside(table, cells)
    if markdown:
        out.print("\n".join(f"| {' | '.join(line)} |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])))
        return
    shown = Table(*lines[0], box=None, padding=(0, 2, 0, 0))
    for line in lines[1:]:
        shown.add_row(*line)
    out.print(shown)


def beside(table: PaperTable, cells: Cells) -> list[list[str]]:
    """The table's lines, the head first: each cell ours, the paper's and the verdict; a dash where we have none."""
    lines = [[f"{table.measure.replace('_', ' ')}, %", *map(str, table.columns)]]
    for method in table.methods:
        texts = []
        for column in table.columns:
            ours, theirs = cells.get((method, column)), table.values.get((method, column))
            known = "–" if theirs is None else f"{theirs:.1f}"
            mine = "–" if ours is None else ours.text()
            judged = "" if ours is None else verdict(ours.mean, theirs)
            texts.append("" if ours is None and theirs is None else f"{mine} ({known}{judged})")
        if any((method, column) in cells for column in table.columns):
            lines.append([method, *texts])
    return lines


def verdict(ours: float, theirs: float | None) -> str:
    """Within three points; else better or worse."""
    if theirs is None or abs(ours - theirs) <= CLOSE:
        return ""
    return ", better" if ours > theirs else ", worse"


def cells_of(table: PaperTable, results: list[Result], budget: float = 1.0) -> Cells:
    """Our runs in the table's cells, over their seeds."""
    values: dict[tuple[str, Column], dict[int, float]] = defaultdict(dict)
    for result in results:
        method = method_of(result, table)
        value = result.get(table.measure)
        if method is not None and value is not None and belongs(result, table, budget):
            column = Column(result["noise"], result["noise_rate"])
            values[method, column][result["seed"]] = 100 * value
    return {key: Cell([by_seed[s] for s in sorted(by_seed)]) for key, by_seed in values.items()}


def belongs(result: Result, table: PaperTable, budget: float) -> bool:
    """Whether a run is of the table's kind: its data and episode, as the defaults are, and judged on the test data.

    `budget` is that of SPR and its parts; the rivals' training does not depend on it. Older results name less.
    """
    wanted = {
        "dataset": table.dataset,
        "episode": _EPISODES.get(table.name, "A"),
        "preset": "default",
        "changed": {},
        "judged_on": "test",
    } | ({"budget": budget} if result["learner"] in LEARNERS else {})
    return all(result.get(name, value) == value for name, value in wanted.items())


def method_of(result: Result, table: PaperTable) -> str | None:
    """The paper's name for a run, None where the table has no such row."""
    learner = result["learner"]
    filtering, graphs = result.get("filter", "self-centered"), result.get("graphs", 5)  # older results have neither
    name = _LEARNERS[learner]
    if table.name.startswith("filtering_e"):  # what a filter lets into P does not depend on the base
        if learner not in ("spr", "self-centered-filter"):
            return None
        wanted = int(table.name.removeprefix("filtering_e"))
        own: dict[Any, str] = {0: "Non-stochastic", wanted: "SPR"}
        rows: dict[Any, str | None] = {"aum": "AUM", "incv": "INCV", "self-centered": own.get(graphs)}
        return rows.get(filtering)
    if learner in ("spr", "self-centered-filter") and (filtering, graphs) != ("self-centered", 5):
        return None
    if result.get("robust", "none") != "none":
        name += f" + {_TECHNIQUES[result['robust']]}"
    if learner == "multitask" and result["noise"] == "none":
        name += " (clean)"
    return name if name in table.methods else None


def read_results(paths: list[Path]) -> list[Result]:
    """The results of run folders and of files; folders without one are passed by."""
    results: list[Result] = []
    for path in paths:
        if path.is_dir():
            result = RunDirectory(path).result()
            results += [] if result is None else [result]
            continue
        try:
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            results += [json.loads(line) for line in lines]
        except (OSError, ValueError) as error:
            raise UserError(f"{path} holds no results: {error}.") from None
    if not results:
        raise UserError("None of these holds a finished run.")
    return results
