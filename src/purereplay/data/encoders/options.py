"""The text that names an encoder, `KIND:SOURCE?option=value&…`, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray

from purereplay.data.encoders.pictures import Pixels
from purereplay.errors import UserError

KINDS = ("onnx", "torch", "python", "timm", "hf", "file")
_NORMAL = ("mean", "std")
OPTIONS = {  # by kind
    "onnx": ("size", "batch", *_NORMAL, "output"),
    "torch": ("size", "batch", *_NORMAL, "input"),
    "python": ("size", "batch"),
    "timm": ("size", "batch", *_NORMAL),
    "hf": ("size", "batch", *_NORMAL),
    "file": (),
}
_HELP = "onnx:FILE, torch:FILE, python:MODULE:FUNCTION, timm:NAME, hf:NAME or file:FEATURES.npz"


@dataclass(frozen=True)
class Normal:
    """Mean and standard deviation of the channels, by default those of ImageNet."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def apply(self, images: Pixels) -> NDArray[np.float32]:
        """Return images as floats in [0, 1], less the mean and divided by the standard deviation."""
        mean, std = (np.array(own, np.float32).reshape(1, -1, 1, 1) for own in (self.mean, self.std))
        found: NDArray[np.float32] = (images.astype(np.float32) / np.float32(255) - mean) / std
        return found


class Options(NamedTuple):
    """Options of an encoder; None: its own value, or the default."""

    size: int | None = None  # pixels of an image's side
    normal: Normal | None = None
    output: str | None = None  # name of an output of an ONNX model
    pixels: bool = False  # a torch model takes uint8, not floats
    batch: int | None = None  # images at once


class Named(NamedTuple):
    """A text that names an encoder, in parts."""

    kind: str
    source: str  # a path or name
    query: str  # options as given
    options: Options
    given: tuple[str, ...]  # names of the options in `query`

    def idle(self, *, is_object: bool = False, takes_pixels: bool = False) -> str:
        """Return the sentence that refuses an option that this encoder does not use, or an empty text.

        `is_object`: it is an object of Python, which has attributes instead; `takes_pixels`: they are not normalised.
        """
        used = [] if is_object else [o for o in OPTIONS[self.kind] if not (takes_pixels and o in _NORMAL)]
        name = next((name for name in self.given if name not in used), None)
        if name is None:
            return ""
        remedy = f"use {', '.join(used)}" if used else "it takes none, so leave it out"
        cause = ", since it takes the pixels themselves" if takes_pixels and name in _NORMAL else ""
        return f"The encoder {self.kind}:{self.source} does not take the option {name}{cause}: {remedy}."


def parse_name(text: str) -> Named:
    """Return the parts of a text; UserError if it names no encoder."""
    kind, colon, rest = text.partition(":")
    if kind not in KINDS or not colon or not rest:
        raise UserError(f"The encoder {text!r} is unknown: use none, {_HELP}.")
    source, _, query = rest.partition("?")
    return Named(kind, source, query, _options(text, query), tuple(name for name, _ in parse_qsl(query, True)))


def _options(text: str, query: str) -> Options:
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs):
        raise UserError(f"The encoder {text!r} names an option twice: leave one of them out.")
    unknown = given.keys() - {"size", "mean", "std", "output", "input", "batch"}
    if unknown:
        raise UserError(
            f"The encoder {text!r} has no option {min(unknown)!r}: use size, batch, mean, std, output or input."
        )
    try:
        size, batch = (int(given[name]) if name in given else None for name in ("size", "batch"))
        normal = None
        if "mean" in given or "std" in given:
            default = Normal()
            normal = Normal(_three(given.get("mean"), default.mean), _three(given.get("std"), default.std))
        if (size is not None and size < 1) or (normal and min(normal.std) <= 0):
            raise UserError(f"The options size and std of the encoder {text!r} must be greater than 0.")
    except ValueError:
        raise UserError(
            f"The options of the encoder {text!r} are not numbers: write ?size=224&mean=0.5&std=0.25,0.25,0.25."
        ) from None
    if given.get("input", "float") not in ("float", "uint8"):
        raise UserError(f"The option input of the encoder {text!r} must be float or uint8.")
    return Options(size, normal, given.get("output"), given.get("input") == "uint8", batch)


def _three(text: str | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if text is None:
        return default
    found = tuple(float(part) for part in text.split(","))
    if len(found) not in (1, 3) or not np.isfinite(found).all():
        raise ValueError
    return found if len(found) == 3 else 3 * found
