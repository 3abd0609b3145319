"""Run of `purereplay filter`: reads a file of features, writes a file of scores, and shows progress and a summary."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress
from rich.table import Table

from purereplay.data.features import FeatureTable, read_features
from purereplay.data.memory import machine_memory
from purereplay.data.progress import Progress as ProgressCallback
from purereplay.data.scores import check_destination, write_scores
from purereplay.errors import UserError
from purereplay.purify.beta_mixture import MIN_SAMPLES
from purereplay.purify.filter import SelfCenteredFilter
from purereplay.purify.folders import Choice, filter_on_ray, parquet_parts, read_parts
from purereplay.purify.opinions import FeatureMap, judge_labels
from purereplay.report.plain import escaped
from purereplay.report.terminal import PlainLines, duration, out, percent, progress_bars, time_left

_ENTRY_BYTES = 100  # that judging needs for each sample and label


class Judging(NamedTuple):
    """The method `judge`: all classes are compared with each other, by `judge_labels`."""

    seed: int


Method = SelfCenteredFilter | Judging


def filter_file(
    source: Path,
    destination: Path,
    method: Method,
    *,
    features: str | None = None,
    labels: str | None = None,
    ids: str | None = None,
) -> None:
    """Score the samples in `source`, write one row per sample to `destination`, and print a summary.

    `source` is a file, or a folder of parquet files. `features`, `labels` and `ids` name arrays or columns, as in
    `read_features`.
    """
    check_destination(destination, source)
    started = time.monotonic()
    with progress_bars() as bars:
        reading = timed_bar(bars, f"reading {escaped(source.name)}")
        if source.is_dir():
            table = read_parts(parquet_parts(source), Choice(features, labels, ids), reading)
        else:
            table = read_features(source, features=features, labels=labels, ids=ids, progress=reading)
        summary = score_table(bars, table, destination, method)
    show_summary(destination, summary, started)


class Summary(NamedTuple):
    """Summary of scores for the terminal."""

    rows: list[tuple[str, str]]
    note: str = ""


def score_table(bars: Progress, table: FeatureTable, destination: Path, method: Method) -> Summary:
    """Score samples and write one row for each; returns the summary."""
    n, d = table.features.shape
    bars.print(f"{n:,} samples with {d:,} features each")
    progress = timed_bar(bars, "scoring")
    if isinstance(method, Judging):
        columns, summary = _judged(table, method, progress)
    else:
        columns, summary = _self_centered(table, method, progress)
    bars.add_task(f"writing {escaped(destination.name)}", total=None, what="")
    first = {"id": table.ids} if table.ids is not None else {"row": np.arange(n)}
    write_scores(destination, {**first, "label": table.labels, **columns})
    return summary


def show_summary(destination: Path, summary: Summary, started: float) -> None:
    """Print a summary of the scores."""
    shown = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in summary.rows:
        shown.add_row(*row)
    shown.add_row("time", duration(time.monotonic() - started))
    out.print(shown)
    if summary.note:
        out.print(summary.note)
    out.print(f"in [bold]{escaped(destination)}[/bold]")


def _judged(table: FeatureTable, method: Judging, progress: ProgressCallback) -> tuple[dict[str, Any], Summary]:
    """Return the columns and the summary of the method `judge`."""
    places = {label: code for code, label in enumerate(dict.fromkeys(table.labels.tolist()))}
    n, k = len(table.labels), len(places)
    memory = machine_memory()
    if memory is not None and n * k * _ENTRY_BYTES > memory // 2:
        raise UserError(
            f"Judging {n:,} samples of {k:,} labels takes {n * k * _ENTRY_BYTES / 2**30:,.0f} GiB, more than half of "
            "this machine's memory: use --method self-centered."
        )
    names = np.empty(k, dtype=object)
    names[:] = list(places)
    codes = np.array([places[label] for label in table.labels.tolist()], np.int64)
    features = FeatureMap.fit(table.features, method.seed).transform(table.features)
    found = judge_labels(features, codes, k, seed=method.seed, watch=progress)
    columns = {
        "clean_probability": found.clean_probability,
        "likely_label": names[found.likely_label],
        "accepted": found.accepted,
    }
    noise, n_few = found.noise.overall, int(found.unjudged.sum())
    share = f"{percent(noise.rate)} ({percent(noise.low)} to {percent(noise.high)})" if noise.n else "unknown"
    few = [
        (
            "could not be judged",
            f"{n_few:,}: {'too few samples have the label' if k > 1 else 'all samples have the same label'}",
        )
    ]
    rows = [
        ("classes", f"{k:,}"),
        *(few if n_few else []),
        ("wrong labels, estimated", share),
        ("accepted", f"{int(found.accepted.sum()):,} ({percent(float(found.accepted.mean()))})"),
    ]
    return columns, Summary(rows)


def _self_centered(
    table: FeatureTable, sample_filter: SelfCenteredFilter, progress: ProgressCallback
) -> tuple[dict[str, Any], Summary]:
    """Return the columns and the summary of the Self-Centered filter."""
    sample_filter.fit(table.features, table.labels, progress=progress)
    selected = sample_filter.select()
    columns = {
        "clean_probability": sample_filter.clean_probability_,
        "centrality": sample_filter.centrality_,
        "selected": selected,
        "preparation": [sample_filter.preparation_] * len(table.labels),
    }
    n_small = int((sample_filter.class_sizes_ < MIN_SAMPLES).sum())
    n_cut = int((sample_filter.n_blocks_ > 1).sum())
    small = (
        f", {n_small:,} of them with fewer than {MIN_SAMPLES} samples ({sample_filter.small_class})" if n_small else ""
    )
    cut = [("", f"{n_cut:,} with more than {sample_filter.block_size:,} samples, scored in blocks")]
    prepared = {"directions": "centred, main directions", "none": "as given"}
    rows = [
        ("classes", f"{len(sample_filter.classes_):,}{small}"),
        *(cut if n_cut else []),
        ("features", prepared[sample_filter.preparation_]),
        ("mean clean probability", percent(float(sample_filter.clean_probability_.mean()))),
        ("selected", f"{int(selected.sum()):,} ({percent(float(selected.mean()))})"),
    ]
    note = "Sort by the clean probability. It is not calibrated: without wrong labels its mean is about 50 %."
    return columns, Summary(rows, note)


def filter_folder(
    source: Path,
    destination: Path,
    sample_filter: SelfCenteredFilter,
    cluster: str,
    *,
    features: str | None = None,
    labels: str | None = None,
    ids: str | None = None,
) -> None:
    """Score a folder of parquet files on a cluster, write a folder of parquet files, and print a summary."""
    if not source.is_dir():
        raise UserError(f"{source} is not a folder: --cluster filters a folder of parquet files.")
    parts = parquet_parts(source)
    if sample_filter.prepare != "none":
        raise UserError(
            "--cluster scores each label by itself, and prepared features need all samples: add --prepare none."
        )
    from purereplay.evaluate.ray_cluster import connected

    ray = connected(cluster)
    started = time.monotonic()
    n = sum(part.n for part in parts)
    out.print(f"{n:,} samples in {len(parts):,} files")
    with out.status("grouping by label and scoring on the cluster"):
        filter_on_ray(ray, parts, destination, sample_filter, Choice(features, labels, ids))
    out.print(f"scored in {duration(time.monotonic() - started)}, in [bold]{escaped(destination)}[/bold]")


def timed_bar(bars: Progress, title: str) -> ProgressCallback:
    """Return a callback that shows the share done and the time left, as `PlainLines` without a terminal."""
    task, lines, started = bars.add_task(title, total=None, what=""), PlainLines(bars), time.monotonic()

    def show(name: str, done: int, total: int | None) -> None:
        if total is None or not done:
            what = f"{done:,}"
        elif done < total:
            left = (time.monotonic() - started) / done * (total - done)
            what = f"{done / total:.0%}" + time_left(left, done, total)
        else:
            what = "done"
        bars.update(task, completed=done, total=total, what=what)
        lines(f"{title} {what}")

    return show
