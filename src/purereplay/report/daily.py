"""What a person sees of a learner in daily use: progress while it learns, predictions, the audit, the state."""

from __future__ import annotations

import csv
import json
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text
from torch import Tensor

from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.plan import plan_spr
from purereplay.learners.base import Report
from purereplay.live import audit as auditing
from purereplay.live.classifying import Prediction, ready_classifier
from purereplay.live.classifying import predict as predictions
from purereplay.live.corrections import correct as apply_corrections
from purereplay.live.intake import Source, open_source
from purereplay.live.items import Outcome
from purereplay.live.learning import Session, make_engine
from purereplay.live.pipe import acknowledge
from purereplay.live.settings import Wanted
from purereplay.live.store import Store
from purereplay.nets.engine import TrainingProgress
from purereplay.report.progress import duration, interruptible, out, percent, progress_bars, seconds_left

_aside = Console(stderr=True, highlight=False, soft_wrap=True)  # standard output belongs to the answers


class LearningShow:
    """Bars for a session: samples taken in, buffers learned with the time left, steps of what is being trained."""

    def __init__(self, bars: Progress, source: Source, interrupted: list[bool]) -> None:
        self.bars = bars
        self.source = source
        self.interrupted = interrupted  # holds something once Ctrl-C was pressed
        self.session: Session | None = None
        self.begun_at = 0  # the session's first sample that is not learned yet
        self.n_seen = self.n_new = self.n_refused = 0
        self.n_judged = self.n_rejected = 0
        self.said = time.monotonic()
        self.rows: dict[str, TaskID] = {}

    def training(self, now: TrainingProgress) -> None:
        """Called by the engine a few times a second; here and between chunks a session can be interrupted."""
        self.check_interrupted()
        self._row("training", now.done, now.total, f"{now.phase}: step {now.done:,} of {now.total:,}")
        self._learning(now)

    def check_interrupted(self) -> None:
        if self.interrupted:
            raise Interrupted("Stopped.")

    def taken(self, outcomes: list[Outcome]) -> None:
        """What came in."""
        self.n_seen += len(outcomes)
        self.n_new += sum(outcome.new for outcome in outcomes)
        self.n_refused += sum(outcome.error is not None for outcome in outcomes)
        total = self.source.total
        self._row("taken in", self.n_seen, total, f"{self.n_seen:,}" + (f" of {total:,}" if total else ""))

    def judged(self, report: Report) -> None:
        assert report.selected_mask is not None
        self.n_judged += len(report.selected_mask)
        self.n_rejected += int((~report.selected_mask).sum())
        self._learning(None)

    def _learning(self, now: TrainingProgress | None) -> None:
        assert self.session is not None
        waiting = self.session.store.n_samples - self.begun_at
        expected = max(waiting, (self.source.total or 0) - self.n_seen + waiting)
        what = f"{self.n_judged:,} of {expected:,} samples"
        options = self.session.settings.options
        if options.delayed_size is not None and expected:
            steps = plan_spr(options, (expected,)).steps
            work = {phase: n for phase, n in steps.items() if phase != "finetune"}  # only `predict` needs that
            left = seconds_left(work, [self.session.account], now)
            what += "" if left is None else f", {duration(left)} left"
        self._row("judged", self.n_judged, expected, what)
        if (
            not (out.is_terminal or self.bars.disable) and time.monotonic() - self.said > 30
        ):  # a log file wants a line now and then
            self.said = time.monotonic()
            self.bars.print(f"judged {what}")

    def _row(self, name: str, done: int, total: int | None, what: str) -> None:
        if name not in self.rows:
            self.rows[name] = self.bars.add_task(name, total=total, what="")
        self.bars.update(self.rows[name], completed=done, total=total, what=what)


def learn(
    data: str, state: Path, wanted: Wanted, *, device: str, follow: bool, root: Path | None, rest: bool | None
) -> None:
    """Take samples in and learn them, until there are no more; `rest` None: what is left over is judged if it ends."""
    is_pipe = data == "-"
    _log_to(_aside if is_pipe else out)
    with progress_bars(disable=is_pipe) as bars, interruptible() as interrupted:
        source = open_source(data, state=state, root=root, follow=follow)
        show = LearningShow(bars, source, interrupted)
        try:
            with Session.open(state, wanted, make_engine(device, show.training)) as session:
                show.session, show.begun_at = session, session.taken
                _learn(session, source, show, rest=source.ends if rest is None else rest, is_pipe=is_pipe)
        except Interrupted:
            raise Interrupted("Stopped; nothing is lost, and the same command goes on from here.") from None
    if not is_pipe:
        _learned(state, show)
    if show.n_refused:
        raise UserError(f"{show.n_refused:,} of {show.n_seen:,} items were refused; the others are taken in.")


def _learn(session: Session, source: Source, show: LearningShow, *, rest: bool, is_pipe: bool) -> None:
    for chunk in source.chunks:
        show.check_interrupted()
        outcomes = session.take(chunk)
        if is_pipe:
            acknowledge(outcomes, sys.stdout)
        else:
            complain(outcomes)
        show.taken(outcomes)
        session.work(hear=show.judged)
    session.work(rest=rest, hear=show.judged)


def _learned(state: Path, show: LearningShow) -> None:
    known = show.n_seen - show.n_new - show.n_refused
    out.print(f"samples taken in: {show.n_new:,}, known before: {known:,}, judged: {show.n_judged:,}")
    if show.n_judged:
        how = f"`purereplay audit --state {state} --out audit.csv` lists them"
        out.print(f"of these rejected: {show.n_rejected:,}; {how}", markup=False)


def predict(state: Path, images: list[Path], form: str, device: str) -> None:
    """Classify image files and folders of them."""
    if form not in ("table", "jsonl", "csv"):
        raise UserError(f"The format {form!r} is unknown: choose table, jsonl or csv.")
    paths = [found for path in images for found in (_files_below(path) if path.is_dir() else [path])]
    engine = make_engine(device)
    with Store.reading(state) as store:
        with _aside.status("finetuning the classifier on the purified buffer"):
            classifier, labels = ready_classifier(store, engine)
        answers = predictions(store, classifier, paths)
        refused = {"table": _as_table, "jsonl": _as_jsonl, "csv": _as_csv}[form](answers, labels)
    if refused:
        raise UserError(f"{len(refused):,} of {len(paths):,} images were refused; the others are classified.")


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _told(answers: Iterable[Prediction], refused: list[Prediction]) -> Iterable[tuple[Prediction, Tensor]]:
    """The answers that are some; the others are named on standard error and listed."""
    for answer in answers:
        if answer.probabilities is None:
            refused.append(answer)
            sys.stderr.write(f"{answer.path} {answer.error}\n")
        else:
            yield answer, answer.probabilities


def _as_table(answers: Iterable[Prediction], labels: list[str]) -> list[Prediction]:
    refused: list[Prediction] = []
    table = Table("image", "label", "probability", "next", "probability", box=None, padding=(0, 2, 0, 0))
    table.columns[0].overflow = "fold"  # a name is of no use without its end
    for answer, probabilities in _told(answers, refused):
        best = probabilities.topk(min(2, len(labels)))
        cells = [(labels[i], percent(p)) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
        table.add_row(Text(str(answer.path)), *(Text(text) for cell in cells for text in cell))
    out.print(table)
    return refused


def _as_jsonl(answers: Iterable[Prediction], labels: list[str]) -> list[Prediction]:
    refused: list[Prediction] = []
    for answer, probabilities in _told(answers, refused):
        chances = dict(zip(labels, (round(p, 6) for p in probabilities.tolist()), strict=True))
        best = labels[int(probabilities.argmax())]
        line = {"image": str(answer.path), "label": best, "probability": chances[best], "probabilities": chances}
        sys.stdout.write(json.dumps(line) + "\n")
    return refused


def _as_csv(answers: Iterable[Prediction], labels: list[str]) -> list[Prediction]:
    refused: list[Prediction] = []
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["image", "label", "probability", *(f"probability of {label}" for label in labels)])
    for answer, probabilities in _told(answers, refused):
        chances = [f"{p:.6f}" for p in probabilities.tolist()]
        best = int(probabilities.argmax())
        writer.writerow([answer.path, labels[best], chances[best], *chances])
    return refused


def audit(state: Path, path: Path, device: str) -> None:
    """Write the audit and say how much there is in it."""
    engine = make_engine(device)
    with progress_bars() as bars, Store.reading(state) as store:
        row = bars.add_task("classifying", total=None, what="")
        done = auditing.audit(store, engine, path, lambda n, total: bars.update(row, completed=n, total=total))
    out.print(f"samples judged: {done.judged:,}, the least believed first in {path}", markup=False)
    out.print(f"of these rejected: {done.rejected:,}; for {done.doubted:,} of them the classifier has another label")


def correct(state: Path, fixes: Path, device: str) -> None:
    """Apply a person's corrections."""
    with Session.open(state, None, make_engine(device)) as session:
        outcomes = apply_corrections(session, fixes)
    complain(outcomes)
    n_new, n_refused = sum(o.new for o in outcomes), sum(o.error is not None for o in outcomes)
    known = len(outcomes) - n_refused - n_new
    out.print(f"labels corrected: {n_new:,}, corrected so before: {known:,}")
    if n_refused:
        raise UserError(f"{n_refused:,} of {len(outcomes):,} corrections were refused; the others are applied.")


def status(state: Path, form: str) -> None:
    """Show a state in a few numbers."""
    if form not in ("table", "json"):
        raise UserError(f"The format {form!r} is unknown: choose table or json.")
    with Store.reading(state) as store:
        facts = auditing.status(store)
    if form == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    out.print(_summary(facts))
    table = Table("label", "samples", "judged", "rejected", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in facts["classes"]:
        table.add_row(Text(row["label"]), *(f"{row[name]:,}" for name in ("samples", "judged", "rejected")))
    out.print(table)


def _summary(facts: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    shape = facts["image_shape"]
    table.add_row("images", "none yet" if shape is None else "×".join(map(str, shape)))
    table.add_row("samples", f"{facts['samples']:,}")
    table.add_row("judged", f"{facts['judged']:,} in {facts['buffers']:,} buffers")
    table.add_row("accepted, rejected", f"{facts['accepted']:,}, {facts['rejected']:,}")
    table.add_row("waiting", f"{facts['waiting']:,} of {facts['delayed_size']} that fill a buffer")
    table.add_row("in the purified buffer", f"{facts['purified']:,} of {facts['purified_size']}")
    table.add_row("corrected", f"{facts['corrected']:,}")
    table.add_row("begun with", f"preset {facts['preset']}, seed {facts['seed']}")
    table.add_row("on the disk", f"{facts['bytes'] / 2**20:,.1f} MiB")
    return table


def complain(outcomes: list[Outcome]) -> None:
    """Name what is refused on standard error, one a line."""
    for outcome in outcomes:
        if outcome.error is not None:
            sys.stderr.write(outcome.sentence + "\n")


def _log_to(console: Console) -> None:
    handler = RichHandler(console=console, show_path=False, show_time=False)
    logging.basicConfig(handlers=[handler], level="WARNING", format="%(message)s")
