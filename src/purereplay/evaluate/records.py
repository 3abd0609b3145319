"""Results of finished runs, wherever they are: run folders, stores, files of results, and folders of any of these.

A file holds one result (.json) or one per line (.jsonl). A file that the user names must hold results; in a folder,
other files are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from purereplay.errors import UserError
from purereplay.evaluate.identity import RunKey, result_key
from purereplay.evaluate.json_files import MAX_OBJECT, parse_object, read_text, read_text_lines
from purereplay.evaluate.results import RunDirectory, check_result, file_exists
from purereplay.learners.renamed import upgrade_names, upgrade_preset

Result = dict[str, Any]
NEEDED = ("learner", "noise", "noise_rate", "seed")  # in every result; older ones lack some of the others
_OF_A_RUN = ("settings.json", "metrics.jsonl", "plan.json")  # files that hold no result


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Return all results, with present names of settings; UserError if there are none. Unfinished runs are skipped."""
    results = [result for path in paths for result in results_in(path)]
    if not results:
        raise UserError("None of these holds a finished run.")
    return results


def by_key(results: Iterable[Result], *, richest: bool = False) -> dict[RunKey, Result]:
    """Return one result per run: of several one of a GPU, then the one that measured most, otherwise the first.

    With `richest` the one that measured most comes before one of a GPU. Results of learners or settings that this
    version does not have are left out.
    """
    found: dict[RunKey, Result] = {}
    for result in sorted(results, key=_richest_first if richest else _gpu_first):
        key = result_key(result)
        if key is not None:
            found.setdefault(key, result)
    return found


def richness(result: Result) -> tuple[int, bool]:
    """Return how much a run measured: the tasks after which it was evaluated, and whether the matrix is there."""
    return len(result.get("accuracy_after_task") or []), "accuracy_matrix" in result


def _gpu_first(result: Result) -> tuple[bool, bool, int, bool]:
    n_evaluated, has_matrix = richness(result)
    on_cpu = str(result.get("device", "")).startswith("cpu")
    return on_cpu, result.get("precision") == "float32", -n_evaluated, not has_matrix


def _richest_first(result: Result) -> tuple[int, bool, bool, bool]:
    on_cpu, is_slow, n_evaluated, no_matrix = _gpu_first(result)
    return n_evaluated, no_matrix, on_cpu, is_slow


def results_in(path: Path) -> list[Result]:
    """Return the results in a run folder, a store, a file, or a folder of these."""
    if not (file_exists(path) and path.is_dir()):
        return read_file(path)
    if file_exists(path / "settings.json") or file_exists(path / "result.json"):
        result = RunDirectory(path).result(NEEDED)
        return [] if result is None else [_upgraded(result)]
    results = []
    for file in sorted([*path.rglob("*.json"), *path.rglob("*.jsonl")]):
        if file.name not in _OF_A_RUN and not file.is_symlink():
            results += _read_if_results(file)
    return results


def read_file(path: Path) -> list[Result]:
    """Return the results in a file; UserError if it holds anything else."""
    try:
        lines = read_text_lines(path) if path.suffix == ".jsonl" else [read_text(path, MAX_OBJECT)]
        results = [parse_object(line) for line in lines]
    except OSError as error:
        raise UserError(f"{path} holds no results: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path} holds no results: {error}.") from None
    for result in results:
        check_result(result, path, NEEDED)
    return [_upgraded(result) for result in results]


def _read_if_results(path: Path) -> list[Result]:
    """Return the results in a file of a folder: none if its objects lack what every result has."""
    try:
        lines = read_text_lines(path) if path.suffix == ".jsonl" else [read_text(path, MAX_OBJECT)]
        if not lines or not all(name in parse_object(lines[0]) for name in NEEDED):
            return []
    except (OSError, ValueError):
        return []
    return read_file(path)


def _upgraded(result: Result) -> Result:
    own = {name: value for name, value in result.items() if name != "digest"}
    if "changed" in own:
        own["changed"] = upgrade_names(result["learner"], own["changed"])
    return own | {"preset": upgrade_preset(result.get("preset", "default"))}
