"""Runs in the terminal: announcements, results and lists as aligned tables."""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from purereplay.data.catalogue import DatasetInfo
from purereplay.errors import UserError, WriteError
from purereplay.evaluate.estimate import Estimate
from purereplay.evaluate.executors import SweepOutcome
from purereplay.evaluate.judge import Line
from purereplay.evaluate.results import check_result
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.registry import PRESETS, Entry
from purereplay.learners.settings import choices, field_of
from purereplay.report.pictures import draw_run
from purereplay.report.plain import escaped
from purereplay.report.terminal import duration, out, percent

_SHOWN = (  # values of a result that are printed
    "accuracy",
    "accuracy_after_task",
    "forgetting",
    "stream_noise",
    "n_passed",
    "passed_noise",
    "purity",
    "filtered_noise",
    "seconds",
    "budget",
)


def announce(settings: RunSettings, path: Path, *, resumed: bool) -> None:
    """Print one line about a run that starts or continues."""
    noise = "its own labels" if settings.noise == "none" else f"{percent(settings.noise_rate)} {settings.noise} noise"
    budget = "" if settings.budget == 1 else f", budget {settings.budget:g}"
    verb = "continuing" if resumed else "learning"
    data = settings.dataset
    if settings.encoder is not None:
        data = f"features of {data} by {escaped(settings.encoder.name)}"
    out.print(
        f"{verb} {data} with {noise}: {settings.learner}, preset {settings.preset}{budget}, "
        f"seed {settings.seed}, {settings.device}, in {escaped(path)}"
    )


def show_result(path: Path, result: Line, *, earlier: bool = False) -> None:
    """Print a result and draw it.

    `earlier`: it was finished before, so its folder may be on a read-only or full disk; then no picture is drawn.
    """
    _check_shown(path, result)
    problem = None
    if earlier:
        problem = _draw(path)
    else:
        draw_run(path)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("accuracy at the end", percent(result["accuracy"]))
    if len(result["accuracy_after_task"]) > 1:
        table.add_row("after each task", "  ".join(percent(a) for a in result["accuracy_after_task"]))
        table.add_row("forgetting", percent(result["forgetting"]))
    table.add_row("noise in the stream", percent(result["stream_noise"]))
    if result["n_passed"] is not None:
        table.add_row("noise in what passed the filter", percent(result["passed_noise"]))
        if result.get("auroc") is not None:
            table.add_row("AUROC of the clean probability", percent(result["auroc"]))
    table.add_row(
        "purity of P" if result["n_passed"] is not None else "purity of the memory", percent(result["purity"])
    )
    table.add_row("filtered noise", percent(result["filtered_noise"]))
    times = "  ".join(f"{escaped(phase)} {duration(s)}" for phase, s in result["seconds"].items() if phase != "total")
    table.add_row("time", f"{duration(result['seconds']['total'])}  ({times})")
    out.print(table)
    if result.get("judged_on") == "validation":
        out.print("evaluated on held-out training data, not on the test set")
    if result["budget"] != 1:
        out.print(f"at {result['budget']:g} times the preset's self-supervised epochs")
    out.print(f"in [bold]{escaped(path)}[/bold]: result.json, metrics.jsonl" + ("" if problem else ", run.png"))
    if problem:
        out.print(f"no picture was drawn: {escaped(problem)}")


def _draw(path: Path) -> str | None:
    """Draw a run; returns why its folder cannot be written to, or None."""
    try:
        draw_run(path)
    except WriteError as error:
        return str(error)
    return None


def _check_shown(path: Path, result: Line) -> None:
    """Raise UserError if a result lacks a value that is printed."""
    source = path / "result.json"
    check_result(result, source, _SHOWN)
    if "total" not in result["seconds"]:
        raise UserError(f"{source} holds no result of a run: the total of seconds is missing.")


def show_sweep(outcome: SweepOutcome) -> None:
    """Print the results of a sweep and draw each run; finished runs may be on a read-only disk."""
    problems: list[str | None] = []
    table = Table("run", "accuracy", "purity of the memory", "filtered noise", "time", box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"  # the ends of names tell the runs apart
    for column in table.columns[1:]:
        column.justify = "right"
    for path, result in outcome.results.items():
        if result is None:
            table.add_row(escaped(path.name), "failed", "", "", "")
            continue
        _check_shown(path, result)
        shares = [percent(result[key]) for key in ("accuracy", "purity", "filtered_noise")]
        table.add_row(escaped(path.name), *shares, duration(result["seconds"]["total"]))
        problems.append(_draw(path))
    if not out.is_terminal:  # other programs read whole lines
        table.width = out.measure(table, options=out.options.update(width=sys.maxsize)).maximum
    out.print(table)
    for problem in filter(None, problems):
        out.print(f"no picture was drawn: {escaped(problem)}")


def show_estimate(settings: RunSettings, n_samples: int, guess: Estimate, device: str) -> None:
    """Print steps, memory and time of a run that is not started."""
    names = ("phase", "steps", "ms per step", "time", "networks at once", "networks that fit")
    table = Table(*names, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for phase, speed in guess.seconds_per_step.items():
        steps = guess.workload.steps[phase]
        side, fit = guess.side_by_side[phase], guess.fit[phase]
        table.add_row(phase, f"{steps:,}", f"{1000 * speed:.3f}", duration(steps * speed), f"{side}", f"{fit:,}")
    budget = "" if settings.budget == 1 else f", at {settings.budget:g} times the preset's self-supervised epochs"
    has_buffers = hasattr(settings.options, "delayed_size")
    where = (
        f"{'fill' if has_buffers else 'in'} {guess.workload.n_buffers} {'delayed buffers' if has_buffers else 'pieces'}"
    )
    out.print(f"{n_samples:,} samples of {settings.dataset} {where}{budget}")
    out.print(table)
    out.print(
        f"about [bold]{duration(guess.seconds)}[/bold] on {device}, in about {guess.memory / 2**20:,.0f} MiB of memory"
    )


def show_datasets(places: list[tuple[DatasetInfo, Path | None]], cache: Path) -> None:
    """Print the datasets and where each was found."""
    table = Table("name", "train", "test", "image", "classes", "licence", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[:5]:
        column.justify, column.no_wrap = "right", True
    table.columns[0].justify = "left"
    for info, _ in places:
        shape = "×".join(map(str, info.shape))
        table.add_row(info.name, f"{info.n_train:,}", f"{info.n_test:,}", shape, str(info.n_classes), info.licence)
    out.print(table)
    out.print()
    width = max(len(info.name) for info, _ in places)
    for info, place in places:
        found = f"found in {escaped(place)}" if place else f"[yellow]not here[/yellow], {info.how}"
        out.print(f"{info.name:{width}}  {found}")
    out.print(f"\nFiles are searched under PUREREPLAY_DATA, then in {escaped(cache)}.")


def show_settings(entry: Entry, preset: str | None) -> None:
    """Print every setting of a learner: default, unit, meaning, values, source, and the presets that change it."""
    own = {**entry.settings.presets.get(preset or "", {}), **entry.fixed}
    heads = ("setting", "default" if preset is None else preset, "unit", "meaning")
    table = Table(*heads, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for f in fields(entry.settings):
        changed = f.name in own
        value = setting_text(own[f.name]) if changed else default_text(f)
        meaning = Text(f.metadata["meaning"])
        for head, text in setting_notes(entry, f.name).items():
            if preset is None or head != "presets":
                meaning.append(f"\n{head}: {text}", style="dim")
        table.add_row(f.name, Text(value, style="bold" if changed else ""), f.metadata["unit"], meaning)
    out.print(f"[bold]{entry.name}[/bold]: {entry.summary}")
    if preset is not None:
        out.print(f"preset {preset}: {PRESETS.get(preset, '')}")
    out.print(table)
    out.print("Change a setting with --set NAME=VALUE.")


def setting_notes(entry: Entry, name: str) -> dict[str, str]:
    """Return what there is to say about a setting besides its meaning: by data, values, source, presets."""
    about = field_of(entry.settings, name).metadata
    in_presets = {preset: values[name] for preset, values in entry.settings.presets.items() if name in values}
    notes = {
        "by data": about["by_data"],
        "values": ", ".join(choices(entry.settings, name)),
        "fixed": f"always {setting_text(entry.fixed[name])} with this learner" if name in entry.fixed else "",
        "source": about["source"],
        "presets": ", ".join(f"{preset} {setting_text(value)}" for preset, value in in_presets.items()),
    }
    return {head: text for head, text in notes.items() if text}


def default_text(f: Any) -> str:
    """Return the default of a settings field as text."""
    return "by data" if f.default is MISSING else setting_text(f.default)


def setting_text(value: Any) -> str:
    """Return a value as it is written on the command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
