"""Items given by the user: samples to be added, and refusals with a reason; a refusal does not affect other items."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHUNK = 256  # items stored in one transaction
CHUNK_BYTES = 32 * 2**20  # of embedded images in one transaction, unless a single one is larger
MAX_ID = 4096  # characters
MAX_LABEL = 1000  # characters


class Refused(Exception):
    """The reason why an item is refused, as the end of a sentence that starts with its name."""


class Item(NamedTuple):
    """A sample as given, not decoded yet."""

    id: str
    label: str
    image: Path | bytes  # a file, or an encoded image
    line: int | None = None  # of a list or pipe, from 1
    root: Path | None = None  # folder that the file must be in, as an absolute path without links


class Refusal(NamedTuple):
    """Input that could not be read as an item."""

    name: str | None  # its path or id; None: neither could be read
    reason: str
    line: int | None = None


Offer = Item | Refusal
Chunks = Iterator[list[Offer]]


def in_chunks(offers: Iterator[Offer]) -> Chunks:
    """Yield chunks that are limited in number and in bytes."""
    chunk: list[Offer] = []
    n_bytes = 0
    for offer in offers:
        if chunk and (len(chunk) == CHUNK or n_bytes + embedded_bytes(offer) > CHUNK_BYTES):
            yield chunk
            chunk, n_bytes = [], 0
        chunk.append(offer)
        n_bytes += embedded_bytes(offer)
    if chunk:
        yield chunk


def embedded_bytes(offer: Offer) -> int:
    """Return the size of an image that came with its item; 0 for a file."""
    return len(offer.image) if isinstance(offer, Item) and isinstance(offer.image, bytes) else 0


class Outcome(NamedTuple):
    """The result for an item or refusal, after the transaction."""

    name: str | None
    line: int | None
    new: bool  # False: it was stored before, or is refused
    error: str | None = None  # the reason for refusing it
    corrected: bool = False  # a known sample whose file was moved to another label

    @property
    def sentence(self) -> str:
        """The name of a refused item and the reason."""
        return f"{f'line {self.line}' if self.name is None else short(self.name)} {self.error}"


def checked_id(text: object) -> str:
    """Return the id of an item, or raise Refused."""
    if text is None or text == "":
        raise Refused("has no id and no path")
    if not isinstance(text, str):
        raise Refused(f"has an id that is {_kind(text)}, not text")
    if len(text) > MAX_ID:
        raise Refused(f"has an id of {len(text):,} characters, more than {MAX_ID:,}")
    return _encodable(text, "an id")


def checked_label(text: object) -> str:
    """Return the label of an item without surrounding blanks, or raise Refused."""
    if text is None:
        raise Refused("has no label")
    if not isinstance(text, str):
        raise Refused(f"has a label that is {_kind(text)}, not text")
    label = text.strip()
    if not label:
        raise Refused("has an empty label")
    if len(label) > MAX_LABEL:
        raise Refused(f"has a label of {len(label):,} characters, more than {MAX_LABEL:,}")
    if "\0" in label:  # no folder can have this name, and few programs read a table with it
        raise Refused("has a label with a NUL character")
    return _encodable(label, "a label")


def short(text: str) -> str:
    """Shorten a name to fit into a message."""
    return text if len(text) <= 200 else f"{text[:200]}…"


def _encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"has {what} that is not valid UTF-8") from None
    return text


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "of another type")
