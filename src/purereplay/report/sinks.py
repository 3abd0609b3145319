"""Measurements for other tools: TensorBoard or Weights & Biases, as thin sinks over the lines of metrics.jsonl."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from purereplay.errors import UserError

NAMES = ("tensorboard", "wandb")
_MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
Write = Callable[[Mapping[str, float], int], None]  # values by name, and the step that they belong to


class Sinks:
    """Writers to one tool, one per run folder; made when the first value comes."""

    def __init__(self, tool: str | None) -> None:
        self.tool = tool
        if tool is None:
            return
        if tool not in NAMES:
            raise UserError(f"--log {tool} is unknown: choose {' or '.join(NAMES)}.")
        try:
            self.module: Any = importlib.import_module(_MODULES[tool])
        except ImportError:
            raise UserError(
                f"--log {tool} needs the package {tool}: install it with `pip install 'purereplay[{tool}]'`."
            ) from None
        self._writers: dict[Path, tuple[Write, Callable[[], None]]] = {}

    def line(self, folder: Path, line: Mapping[str, Any]) -> None:
        """Write the numbers of a line of metrics.jsonl; the step is the number of the buffer or task."""
        event = str(line["event"])
        if event not in line:  # a line that belongs to no buffer or task
            return
        values = {f"{event}/{name}": float(v) for name, v in line.items() if _is_number(v) and name != event}
        self.write(folder, values, int(line[event]))

    def write(self, folder: Path, values: Mapping[str, float], step: int) -> None:
        """Write numbers by name."""
        if self.tool is None:
            return
        if folder not in self._writers:
            self._writers[folder] = self._open(folder)
        self._writers[folder][0](values, step)

    def close(self) -> None:
        """End all writers."""
        if self.tool is None:
            return
        for _, end in self._writers.values():
            end()
        self._writers = {}

    def _open(self, folder: Path) -> tuple[Write, Callable[[], None]]:
        """Return the functions that write and end, for the measurements of one folder."""
        if self.tool == "tensorboard":
            writer = self.module.SummaryWriter(str(folder.with_name(folder.name + ".tensorboard")))

            def write(values: Mapping[str, float], step: int) -> None:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
                writer.flush()

            return write, writer.close
        run = self.module.init(project="purereplay", name=folder.name, dir=str(folder.parent), reinit="create_new")

        def log(values: Mapping[str, float], step: int) -> None:
            # buffers and tasks count on their own, so each has its step among the values
            events = {name.partition("/")[0] for name in values}
            run.log({**values, **{f"{event}/step": step for event in events}})

        return log, run.finish


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
