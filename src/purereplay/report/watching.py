"""A run or a state in the terminal while another process works on it: `purereplay watch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.live import Live
from rich.table import Table
from rich.text import Text

from purereplay.data.text import printable
from purereplay.errors import UserError
from purereplay.evaluate.estimate import count_steps
from purereplay.evaluate.rates import task_ends
from purereplay.evaluate.results import RunDirectory
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.store import DATABASE, Store
from purereplay.live.verdicts import rejected, unjudged
from purereplay.report.terminal import out, percent, time_left

_BARS = "▁▂▃▄▅▆▇█"
Look = Callable[[], "View"]


class View(NamedTuple):
    """One look at a run or a state."""

    rows: list[tuple[str, str]]
    done: int  # samples or buffers worked on
    total: int | None  # None: unknown
    unit: str
    is_finished: bool = False


def watch(path: Path, *, once: bool, pause: float = 2.0) -> None:
    """Show a run or a state again and again until it is finished or Ctrl-C; `once`: show it once."""
    look = look_at(path)
    began, first = time.monotonic(), look()
    if once or not out.is_terminal or first.is_finished:
        out.print(_table(path, first, None))
        return
    with suppress(KeyboardInterrupt), Live(_table(path, first, None), console=out, auto_refresh=False) as live:
        view = first
        while not view.is_finished:
            time.sleep(pause)
            view = look()
            rate = (view.done - first.done) / (time.monotonic() - began)
            live.update(_table(path, view, rate), refresh=True)


def look_at(path: Path) -> Look:
    """Return the function that looks at a run folder or a state folder; UserError if it is neither."""
    if (path / DATABASE).exists():
        return lambda: _state(path)
    if (path / "settings.json").exists():
        return lambda: _run(path)
    raise UserError(f"{path} is neither the folder of a run nor a state.")


def _run(path: Path) -> View:
    directory, settings = RunDirectory.open(path)
    lines = directory.read_lines()
    buffers = [line for line in lines if line["event"] == "buffer"]
    tasks = [line for line in lines if line["event"] == "task"]
    is_finished = directory.result() is not None
    total = len(buffers) if is_finished else count_steps(settings, task_ends(settings)).n_buffers
    rows = [
        ("learner", f"{settings.learner} on {settings.dataset}, seed {settings.seed}"),
        ("accuracy", _latest([line["accuracy"] for line in tasks])),
        ("purity", _latest([line["purity"] for line in buffers])),
        ("noise after the filter", _latest([line["passed_noise"] for line in buffers])),
    ]
    return View(rows, len(buffers), total, "buffers", is_finished)


def _state(path: Path) -> View:
    with Store.reading(path) as store, store.snapshot():

        def count(sql: str) -> int:
            return int(store.one(sql)[0])

        scored = count("SELECT count(*) FROM decisions")
        n_unjudged = count(f"SELECT count(*) FROM ({unjudged(store)})")
        n_rejected = count(f"SELECT count(*) FROM ({rejected(store)})")
        full = store.settings.learner == FULL_MEMORY
        n_labels = count("SELECT count(*) FROM classes")
        rows = [
            ("samples", f"{store.n_samples:,} of {n_labels:,} labels"),
            ("accepted, rejected", f"{scored - n_rejected - n_unjudged:,}, {n_rejected:,}"),
            *([("could not be judged", f"{n_unjudged:,}")] if n_unjudged else []),
            *([] if full else [("in the purified buffer", f"{count('SELECT count(*) FROM purified'):,}")]),
            ("labels by people", f"{count('SELECT count(DISTINCT position) FROM corrections'):,}"),
        ]
        return View(rows, scored, store.n_samples, "samples judged")


def _latest(values: list[float | None]) -> str:
    """Return the last value, and all of them as a line of bars."""
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    bars = "".join(_BARS[min(len(_BARS) - 1, int(v * len(_BARS)))] for v in known[-40:])
    return f"{percent(known[-1])}  {bars}"


def _table(path: Path, view: View, rate: float | None) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row(Text(printable(str(path)), style="bold"), "finished" if view.is_finished else "")
    for name, value in view.rows:
        table.add_row(name, Text(printable(value)))
    of = "" if view.total is None else f" of {view.total:,}"
    table.add_row(view.unit, f"{view.done:,}{of}")
    if rate is not None:
        speed = f"{rate:.1f}/s" if rate >= 1 or rate == 0 else f"{60 * rate:.1f}/min"
        left = None if view.total is None or rate <= 0 else (view.total - view.done) / rate
        table.add_row("speed", speed + time_left(left, view.done, view.total))
    return table
