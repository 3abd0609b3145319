"""What a person sees in the terminal: runs with their progress, results and lists as aligned tables."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import torch
from rich.logging import RichHandler
from rich.table import Table

from purereplay.data import datasets as data
from purereplay.data.catalogue import info_for
from purereplay.data.datasets import Dataset
from purereplay.data.sources import cache_root
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.beginnings import bring_features, load, make_learner, make_stream
from purereplay.evaluate.experiment import device_name, prepare
from purereplay.evaluate.judge import Line
from purereplay.evaluate.plan import estimate as estimate_run
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.baselines.settings import RIVALS, RivalSettings
from purereplay.learners.settings import BY_DATASET, LEARNERS, PRESETS, SprSettings, preset_settings
from purereplay.nets.engine import Engine, flush_denormals
from purereplay.nets.lockstep import drive_together
from purereplay.report.pictures import draw_run
from purereplay.report.progress import Show, download_bars, duration, interruptible, out, percent, progress_bars


def run(settings: RunSettings, path: Path, *, resume: bool) -> None:
    """Run or resume an experiment, with progress, and show its result."""
    if not resume:
        RunDirectory.check_free(path)
    _announce(settings, path, resume)
    [result] = _run_together([settings], [path])
    finished(path, result)


def sweep(settings: dict[Path, RunSettings]) -> None:
    """Run many experiments side by side; those that are finished are left alone, those that were stopped go on."""
    for path, wanted in settings.items():
        if (path / "settings.json").exists() and RunDirectory.open(path)[1] != wanted:
            raise UserError(f"{path} holds a run with other settings: choose another --out.")
    todo = {path: s for path, s in settings.items() if RunDirectory(path).result() is None}
    out.print(f"{len(settings)} runs, {len(settings) - len(todo)} of them finished before")
    for path, s in todo.items():
        _announce(s, path, (path / "settings.json").exists())
    failure = None
    try:
        if todo:
            _run_together(list(todo.values()), list(todo))
    except Interrupted:
        raise
    except UserError as error:  # of one run; the others went on
        failure = error
    table = Table("run", "accuracy", "purity of P", "filtered noise", "time", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for path in settings:
        result = RunDirectory(path).result()
        if result is None:
            table.add_row(path.name, "failed", "", "", "")
            continue
        shares = [percent(result[key]) for key in ("accuracy", "purity", "filtered_noise")]
        table.add_row(path.name, *shares, duration(result["seconds"]["total"]))
        draw_run(path, path / "run.png")
    out.print(table)
    if failure is not None:
        raise failure


def _run_together(settings: list[RunSettings], paths: list[Path]) -> list[Line]:
    """Begin or resume the runs and drive them together; all are on one device."""
    handler = RichHandler(console=out, show_path=False, show_time=False)
    logging.basicConfig(handlers=[handler], level="WARNING", format="%(message)s")
    with ExitStack() as stack:
        bars = stack.enter_context(progress_bars())
        show = Show(bars)
        flush_denormals()
        engine = Engine(torch.device(settings[0].device), precision=settings[0].precision, watch=show.training)
        loaded: dict[tuple[str, bool], Dataset] = {}
        for s, path in zip(settings, paths, strict=True):
            resume = (path / "settings.json").exists()
            if resume:
                stack.enter_context(RunDirectory(path).locked())
            which = s.dataset, s.validation
            if which not in loaded:
                loaded[which] = load(s, download_bars(bars))
            experiment = prepare(s, path, resume=resume, engine=engine, dataset=loaded[which])
            if not resume:
                stack.enter_context(experiment.run.locked())
            show.experiments.append(experiment)
        show.interrupted = stack.enter_context(interruptible())
        try:
            works = [e.running(show.line(e)) for e in show.experiments]
            return drive_together(works, engine, [e.account for e in show.experiments])
        except Interrupted:
            how = f"`purereplay resume {paths[0]}` goes" if len(paths) == 1 else "the same command goes"
            raise Interrupted(f"Stopped, with a checkpoint: {how} on from here.") from None


def finished(path: Path, result: Line) -> None:
    """Show a result, and draw it."""
    try:
        _show_result(path, result)
    except (KeyError, TypeError) as error:
        raise UserError(f"{path / 'result.json'} is damaged: {error} is missing or of the wrong kind.") from None


def _show_result(path: Path, result: Line) -> None:
    draw_run(path, path / "run.png")
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("accuracy at the end", percent(result["accuracy"]))
    if len(result["accuracy_after_task"]) > 1:
        table.add_row("after each task", "  ".join(percent(a) for a in result["accuracy_after_task"]))
        table.add_row("forgetting", percent(result["forgetting"]))
    table.add_row("noise in the stream", percent(result["stream_noise"]))
    if result["n_passed"] is not None:
        table.add_row("noise in what passed the filter", percent(result["passed_noise"]))
    table.add_row(
        "purity of P" if result["n_passed"] is not None else "purity of the memory", percent(result["purity"])
    )
    table.add_row("filtered noise", percent(result["filtered_noise"]))
    times = "  ".join(f"{phase} {duration(s)}" for phase, s in result["seconds"].items() if phase != "total")
    table.add_row("time", f"{duration(result['seconds']['total'])}  ({times})")
    out.print(table)
    if result.get("judged_on") == "validation":
        out.print("judged on held-out training data, not on the test data")
    if result["budget"] != 1:
        out.print(f"at {result['budget']:g} times the preset's self-supervised epochs")
    out.print(f"in [bold]{path}[/bold]: result.json, metrics.jsonl, run.png")


def estimate(settings: RunSettings) -> None:
    """Show steps, memory and time of a run that is not started."""
    info = info_for(settings.dataset)
    with progress_bars() as bars:
        dataset = load(settings, download_bars(bars))
    _, stream = make_stream(settings, dataset)
    flush_denormals()
    engine = Engine(torch.device(settings.device), precision=settings.precision)
    with out.status("timing a few steps of each phase"):
        learner = make_learner(settings, dataset, engine, bring_features(settings, dataset))
        guess = estimate_run(settings, learner, stream.task_ends)
    names = ("phase", "steps", "ms a step", "time", "at once", "would fit")
    table = Table(*names, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for phase, speed in guess.seconds_per_step.items():
        steps = guess.plan.steps[phase]
        side, fit = guess.side_by_side[phase], guess.fit[phase]
        table.add_row(phase, f"{steps:,}", f"{1000 * speed:.3f}", duration(steps * speed), f"{side}", f"{fit:,}")
    budget = "" if settings.budget == 1 else f", at {settings.budget:g} times the preset's self-supervised epochs"
    out.print(f"{len(stream):,} samples of {info.name} fill {guess.plan.n_buffers} delayed buffers{budget}")
    out.print(table)
    out.print(
        f"about [bold]{duration(guess.seconds)}[/bold] on {device_name(engine.device)}, "
        f"in about {guess.memory / 2**20:,.0f} MiB"
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


def settings(preset: str | None, learner: str) -> None:
    """List every setting; where a preset differs from the default it is bold."""
    if learner in RIVALS:
        table = Table("setting of the rivals", "default", box=None, padding=(0, 2, 0, 0))
        for f in fields(RivalSettings):
            value = getattr(RivalSettings(), f.name)
            table.add_row(f.name, "by data" if value is None and f.name != "clip" else str(value).lower())
        out.print(table)
        out.print("each rival uses those that concern it; change any with --set NAME=VALUE")
        return
    if learner not in LEARNERS:
        raise UserError(f"The learner {learner!r} is unknown: choose one of {', '.join((*LEARNERS, *RIVALS))}.")
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


def _announce(settings: RunSettings, path: Path, resume: bool) -> None:
    noise = "its own labels" if settings.noise == "none" else f"{percent(settings.noise_rate)} {settings.noise} noise"
    budget = "" if settings.budget == 1 else f", budget {settings.budget:g}"
    verb = "going on with" if resume else "learning"
    out.print(
        f"{verb} {settings.dataset} with {noise}: {settings.learner}, preset {settings.preset}{budget}, "
        f"seed {settings.seed}, {settings.device}, in {path}"
    )
