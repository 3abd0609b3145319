"""Results of finished runs, wherever they are: run folders, stores, files of results, and folders of any of these.

A file holds one result (.json) or one per line (.jsonl), of which a kill may have cut the last one short. A file that
the user names must hold results; in a folder, other files are skipped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from purereplay.data.text import printable
from purereplay.errors import UserError
from purereplay.evaluate.identity import RunKey, result_key
from purereplay.evaluate.json_files import (
    MAX_OBJECT,
    parse_line,
    parse_object,
    read_lines,
    read_text,
    without_torn,
)
from purereplay.evaluate.results import RunDirectory, check_result, file_exists
from purereplay.learners.renamed import upgrade_names, upgrade_preset

Result = dict[str, Any]
log = logging.getLogger(__name__)
_TELLING = ("learner", "noise", "noise_rate", "seed")  # a JSON object with these is a result, if perhaps a damaged one
_OF_A_RUN = ("settings.json", "metrics.jsonl", "plan.json")  # files that hold no result
_ROUNDING = 1e-6  # accuracies that differ by less are equal


class Found(NamedTuple):
    """A result and where it is."""

    result: Result
    place: str


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Return all results, with present names of settings; UserError if there are none. Unfinished runs are skipped."""
    found = [each for path in paths for each in results_in(path)]
    if not found:
        raise UserError("None of these holds a finished run.")
    warn_of_conflicts(found)
    return [each.result for each in found]


def warn_of_conflicts(found: Iterable[Found]) -> None:
    """Warn if a result that counts has another accuracy than one of the same run, kind of device and precision.

    Other kinds round differently, which may change the accuracy; `by_key` has an order among them.
    """
    first: dict[RunKey, Found] = {}
    conflicts = []
    for each in sorted(found, key=lambda each: gpu_first(each.result)):
        key = result_key(each.result)
        if key is not None:
            known = first.setdefault(key, each)
            same_kind = gpu_first(known.result)[:2] == gpu_first(each.result)[:2]
            if same_kind and abs(known.result["accuracy"] - each.result["accuracy"]) > _ROUNDING:
                conflicts.append((known, each))
    if conflicts:
        one, other = (f"{each.result['accuracy']:.6g} in {printable(each.place)}" for each in conflicts[0])
        more = f" ({len(conflicts) - 1} more like this)" if len(conflicts) > 1 else ""
        log.warning(
            "results of one run differ: accuracy %s and %s%s; the first counts, unless you remove it", one, other, more
        )


def by_key(results: Iterable[Result], *, richest: bool = False) -> dict[RunKey, Result]:
    """Return one result per run: of several one of a GPU, then the one that measured most, otherwise the first.

    With `richest` the one that measured most comes before one of a GPU. Results of learners or settings that this
    version does not have are left out.
    """
    found: dict[RunKey, Result] = {}
    for result in sorted(results, key=richest_first if richest else gpu_first):
        key = result_key(result)
        if key is not None:
            found.setdefault(key, result)
    return found


def richness(result: Result) -> tuple[int, bool]:
    """Return how much a run measured: the tasks after which it was evaluated, and whether the matrix is there."""
    return len(result.get("accuracy_after_task") or []), "accuracy_matrix" in result


def gpu_first(result: Result) -> tuple[bool, bool, int, bool]:
    """Return what orders the results of one run for tables."""
    n_evaluated, has_matrix = richness(result)
    on_cpu = str(result.get("device", "")).startswith("cpu")
    return on_cpu, result.get("precision") == "float32", -n_evaluated, not has_matrix


def richest_first(result: Result) -> tuple[int, bool, bool, bool]:
    """Return what orders the results of one run for curves."""
    on_cpu, is_slow, n_evaluated, no_matrix = gpu_first(result)
    return n_evaluated, no_matrix, on_cpu, is_slow


def results_in(path: Path) -> list[Found]:
    """Return the results in a run folder, a store, a file, or a folder of these."""
    if not (file_exists(path) and path.is_dir()):
        return read_file(path)
    if file_exists(path / "settings.json") or file_exists(path / "result.json"):
        result = RunDirectory(path).result()
        return [] if result is None else [Found(_upgraded(result), str(path / "result.json"))]
    results = []
    for file in sorted([*path.rglob("*.json"), *path.rglob("*.jsonl")]):
        if file.name in _OF_A_RUN or file.is_symlink():
            continue
        if file.name == "result.json" and RunDirectory(file.parent).exists:
            results += results_in(file.parent)
        else:
            results += _read_if_results(file)
    return results


def read_file(path: Path) -> list[Found]:
    """Return the results in a file; UserError if it holds anything else."""
    try:
        if path.suffix == ".jsonl":
            lines = read_lines(path)
            if lines and not without_torn(lines):
                raise ValueError("its only line is cut short or damaged")
            return parse_results(lines, path)
        result = parse_object(read_text(path, MAX_OBJECT))
    except OSError as error:
        raise UserError(f"{path} holds no results: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{path} holds no results: {error}.") from None
    check_result(result, path)
    return [Found(_upgraded(result), str(path))]


def parse_results(lines: list[bytes], path: Path) -> list[Found]:
    """Return the results in the lines of a file; UserError names a line that holds anything else."""
    results = []
    for number, line in enumerate(without_torn(lines), 1):
        place = f"Line {number} of {path}"
        try:
            result = parse_line(line)
        except ValueError as error:
            raise UserError(f"{place} is damaged ({error}): remove it.") from None
        check_result(result, place)
        results.append(Found(_upgraded(result), f"{path}, line {number}"))
    return results


def _read_if_results(path: Path) -> list[Found]:
    """Return the results in a file of a folder: none if its objects lack what every result has.

    UserError for a damaged line in a file of results, and in a file without a single whole line.
    """
    try:
        lines = without_torn(read_lines(path)) if path.suffix == ".jsonl" else [read_text(path, MAX_OBJECT).encode()]
    except (OSError, ValueError):
        return []
    kinds = [_is_result(line) for line in lines]
    if any(kinds):
        return read_file(path)
    return parse_results(lines, path) if path.suffix == ".jsonl" and set(kinds) == {None} else []


def _is_result(line: bytes) -> bool | None:
    """Return whether a line holds a result; None if it is no JSON."""
    try:
        values = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return isinstance(values, dict) and all(name in values for name in _TELLING)


def _upgraded(result: Result) -> Result:
    own = {name: value for name, value in result.items() if name != "digest"}
    if "changed" in own:
        own["changed"] = upgrade_names(result["learner"], own["changed"])
    return own | {"preset": upgrade_preset(result.get("preset", "default"))}
