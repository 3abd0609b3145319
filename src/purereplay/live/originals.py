"""The files that the samples of a state came from: larger than the copies that the state keeps, and shown to reviewers.

A state knows the folders that it was fed from, and the paths of the samples below them. A file counts as the original
only if the state would still make the same copy of it. Everything else about files holds as when they were added: links
out of the folder are not followed, and large or odd files are refused (see images.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from purereplay.errors import UserError
from purereplay.live.images import Pixels, read_content, read_encodable, read_pixels, read_view
from purereplay.live.items import Refused
from purereplay.live.lists import within
from purereplay.live.settings import StateSettings
from purereplay.live.store import Store

_ROOT = "root"  # fact: the folder that the first file of this state was in
_ROOTS = "roots"  # fact: JSON list of the other folders
THUMBNAIL = 128  # pixels; up to this size the copy is good enough, and many can be shown at once
_MOST = 20  # folders that are remembered


class Copy(NamedTuple):
    """The copy of an image that a state keeps, and the places where its file may be."""

    pixels: Pixels
    places: list[tuple[Path, str]]  # folder, and path below it
    settings: StateSettings


class Shown(NamedTuple):
    """An image for a person."""

    pixels: Pixels
    note: str  # where it comes from


def first_root(store: Store) -> str | None:
    """Return the folder that the first file of a state was in."""
    return store.fact(_ROOT)


def roots(store: Store) -> list[str]:
    """Return the folders that a state was fed from, the first one first."""
    first = store.fact(_ROOT)
    try:
        others = json.loads(store.fact(_ROOTS) or "[]")
    except (ValueError, RecursionError):
        others = None
    if not isinstance(others, list) or not all(isinstance(text, str) for text in others):
        raise UserError(f"{store.path} is damaged: its list of folders cannot be read.")
    return [] if first is None else [first, *others[: _MOST - 1]]


def add_root(store: Store, root: Path) -> None:
    """Remember a folder; call within a transaction."""
    known, own = roots(store), str(root.resolve())
    if not known:
        store.write_fact(_ROOT, own)
    elif own not in known and len(known) < _MOST:
        store.write_fact(_ROOTS, json.dumps([*known[1:], own]))


def copy_of(store: Store, position: int) -> Copy:
    """Return the copy of a sample; the database is not needed after that."""
    [row] = store.rows([position])
    moved = store.one("SELECT id FROM moves WHERE position = ?", [position])
    name = row.id if moved is None else str(moved[0])
    return Copy(row.pixels, [(Path(root), name) for root in roots(store)], store.image_settings)


def read_shown(copy: Copy, size: int) -> Shown:
    """Return the original of a copy, at most `size` pixels wide and high; the copy if it is gone, and as thumbnail."""
    if size <= THUMBNAIL:
        return Shown(copy.pixels, "")
    why = "its file is not known" if not copy.places else ""
    for place in copy.places:
        try:
            return _original(copy, *place, size)
        except Refused as reason:
            why = why if "was changed" in why else f"the file {reason}"
    _, height, width = copy.pixels.shape
    return Shown(copy.pixels, f"copy in the state, {width:,} × {height:,} pixels: {why}")


def read_file(root: Path, name: str, size: int) -> Shown:
    """Return the image of a file below a folder, at most `size` pixels wide and high, or raise Refused."""
    path, real_root = within(name, root)
    return _shown(read_content(path, real_root), size)


def _original(copy: Copy, root: Path, name: str, size: int) -> Shown:
    path, real_root = within(name, root)
    content, s = read_content(path, real_root), copy.settings
    if s.encoder is None or not s.encoder.size:
        kept = read_pixels(content, size=s.size, channels=s.channels, shape=s.shape, fit=s.fit)
    else:
        kept = read_encodable(content, channels=s.channels, shape=s.shape, size=s.encoder.size).pixels
    if not np.array_equal(kept, copy.pixels):
        raise Refused("was changed")
    return _shown(content, size)


def _shown(content: bytes, size: int) -> Shown:
    view = read_view(content, size)
    return Shown(view.pixels, f"file, {view.width:,} × {view.height:,} pixels")
