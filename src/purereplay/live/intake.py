"""The source of samples that the command line names: a folder, a list of files, or a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from purereplay.errors import UserError
from purereplay.live.folders import ImageFolder
from purereplay.live.items import Chunks, Offer, in_chunks
from purereplay.live.lists import read_csv, read_jsonl, readable
from purereplay.live.pipe import piped


class Source(NamedTuple):
    """Samples to be added."""

    chunks: Chunks
    total: int | None  # number of items; None: unknown
    ends: bool  # whether all items are available now
    first: Sequence[Offer] = ()  # items that can be looked at before any is added: all of a folder, some of a list
    others: Sequence[str] = ()  # files of a folder that are skipped, since they are no images


def open_source(data: str, *, state: Path, root: Path | None = None, follow: bool = False) -> Source:
    """Open the samples that `data` names; "-" is the pipe on standard input.

    Paths in a list are relative to `root`; None: the folder of the list, or the working directory for a pipe.
    """
    path = Path(data)
    if follow and (data == "-" or not path.is_dir()):
        raise UserError(f"--follow needs a folder; {data} is not one.")
    if root is not None and not root.is_dir():
        raise UserError(f"--root needs a folder; {root} is not one.")
    if root is not None and path.is_dir():
        raise UserError(f"--root is for lists and pipes; {data} is a folder.")
    if data == "-":
        with readable(Path("standard input")):
            # not sys.stdin: Python closes that at exit, and would wait for the thread that reads it
            pipe = open(0, "rb", closefd=False)  # noqa: SIM115
        return Source(piped(pipe, root or Path()), None, ends=False)
    if path.is_dir():
        folder = ImageFolder(path, state)
        if follow:
            return Source(folder.follow(), None, ends=False, first=folder.listing())
        found = folder.listing()
        if not found:
            raise UserError(f"{path} holds no images: put them into one subfolder per label, label/name.png.")
        return Source(in_chunks(iter(found)), len(found), ends=True, first=found, others=folder.others)
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file: save the list as a file first, or use a pipe with -.")
    if path.suffix.lower() == ".csv":
        offers, total = read_csv(path, root or path.parent), _n_lines(path) - 1
    elif path.suffix.lower() in (".jsonl", ".ndjson"):
        offers, total = read_jsonl(path, root or path.parent), _n_lines(path)
    else:
        raise UserError(f"{path} is neither a folder nor a .csv or .jsonl file.")
    chunks = in_chunks(offers)
    first = next(chunks, None)  # read now, before a state is created
    if first is None:
        raise UserError(f"{path} lists no samples.")
    return Source(chain([first], chunks), total, ends=True, first=first)


def _n_lines(path: Path) -> int:
    """Return the approximate number of lines."""
    with readable(path), path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
