"""The filter over a folder of parquet files, in this process or on a Ray cluster for data that fit no single machine.

In: files of features and given labels, taken in the order of their names as one table. Out: one row of scores per
sample. On a cluster the samples are grouped by label, and each label is scored by one task; no node holds more than the
labels it works on. The result of a label depends on its samples and their order alone, so both ways give the same bits.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data.features import FeatureTable, read_features
from purereplay.data.files import disk_errors
from purereplay.data.parquet import pyarrow_for
from purereplay.data.progress import Progress
from purereplay.errors import UserError
from purereplay.purify.filter import SelfCenteredFilter


class Part(NamedTuple):
    """One file of a folder."""

    path: Path
    first_row: int  # number of its first sample in the whole table
    n: int


class Choice(NamedTuple):
    """Names of arrays or columns, as in `read_features`."""

    features: str | None = None
    labels: str | None = None
    ids: str | None = None


class Layout(NamedTuple):
    """The features of the first file, which all other files must have."""

    path: Path
    columns: list[str]  # in their order
    width: int


def parquet_parts(folder: Path) -> list[Part]:
    """Return the parquet files of a folder in the order of their names; only their metadata are read."""
    paths = sorted(path for path in folder.glob("*.parquet") if path.is_file())
    if not paths:
        raise UserError(f"{folder} holds no parquet files: name a folder of .parquet files, or a file.")
    arrow = pyarrow_for(paths[0])
    parts, first = [], 0
    for path in paths:
        try:
            n = arrow.parquet.ParquetFile(path).metadata.num_rows
        except (arrow.ArrowException, OSError) as error:
            raise UserError(f"{path} is truncated, damaged, or not a parquet file: {error}.") from error
        parts.append(Part(path, first, n))
        first += n
    return parts


def read_parts(parts: list[Part], choice: Choice, progress: Progress | None = None) -> FeatureTable:
    """Read all files as one table into memory."""
    tables: list[FeatureTable] = []
    for number, part in enumerate(parts, 1):
        table = read_features(part.path, **choice._asdict())
        tables.append(_aligned(part.path, table, _layout(parts[0].path, tables[0])) if tables else table)
        if progress:
            progress("reading", number, len(parts))
    has_ids = [table.ids is not None for table in tables]
    if any(has_ids) and not all(has_ids):
        raise UserError(f"{parts[has_ids.index(False)].path} has no ids, but other files have: leave --ids out.")
    ids = [own for table in tables for own in table.ids or []]
    if len(set(ids)) < len(ids):
        _refuse_repeated(parts, tables)
    features, labels = (np.concatenate([table[i] for table in tables]) for i in (0, 1))
    return FeatureTable(features, labels, ids if all(has_ids) else None, tables[0].columns)


def _refuse_repeated(parts: list[Part], tables: list[FeatureTable]) -> None:
    """Raise UserError for the first id that two files have."""
    seen: dict[Hashable, str] = {}
    for part, table in zip(parts, tables, strict=True):
        for row, name in enumerate(table.ids or []):
            place = f"row {row} of {part.path}"
            if name in seen:
                raise UserError(f"The id {name!r} is on {seen[name]} and on {place}: ids must be unique.")
            seen[name] = place


def filter_on_ray(
    ray: Any, parts: list[Part], destination: Path, sample_filter: SelfCenteredFilter, choice: Choice
) -> None:
    """Score the samples on a cluster and write a folder of parquet files, sorted by row, complete or not at all.

    Files and folder must be on storage that all nodes share.
    """
    if destination.exists():
        raise UserError(f"{destination} exists already: choose another folder for the scores.")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):  # on the terminal; its files stay as they are
            handler.setLevel(logging.ERROR)
    # sorting needs no actors that hold cores for as long as the shuffle lasts: it works on a cluster of two cores
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    items = [{"path": str(part.path.absolute()), "first_row": part.first_row} for part in parts]
    read = _reader(choice, _layout(parts[0].path, read_features(parts[0].path, **choice._asdict())))
    score = _scorer(sample_filter.get_params())
    scores = (
        ray.data.from_items(items, override_num_blocks=len(items))
        .map_batches(read, batch_size=1, batch_format="numpy")
        .groupby("label")
        .map_groups(score, batch_format="numpy")
        .sort("row")
    )
    part = destination.with_name(destination.name + ".part")
    with disk_errors(destination):
        shutil.rmtree(part, ignore_errors=True)
        try:
            scores.write_parquet(str(part.absolute()))
        except ray.exceptions.RayTaskError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise UserError(f"The filter failed on the cluster: {_reason(error)}") from error
        part.rename(destination)


def _reason(error: Exception) -> str:
    """Return the message of the UserError behind an error of a task, or its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if "UserError: " in line]
    return own[-1].partition("UserError: ")[2] if own else (lines or ["unknown"])[-1]


def _reader(choice: Choice, layout: Layout) -> Callable[[dict[str, NDArray[Any]]], dict[str, Any]]:
    """Return a task that reads one file: features, labels and rows."""

    def read(batch: dict[str, NDArray[Any]]) -> dict[str, Any]:
        path, first = Path(str(batch["path"][0])), int(batch["first_row"][0])
        table = _aligned(path, read_features(path, **choice._asdict()), layout)
        n = len(table.features)
        columns = {"row": np.arange(first, first + n), "label": _plain_labels(path, table.labels)}
        ids = {} if table.ids is None else {"id": np.array([str(own) for own in table.ids])}
        return columns | ids | {"features": np.ascontiguousarray(table.features)}

    return read


def _scorer(parameters: dict[str, Any]) -> Callable[[dict[str, NDArray[Any]]], dict[str, Any]]:
    """Return a task that scores all samples of one label."""

    def score(batch: dict[str, NDArray[Any]]) -> dict[str, Any]:
        order = np.argsort(batch["row"], kind="stable")  # the order of the samples decides their random numbers
        labels = batch["label"][:1].tolist() * len(order)
        own = SelfCenteredFilter(**(parameters | {"n_jobs": 1})).fit(batch["features"][order], labels)
        ids = {"id": batch["id"][order]} if "id" in batch else {}
        return {
            "row": batch["row"][order],
            **ids,
            "label": batch["label"][order],
            "clean_probability": own.clean_probability_,
            "centrality": own.centrality_,
            "selected": own.select(),
            "preparation": np.full(len(order), own.preparation_),
        }

    return score


def _plain_labels(path: Path, labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as an array of numbers or texts; UserError unless they are all of one of these kinds."""
    kinds = {type(label) for label in labels}
    if kinds not in ({int}, {str}):
        raise UserError(f"The labels of {path} must be all whole numbers or all text to be grouped on a cluster.")
    return np.array(labels.tolist())


def _layout(path: Path, table: FeatureTable) -> Layout:
    return Layout(path, table.columns or [], table.features.shape[1])


def _aligned(path: Path, table: FeatureTable, first: Layout) -> FeatureTable:
    """Return a table with its features in the order of the first file; UserError if they are others."""
    columns = table.columns or []
    known, own = set(first.columns), set(columns)
    for name in first.columns:
        if name not in own:
            raise UserError(f"{path} has no column of features {name!r}, but {first.path} has: give both one name.")
    for name in columns:
        if name not in known:
            raise UserError(
                f"{path} has a column of features {name!r}, but {first.path} has none: name those of all files with "
                "--columns."
            )
    width = table.features.shape[1]
    if width != first.width:  # of lists
        raise UserError(f"{path} has {width} features, but {first.path} has {first.width}.")
    if columns == first.columns:
        return table
    place = {name: i for i, name in enumerate(columns)}
    return table._replace(features=table.features[:, [place[name] for name in first.columns]], columns=first.columns)
