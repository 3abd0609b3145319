"""Run of `purereplay filter`: reads a file of features, writes a file of scores, and shows progress and a summary."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.progress import Progress
from rich.table import Table

from purereplay.data.features import FeatureTable, read_features
from purereplay.data.progress import Progress as ProgressCallback
from purereplay.data.scores import check_destination, write_scores
from purereplay.errors import UserError
from purereplay.purify.beta_mixture import MIN_SAMPLES
from purereplay.purify.filter import SelfCenteredFilter
from purereplay.purify.folders import Choice, filter_on_ray, parquet_parts, read_parts
from purereplay.report.plain import escaped
from purereplay.report.terminal import PlainLines, duration, out, percent, progress_bars, time_left


def filter_file(
    source: Path,
    destination: Path,
    sample_filter: SelfCenteredFilter,
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
        score_table(bars, table, destination, sample_filter)
    show_summary(destination, sample_filter, started)


def score_table(bars: Progress, table: FeatureTable, destination: Path, sample_filter: SelfCenteredFilter) -> None:
    """Score samples and write one row for each."""
    n, d = table.features.shape
    bars.print(f"{n:,} samples with {d:,} features each")
    sample_filter.fit(table.features, table.labels, progress=timed_bar(bars, "scoring"))
    bars.add_task(f"writing {escaped(destination.name)}", total=None, what="")
    columns = {
        **({"id": table.ids} if table.ids is not None else {"row": np.arange(n)}),
        "label": table.labels,
        "clean_probability": sample_filter.clean_probability_,
        "centrality": sample_filter.centrality_,
        "selected": sample_filter.select(),
        "preparation": [sample_filter.preparation_] * n,
    }
    write_scores(destination, columns)


def show_summary(destination: Path, sample_filter: SelfCenteredFilter, started: float) -> None:
    """Print a summary of the scores."""
    selected = sample_filter.select()
    shown = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    n_small = int((sample_filter.class_sizes_ < MIN_SAMPLES).sum())
    n_cut = int((sample_filter.n_blocks_ > 1).sum())
    small = (
        f", {n_small:,} of them with fewer than {MIN_SAMPLES} samples ({sample_filter.small_class})" if n_small else ""
    )
    shown.add_row("classes", f"{len(sample_filter.classes_):,}{small}")
    if n_cut:
        shown.add_row("", f"{n_cut:,} with more than {sample_filter.block_size:,} samples, scored in blocks")
    prepared = {"directions": "centred, main directions", "none": "as given"}
    shown.add_row("features", prepared[sample_filter.preparation_])
    shown.add_row("mean clean probability", percent(float(sample_filter.clean_probability_.mean())))
    shown.add_row("selected", f"{int(selected.sum()):,} ({percent(float(selected.mean()))})")
    shown.add_row("time", duration(time.monotonic() - started))
    out.print(shown)
    out.print("Sort by the clean probability. It is not calibrated: without wrong labels its mean is about 50 %.")
    out.print(f"in [bold]{escaped(destination)}[/bold]")


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
