"""Our numbers beside the paper's: the paper's name for each run, and a verdict on every cell.

Runs are folders or files of results: one result per file (.json), or one per line (.jsonl).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from purereplay.errors import UserError
from purereplay.evaluate.compare import Cell
from purereplay.evaluate.json_files import MAX_OBJECT, parse_object, read_text, read_text_lines
from purereplay.evaluate.results import RunDirectory, check_result, file_exists
from purereplay.learners import registry
from purereplay.learners.renamed import upgrade_names, upgrade_preset
from purereplay.learners.robust.settings import ROBUST_TITLES
from purereplay.learners.settings import takes_budget
from purereplay.paper.numbers import Column, PaperTable, paper_table, paper_tables

CLOSE = 3.0  # points within which a cell counts as reproduced
_NEEDED = ("learner", "noise", "noise_rate", "seed")  # in every result; older ones lack some of the others
_EPISODES = {"episode_b": "B", "episode_c": "C"}

Result = dict[str, Any]
Cells = dict[tuple[str, Column], Cell]


def paper_lines(name: str, dataset: str, paths: list[Path], *, budget: float = 1.0) -> list[list[str]]:
    """Return a table of the paper with our cells and a verdict on each, as lines of cells."""
    table = paper_table(name, dataset)
    cells = cells_of(table, read_results(paths), budget)
    if not cells:
        raise UserError(f"None of these runs belongs to the table {name} of {dataset}.")
    return beside(table, cells)


def paper_accuracy(result: Result) -> float | None:
    """Return the accuracy in % that the paper states for a run of these settings, or None."""
    result = _upgraded(result)
    for table in paper_tables():
        if table.measure != "accuracy" or table.dataset != result["dataset"] or not belongs(result, table, 1.0):
            continue
        method = method_of(result, table)
        value = None if method is None else table.values.get((method, Column(result["noise"], result["noise_rate"])))
        if value is not None:
            return value
    return None


def beside(table: PaperTable, cells: Cells) -> list[list[str]]:
    """Return the table's lines, the head first: in each cell our value, the paper's and the verdict."""
    lines = [[f"{table.measure.replace('_', ' ')}, %", *map(str, table.columns)]]
    for method in table.methods:
        texts = []
        for column in table.columns:
            ours, theirs = cells.get((method, column)), table.values.get((method, column))
            known = "–" if theirs is None else f"{theirs:.1f}"
            mine = "–" if ours is None else ours.text()
            agreement = "" if ours is None else verdict(ours.mean, theirs)
            texts.append("" if ours is None and theirs is None else f"{mine} ({known}{agreement})")
        if any((method, column) in cells for column in table.columns):
            lines.append([method, *texts])
    return lines


def verdict(ours: float, theirs: float | None) -> str:
    """Return "" within three points, else ", better" or ", worse"."""
    if theirs is None or abs(ours - theirs) <= CLOSE:
        return ""
    return ", better" if ours > theirs else ", worse"


def cells_of(table: PaperTable, results: list[Result], budget: float = 1.0) -> Cells:
    """Return our runs in the table's cells, over their seeds."""
    values: dict[tuple[str, Column], dict[int, float]] = defaultdict(dict)
    for result in results:
        method = method_of(result, table)
        value = result.get(table.measure)
        if method is not None and value is not None and belongs(result, table, budget):
            column = Column(result["noise"], result["noise_rate"])
            values[method, column][result["seed"]] = 100 * value
    return {key: Cell([by_seed[s] for s in sorted(by_seed)]) for key, by_seed in values.items()}


def belongs(result: Result, table: PaperTable, budget: float) -> bool:
    """Return whether a run has the table's data and episode, default settings, and was evaluated on the test set.

    `budget` concerns learners with self-supervised epochs only. Older results have fewer fields.
    """
    wanted = {
        "dataset": table.dataset,
        "episode": _EPISODES.get(table.name, "A"),
        "preset": "default",
        "changed": {},
        "judged_on": "test",
    } | ({"budget": budget} if takes_budget(registry.entry(result["learner"]).settings) else {})
    return all(result.get(name, value) == value for name, value in wanted.items())


def method_of(result: Result, table: PaperTable) -> str | None:
    """Return the paper's name for a run, or None if the table has no such row."""
    learner = result["learner"]
    if learner not in registry.names():
        return None
    filtering, graphs = result.get("filter", "self-centered"), result.get("graphs", 5)  # older results have neither
    name = registry.entry(learner).title
    if table.name.startswith("filtering_e"):  # the samples that pass a filter do not depend on the base
        if learner not in ("spr", "self-centered-filter"):
            return None
        wanted = int(table.name.removeprefix("filtering_e"))
        own: dict[Any, str] = {0: "Non-stochastic", wanted: "SPR"}
        rows: dict[Any, str | None] = {"aum": "AUM", "incv": "INCV", "self-centered": own.get(graphs)}
        return rows.get(filtering)
    if learner in ("spr", "self-centered-filter") and (filtering, graphs) != ("self-centered", 5):
        return None
    robust = result.get("robust", "none")
    if robust != "none":
        name += f" + {ROBUST_TITLES.get(robust, robust)}"
    if learner == "multitask" and result["noise"] == "none":
        name += " (clean)"
    return name if name in table.methods else None


def read_results(paths: list[Path]) -> list[Result]:
    """Return the results in run folders and files, with present names of settings; unfinished runs are skipped."""
    results: list[Result] = []
    for path in paths:
        if file_exists(path) and path.is_dir():
            result = RunDirectory(path).result(_NEEDED)
            results += [] if result is None else [result]
            continue
        for result in _read_file(path):
            check_result(result, path, _NEEDED)
            results.append(result)
    if not results:
        raise UserError("None of these holds a finished run.")
    return [_upgraded(result) for result in results]


def _read_file(path: Path) -> list[Result]:
    """Return the JSON objects in a file."""
    try:
        if path.suffix == ".jsonl":
            return [parse_object(line) for line in read_text_lines(path)]
        return [parse_object(read_text(path, MAX_OBJECT))]
    except OSError as error:
        raise UserError(f"{path} holds no results: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path} holds no results: {error}.") from None


def _upgraded(result: Result) -> Result:
    names = {"changed": upgrade_names(result["learner"], result["changed"])} if "changed" in result else {}
    return result | names | {"preset": upgrade_preset(result.get("preset", "default"))}
