"""Tar files in the layout of WebDataset: the files of a sample have one name and differ in their ending.

    0001.jpg  0001.cls      the image and the label, as text
    0002.png  0002.json     or the label in a JSON object: {"label": "cat"}

The name ends at the first dot of the file's own name. The files of a sample follow one another, and tar files are read
from start to end without unpacking. The id is the names of the tar file and of the sample. The label is in the file
`.cls`, `.label`, `.txt` or `.json`, in this order if a sample has several of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from purereplay.errors import UserError
from purereplay.live.decompressed import Damaged
from purereplay.live.images import MAX_BYTES
from purereplay.live.items import MAX_LABEL, Item, Offer, Refusal, Refused, checked_id, checked_label
from purereplay.live.tar_files import members

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif")
_LABELS = ("cls", "label", "txt", "json")  # in the order of preference
_MAX_TEXT = 2**20  # bytes of a file with a label


def is_shard(path: Path) -> bool:
    """Return whether a file is a tar file by its name."""
    return path.name.lower().endswith(SUFFIXES)


def read_shards(paths: list[Path]) -> Iterator[Offer]:
    """Yield the samples of tar files; a sample without an image or a label is refused by its name."""
    for path in paths:
        for number, (name, files) in enumerate(_samples(path), 1):
            try:
                yield Item(checked_id(f"{path.name}/{name}"), _label(files), _image(files), number)
            except Refused as reason:
                yield Refusal(f"{path.name}/{name}", str(reason), number)


def _samples(path: Path) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """Yield the files of each sample by ending; None: a file that is too large."""
    before, files = "", dict[str, bytes | None]()
    try:
        with path.open("rb") as file:
            for member in members(file):
                folder, slash, own = member.name.rpartition("/")
                stem, dot, ending = own.partition(".")
                if not member.is_file or not stem or not dot:
                    continue
                name, ending = f"{folder}{slash}{stem}", ending.lower()
                if files and (name != before or ending in files):  # a name that is used twice is refused as such
                    yield before, files
                    files = {}
                before = name
                if ending in (*_IMAGES, *_LABELS):
                    most = MAX_BYTES if ending in _IMAGES else _MAX_TEXT
                    files[ending] = member.read() if member.size <= most else None
    except (Damaged, OSError) as error:
        raise UserError(f"{path} is truncated, damaged, or not a tar file: {str(error).rstrip('.')}.") from None
    if files:
        yield before, files


def _image(files: dict[str, bytes | None]) -> bytes:
    found = [ending for ending in files if ending in _IMAGES]
    if not found:
        raise Refused(f"has no image: a file that ends in .{', .'.join(_IMAGES)} is needed")
    if len(found) > 1:
        raise Refused(f"has the images .{' and .'.join(found)}; one is needed")
    content = files[found[0]]
    if content is None:
        raise Refused(f"has more than {MAX_BYTES:,} bytes")
    return content


def _label(files: dict[str, bytes | None]) -> str:
    ending = next((ending for ending in _LABELS if ending in files), None)
    if ending is None:
        raise Refused("has no label: a file that ends in .cls, .label, .txt or .json is needed")
    content = files[ending]
    if content is None:
        raise Refused(f"has a label of more than {MAX_LABEL:,} characters")
    try:
        text: object = content.decode()
        if ending == "json":
            fields = json.loads(content)
            text = fields.get("label", fields.get("cls")) if isinstance(fields, dict) else None
    except (ValueError, RecursionError):
        raise Refused(f"has a label that cannot be read from its file .{ending}") from None
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    return checked_label(text)
