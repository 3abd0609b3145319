"""Terminal output of the commands on a state: progress of `learn`, predictions, audit, corrections and status."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from purereplay.live.memory_settings import FullMemorySettings
from purereplay.live.plan import Plan
from purereplay.live.predict import Prediction
from purereplay.live.shapes import Chosen
from purereplay.live.status import NoiseStatus, Status
from purereplay.live.verdicts import Estimate
from purereplay.nets.engine import TrainingProgress
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
Measured = dict[str, float]


class LearnBars(LearnObserver):
    """Bars of `learn`: items added, samples scored with the time left, and steps of the current training."""

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
        self._update("judging", done, total, self.judging_text(work, done, total))

    def scored(self, progress: LearnProgress, report: FilterReport | Judged) -> None:
        self._update_scored(progress, None)
        step = report.n_samples if isinstance(report, Judged) else report.buffer
        self.write(_measured(progress, report), step)

    def _update_scored(self, progress: LearnProgress, now: TrainingProgress | None) -> None:
        text = f"{progress.n_scored:,} of {progress.n_to_score:,} samples"
        left = seconds_left(progress.steps, [progress.account], now)
        text += time_left(left, progress.n_scored, progress.n_to_score)
        self._update("scored", progress.n_scored, progress.n_to_score, text)

    def _update(self, name: str, done: int, total: int | None, text: str) -> None:
        if name not in self.rows:
            self.rows[name] = self.bars.add_task(name, total=total, what="")
        self.bars.update(self.rows[name], completed=done, total=total, what=text)
        self.lines(f"{name}: {text}")


class _JudgingText:
    """Text about judging all samples: the current work, its steps, and the time that is left of it."""

    def __init__(self) -> None:
        self.phase = ("", 0.0)  # name, and when it began

    def __call__(self, work: str, done: int, total: int | None) -> str:
        phase, now = work.partition(":")[0], time.monotonic()
        if phase != self.phase[0]:
            self.phase = (phase, now)
        left = (now - self.phase[1]) * (total - done) / done if done and total else None
        text = work + (f" {done:,} of {total:,}" if total else "")
        return text + time_left(left, done, total)


class _FileBars(LearnBars):
    """Bars of `learn` that also name refused items on standard error; a pipe names them in its answers."""

    def took(self, progress: LearnProgress, outcomes: list[Outcome]) -> None:
        show_refused(outcomes)
        super().took(progress, outcomes)


@contextmanager
def learning(*, is_pipe: bool, state: Path, log: str | None = None) -> Iterator[LearnBars]:
    """Show the progress of `learn` within the block; Ctrl-C stops it at the next step. `log` as in `sinks`."""
    sinks = Sinks(log)
    log_to(_stderr if is_pipe else out)
    with progress_bars(disable=is_pipe) as bars, interruptible() as interrupted:
        kind = LearnBars if is_pipe else _FileBars
        try:
            yield kind(bars, interrupted, lambda values, step: sinks.write(state, values, step))
        finally:
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
    """Print what `learn` would do."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    counts = f"{plan.n_items:,}, of these in the state {plan.n_known:,}, unusable {plan.n_unusable:,}"
    table.add_row("images", counts + (f", moved {plan.n_moved:,}" if plan.n_moved else ""))
    if plan.n_read < plan.n_items:
        table.add_row("", f"only {plan.n_read:,} of them were read: more may be unusable or moved")
    if plan.n_others:
        table.add_row("other files", f"{plan.n_others:,}, skipped")
    names = sorted(plan.labels, key=lambda name: -plan.labels[name])
    shown = ", ".join(f"{name} {plan.labels[name]:,}" for name in names[:_PAIRS]) + (", …" if names[_PAIRS:] else "")
    table.add_row("labels", Text(printable(f"{len(names):,}: {shown}")))
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
        table.add_row("learner", f"{plan.settings.learner}, preset {plan.settings.preset}, seed {plan.settings.seed}")
        if (encoder := plan.settings.encoder) is not None:
            table.add_row("encoder", Text(printable(f"{encoder.text}, {encoder.dim:,} features")))
    table.add_row("room on disk", f"{plan.n_bytes / 2**20:,.1f} MiB")
    table.add_row("time", "unknown" if plan.seconds is None else f"about {duration(plan.seconds)}")
    out.print(table)
    for sentence in plan.warnings:
        _stderr.print(sentence)
    out.print("Nothing was written.")


def show_learned(state: Path, done: LearnProgress) -> None:
    """Print the counts of `learn`."""
    out.print(f"samples added: {done.n_new:,}, already known: {done.n_known:,}, scored: {done.n_scored:,}")
    if done.n_corrected:
        out.print(f"files moved to another label: {done.n_corrected:,}; their labels are corrected")
    show_new_labels(done.new_labels)
    if done.others:
        out.print(f"files skipped, since they are no images: {_some(done.others)}", markup=False)
    command = f"`purereplay audit --state {printable(str(state))} --out audit.csv`"
    if done.judged is not None:
        show_judged(done.judged)
        out.print(f"list the suspicious labels with {command}", markup=False)
    elif done.n_scored:
        out.print(f"of these rejected: {done.n_rejected:,}; list them with {command}", markup=False)
    if done.judged is not None or done.n_scored:
        out.print(f"or review them in the browser: `purereplay review --state {printable(str(state))}`", markup=False)


def show_new_labels(labels: Sequence[str]) -> None:
    """Print labels that no sample had before."""
    if labels:
        out.print(f"new labels, perhaps misspelt, which no sample had before: {_some(labels)}", markup=False)


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
    out.print(f"see the labels of these images and set them right: {command}", markup=False)


def show_judged(judged: Judged) -> None:
    """Print the outcome of judging all samples of a state."""
    noise = "unknown" if judged.noise is None else _share(judged.noise)
    out.print(
        f"labels rejected: {judged.n_rejected:,} of {judged.n_samples:,}; estimated share of wrong labels: {noise}"
    )
    if judged.n_changed:
        out.print(f"decisions that changed: {judged.n_changed:,}")


def _share(noise: Estimate) -> str:
    return f"{percent(noise.rate)} ({percent(noise.low)} to {percent(noise.high)})"


def show_refused(outcomes: list[Outcome]) -> None:
    """Name refused items on standard error, one per line."""
    for outcome in outcomes:
        if outcome.error is not None:
            sys.stderr.write(printable(outcome.sentence) + "\n")


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
        f"samples scored: {done.scored:,}, listed in {printable(str(path))} by clean probability, lowest first",
        markup=False,
    )
    out.print(f"of these rejected: {done.rejected:,}; another label is more likely for {done.disputed:,} of them")
    if done.unjudged:
        out.print(f"could not be judged, since too few samples have the label: {done.unjudged:,}; they come last")
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
        lines, text_of = PlainLines(bars), _JudgingText()

        def show(work: str, n: int, total: int | None) -> None:
            text = text_of(work, n, total)
            bars.update(row, completed=n, total=total, what=text)
            lines(f"{name}: {text}")

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
    table = Table("label", "samples", "scored", "rejected", box=None, padding=(0, 2, 0, 0))
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
        out.print(_pair_table(pairs))


def _pair_table(pairs: list[NoiseStatus]) -> Table:
    table = Table("given label", "likely label", "share of the given", box=None, padding=(0, 2, 0, 0))
    table.columns[2].justify = "right"
    for row in pairs:
        table.add_row(Text(printable(row["given"] or "")), Text(printable(row["likely"] or "")), _told(row))
    return table


def _told(noise: NoiseStatus) -> str:
    return f"{percent(noise['rate'])} ({percent(noise['low'])} to {percent(noise['high'])})"


def _add_memory_rows(table: Table, status: Status) -> None:
    """Add the rows of the learner full-memory."""
    following = "" if status["next_revision"] is None else f", again with {status['next_revision']:,} samples"
    revisions = times(status["revisions"]) if status["revisions"] else "not yet"
    table.add_row("judged", f"{status['scored'] - status['unjudged']:,}; all together {revisions}{following}")
    table.add_row("accepted, rejected", f"{status['accepted']:,}, {status['rejected']:,}")
    _add_unjudged(table, status)
    table.add_row("waiting", f"{status['waiting']:,}")
    table.add_row("teaching the classifier", f"{status['purified']:,}")
    table.add_row("corrected", f"{status['corrected']:,}")
    overall = [row for row in status["noise"] if row["given"] is None]
    table.add_row("wrong labels, estimated", _told(overall[0]) if overall else "unknown")


def _add_unjudged(table: Table, status: Status) -> None:
    if status["unjudged"]:
        table.add_row("could not be judged", f"{status['unjudged']:,}: too few samples have the label")


def _summary(status: Status) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    shape = status["image_shape"]
    table.add_row("images", "none yet" if shape is None else "×".join(map(str, shape)))
    table.add_row("samples", f"{status['samples']:,}")
    if status["delayed_size"] is None:
        _add_memory_rows(table, status)
    else:
        table.add_row("scored", f"{status['scored']:,} in {status['buffers']:,} buffers")
        table.add_row("accepted, rejected", f"{status['accepted']:,}, {status['rejected']:,}")
        _add_unjudged(table, status)
        table.add_row("waiting", f"{status['waiting']:,} of {status['delayed_size']} that fill a buffer")
        table.add_row("in the purified buffer", f"{status['purified']:,} of {status['purified_size']}")
        table.add_row(
            "corrected", f"{status['corrected']:,}, in the purified buffer {status['corrected_in_purified']:,}"
        )
    table.add_row("created with", f"learner {status['learner']}, preset {status['preset']}, seed {status['seed']}")
    if status["encoder"] is not None:
        table.add_row("encoder", Text(printable(status["encoder"])))
    table.add_row("size on disk", f"{status['bytes'] / 2**20:,.1f} MiB")
    return table
