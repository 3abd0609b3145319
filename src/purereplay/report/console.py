"""What a person sees in the terminal: progress with the remaining time, results and lists as aligned tables."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType

import torch
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from purereplay.data import datasets as data
from purereplay.data.catalogue import info_for
from purereplay.data.download import Progress as DownloadProgress
from purereplay.data.sources import cache_root
from purereplay.errors import Interrupted
from purereplay.evaluate import experiment as experiments
from purereplay.evaluate.experiment import Experiment
from purereplay.evaluate.judge import Line
from purereplay.evaluate.plan import PHASES
from purereplay.evaluate.plan import estimate as estimate_run
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.settings import BY_DATASET, PRESETS, SprSettings, preset_settings
from purereplay.nets.engine import Engine
from purereplay.nets.engine import Progress as EngineProgress
from purereplay.report.pictures import draw_run

out = Console(highlight=False, soft_wrap=True)


def run(settings: RunSettings, path: Path, *, resume: bool) -> None:
    """Run or resume an experiment, with progress, and show its result."""
    logging.basicConfig(
        handlers=[RichHandler(console=out, show_path=False, show_time=False)], level="WARNING", format="%(message)s"
    )
    _announce(settings, path, resume)
    with ExitStack() as stack:
        bars = stack.enter_context(_bars())
        show = _Show(bars)
        if resume:
            stack.enter_context(RunDirectory(path).locked())
        experiment = experiments.prepare(
            settings, path, resume=resume, watch=show.training, progress=download_bars(bars)
        )
        if not resume:
            stack.enter_context(experiment.run.locked())
        show.experiment = experiment
        show.interrupted = stack.enter_context(_interruptible())
        try:
            result = experiment.go(show.line)
        except Interrupted:
            raise Interrupted(f"Stopped, with a checkpoint: `purereplay resume {path}` goes on from here.") from None
    finished(path, result)


def finished(path: Path, result: Line) -> None:
    """Show a result, and draw it."""
    draw_run(path, path / "run.png")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("accuracy at the end", percent(result["accuracy"]))
    table.add_row("after each task", "  ".join(percent(a) for a in result["accuracy_after_task"]))
    table.add_row("forgetting", percent(result["forgetting"]))
    table.add_row("noise in the stream", percent(result["stream_noise"]))
    table.add_row("noise in what passed the filter", percent(result["passed_noise"]))
    table.add_row("purity of P", percent(result["purity"]))
    table.add_row("filtered noise", percent(result["filtered_noise"]))
    times = "  ".join(f"{phase} {duration(s)}" for phase, s in result["seconds"].items() if phase != "total")
    table.add_row("time", f"{duration(result['seconds']['total'])}  ({times})")
    out.print(table)
    if result["budget"] != 1:
        out.print(f"at {result['budget']:g} times the preset's self-supervised epochs")
    out.print(f"in [bold]{path}[/bold]: result.json, metrics.jsonl, run.png")


def estimate(settings: RunSettings) -> None:
    """Show steps, memory and time of a run that is not started."""
    info = info_for(settings.dataset)
    with _bars() as bars:
        dataset, _, stream = experiments.load_stream(settings, progress=download_bars(bars))
    engine = Engine(torch.device(settings.device))
    with out.status("timing a few steps of each phase"):
        guess = estimate_run(settings, experiments.make_learner(settings, dataset, engine), stream.task_ends)
    table = Table("phase", "steps", "ms a step", "time", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for phase in PHASES:
        steps, speed = guess.plan.steps[phase], guess.seconds_per_step[phase]
        table.add_row(phase, f"{steps:,}", f"{1000 * speed:.2f}", duration(steps * speed))
    out.print(f"{len(stream):,} samples of {info.name} fill {guess.plan.n_buffers} delayed buffers")
    out.print(table)
    out.print(
        f"about [bold]{duration(guess.seconds)}[/bold] on {experiments.device_name(engine.device)}, "
        f"{guess.side_by_side} experts side by side in about {guess.memory / 2**20:,.0f} MiB"
    )


def datasets() -> None:
    """List what there is to learn from."""
    infos = [info_for(name) for name in data.names()]
    table = Table("name", "train", "test", "image", "classes", "licence", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[:5]:
        column.justify, column.no_wrap = "right", True
    table.columns[0].justify = "left"
    for info in infos:
        shape = "×".join(map(str, info.shape))
        table.add_row(info.name, f"{info.n_train:,}", f"{info.n_test:,}", shape, str(info.n_classes), info.licence)
    out.print(table)
    out.print()
    width = max(len(info.name) for info in infos)
    for info in infos:
        place = data.found_at(info.name)
        out.print(
            f"{info.name:{width}}  " + (f"found in {place}" if place else f"[yellow]not here[/yellow], {info.how}")
        )
    out.print(f"\nFiles are looked for under PUREREPLAY_DATA, then in {cache_root()}.")


def settings(preset: str | None) -> None:
    """List every setting; where a preset differs from the default it is bold."""
    names = [preset] if preset else list(PRESETS)
    chosen = {name: preset_settings(name) for name in names}
    default = SprSettings()
    table = Table("setting", *names, box=None, padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    for f in fields(SprSettings):
        values = [getattr(s, f.name) for s in chosen.values()]
        usual = getattr(default, f.name)
        shown = ["by data" if v is None and f.name in BY_DATASET else str(v).lower() for v in values]
        table.add_row(f.name, *(t if v == usual else f"[bold]{t}[/bold]" for t, v in zip(shown, values, strict=True)))
    out.print(table)
    out.print("'by data' is chosen by the dataset; change any with --set NAME=VALUE")


class _Show:
    """Turns the engine's and the experiment's news into bars and lines."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.interrupted: list[bool] = []  # holds something once Ctrl-C was pressed
        self.experiment: Experiment | None = None
        self.purity: float | None = None
        self.accuracy: float | None = None
        self.buffers: TaskID | None = None
        self.job: TaskID | None = None
        self.said = time.monotonic()

    def training(self, now: EngineProgress) -> None:
        """Called by the engine a few times a second; the one place where a run can be interrupted."""
        if self.interrupted:
            raise Interrupted("Stopped.")
        if self.experiment is None:
            return
        if self.job is None:
            self.buffers = self.bars.add_task("buffers", total=self.experiment.plan.n_buffers, what="")
            self.job = self.bars.add_task("training", total=1, what="")
        what = f"{now.phase}: step {now.done:,} of {now.total:,}"
        what += f", {now.n_networks} networks side by side" if now.n_networks > 1 else ""
        self.bars.update(self.job, completed=now.done, total=now.total, what=what)
        self._update_buffers(now)

    def line(self, line: Line) -> None:
        """Called with every line of metrics.jsonl."""
        if line["event"] == "buffer":
            self.purity = line["purity"]
        else:
            self.accuracy = line["accuracy"]
            classes = ", ".join(map(str, line["classes"]))
            purity = "" if self.purity is None else f", purity of P {percent(self.purity)}"
            self.bars.print(
                f"task {line['task'] + 1} (classes {classes}): accuracy {percent(line['accuracy'])}{purity}"
            )
        self._update_buffers(None)

    def _update_buffers(self, now: EngineProgress | None) -> None:
        experiment = self.experiment
        if experiment is None or self.buffers is None:
            return
        done, total = experiment.learner.n_done, experiment.plan.n_buffers
        left = remaining(experiment, now)
        what = f"{done} of {total}" + ("" if left is None else f", {duration(left)} left")
        what += "" if self.accuracy is None else f", accuracy {percent(self.accuracy)}"
        what += "" if self.purity is None else f", purity {percent(self.purity)}"
        self.bars.update(self.buffers, completed=done, what=what)
        if not out.is_terminal and time.monotonic() - self.said > 30:  # a log file wants a line now and then
            self.said = time.monotonic()
            self.bars.print(f"buffers {what}")


def remaining(experiment: Experiment, now: EngineProgress | None) -> float | None:
    """Seconds left, from the measured speed of each phase; a phase not met yet counts as fast as the others."""
    seconds, engine = experiment.seconds, experiment.engine
    speeds = {}
    for phase in PHASES:
        steps = experiment.steps_done(phase)
        if steps:
            speeds[phase] = (seconds.get(phase, 0.0) + engine.seconds[phase]) / steps
    if not speeds:
        return None
    usual = sum(speeds.values()) / len(speeds)
    running = {now.phase: now.done * now.n_networks} if now else {}
    left = 0.0
    for phase in PHASES:
        todo = experiment.plan.steps[phase] - experiment.steps_done(phase) - running.get(phase, 0)
        left += max(0, todo) * speeds.get(phase, usual)
    return left


def _announce(settings: RunSettings, path: Path, resume: bool) -> None:
    noise = "its own labels" if settings.noise == "none" else f"{percent(settings.noise_rate)} {settings.noise} noise"
    budget = "" if settings.budget == 1 else f", budget {settings.budget:g}"
    verb = "going on with" if resume else "learning"
    out.print(
        f"{verb} {settings.dataset} with {noise}: {settings.learner}, preset {settings.preset}{budget}, "
        f"seed {settings.seed}, {settings.device}, in {path}"
    )


@contextmanager
def _interruptible() -> Iterator[list[bool]]:
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


def _bars() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}")
    return Progress(*columns, console=out, transient=True)


def download_bars(bars: Progress) -> DownloadProgress:
    """A bar for every file that is fetched."""
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total, what="")
        bars.update(tasks[name], completed=done, total=total, what=f"{done / 2**20:,.1f} MiB")

    return show


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
