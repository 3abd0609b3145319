"""What comes in from outside: items to be learned, and those that are refused with a reason while the rest goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

CHUNK = 256  # items that become durable together
MAX_ID = 4096  # characters
MAX_LABEL = 1000  # characters


class Refused(Exception):
    """Why one item cannot be taken, as the end of a sentence that begins with its name; the others are not touched."""


class Item(NamedTuple):
    """A sample as it was given, not decoded yet."""

    id: str
    label: str
    image: Path | bytes  # a file, or an encoded image
    line: int | None = None  # of a list or pipe, from 1


class Refusal(NamedTuple):
    """Something that is not even an item."""

    name: str | None  # its path or id; None: it has none that could be read
    reason: str
    line: int | None = None


Offer = Item | Refusal
Chunks = Iterator[list[Offer]]


def in_chunks(offers: Iterator[Offer]) -> Chunks:
    while chunk := list(islice(offers, CHUNK)):
        yield chunk


class Outcome(NamedTuple):
    """What became of an item or refusal, once it is durable."""

    name: str | None
    line: int | None
    new: bool  # False: it was there before, or is refused
    error: str | None = None  # why it is refused

    @property
    def sentence(self) -> str:
        """Who is refused, and why."""
        return f"{f'line {self.line}' if self.name is None else short(self.name)} {self.error}"


def checked_id(text: object) -> str:
    """The id of an item, or Refused."""
    if text is None or text == "":
        raise Refused("has no id and no path to take for one")
    if not isinstance(text, str):
        raise Refused(f"has an id that is {_kind(text)}, not text")
    if len(text) > MAX_ID:
        raise Refused(f"has an id of {len(text):,} characters, more than {MAX_ID:,}")
    return _encodable(text, "an id")


def checked_label(text: object) -> str:
    """The label of an item without blanks around it, or Refused."""
    if text is None:
        raise Refused("has no label")
    if not isinstance(text, str):
        raise Refused(f"has a label that is {_kind(text)}, not text")
    label = text.strip()
    if not label:
        raise Refused("has an empty label")
    if len(label) > MAX_LABEL:
        raise Refused(f"has a label of {len(label):,} characters, more than {MAX_LABEL:,}")
    return _encodable(label, "a label")


def short(text: str) -> str:
    """A name that fits into a message."""
    return text if len(text) <= 200 else f"{text[:200]}…"


def _encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"has {what} that is not valid UTF-8") from None
    return text


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "of another kind")
