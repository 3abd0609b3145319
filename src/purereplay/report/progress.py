"""Progress of runs in the terminal: bars with the remaining time, and a line at the end of each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.progress import Progress as Bars
from rich.progress import TaskID

from purereplay.errors import Interrupted
from purereplay.evaluate.experiment import Experiment
from purereplay.evaluate.judge import Line
from purereplay.evaluate.rates import images_a_step
from purereplay.evaluate.running import Observer
from purereplay.evaluate.settings import RunSettings
from purereplay.nets.engine import TrainingProgress
from purereplay.report.plain import escaped
from purereplay.report.sinks import Sinks
from purereplay.report.terminal import (
    PlainLines,
    interruptible,
    loading_bars,
    log_to,
    out,
    percent,
    progress_bars,
    seconds_left,
    time_left,
)

LINE_PAUSE = 30.0  # seconds between two lines of progress in a log file
LONG_JOB = 10.0  # seconds after which the remaining time of a training job is shown


class RunBars(Observer):
    """Shows the progress of one or more runs as bars and lines."""

    def __init__(self, bars: Bars, stack: ExitStack, announce: Callable[..., None], sinks: Sinks) -> None:
        self.sinks = sinks
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
        self.lines = PlainLines(bars, LINE_PAUSE)
        self.started_at = time.monotonic()
        self.job_seen: list[tuple[float, int]] = []  # time and steps of the training job, seen first and last
        self.groups: TaskID | None = None
        self.watches = False  # whether Ctrl-C is watched while runs are computed elsewhere
        self.deadline: float | None = None  # of time.monotonic(): runs stop then, after a checkpoint

    def loading(self, name: str, done: int, total: int | None) -> None:
        self._show_loading(name, done, total)

    def started(self, path: Path, settings: RunSettings, *, resumed: bool) -> None:
        self.announce(settings, path, resumed=resumed)

    def prepared(self, experiments: list[Experiment]) -> None:
        self.experiments = experiments
        self.last, self.memory = {"purity": {}, "accuracy": {}}, {}  # those of an earlier group are not averaged
        self.interrupted = self.stack.enter_context(interruptible())

    def training(self, now: TrainingProgress) -> None:
        """Update the bars; the only place where a run can be interrupted."""
        self._check_stop()
        if self.job is None:
            self.buffers = self.bars.add_task("buffers", what="")
            self.job = self.bars.add_task("training", total=1, what="")
        what = f"{now.phase}: step {now.done:,} of {now.total:,}"
        what += f", {now.n_networks} networks side by side" if now.n_networks > 1 else ""
        what += self._job_left(now)
        self.bars.update(self.job, completed=now.done, total=now.total, what=what)
        self._update_buffers(now, what)

    def _job_left(self, now: TrainingProgress) -> str:
        """Return the remaining time of a long job by its own speed; a learner may train only once, at the end."""
        is_new = not self.job_seen or now.done <= self.job_seen[-1][1]
        self.job_seen = [*([] if is_new else self.job_seen[:1]), (time.monotonic(), now.done)]
        (began, first), (at, done) = self.job_seen[0], self.job_seen[-1]
        if at - began < LONG_JOB:
            return ""
        return time_left((at - began) / (done - first) * (now.total - done), done, now.total)

    def _check_stop(self) -> None:
        if self.interrupted or (self.deadline is not None and time.monotonic() > self.deadline):
            raise Interrupted("Stopped after a checkpoint: the same command continues from here.")

    def waiting(self) -> None:
        if not self.watches:
            self.watches = True
            self.interrupted = self.stack.enter_context(interruptible())
        self._check_stop()

    def grouped(self, done: int, total: int) -> None:
        if total < 2:
            return
        self.groups = self.bars.add_task("groups", what="") if self.groups is None else self.groups
        left = (time.monotonic() - self.started_at) / done * (total - done) if done else None
        what = f"{done} of {total}" + time_left(left, done, total)
        self.bars.update(self.groups, completed=done, total=total, what=what)
        if not out.is_terminal:
            self.bars.print(f"groups {what}")

    def measured(self, experiment: Experiment, line: Line) -> None:
        self.sinks.line(experiment.run.path, line)
        name = experiment.run.path.name
        if line["event"] == "buffer":
            self.last["purity"][name] = line["purity"]
            self.memory[name] = "the memory" if line["n_passed"] is None else "P"
        else:
            self.last["accuracy"][name] = line["accuracy"]
            purity = self.last["purity"].get(name)
            prefix = f"{escaped(name)}: " if len(self.experiments) > 1 else ""
            text = f"{prefix}task {line['task'] + 1} (classes {', '.join(map(str, line['classes']))}): "
            text += f"accuracy {percent(line['accuracy'])}"
            self.bars.print(text + ("" if purity is None else f", purity of {self.memory[name]} {percent(purity)}"))
        self._update_buffers(None)

    def _update_buffers(self, now: TrainingProgress | None, job: str = "") -> None:
        if self.buffers is None:
            return
        total = sum(e.workload.n_buffers for e in self.experiments)
        # a learner without delayed buffers may cut a piece into several jobs
        done = sum(min(e.learner.n_done, e.workload.n_buffers) for e in self.experiments)
        left = remaining(self.experiments, now)
        what = f"{done} of {total}" + time_left(left, done, total)
        for measure, by_run in self.last.items():
            known = [value for value in by_run.values() if value is not None]
            what += f", {measure} {percent(sum(known) / len(known))}" if known else ""
        self.bars.update(self.buffers, completed=done, total=total, what=what)
        self.lines(f"buffers {what}" if done < total or not job else f"training {job}")


@contextmanager
def run_bars(announce: Callable[..., None], log: str | None = None) -> Iterator[RunBars]:
    """Show bars while runs are trained; warnings of the library appear above them. `log` as in `sinks`."""
    sinks = Sinks(log)
    log_to(out)
    with progress_bars() as bars, ExitStack() as stack:
        stack.callback(sinks.close)
        yield RunBars(bars, stack, announce, sinks)


def remaining(experiments: list[Experiment], now: TrainingProgress | None) -> float | None:
    """Return the seconds that runs still take."""
    phases = {phase for e in experiments for phase in e.workload.steps}
    total = {phase: sum(e.workload.steps.get(phase, 0) for e in experiments) for phase in phases}
    images = {phase: max(images_a_step(e.settings, phase) for e in experiments) for phase in phases}
    return seconds_left(total, [e.account for e in experiments], now, images)
