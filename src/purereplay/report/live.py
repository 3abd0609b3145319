"""Terminal output of the commands on a state: progress of `learn`, predictions, audit, corrections and status."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TaskID
from rich.table import Table
from rich.text import Text
from torch import Tensor

from purereplay.data.text import printable, spreadsheet_safe
from purereplay.learners.base import FilterReport
from purereplay.live.audit import Audited
from purereplay.live.export.exporter import Exported
from purereplay.live.full_memory import Judged
from purereplay.live.items import Outcome
from purereplay.live.learn import LearnObserver, LearnProgress
from purereplay.live.lists import NOT_FOUND
from purereplay.live.memory_settings import FULL_MEMORY, FullMemorySettings
from purereplay.live.plan import Plan
from purereplay.live.predict import Prediction
from purereplay.live.shapes import Chosen
from purereplay.live.status import NoiseStatus, Status
from purereplay.live.verdicts import Estimate
from purereplay.nets.engine import TrainingProgress
from purereplay.purify.opinions import JudgingShare
from purereplay.report.sinks import Sinks
from purereplay.report.terminal import (
    PlainLines,
    duration,
    interruptible,
    log_to,
    out,
    percent,
    progress_bars,
    seconds_left,
    time_left,
    times,
)

_stderr = Console(stderr=True, highlight=False, soft_wrap=True)  # standard output is for answers alone
_PAIRS = 10  # of labels, in `status`
_REFUSED = 10  # items that are named
Measured = dict[str, float]


class LearnBars(LearnObserver):
    """Bars of `learn`: items added, samples judged with the time left, and steps of the current training."""

    def __init__(self, bars: Bars, interrupted: list[bool], write: Callable[[Measured, int], None]) -> None:
        self.bars = bars
        self.write = write  # receives the numbers of every buffer
        self.interrupted = interrupted  # not empty once Ctrl-C was pressed
        self.lines = PlainLines(bars)
        self.rows: dict[str, TaskID] = {}
        self.judging_text = _JudgingText()
        self.began: float | None = None  # when the first items were added

    def should_stop(self) -> bool:
        return bool(self.interrupted)

    def end(self) -> None:
        """Print what is left to be said, after everything else."""

    def chose(self, chosen: Chosen) -> None:
        if chosen.resizes:
            (_stderr if self.bars.disable else self.bars).print(chosen.sentence)

    def warned(self, sentence: str) -> None:
        _stderr.print(sentence)

    def took(self, progress: LearnProgress, outcomes: list[Outcome]) -> None:
        n, total, now = progress.n_seen, progress.total, time.monotonic()
        self.began, n_before = self.began or now, n - len(outcomes)
        left = (now - self.began) * (total - n) / n_before if total and n_before else None
        text = f"{n:,}" + (f" of {total:,}" if total else "")
        self._update("added", n, total, text + time_left(left, n, total))

    def training(self, progress: LearnProgress, now: TrainingProgress) -> None:
        self._update("training", now.done, now.total, f"{now.phase}: step {now.done:,} of {now.total:,}")
        self._update_scored(progress, now)

    def judging(self, progress: LearnProgress, work: str, done: int, total: int | None) -> None:
        text, share, of_all = self.judging_text(work, done, total)
        self._update("judging", share, of_all, text)

    def scored(self, progress: LearnProgress, report: FilterReport | Judged) -> None:
        self._update_scored(progress, None)
        step = report.n_samples if isinstance(report, Judged) else report.buffer
        self.write(_measured(progress, report), step)

    def _update_scored(self, progress: LearnProgress, now: TrainingProgress | None) -> None:
        text = f"{progress.n_scored:,} of {progress.n_to_score:,} samples"
        left = seconds_left(progress.steps, [progress.account], now)
        text += time_left(left, progress.n_scored, progress.n_to_score)
        self._update("judged", progress.n_scored, progress.n_to_score, text)

    def _update(self, name: str, done: float, total: float | None, text: str) -> None:
        if name not in self.rows:
            self.rows[name] = self.bars.add_task(name, total=total, what="")
        self.bars.update(self.rows[name], completed=done, total=total, what=text.removeprefix(f"{name} "))
        self.lines(_line(name, text))


def _line(name: str, text: str) -> str:
    return text if text.startswith(f"{name} ") else f"{name}: {text}"


class _JudgingText:
    """Text about judging all samples: the share of all stages that is done, and the time that is left.

    Other work, such as writing a file, has its own steps.
    """

    def __init__(self) -> None:
        self.share = JudgingShare()
        self.last = ("", 0.0)  # the work, and the share of it that was done
        self.began = 0.0  # when it began

    def __call__(self, work: str, done: int, total: int | None) -> tuple[str, float, float | None]:
        """Return the text, what is done, and of how much."""
        overall, now = self.share(work, done, total), time.monotonic()
        name = work.partition(":")[0] if overall is None else "all stages"
        share = overall if overall is not None else done / total if total else 0.0
        if name != self.last[0] or share < self.last[1]:
            self.began = now
        self.last = (name, share)
        left = (now - self.began) * (1 - share) / share if share else None
        if overall is None:
            return work + (f" {done:,} of {total:,}" if total else "") + time_left(left, done, total), done, total
        about = "" if left is None or share >= 1 else f", about {duration(left)} left"
        return self.share.text(share) + about, share, 1.0


class _FileBars(LearnBars):
    """Bars of `learn` that also name the first refused items on standard error; a pipe names them in its answers."""

    def __init__(self, bars: Bars, interrupted: list[bool], write: Callable[[Measured, int], None]) -> None:
        super().__init__(bars, interrupted, write)
        self.refused = RefusedLines()

    def took(self, progress: LearnProgress, outcomes: list[Outcome]) -> None:
        self.refused(outcomes)
        super().took(progress, outcomes)

    def end(self) -> None:
        self.refused.end()


@contextmanager
def learning(*, is_pipe: bool, state: Path, log: str | None = None) -> Iterator[LearnBars]:
    """Show the progress of `learn` within the block; Ctrl-C stops it at the next step. `log` as in `sinks`."""
    sinks = Sinks(log)
    log_to(_stderr if is_pipe else out)
    with progress_bars(disable=is_pipe) as bars, interruptible() as interrupted:
        kind = LearnBars if is_pipe else _FileBars
        observer = kind(bars, interrupted, lambda values, step: sinks.write(state, values, step))
        try:
            yield observer
        finally:
            observer.end()
            sinks.close()


def _measured(progress: LearnProgress, report: FilterReport | Judged) -> Measured:
    """Return the numbers of one buffer, or of one time that full-memory has judged samples."""
    if isinstance(report, Judged):
        counts = {"n_samples": report.n_samples, "n_rejected": report.n_rejected, "n_changed": report.n_changed}
        judged: Measured = {f"judged/{name}": n for name, n in counts.items()}
        return judged | ({} if report.noise is None else {"judged/noise": report.noise.rate})
    return {
        "buffer/n": len(report.selected_mask),
        "buffer/accepted_share": float(report.selected_mask.double().mean()),
        "buffer/mean_clean_probability": float(report.clean_probability.mean()),
        "buffer/n_purified": len(report.held_index),
        "buffer/n_scored": progress.n_scored,
    } | ({} if report.base_loss is None else {"buffer/base_loss": report.base_loss})


def show_plan(plan: Plan) -> None:
    """Print what `learn` would do, and name the first items that it would refuse on standard error."""
    show_refused(plan.refused)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    counts = f"{plan.n_items:,}, of these in the state {plan.n_known:,}, unusable {len(plan.refused):,}"
    table.add_row("images", counts + (f", moved {plan.n_moved:,}" if plan.n_moved else ""))
    if plan.n_read < plan.n_items:
        table.add_row("", f"only {plan.n_read:,} of them were read: more may be unusable or moved")
    if plan.n_others:
        table.add_row("other files", f"{plan.n_others:,}, skipped")
    table.add_row("labels", Text(printable(f"{len(plan.labels):,}: {_by_label(plan.labels)}")))
    if plan.new:
        table.add_row("new", Text(printable(f"{sum(plan.new.values()):,}: {_by_label(plan.new)}")))
    if plan.new_labels:
        table.add_row("new labels", Text(_some(plan.new_labels)))
    if plan.chosen is not None:
        table.add_row("sizes", plan.chosen.sentence)
    if plan.settings is not None:
        channels, height, width = plan.settings.shape
        table.add_row(
            "kept as" if plan.settings.encoder else "learned as",
            f"{width:,} × {height:,} pixels, {'colour' if channels == 3 else 'grey'}",
        )
        table.add_row("learner", _created_with(plan.settings.learner, plan.settings.preset, plan.settings.seed))
        if (encoder := plan.settings.encoder) is not None:
            table.add_row("encoder", Text(printable(f"{encoder.text}, {encoder.dim:,} features")))
    table.add_row("room on disk", f"{plan.n_bytes / 2**20:,.1f} MiB")
    about = "unknown" if plan.seconds is None else f"about {duration(plan.seconds)}"
    table.add_row("time", about if plan.seconds != 0 else "0 s, since nothing is new")
    out.print(table)
    for sentence in plan.warnings:
        _stderr.print(sentence)
    out.print("Nothing was written.")


def _created_with(learner: str, preset: str, seed: int) -> str:
    """Return learner, preset and seed as text; full-memory has no presets."""
    return f"{learner}, " + ("" if learner == FULL_MEMORY else f"preset {preset}, ") + f"seed {seed}"


def _by_label(counts: Mapping[str, int]) -> str:
    """Return the largest of some counts by label."""
    names = sorted(counts, key=lambda name: -counts[name])
    return ", ".join(f"{name} {counts[name]:,}" for name in names[:_PAIRS]) + (", …" if names[_PAIRS:] else "")


def show_learned(state: Path, done: LearnProgress, *, is_pipe: bool = False) -> None:
    """Print the counts of `learn`; those of a pipe on standard error, since its answers are on standard output."""
    console = _stderr if is_pipe else out
    console.print(f"samples added: {done.n_new:,}, already known: {done.n_known:,}, judged: {done.n_scored:,}")
    if done.n_corrected:
        console.print(f"files moved to another label: {done.n_corrected:,}; their labels are corrected")
    show_new_labels(done.new_labels, console)
    if done.others:
        console.print(f"files skipped because they are not images: {_some(done.others)}", markup=False)
    command = f"`purereplay audit --state {printable(str(state))} --out audit.csv`"
    if done.judged is not None:
        show_judged(done.judged, console)
        console.print(f"list the suspicious labels with {command}", markup=False)
    elif done.n_scored:
        console.print(f"of these rejected: {done.n_rejected:,}; list them with {command}", markup=False)
    if done.judged is not None or done.n_scored:
        console.print(
            f"or review them in the browser: `purereplay review --state {printable(str(state))}`", markup=False
        )


def show_new_labels(labels: Sequence[str], console: Console = out) -> None:
    """Print labels that no sample had before."""
    if labels:
        console.print(f"new labels (check the spelling): {_some(labels)}", markup=False)


def _some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _PAIRS:,} more" if len(names) > _PAIRS else ""
    return printable(", ".join(names[:_PAIRS])) + more


def show_memory_settings() -> None:
    """Print the settings of the learner full-memory."""
    table = Table("setting", "default", "unit", "meaning", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for f in fields(FullMemorySettings):
        table.add_row(f.name, f"{f.default:,}", f.metadata["unit"], f.metadata["meaning"])
    out.print("[bold]full-memory[/bold]: every sample of a state is remembered, judged again and teaches")
    out.print(table)
    out.print("Change a setting of a new state with `learn --set NAME=VALUE`.")


def show_review(state: Path) -> None:
    """Name the command that reviews a state."""
    command = f"`purereplay review --state {printable(str(state))}`"
    out.print(f"review and correct the labels of these images: {command}", markup=False)


def show_judged(judged: Judged, console: Console = out) -> None:
    """Print the outcome of judging all samples of a state."""
    noise = "unknown" if judged.noise is None else _share(judged.noise)
    console.print(
        f"labels rejected: {judged.n_rejected:,} of {judged.n_samples:,}; estimated share of wrong labels: {noise}"
    )
    if judged.n_changed:
        console.print(f"decisions that changed: {judged.n_changed:,}")


def _share(noise: Estimate) -> str:
    return f"{percent(noise.rate)} ({percent(noise.low)} to {percent(noise.high)})"


class RefusedLines:
    """Names the first refused items on standard error, one per line, and counts the others."""

    def __init__(self) -> None:
        self.n = 0  # refused items
        self.root: str | None = None  # folder in which files of a list were not found; None: all were

    def __call__(self, outcomes: Iterable[Outcome]) -> None:
        """Take note of items."""
        for outcome in outcomes:
            if outcome.error is None:
                continue
            self.n += 1
            if outcome.error.startswith(NOT_FOUND):
                self.root = outcome.error.removeprefix(NOT_FOUND)
            if self.n <= _REFUSED:
                sys.stderr.write(printable(outcome.sentence) + "\n")

    def end(self) -> None:
        """Print how many more were refused, and where files of a list were looked for."""
        if self.n > _REFUSED:
            sys.stderr.write(f"… and {self.n - _REFUSED:,} more\n")
        if self.root is not None:
            folder = "the folder of the list, or that of --root"
            sys.stderr.write(
                printable(f"paths are relative to {self.root}, {folder}: choose another with --root") + "\n"
            )


def show_refused(outcomes: Iterable[Outcome]) -> None:
    """Name the first refused items on standard error, one per line, and the number of the others."""
    lines = RefusedLines()
    lines(outcomes)
    lines.end()


def preparing() -> AbstractContextManager[object]:
    """Show a message while the classifier is loaded, or finetuned if its learner does that when it is first needed."""
    return _stderr.status("preparing the classifier")


def show_predictions(answers: Iterable[Prediction], labels: list[str], form: str) -> int:
    """Print predictions as a table, JSON lines or CSV; returns how many images were refused."""
    refused: list[Prediction] = []
    forms = {"table": _as_table, "jsonl": _as_jsonl, "csv": _as_csv}
    forms[form](_readable(answers, refused), labels)
    return len(refused)


def _readable(answers: Iterable[Prediction], refused: list[Prediction]) -> Iterator[tuple[Prediction, Tensor]]:
    """Yield the predictions; images that were refused are named on standard error and collected in `refused`."""
    for answer in answers:
        if answer.probabilities is None:
            refused.append(answer)
            sys.stderr.write(printable(f"{answer.path} {answer.error}") + "\n")
        else:
            yield answer, answer.probabilities


def _as_table(answers: Iterable[tuple[Prediction, Tensor]], labels: list[str]) -> None:
    table = Table("image", "label", "probability", "next", "probability", box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"  # the end of a path must stay visible
    for answer, probabilities in answers:
        best = probabilities.topk(min(2, len(labels)))
        cells = [(labels[i], percent(p)) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        table.add_row(*(Text(printable(text)) for text in (str(answer.path), *(t for cell in cells for t in cell))))
    out.print(table)


def _as_jsonl(answers: Iterable[tuple[Prediction, Tensor]], labels: list[str]) -> None:
    for answer, probabilities in answers:
        by_label = dict(zip(labels, (round(p, 6) for p in probabilities.tolist()), strict=True))
        best = labels[int(probabilities.argmax())]
        path = os.fsencode(answer.path).decode("utf-8", "surrogateescape")  # whatever the locale calls its bytes
        line = {"image": path, "label": best, "probability": by_label[best], "probabilities": by_label}
        sys.stdout.write(json.dumps(line) + "\n")


def _as_csv(answers: Iterable[tuple[Prediction, Tensor]], labels: list[str]) -> None:
    # a file for a spreadsheet, where a line end within quotes is part of a cell; or text in a terminal
    shown = printable if sys.stdout.isatty() else spreadsheet_safe
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "label", "probability", *(shown(f"probability of {label}") for label in labels)])
    for answer, probabilities in answers:
        texts = [f"{p:.6f}" for p in probabilities.tolist()]
        best = int(probabilities.argmax())
        writer.writerow([shown(str(answer.path)), shown(labels[best]), texts[best], *texts])


@contextmanager
def counting(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while an audit is written or a plan is made; yields the callback that moves it."""
    with progress_bars() as bars:
        row = bars.add_task(name, total=None, what="")
        yield lambda n, total: bars.update(row, completed=n, total=total)


def show_audit(path: Path, done: Audited) -> None:
    """Print the counts of an audit."""
    out.print(
        f"samples judged: {done.scored:,}, listed in {printable(str(path))} by clean probability, lowest first",
        markup=False,
    )
    out.print(f"of these rejected: {done.rejected:,}; another label is more likely for {done.disputed:,} of them")
    if done.unjudged:
        out.print(f"could not be judged: {done.unjudged:,}, since {done.unjudged_reason}; they come last")
    if done.waiting:
        out.print(f"waiting, not listed: {done.waiting:,}; `purereplay learn … --score-rest` judges them")
    if done.noise is not None:
        out.print(f"estimated share of wrong labels: {_share(done.noise)}; `status` lists it by label and by pair")


def show_corrections(outcomes: list[Outcome]) -> int:
    """Print the counts of corrections; returns how many were refused."""
    show_refused(outcomes)
    n_samples = len({o.name for o in outcomes if o.error is None})
    n_new = len({o.name for o in outcomes if o.new})
    out.print(f"labels corrected: {n_new:,}, already corrected: {n_samples - n_new:,}")
    return sum(o.error is not None for o in outcomes)


def show_held(outcomes: list[Outcome], n_held: int, capacity: int) -> None:
    """Print how many corrected samples the purified buffer holds."""
    n_samples = len({o.name for o in outcomes if o.error is None})
    out.print(f"of these in the purified buffer: {n_held:,}")
    if n_held < n_samples:
        out.print(
            f"The purified buffer holds {capacity:,} samples, balanced over the labels; the newest corrections stay "
            f"in it. The other {n_samples - n_held:,} are recorded and listed by `audit`, but not learned from; "
            "a new state with a larger purified_size holds more.",
            markup=False,
        )


@contextmanager
def settling(name: str = "judging") -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar and what is done, such as while all samples are judged again; yields the callback that moves it."""
    with progress_bars() as bars:
        row = bars.add_task(name, total=None, what="")
        lines, text_of, is_told = PlainLines(bars), _JudgingText(), name != "judging"

        def show(work: str, n: int, total: int | None) -> None:
            nonlocal is_told
            if not is_told and work == "features" and total:
                bars.print(f"all {total:,} samples are judged again")
                is_told = True
            text, done, of_all = text_of(work, n, total)
            bars.update(row, completed=done, total=of_all, what=text.removeprefix(f"{name} "))
            lines(_line(name, text))

        yield show


def exporting() -> AbstractContextManager[Callable[[str, int, int | None], None]]:
    """Show the same while a classifier is exported."""
    return settling("exporting")


def show_model(done: Exported) -> None:
    """Print the files of an exported classifier."""
    a, n = done.accuracy, done.check.n
    if a is not None:
        how = "measured" if a.measured else "estimated without true labels"
        out.print(f"accuracy: {percent(a.rate)} ({percent(a.low)} to {percent(a.high)}), {how}")
        if a.n_refused:
            out.print(f"test images that could not be used: {a.n_refused:,} of {a.n + a.n_refused:,}")
    out.print(f"largest difference from the state's own probabilities on {n:,} samples: {done.check.difference:.1e}")
    out.print(f"classifier: {printable(str(done.model))}", markup=False)
    out.print(f"model card: {printable(str(done.card))}", markup=False)


def show_recorded(outcomes: list[Outcome]) -> int:
    """Print the counts of corrections that a running `learn` takes up; returns how many were refused."""
    show_refused(outcomes)
    n_new = len({o.name for o in outcomes if o.new})
    out.print(f"labels recorded: {n_new:,}; the process that works on the state takes them up after its current step")
    return sum(o.error is not None for o in outcomes)


def show_status(status: Status, form: str) -> None:
    """Print a state in a few numbers, as tables or JSON."""
    if form == "json":
        sys.stdout.write(json.dumps(status, indent=2) + "\n")
        return
    out.print(_summary(status))
    table = Table("label", "samples", "judged", "rejected", box=None, padding=(0, 2, 0, 0))
    if status["unjudged"]:
        table.add_column("not judged")
    for column in table.columns[1:]:
        column.justify = "right"
    noise = {row["given"]: row for row in status["noise"] if row["likely"] is None}
    if noise:
        table.add_column("wrong, estimated", justify="right")
    for row in status["classes"]:
        cells = [f"{row['samples']:,}", f"{row['scored']:,}", f"{row['rejected']:,}"]
        if status["unjudged"]:
            cells.append(f"{row['unjudged']:,}")
        if noise:
            cells.append(_told(noise[row["label"]]) if row["label"] in noise else "–")
        table.add_row(Text(printable(row["label"])), *cells)
    out.print(table)
    pairs = [row for row in status["noise"] if row["likely"] is not None][:_PAIRS]
    if pairs:
        number = "ten " if len(pairs) == _PAIRS else ""
        out.print(f"\nthe {number}most frequent mistakes (estimated)")
        out.print(_pair_table(pairs))


def _pair_table(pairs: list[NoiseStatus]) -> Table:
    table = Table("given label", "likely label", "samples", "share of the given", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[2:]:
        column.justify = "right"
    for row in pairs:
        names = (Text(printable(name or "")) for name in (row["given"], row["likely"]))
        table.add_row(*names, f"{row['n'] * row['rate']:.0f}", _told(row))
    return table


def _told(noise: NoiseStatus) -> str:
    return f"{percent(noise['rate'])} ({percent(noise['low'])} to {percent(noise['high'])})"


def _told_of(noise: NoiseStatus, n_corrected: int) -> str:
    """Return the estimate of all labels; those that a person has checked are not among them."""
    if not n_corrected:
        return _told(noise)
    of = f" of the {noise['n']:,} labels that no person has checked "
    return percent(noise["rate"]) + of + f"({percent(noise['low'])} to {percent(noise['high'])})"


def _add_memory_rows(table: Table, status: Status) -> None:
    """Add the rows of the learner full-memory."""
    n, following = f"{status['scored'] - status['unjudged']:,}", f"{status['next_revision'] or 0:,} samples"
    so_far = f"judged {times(status['revisions'])} so far; next time with {following}"
    table.add_row(
        "judged", f"{n}; " + (so_far if status["revisions"] else f"all are judged for the first time with {following}")
    )
    table.add_row("accepted, rejected", f"{status['accepted']:,}, {status['rejected']:,}")
    _add_unjudged(table, status)
    table.add_row("waiting", f"{status['waiting']:,}")
    table.add_row("corrected", f"{status['corrected']:,}")
    overall = [row for row in status["noise"] if row["given"] is None]
    table.add_row("wrong labels, estimated", _told_of(overall[0], status["corrected"]) if overall else "unknown")


def _add_unjudged(table: Table, status: Status) -> None:
    if status["unjudged"]:
        table.add_row("could not be judged", f"{status['unjudged']:,}: {status['unjudged_reason']}")


def _summary(status: Status) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    shape = status["image_shape"]
    table.add_row("images", "none yet" if shape is None else "×".join(map(str, shape)))
    table.add_row("samples", f"{status['samples']:,}")
    if status["delayed_size"] is None:
        _add_memory_rows(table, status)
    else:
        table.add_row("judged", f"{status['scored']:,} in {status['buffers']:,} buffers")
        table.add_row("accepted, rejected", f"{status['accepted']:,}, {status['rejected']:,}")
        _add_unjudged(table, status)
        table.add_row("waiting", f"{status['waiting']:,} of {status['delayed_size']} that fill a buffer")
        table.add_row("in the purified buffer", f"{status['purified']:,} of {status['purified_size']}")
        table.add_row(
            "corrected", f"{status['corrected']:,}, in the purified buffer {status['corrected_in_purified']:,}"
        )
    table.add_row("created with", f"learner {_created_with(status['learner'], status['preset'], status['seed'])}")
    if status["encoder"] is not None:
        table.add_row("encoder", Text(printable(status["encoder"])))
    table.add_row("size on disk", f"{status['bytes'] / 2**20:,.1f} MiB")
    return table
