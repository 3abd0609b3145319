"""The source of samples that the command line names: a folder, a list of files, tables, tar files, or a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from purereplay.errors import UserError
from purereplay.live.folders import ImageFolder
from purereplay.live.items import Chunks, Offer, in_chunks
from purereplay.live.lists import read_csv, read_jsonl, readable
from purereplay.live.pipe import piped
from purereplay.live.shards import is_shard, read_shards
from purereplay.live.tables import is_saved_dataset, parquet_files, read_parquet_images, read_saved_dataset

_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


class Source(NamedTuple):
    """Samples to be added."""

    chunks: Chunks
    total: int | None  # number of items; None: unknown
    ends: bool  # whether all items are available now
    first: Sequence[Offer] = ()  # items that can be looked at before any is added: all of a folder, some of a list
    others: Sequence[str] = ()  # files of a folder that are skipped, because they are not images


def open_source(
    data: str, *, state: Path, root: Path | None = None, follow: bool = False, labels: str | None = None
) -> Source:
    """Open the samples that `data` names; "-" is the pipe on standard input.

    Paths in a list are relative to `root`; None: the folder of the list, or the working directory for a pipe. `labels`
    is the column of labels in a table of images; None: `label`.
    """
    path = Path(data)
    if follow and (data == "-" or not path.is_dir()):
        raise UserError(f"--follow needs a folder; {data} is not one.")
    if root is not None and not root.is_dir():
        raise UserError(f"--root needs a folder; {root} is not one.")
    if root is not None and path.is_dir():
        raise UserError(f"--root is for lists and pipes; {data} is a folder.")
    if data == "-":
        _check_unused(labels, data)
        with readable(Path("standard input")):
            # not sys.stdin: Python closes that at exit, and would wait for the thread that reads it
            pipe = open(0, "rb", closefd=False)  # noqa: SIM115
        return Source(piped(pipe, root or Path()), None, ends=False)
    if path.is_dir():
        packed = _packed(path, state, labels)
        if packed is None:
            _check_unused(labels, data)
            return _open_folder(path, state, follow=follow)
        if follow:
            raise UserError(f"--follow watches a folder of images; {path} holds tables or tar files.")
        return _stream(path, *packed)
    if not path.exists():
        if found := _matching(path):
            return _stream(path, *_open_files(found, labels))
        raise UserError(f"{path} does not exist.")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file: save the list as a file first, or use a pipe with -.")
    if path.suffix.lower() in (".csv", ".jsonl", ".ndjson"):
        _check_unused(labels, data)
    if path.suffix.lower() == ".csv":
        return _stream(path, read_csv(path, root or path.parent), _n_lines(path) - 1)
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return _stream(path, read_jsonl(path, root or path.parent), _n_lines(path))
    return _stream(path, *_open_files([path], labels))


def _open_folder(path: Path, state: Path, *, follow: bool) -> Source:
    folder = ImageFolder(path, state)
    labels = _subfolders(path, state)
    if labels and set(map(str.lower, labels)) <= _SPLITS:
        kind = "which are parts of a dataset and not labels" if labels[1:] else "which is a part of a dataset, no label"
        part = next((name for name in labels if name.lower().startswith("train")), labels[0])
        raise UserError(f"{path} holds {' and '.join(labels)}, {kind}: name one of them, as in {path / part}.")
    if follow:
        return Source(folder.follow(), None, ends=False, first=folder.listing())
    found = folder.listing()
    if not found:
        raise UserError(f"{path} holds no images: put them into one subfolder per label, label/name.png.")
    if not labels:
        raise UserError(
            f"{path} holds images without labels: put them into one subfolder per label, label/name.png, or name a "
            "CSV table with the columns path and label."
        )
    return Source(in_chunks(iter(found)), len(found), ends=True, first=found, others=folder.others)


def _stream(path: Path, offers: Iterator[Offer], total: int | None) -> Source:
    """Return samples that are read one after another; the first ones are read now, before a state is created."""
    chunks = in_chunks(offers)
    first = next(chunks, None)
    if first is None:
        raise UserError(f"{path} lists no samples.")
    return Source(chain([first], chunks), total, ends=True, first=first)


def _check_unused(labels: str | None, data: str | Path) -> None:
    if labels is not None:
        raise UserError(f"--labels names a column of Parquet files or of a saved dataset; {data} has no such columns.")


def _packed(folder: Path, state: Path, labels: str | None) -> tuple[Iterator[Offer], int | None] | None:
    """Open the tables or tar files of a folder; None if it is a folder of images."""
    if is_saved_dataset(folder):
        return read_saved_dataset(folder, labels)
    below = _subfolders(folder, state)
    if below == ["data"] and (found := parquet_files(folder / "data")):
        return read_parquet_images(found, labels)
    if below:
        return None
    if found := parquet_files(folder):
        return read_parquet_images(found, labels)
    shards = sorted(path for path in folder.iterdir() if is_shard(path) and not path.name.startswith("."))
    if not shards:
        return None
    _check_unused(labels, folder)
    return read_shards(shards), None


def _subfolders(folder: Path, state: Path) -> list[str]:
    with readable(folder):
        found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted(path.name for path in found if path.resolve() != state.resolve())


def _matching(pattern: Path) -> list[Path]:
    """Return the files that a pattern such as data/train-*.parquet names."""
    if not any(mark in pattern.name for mark in "*?["):
        return []
    with readable(pattern.parent):
        return sorted(path for path in pattern.parent.glob(pattern.name) if path.is_file())


def _open_files(paths: list[Path], labels: str | None) -> tuple[Iterator[Offer], int | None]:
    if all(path.suffix.lower() == ".parquet" for path in paths):
        return read_parquet_images(paths, labels)
    if all(map(is_shard, paths)):
        _check_unused(labels, paths[0])
        return read_shards(paths), None
    raise UserError(f"{paths[0]} is neither a folder nor a .csv, .jsonl, .parquet or .tar file.")


def _n_lines(path: Path) -> int:
    """Return the approximate number of lines."""
    with readable(path), path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
