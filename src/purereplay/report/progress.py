"""Progress in the terminal: bars with the remaining time, a line at the end of each task, and Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from purereplay.data.progress import Progress as ProgressCallback
from purereplay.errors import Interrupted
from purereplay.evaluate.experiment import Experiment
from purereplay.evaluate.judge import Line
from purereplay.nets.engine import Account
from purereplay.nets.engine import Progress as EngineProgress

out = Console(highlight=False, soft_wrap=True)


class Show:
    """Turns the news of the engine and of one or more experiments into bars and lines."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.experiments: list[Experiment] = []
        self.interrupted: list[bool] = []  # holds something once Ctrl-C was pressed
        self.last: dict[str, dict[str, float | None]] = {"purity": {}, "accuracy": {}}  # by run folder
        self.memory: dict[str, str] = {}  # what a run's memory is called
        self.buffers: TaskID | None = None
        self.job: TaskID | None = None
        self.said = time.monotonic()

    def training(self, now: EngineProgress) -> None:
        """Called by the engine a few times a second; the one place where a run can be interrupted."""
        if self.interrupted:
            raise Interrupted("Stopped.")
        if not self.experiments:
            return
        if self.job is None:
            self.buffers = self.bars.add_task("buffers", what="")
            self.job = self.bars.add_task("training", total=1, what="")
        what = f"{now.phase}: step {now.done:,} of {now.total:,}"
        what += f", {now.n_networks} networks side by side" if now.n_networks > 1 else ""
        self.bars.update(self.job, completed=now.done, total=now.total, what=what)
        self._update_buffers(now)

    def line(self, experiment: Experiment) -> Callable[[Line], None]:
        """What is called with every line of this experiment's metrics.jsonl."""
        name = experiment.run.path.name

        def hear(line: Line) -> None:
            if line["event"] == "buffer":
                self.last["purity"][name] = line["purity"]
                self.memory[name] = "the memory" if line["n_passed"] is None else "P"
            else:
                self.last["accuracy"][name] = line["accuracy"]
                purity = self.last["purity"].get(name)
                who = f"{name}: " if len(self.experiments) > 1 else ""
                text = f"{who}task {line['task'] + 1} (classes {', '.join(map(str, line['classes']))}): "
                text += f"accuracy {percent(line['accuracy'])}"
                self.bars.print(text + ("" if purity is None else f", purity of {self.memory[name]} {percent(purity)}"))
            self._update_buffers(None)

        return hear

    def _update_buffers(self, now: EngineProgress | None) -> None:
        if self.buffers is None:
            return
        done = sum(e.learner.n_done for e in self.experiments)
        total = sum(e.plan.n_buffers for e in self.experiments)
        left = remaining(self.experiments, now)
        what = f"{done} of {total}" + ("" if left is None else f", {duration(left)} left")
        for measure, by_run in self.last.items():
            known = [value for value in by_run.values() if value is not None]
            what += f", {measure} {percent(sum(known) / len(known))}" if known else ""
        self.bars.update(self.buffers, completed=done, total=total, what=what)
        if not out.is_terminal and time.monotonic() - self.said > 30:  # a log file wants a line now and then
            self.said = time.monotonic()
            self.bars.print(f"buffers {what}")


def remaining(experiments: list[Experiment], now: EngineProgress | None) -> float | None:
    """Seconds left of runs."""
    phases = {phase for e in experiments for phase in e.plan.steps}
    total = {phase: sum(e.plan.steps.get(phase, 0) for e in experiments) for phase in phases}
    return seconds_left(total, [e.account for e in experiments], now)


def seconds_left(total: dict[str, int], accounts: list[Account], now: EngineProgress | None) -> float | None:
    """Of steps by phase, from the measured speed of each phase; one not met yet counts as fast as the others."""
    seconds = {phase: sum(a.seconds.get(phase, 0.0) for a in accounts) for phase in total}
    done = {phase: sum(a.steps.get(phase, 0) for a in accounts) for phase in total}
    speeds = {phase: seconds[phase] / done[phase] for phase in total if done[phase]}
    if not speeds:
        return None
    usual = sum(speeds.values()) / len(speeds)
    running = {now.phase: now.done * now.n_networks} if now else {}
    return sum(max(0, total[phase] - done[phase] - running.get(phase, 0)) * speeds.get(phase, usual) for phase in total)


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Ctrl-C becomes a note that the engine finds at its next look; a second one stops at once."""
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


def progress_bars(*, disable: bool = False) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}")
    return Progress(*columns, console=out, transient=True, disable=disable)


def download_bars(bars: Progress) -> ProgressCallback:
    """A bar for everything that is fetched or decoded; what is counted may be bytes or images."""
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total, what="")
        what = f"{done / total:.0%}" if total else f"{done:,}"
        bars.update(tasks[name], completed=done, total=total, what=what, visible=done != total)

    return show


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
