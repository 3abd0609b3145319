"""The terminal: the console, bars with remaining time, Ctrl-C, and numbers as text."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from purereplay.data.progress import Progress
from purereplay.data.text import printable

if TYPE_CHECKING:
    from purereplay.nets.engine import TrainingProgress
    from purereplay.nets.lockstep import Account

LINE_SECONDS = 10.0  # between two lines of progress
out = Console(highlight=False, soft_wrap=True)


def log_to(console: Console) -> None:
    """Print warnings of the library in the terminal."""
    handler = RichHandler(console=console, show_path=False, show_time=False)
    logging.basicConfig(handlers=[handler], level="WARNING", format="%(message)s")


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Turn Ctrl-C into an entry of the list, which is read between training steps; a second Ctrl-C stops at once."""
    asked: list[bool] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def progress_bars(*, disable: bool = False) -> Bars:
    """Return empty bars; tasks have a text `what` behind the bar."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}")
    return Bars(*columns, console=out, transient=True, disable=disable)


class PlainLines:
    """Progress as a line of text now and then, for output that is not a terminal: bars are not shown there."""

    def __init__(self, bars: Bars, pause: float | None = None) -> None:
        self.print = bars.print
        self.pause = LINE_SECONDS if pause is None else pause
        self.wanted = not (bars.console.is_terminal or bars.disable)
        self.last = time.monotonic()

    def __call__(self, text: str) -> None:
        if self.wanted and time.monotonic() - self.last >= self.pause:
            self.last = time.monotonic()
            self.print(text, markup=False)


def loading_bars(bars: Bars) -> Progress:
    """Return a callback with one bar for each download or file; it counts bytes or images."""
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total, what="")
        what = f"{done / total:.0%}" if total else f"{done:,}"
        bars.update(tasks[name], completed=done, total=total, what=what, visible=done != total)

    return show


@contextmanager
def reporting(path: Path) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar while a report is written, and then its size; yields the callback that moves the bar."""
    with progress_bars() as bars:
        task = bars.add_task("reading", total=None, what="")
        yield lambda name, done, total: bars.update(task, description=name, completed=done, total=total)
    out.print(f"written: {printable(str(path))}, {path.stat().st_size / 2**20:.1f} MiB", markup=False)


def percent(share: float | None) -> str:
    """Return a share in [0, 1] as text."""
    return "unknown" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Return seconds as text with a suitable unit."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)  # before it is divided, so that 119.7 s are not 1 min 60 s
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def time_left(seconds: float | None, done: int, total: int | None) -> str:
    """Return the end of a line of progress; empty if the time is unknown or everything is done."""
    return "" if seconds is None or (total is not None and done >= total) else f", {duration(max(0.0, seconds))} left"


def counted(n: int, noun: str) -> str:
    """Return a number of things as text."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def times(n: int) -> str:
    """Return how often something was done, as text."""
    return "once" if n == 1 else f"{n:,} times"


def seconds_left(
    total: dict[str, int],
    accounts: list[Account],
    now: TrainingProgress | None,
    images: dict[str, int] | None = None,
) -> float | None:
    """Return the seconds for the remaining steps by each phase's measured speed.

    A new phase counts as average, per image if `images` gives the number of images in a step of each phase.
    """
    sizes = images or dict.fromkeys(total, 1)
    seconds = {phase: sum(a.seconds.get(phase, 0.0) for a in accounts) for phase in total}
    done = {phase: sum(a.steps.get(phase, 0) for a in accounts) for phase in total}
    speeds = {phase: seconds[phase] / done[phase] for phase in total if done[phase]}
    if not speeds:
        return None
    average = sum(speed / sizes[phase] for phase, speed in speeds.items()) / len(speeds)
    running = {now.phase: now.done * now.n_networks} if now else {}
    return sum(
        max(0, total[phase] - done[phase] - running.get(phase, 0)) * speeds.get(phase, average * sizes[phase])
        for phase in total
    )
