"""A store of runs: a folder where no run is computed twice.

results.jsonl  one finished result per line, only ever appended to
runs/          folders of runs in progress, named after what decides their numbers; a finished one keeps no checkpoint

A run counts as finished if the store, or one of its other sources (files of results, run folders), has a result of the
same key. Killed runs continue from their last checkpoint; finished runs are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from purereplay.data.files import disk_errors, held
from purereplay.data.own_folder import OwnFolder, refuse_links
from purereplay.errors import UserError
from purereplay.evaluate.identity import RunKey, result_key, run_key
from purereplay.evaluate.json_files import json_bytes, read_lines, without_torn
from purereplay.evaluate.records import Found, Result, by_key, parse_results, results_in, richness, warn_of_conflicts
from purereplay.evaluate.results import RunDirectory, file_exists, result_digest
from purereplay.evaluate.settings import RunSettings

RESULTS = "results.jsonl"


class Store:
    """Finished runs by key, in a folder and in other sources that are only read."""

    def __init__(self, folder: Path, sources: Sequence[Path] = (), *, warn: bool = True) -> None:
        """Read the results; `warn` of those of one run that differ."""
        self.folder = folder
        self.sources = list(sources)
        self.own = OwnFolder(folder)
        self.finished: dict[RunKey, Result] = {}  # of several results of a run one of a GPU, for tables
        self.richest: dict[RunKey, Result] = {}  # the one that measured most, for curves
        found = self.load()
        if warn:
            warn_of_conflicts(found)

    def load(self) -> list[Found]:
        """Read all results anew, and return them."""
        elsewhere = [path for path in self.sources if file_exists(path)]
        others = [each for path in elsewhere for each in results_in(path)]
        if elsewhere and not others:
            names = ", ".join(map(str, elsewhere))
            raise UserError(f"--sources names {names}, which holds no finished run: leave it out; '' stands for none.")
        found = [*others, *self._own_results()]
        results = [each.result for each in found]
        self.finished, self.richest = by_key(results), by_key(results, richest=True)
        return found

    def result(self, settings: RunSettings, features: str | None = None) -> Result | None:
        """Return the result of a run, or None if it is not finished."""
        return self.finished.get(run_key(settings, features))

    def path_for(self, settings: RunSettings, features: str | None = None) -> Path:
        """Return the folder of a run in progress."""
        key = run_key(settings, features)
        return self.folder / "runs" / f"{settings.dataset}-{settings.learner}-{key.cell}-seed-{key.seed}"

    def add(self, result: Result) -> None:
        """Append a finished result, unless the store has one of this run that measured as much."""
        key = result_key(result)
        if key is None or (key in self.richest and richness(self.richest[key]) >= richness(result)):
            return
        line = json.dumps(result | {"digest": result_digest(result)}, allow_nan=False)
        self.make()
        self._end_last_line()
        self.own.append(RESULTS, f"{line}\n".encode())
        self.own.sync(RESULTS)
        self.finished = by_key([*self.finished.values(), result]) if key in self.finished else self.finished
        self.finished.setdefault(key, result)
        self.richest[key] = result

    def take_finished(self) -> list[Path]:
        """Add the results of all finished run folders and delete their checkpoints; returns the folders."""
        return self.take(self._run_folders())

    def take(self, folders: Iterable[Path]) -> list[Path]:
        """Add the results of those folders that hold a finished run, and delete their checkpoints."""
        taken = []
        for path in folders:
            result = RunDirectory(path).result()
            if result is not None:
                self.add(result)
                RunDirectory(path).drop_checkpoints()
                taken.append(path)
        return taken

    def write(self, name: str, values: Result) -> None:
        """Write a JSON file beside the results, such as the plan of the runs to compute."""
        self.make()
        self.own.write(name, json_bytes(values))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the store against other processes that compute runs for it."""
        self.make()
        busy = f"Another process computes runs for {self.folder}: wait until it ends, or choose another --store."
        with held(self.folder / ".lock", busy):
            yield

    def make(self) -> None:
        """Make the folder, unless it exists."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self.own.make("runs")

    def _run_folders(self) -> list[Path]:
        folder = self.folder / "runs"
        with disk_errors(folder):
            found = sorted(folder.iterdir()) if folder.is_dir() else []
        refuse_links(found)
        return found

    def _own_results(self) -> list[Found]:
        """Return the results in the store; a line that a kill cut short is skipped, its run folder has the result."""
        results = parse_results(self._lines(), self.folder / RESULTS)
        for path in self._run_folders():
            result = RunDirectory(path).result()
            results += [] if result is None else [Found(result, str(path / "result.json"))]
        return results

    def _lines(self) -> list[bytes]:
        path = self.folder / RESULTS
        refuse_links([path])
        try:
            return read_lines(path, follow=False)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}.") from None

    def _end_last_line(self) -> None:
        """Give the last line of results.jsonl its end, or remove it if a kill cut it short."""
        path = self.folder / RESULTS
        if not file_exists(path) or not path.stat().st_size:
            return
        with path.open("rb") as file:  # its last byte, since a store may hold thousands of runs
            file.seek(-1, 2)
            if file.read(1) == b"\n":
                return
        whole = b"".join(without_torn(self._lines()))
        self.own.write(RESULTS, whole if whole.endswith(b"\n") or not whole else whole + b"\n")
