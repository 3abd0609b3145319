"""Progress in the terminal: bars with the remaining time, a line at the end of each task, and Ctrl-C."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from purereplay.data.progress import Progress
from purereplay.errors import Interrupted
from purereplay.evaluate.experiment import Experiment
from purereplay.evaluate.judge import Line
from purereplay.evaluate.running import Observer
from purereplay.evaluate.settings import RunSettings
from purereplay.nets.engine import TrainingProgress
from purereplay.nets.lockstep import Account

out = Console(highlight=False, soft_wrap=True)


class RunBars(Observer):
    """Shows the progress of one or more runs as bars and lines."""

    def __init__(self, bars: Bars, stack: ExitStack, announce: Callable[..., None]) -> None:
        self.bars = bars
        self.stack = stack  # closed when the runs are over
        self.announce = announce  # prints one line about a run that starts
        self.interrupted: list[bool] = []  # not empty once Ctrl-C was pressed
        self._show_loading = loading_bars(bars)
        self.experiments: list[Experiment] = []
        self.last: dict[str, dict[str, float | None]] = {"purity": {}, "accuracy": {}}  # by run folder
        self.memory: dict[str, str] = {}  # name of a run's memory
        self.buffers: TaskID | None = None
        self.job: TaskID | None = None
        self.logged_at = time.monotonic()

    def loading(self, name: str, done: int, total: int | None) -> None:
        self._show_loading(name, done, total)

    def started(self, path: Path, settings: RunSettings, *, resumed: bool) -> None:
        self.announce(settings, path, resumed=resumed)

    def prepared(self, experiments: list[Experiment]) -> None:
        self.experiments = experiments
        self.interrupted = self.stack.enter_context(interruptible())

    def training(self, now: TrainingProgress) -> None:
        """Update the bars; the only place where a run can be interrupted."""
        if self.interrupted:
            raise Interrupted("Stopped.")
        if self.job is None:
            self.buffers = self.bars.add_task("buffers", what="")
            self.job = self.bars.add_task("training", total=1, what="")
        what = f"{now.phase}: step {now.done:,} of {now.total:,}"
        what += f", {now.n_networks} networks side by side" if now.n_networks > 1 else ""
        self.bars.update(self.job, completed=now.done, total=now.total, what=what)
        self._update_buffers(now)

    def measured(self, experiment: Experiment, line: Line) -> None:
        name = experiment.run.path.name
        if line["event"] == "buffer":
            self.last["purity"][name] = line["purity"]
            self.memory[name] = "the memory" if line["n_passed"] is None else "P"
        else:
            self.last["accuracy"][name] = line["accuracy"]
            purity = self.last["purity"].get(name)
            prefix = f"{name}: " if len(self.experiments) > 1 else ""
            text = f"{prefix}task {line['task'] + 1} (classes {', '.join(map(str, line['classes']))}): "
            text += f"accuracy {percent(line['accuracy'])}"
            self.bars.print(text + ("" if purity is None else f", purity of {self.memory[name]} {percent(purity)}"))
        self._update_buffers(None)

    def _update_buffers(self, now: TrainingProgress | None) -> None:
        if self.buffers is None:
            return
        done = sum(e.learner.n_done for e in self.experiments)
        total = sum(e.workload.n_buffers for e in self.experiments)
        left = remaining(self.experiments, now)
        what = f"{done} of {total}" + ("" if left is None else f", {duration(left)} left")
        for measure, by_run in self.last.items():
            known = [value for value in by_run.values() if value is not None]
            what += f", {measure} {percent(sum(known) / len(known))}" if known else ""
        self.bars.update(self.buffers, completed=done, total=total, what=what)
        if not out.is_terminal and time.monotonic() - self.logged_at > 30:  # a log file gets a line now and then
            self.logged_at = time.monotonic()
            self.bars.print(f"buffers {what}")


@contextmanager
def run_bars(announce: Callable[..., None]) -> Iterator[RunBars]:
    """Show bars while runs are trained; warnings of the library appear above them."""
    log_to(out)
    with progress_bars() as bars, ExitStack() as stack:
        yield RunBars(bars, stack, announce)


def log_to(console: Console) -> None:
    """Print warnings of the library in the terminal."""
    handler = RichHandler(console=console, show_path=False, show_time=False)
    logging.basicConfig(handlers=[handler], level="WARNING", format="%(message)s")


def remaining(experiments: list[Experiment], now: TrainingProgress | None) -> float | None:
    """Return the seconds that runs still take."""
    phases = {phase for e in experiments for phase in e.workload.steps}
    total = {phase: sum(e.workload.steps.get(phase, 0) for e in experiments) for phase in phases}
    return seconds_left(total, [e.account for e in experiments], now)


def seconds_left(total: dict[str, int], accounts: list[Account], now: TrainingProgress | None) -> float | None:
    """Return the seconds for the remaining steps by each phase's measured speed; a new phase counts as average."""
    seconds = {phase: sum(a.seconds.get(phase, 0.0) for a in accounts) for phase in total}
    done = {phase: sum(a.steps.get(phase, 0) for a in accounts) for phase in total}
    speeds = {phase: seconds[phase] / done[phase] for phase in total if done[phase]}
    if not speeds:
        return None
    average = sum(speeds.values()) / len(speeds)
    running = {now.phase: now.done * now.n_networks} if now else {}
    return sum(
        max(0, total[phase] - done[phase] - running.get(phase, 0)) * speeds.get(phase, average) for phase in total
    )


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


def loading_bars(bars: Bars) -> Progress:
    """Return a callback with one bar for each download or file; it counts bytes or images."""
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total, what="")
        what = f"{done / total:.0%}" if total else f"{done:,}"
        bars.update(tasks[name], completed=done, total=total, what=what, visible=done != total)

    return show


def percent(share: float | None) -> str:
    """Return a share in [0, 1] as text."""
    return "unknown" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Return seconds as text with a suitable unit."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
