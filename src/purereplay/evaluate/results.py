"""The run directory: settings.json, metrics.jsonl, result.json and checkpoints, all safe against a kill.

metrics.jsonl records what the run measured. A checkpoint says how many of its lines it includes; a resumed run drops
the lines after them and continues.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from purereplay.data.files import disk_errors, held
from purereplay.data.own_folder import OwnFolder, refuse_links
from purereplay.errors import UserError
from purereplay.evaluate.checkpoint import read_checkpoint, write_checkpoint
from purereplay.evaluate.identity import run_key, settings_of
from purereplay.evaluate.json_files import Line, json_bytes, parse_line, read_json, read_lines
from purereplay.evaluate.kinds import COUNT, check_values
from purereplay.evaluate.measured import RESULT, check_lines
from purereplay.evaluate.settings import RunSettings, read_settings, to_json

PICTURE = "run.png"
NEEDED = ("learner", "noise", "noise_rate", "seed", "dataset", "accuracy")  # in every result
OWN_FILES = (PICTURE, "result.json", "metrics.jsonl", "settings.json")  # in the order in which they are removed
_PART = re.compile(r"(?:settings\.json|metrics\.jsonl|result\.json|run\.png)(?:\.[0-9a-f]{16})?\.part")
_CHECKPOINT_PART = re.compile(r"checkpoint-[0-9]{8}\.safetensors(?:\.[0-9a-f]{16})?\.part")


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.own = OwnFolder(path)
        self.lines: list[Line] = []  # of metrics.jsonl

    def create(self, settings: RunSettings) -> None:
        """Start a run in a folder that has no files of another run; the caller holds the lock."""
        self.check_free(self.path)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.own.make("checkpoints")
        self.own.write("settings.json", json_bytes(to_json(settings)))

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise UserError if the folder holds a run or anything that a run left behind."""
        with disk_errors(path):
            if path.exists() and not path.is_dir():
                raise UserError(f"{path} is a file, not a folder.")
            traces = RunDirectory(path)._traces()
        if path / "settings.json" in traces:
            raise UserError(
                f"{path} already holds a run: continue it with `purereplay resume {path}`, or choose another --out."
            )
        if traces:
            raise UserError(
                f"{path} holds {traces[0].relative_to(path)} of an earlier run: remove it, or choose another --out."
            )
        RunDirectory(path).refuse_links()

    def refuse_links(self) -> None:
        """Raise UserError if one of the run's files or its folder of checkpoints is a link."""
        files = [self.path / name for name in (".lock", "checkpoints", *OWN_FILES)]
        refuse_links(files)
        refuse_links(self._checkpoints.glob("*"))

    def _traces(self) -> list[Path]:
        """Return every file that belongs to a run."""
        found = [self.path / name for name in OWN_FILES]
        return [path for path in found if path.exists() or path.is_symlink()] + sorted(self._checkpoints.glob("*"))

    @classmethod
    def open(cls, path: Path) -> tuple[RunDirectory, RunSettings]:
        """Open an existing run; none of its files may be a link."""
        cls(path).refuse_links()
        file = path / "settings.json"
        values = read_json(file, f"{path} holds no run: settings.json is missing.")
        try:
            return cls(path), read_settings(values)
        except UserError as error:
            raise UserError(f"{file} cannot be used: {error}") from None

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run."""
        with disk_errors(self.path):
            return (self.path / "settings.json").exists()

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def record(self, line: Line) -> None:
        """Append a line to metrics.jsonl."""
        self.lines.append(line)
        self.own.append(self._metrics.name, (json.dumps(line, allow_nan=False) + "\n").encode())

    def save(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write a checkpoint that includes all lines recorded so far."""
        if self.lines:
            self.own.sync(self._metrics.name)
        included = {"n_lines": len(self.lines), "lines": _digest(self.lines)}
        write_checkpoint(self._checkpoints, tensors, facts | included)

    def restore(self, check: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Tensor] | None:
        """Return the tensors of the last good checkpoint and cut metrics.jsonl back to it; None: start anew.

        `check` is called with the checkpoint's facts before any file changes, and may raise UserError.
        """
        self.refuse_links()
        self.own.make("checkpoints")
        found = read_checkpoint(self._checkpoints)
        facts: dict[str, Any] = {"n_lines": 0} if found is None else found[1]
        try:
            check_values(facts, {"n_lines": COUNT}, ["n_lines"])
        except UserError as error:
            raise UserError(f"The checkpoint in {self._checkpoints} cannot be used: {error}") from None
        if found is not None and check is not None:
            check(facts)
        self.lines = self.read_lines(facts["n_lines"])
        if facts.get("lines", _digest(self.lines)) != _digest(self.lines):  # version 0.1.0 wrote no digest
            raise UserError(f"{self._metrics} is damaged: its lines are not those that the checkpoint includes.")
        self._remove_parts()
        self.own.write(self._metrics.name, "".join(json.dumps(line) + "\n" for line in self.lines).encode())
        return None if found is None else found[0]

    def read_lines(self, n: int | None = None) -> list[Line]:
        """Return the first n lines of metrics.jsonl, or all, which must be those of the result if there is one."""
        refuse_links([self._metrics])
        result = self.result() if n is None else None  # before the lines: a run may finish meanwhile
        lines: list[Line] = []
        try:
            for number, line in enumerate(read_lines(self._metrics, follow=False)[:n], 1):
                try:
                    lines.append(parse_line(line))
                except ValueError as error:
                    raise ValueError(f"line {number} cannot be read ({error})") from None
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UserError(f"{self._metrics} cannot be read: {error.strerror or error}.") from None
        except ValueError as error:
            raise UserError(f"{self._metrics} is damaged: {error}.") from None
        if len(lines) < (n or 0):
            raise UserError(f"{self._metrics} has {len(lines)} lines, but the checkpoint includes {n}.")
        try:
            check_lines(lines)
        except UserError as error:
            raise UserError(f"{self._metrics} is damaged: {error}") from None
        if result is not None and not _belong(lines, result):
            raise UserError(
                f"{self._metrics} and result.json belong to different runs, or one was cut short: restore them."
            )
        return lines

    def finish(self, result: Line) -> None:
        """Write result.json; the checkpoints stay, so that the final learner can be loaded."""
        self.own.write("result.json", json_bytes(result | {"digest": result_digest(result)}))

    def result(self, needed: Collection[str] = ()) -> Line | None:
        """Return result.json, or None if the run is not finished.

        UserError if it lacks a value that every result has or a needed one, or is of another run than settings.json.
        """
        path = self.path / "result.json"
        if not file_exists(path):
            return None
        values = read_json(path, f"{path} is missing.")
        check_result(values, path, needed)
        theirs = settings_of(values)
        if theirs is not None and self.exists and run_key(theirs) != run_key(self.open(self.path)[1]):
            raise UserError(f"The files settings.json and result.json in {self.path} belong to different runs.")
        return {name: value for name, value in values.items() if name != "digest"}

    def drop_checkpoints(self) -> None:
        """Delete the checkpoints of a finished run, which are many times as large as all other files."""
        self.refuse_links()
        for path in self._checkpoints.glob("checkpoint-*"):
            self.own.remove(path.relative_to(self.path).as_posix())

    def remove(self) -> None:
        """Delete the run's own files, its settings last; other files in the folder stay."""
        self.refuse_links()
        self._remove_parts()
        for path in [*self._checkpoints.glob("checkpoint-*"), *(self.path / name for name in OWN_FILES)]:
            self.own.remove(path.relative_to(self.path).as_posix())

    def _remove_parts(self) -> None:
        """Delete files that a killed process of this run left half written; the caller holds the lock."""
        for folder, pattern in ((self.path, _PART), (self._checkpoints, _CHECKPOINT_PART)):
            with disk_errors(folder):
                found = [path for path in folder.glob("*.part") if pattern.fullmatch(path.name)]
            for path in found:
                self.own.remove(path.relative_to(self.path).as_posix())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, which is made if need be, against other processes."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        busy = f"Another process is working on {self.path}: wait until it ends, or choose another --out."
        with held(self.path / ".lock", busy):
            yield


def check_result(values: Line, source: Path | str, needed: Collection[str] = ()) -> None:
    """Raise UserError, with the file's name, if a result lacks a value or has one of the wrong kind.

    `needed`: values beside those that every result has. Also if the values are not those that its digest covers;
    results of earlier versions have no digest.
    """
    try:
        check_values(values, RESULT, [*NEEDED, *needed])
    except UserError as error:
        raise UserError(f"{source} holds no result of a run: {error}") from None
    if "digest" in values and values["digest"] != result_digest(values):
        raise UserError(f"{source} is damaged: a result in it does not match its digest.")


def _belong(lines: list[Line], result: Line) -> bool:
    """Return whether a run with these lines of metrics.jsonl has this result; results of early versions have less."""
    accuracies = [line["accuracy"] for line in lines if line["event"] == "task"]
    n_buffers = sum(line["event"] == "buffer" for line in lines)
    expected = result.get("accuracy_after_task", accuracies), result.get("n_buffers", n_buffers)
    return (accuracies, n_buffers) == expected and accuracies[-1:] == [result["accuracy"]]


def file_exists(path: Path) -> bool:
    """Return whether a file or a link exists; False for a name that the file system cannot hold."""
    try:
        return path.exists() or path.is_symlink()
    except OSError:
        return False


def result_digest(values: Line) -> str:
    """Return the digest of a result without its own digest, whatever the order and the layout of its values."""
    covered = {name: value for name, value in values.items() if name != "digest"}
    return hashlib.blake2b(json.dumps(covered, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digest(lines: list[Line]) -> str:
    return hashlib.blake2b(json.dumps(lines).encode(), digest_size=16).hexdigest()
