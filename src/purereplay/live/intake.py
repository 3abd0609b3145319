"""Where samples come from, by what is named on the command line: a folder, a list of files, or a pipe."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import NamedTuple

from purereplay.errors import UserError
from purereplay.live.folders import ImageFolder
from purereplay.live.items import Chunks, in_chunks
from purereplay.live.lists import read_csv, read_jsonl, readable
from purereplay.live.pipe import piped


class Source(NamedTuple):
    """Samples on their way in."""

    chunks: Chunks
    total: int | None  # how many; None: nobody knows
    ends: bool  # whether all of them are there already


def open_source(data: str, *, state: Path, root: Path | None = None, follow: bool = False) -> Source:
    """The samples that `data` names: "-" is the pipe on standard input.

    `root` is the folder that a list's paths are below; None: its own folder, or the present one for a pipe.
    """
    path = Path(data)
    if follow and (data == "-" or not path.is_dir()):
        raise UserError(f"--follow watches a folder, and {data} is none.")
    if root is not None and (not root.is_dir() or path.is_dir()):
        raise UserError(
            f"--root is the folder of a list's paths, and {root if not root.is_dir() else data} is no such."
        )
    if data == "-":
        with readable(Path("standard input")):
            # a file object of its own: Python closes sys.stdin at the end, and would wait for who reads from it
            pipe = open(0, "rb", closefd=False)  # noqa: SIM115
        return Source(piped(pipe, root or Path()), None, ends=False)
    if path.is_dir():
        folder = ImageFolder(path, state)
        if follow:
            return Source(folder.follow(), None, ends=False)
        found = folder.listing()
        if not found:
            raise UserError(f"{path} holds no images: they belong into a folder for each label, label/name.png.")
        return Source(in_chunks(iter(found)), len(found), ends=True)
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if path.suffix.lower() == ".csv":
        offers, total = read_csv(path, root or path.parent), _n_lines(path) - 1
    elif path.suffix.lower() in (".jsonl", ".ndjson"):
        offers, total = read_jsonl(path, root or path.parent), _n_lines(path)
    else:
        raise UserError(f"{path} is neither a folder nor a .csv or .jsonl file.")
    chunks = in_chunks(offers)
    first = next(chunks, None)  # looked at now, before anything is begun
    if first is None:
        raise UserError(f"{path} lists no samples.")
    return Source(chain([first], chunks), total, ends=True)


def _n_lines(path: Path) -> int:
    """About how many lines there are."""
    with readable(path), path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
