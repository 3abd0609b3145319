"""The run directory: settings.json, metrics.jsonl, result.json and checkpoints, all safe against a kill.

metrics.jsonl records what the run measured. A checkpoint says how many of its lines it includes; a resumed run drops
the lines after them and continues.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from purereplay.data.files import disk_errors, held, write_whole
from purereplay.errors import UserError
from purereplay.evaluate.checkpoint import read_checkpoint, write_checkpoint
from purereplay.evaluate.settings import RunSettings, read_settings, to_json

Line = dict[str, Any]
OWN_FILES = ("settings.json", "metrics.jsonl", "result.json", "run.png")


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []  # of metrics.jsonl

    def create(self, settings: RunSettings) -> None:
        """Start a run in a new or empty folder."""
        self.check_free(self.path)
        with disk_errors(self.path):
            self._checkpoints.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "settings.json", to_json(settings))

    @staticmethod
    def check_free(path: Path) -> None:
        """Raise UserError if the folder already holds a run."""
        with disk_errors(path):
            taken = (path / "settings.json").exists()
        if taken:
            raise UserError(
                f"{path} already holds a run: continue it with `purereplay resume {path}`, or choose another --out."
            )
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not a folder.")

    @classmethod
    def open(cls, path: Path) -> tuple[RunDirectory, RunSettings]:
        """Open an existing run."""
        values = read_json(path / "settings.json", f"{path} holds no run: settings.json is missing.")
        return cls(path), read_settings(values)

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def record(self, line: Line) -> None:
        """Append a line to metrics.jsonl."""
        self.lines.append(line)
        with disk_errors(self._metrics), self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def save(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Write a checkpoint that includes all lines recorded so far."""
        if self.lines:
            with disk_errors(self._metrics), self._metrics.open("rb+") as file:
                os.fsync(file.fileno())
        write_checkpoint(self._checkpoints, tensors, facts | {"n_lines": len(self.lines)})

    def restore(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last good checkpoint and cut metrics.jsonl back to it; None: start from the beginning."""
        with disk_errors(self._checkpoints):
            self._checkpoints.mkdir(parents=True, exist_ok=True)
        found = read_checkpoint(self._checkpoints)
        n_lines = found[1]["n_lines"] if found else 0
        self.lines = self.read_lines(n_lines)
        write_whole(self._metrics, "".join(json.dumps(line) + "\n" for line in self.lines).encode())
        return found

    def read_lines(self, n: int | None = None) -> list[Line]:
        """Return the first n lines of metrics.jsonl, or all."""
        try:
            text = self._metrics.read_text(encoding="utf-8").splitlines() if self._metrics.exists() else []
            lines = [json.loads(line) for line in text[:n]]
        except (ValueError, OSError):
            raise UserError(f"{self._metrics} is damaged: a line is not JSON.") from None
        if len(lines) < (n or 0):
            raise UserError(f"{self._metrics} has {len(lines)} lines, but the checkpoint includes {n}.")
        return lines

    def finish(self, result: Line) -> None:
        """Write result.json; the checkpoints stay, so that the final learner can be loaded."""
        write_json(self.path / "result.json", result)

    def result(self) -> Line | None:
        """Return result.json, or None if the run is not finished."""
        path = self.path / "result.json"
        return read_json(path, "") if path.exists() else None

    def remove(self) -> None:
        """Delete the run's own files; other files in the folder stay."""
        with disk_errors(self.path):
            for path in [*self._checkpoints.glob("checkpoint-*"), *(self.path / name for name in OWN_FILES)]:
                path.unlink(missing_ok=True)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder against other processes."""
        return held(self.path / ".lock", f"Another process is working on {self.path}.")


def write_json(path: Path, values: Line) -> None:
    """Write a JSON file atomically."""
    write_whole(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path, missing: str) -> Line:
    """Read a JSON object; `missing` is the error message if there is no such file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(missing) from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold a JSON object.")
    return values
