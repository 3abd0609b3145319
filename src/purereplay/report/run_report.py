"""The report of runs: measures beside each other, the paper's number, what the final learner holds, times, settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from purereplay.data.files import write_whole
from purereplay.errors import UserError
from purereplay.evaluate.compare import MEASURES, Cell, describe_data, describe_learner
from purereplay.evaluate.inspection import Held, Inspection, inspect_run, rescore
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings
from purereplay.report import page, pictures
from purereplay.report.histograms import Scored, histogram_data
from purereplay.report.page import Tile
from purereplay.report.terminal import duration, percent

Progress = Callable[[str, int, int], None]
PaperValue = Callable[[dict[str, Any]], float | None]  # the paper's accuracy, in %, for a result
_TASKS = "accuracy_after_task"


class Run(NamedTuple):
    """A finished run."""

    path: Path
    settings: RunSettings
    result: dict[str, Any]
    lines: list[dict[str, Any]]  # of metrics.jsonl

    @property
    def group(self) -> str:
        """Learner and data; runs of one group differ by their seed alone."""
        return f"{describe_learner(self.settings, self.result)} on {describe_data(self.settings, self.result)}"


def read_runs(paths: list[Path]) -> list[Run]:
    """Return the finished runs among the folders; UserError if there is none."""
    runs = []
    for path in paths:
        directory, settings = RunDirectory.open(path)
        result = directory.result((_TASKS, "seconds"))
        if result is not None:
            runs.append(Run(path, settings, result, directory.read_lines()))
    if not runs:
        raise UserError("None of these folders holds a finished run.")
    return runs


class Extent(NamedTuple):
    """Amount of content of a report."""

    n_images: int  # in each gallery
    n_fixed: int  # buffers of the first run, the last ones, that are scored again
    device: str


def write_run_report(paths: list[Path], out: Path, paper: PaperValue, extent: Extent, progress: Progress) -> None:
    """Write the report of finished runs to one file, side by side if there are several."""
    runs = read_runs(paths)
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    parts = [_headline(groups, paper), _curves(groups)]
    for i, (name, members) in enumerate(groups.items()):
        progress("classifiers", i, len(groups))
        parts.append(_group_section(name, members[0], extent.n_images, extent.device))
    if extent.n_fixed:
        parts.append(_centrality_section(runs[0], extent, progress))
    parts += [_times_section(groups), _facts_section(runs)]
    title = runs[0].path.resolve().name if len(runs) == 1 else f"{len(runs)} runs"
    write_whole(out, page.page(f"Report of {title}", parts).encode())


def _headline(groups: dict[str, list[Run]], paper: PaperValue) -> str:
    numbers, rows = [], []
    for name, runs in groups.items():
        theirs = paper(runs[0].result)
        accuracy = _cell(runs, "accuracy")
        note = "not in the paper" if theirs is None else f"the paper: {theirs:.1f} %"
        numbers.append((f"{accuracy.text()} %" if accuracy else "–", f"accuracy, {name}", note))
        cells = [_cell(runs, measure) for measure in MEASURES]
        in_paper = "–" if theirs is None else f"{theirs:.1f}"
        rows.append((name, len(runs), *("–" if c is None else c.text() for c in cells), in_paper))
    head = ("runs", "seeds", *(f"{words}, %" for words in MEASURES.values()), "accuracy in the paper, %")
    note = "Mean ± standard deviation over seeds. Every number is that of the last state of a run."
    return page.headline(numbers) + page.section(
        "Measures", page.table(head, rows, range(1, len(head))), page.paragraph(note, soft=True)
    )


def _cell(runs: list[Run], measure: str) -> Cell | None:
    values = [100 * run.result[measure] for run in runs if run.result.get(measure) is not None]
    return Cell(values) if values else None


def _curves(groups: dict[str, list[Run]]) -> str:
    accuracy = pictures.accuracy_figure({name: [run.result[_TASKS] for run in runs] for name, runs in groups.items()})
    parts = [page.picture(accuracy, "Accuracy on the test data of all classes after each task; bands: ± one deviation")]
    for name, runs in groups.items():
        buffers = [line for line in runs[0].lines if line["event"] == "buffer"]
        if any(line["noise"] is not None for line in buffers):
            caption = f"Wrong labels by delayed buffer: {name}, seed {runs[0].settings.seed}"
            parts.append(page.picture(pictures.noise_figure(buffers), caption))
    return page.section("Over the stream", page.row(*parts), _forgetting(groups))


def _forgetting(groups: dict[str, list[Run]]) -> str:
    """Return the accuracy on each task, just after it and at the end."""
    rows = []
    for name, runs in groups.items():
        tasks = [line for line in runs[0].lines if line["event"] == "task"]
        for line in tasks:
            j = line["task"]
            first, last = line["task_accuracies"][j], tasks[-1]["task_accuracies"][j]
            if first is None or last is None or len(tasks) == 1:
                continue
            classes = ", ".join(map(str, line["classes"]))
            rows.append((name, classes, percent(first), percent(last), f"{100 * (first - last):.1f}"))
    if not rows:
        return ""
    head = ("runs", "classes of the task", "accuracy just after it", "at the end", "forgotten, points")
    return page.details("Forgetting by task, first seed", page.table(head, rows, range(2, 5)))


def _group_section(name: str, run: Run, n_images: int, device: str) -> str:
    title = f"Final learner: {name}, seed {run.settings.seed}"
    try:
        found = inspect_run(run.path, device)
    except UserError as error:
        return page.section(title, page.paragraph(f"Left out: {error}"))
    names = [str(c) for c in range(found.n_classes)]
    right = int(np.trace(found.confusion)) / max(1, int(found.confusion.sum()))
    parts = [
        page.picture(
            pictures.confusion_figure(found.confusion, names),
            f"Confusion in % of each true class; {percent(right)} right. Computed again from the last checkpoint.",
        )
    ]
    if found.held is not None:
        parts.append(_balance(found, found.held, names))
    gallery = "" if found.held is None else _gallery(found.held, names, n_images)
    return page.section(title, page.row(*parts), gallery)


def _balance(found: Inspection, held: Held, names: list[str]) -> str:
    total = np.bincount(held.labels, minlength=found.n_classes)
    wrong = None
    if held.true_labels is not None:
        wrong = np.bincount(held.labels[held.labels != held.true_labels], minlength=found.n_classes)
    caption = "Purified buffer by given label"
    if wrong is not None:
        caption += f"; purity {percent(1 - wrong.sum() / max(1, total.sum()))}"
    right = total if wrong is None else total - wrong
    figure = pictures.balance_figure(names, right.tolist(), None if wrong is None else wrong.tolist())
    return page.picture(figure, caption)


def _gallery(held: Held, names: list[str], n: int) -> str:
    rows = np.unique(np.linspace(0, len(held.labels) - 1, min(n, len(held.labels))).astype(int)).tolist() if n else []
    tiles = []
    for i in rows:
        truth = None if held.true_labels is None else int(held.true_labels[i])
        is_wrong = truth is not None and truth != int(held.labels[i])
        note = "" if truth is None else f"true label {names[truth]}"
        tiles.append(Tile(held.images[i], names[int(held.labels[i])], float(held.probability[i]), note, is_wrong))
    words = f"{len(tiles)} of {len(held.labels)} samples of the purified buffer, the surest first"
    words += "." if held.true_labels is None else "; wrong labels have an orange frame."
    return page.details("Gallery of the purified buffer", page.paragraph(words, soft=True), page.gallery(tiles))


def _centrality_section(run: Run, extent: Extent, progress: Progress) -> str:
    """Return histograms and rejected samples of buffers that are scored again."""
    title = f"Centrality: {run.path.name}"
    try:
        found = rescore(run.path, extent.n_fixed, extent.device, lambda i, n: progress("graphs", i, n))
    except UserError as error:
        return page.section(title, page.paragraph(f"Left out: {error}"))
    names = [str(c) for c in range(1 + max(int(buffer.labels.max()) for buffer in found))]
    scored = [Scored(b.number, b.labels, b.centrality, b.accepted, b.fixed) for b in found]
    recorded = {line["buffer"]: line["n_passed"] for line in run.lines if line["event"] == "buffer"}
    same = all(int(b.accepted.sum()) == recorded.get(b.number) for b in found)
    agrees = (
        "They accept as many samples as the run did." if same else "On this device the numbers differ from the run's."
    )
    rejected = [(b, i) for b in found for i in np.flatnonzero(~b.accepted).tolist()]
    rejected.sort(key=lambda pair: float(pair[0].probability[pair[1]]))
    tiles = []
    for b, i in rejected[: extent.n_images]:
        truth = None if b.true_labels is None else int(b.true_labels[i])
        is_wrong = truth is not None and truth != int(b.labels[i])
        note = "" if truth is None else f"true label {truth}"
        tiles.append(Tile(b.images[i], names[int(b.labels[i])], float(b.probability[i]), note, is_wrong))
    words = f"{len(tiles)} of {len(rejected)} rejected samples of these buffers, the most doubtful first."
    return page.section(
        title,
        page.paragraph(
            f"The last {len(found)} delayed buffers, scored again with the same features. {agrees} The beta mixture "
            "has two components: noisy (orange, dashed) and clean (blue)."
        ),
        page.histograms(histogram_data(scored, names)),
        page.details("Gallery of the rejected", page.paragraph(words, soft=True), page.gallery(tiles)),
    )


def _times_section(groups: dict[str, list[Run]]) -> str:
    seconds = {name: runs[0].result["seconds"] for name, runs in groups.items()}
    rows = []
    for run in (run for runs in groups.values() for run in runs):
        took = duration(run.result["seconds"].get("total", 0.0))
        rows.append((run.path.name, run.group, run.settings.seed, took, run.result.get("device", "–")))
    return page.section(
        "Time",
        page.picture(pictures.times_figure(seconds), "Seconds of training by phase, first seed"),
        page.details("All runs", page.table(("run", "settings", "seed", "time", "hardware"), rows, (2, 3))),
    )


def _facts_section(runs: list[Run]) -> str:
    parts = []
    for run in runs:
        values = asdict(run.settings)
        options = values.pop("options")
        rows = [*values.items(), *options.items(), *run.result.get("versions", {}).items()]
        parts.append(page.details(f"{run.path.name}: {run.group}", page.table(("setting", "value"), rows)))
    return page.section("Settings and versions", *parts)
