"""Encoders that are the user's own code: `python:MODULE:FUNCTION`.

The function takes images uint8 (n, 3, size, size) and returns features (n, d). It may have the attributes `size`,
`batch` and `version`. An object with `name`, `dim` and `embed` is an encoder as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from purereplay.data.encoders.base import BATCH, SIZE, Encoder, Features, digest_of
from purereplay.data.encoders.calls import Failed, user_code
from purereplay.data.encoders.options import Options
from purereplay.data.encoders.pictures import Pixels
from purereplay.errors import UserError


class FunctionEncoder:
    """An encoder that is a function."""

    dim: Any = None  # found by the first trial

    def __init__(self, name: str, function: Callable[[Pixels], Any], options: Options) -> None:
        self.name, self._function = name, function
        # whether they are whole numbers is checked with those of every encoder
        self.size: Any = options.size or getattr(function, "size", SIZE)
        self.batch: Any = getattr(function, "batch", BATCH) if options.batch is None else options.batch

    def embed(self, images: Pixels) -> Features:
        found = self._function(images)
        if hasattr(found, "detach"):  # a tensor
            found = found.detach().cpu().numpy()
        return found  # type: ignore[no-any-return]  # checked by the caller


def python_encoder(source: str, options: Options) -> tuple[Encoder, str]:
    """Return the encoder at module:function, and the digest of the module's file and of the version it states."""
    module, colon, name = source.partition(":")
    text = f"python:{source}"
    if not module or not colon or not name:
        raise UserError(f"The encoder {text} must be written python:MODULE:FUNCTION.")
    found: Any = _imported(module, text)
    try:
        with user_code():
            origin = getattr(found, "__file__", None)
            for part in name.split("."):
                if not hasattr(found, part):
                    raise AttributeError(f"{module} has no {part!r}")
                found = getattr(found, part)
            version = str(getattr(found, "digest", getattr(found, "version", "")))
            is_encoder, is_function = hasattr(found, "embed"), callable(found)
            digest = digest_of(name, Path(origin).read_bytes() if origin else module, version)
    except Failed as error:
        raise UserError(f"The encoder {text} cannot be used: {error}.") from error
    if is_encoder:
        return found, digest
    if not is_function:
        raise UserError(
            f"The encoder {text} cannot be used: its type is {type(found).__name__}, and a function is needed."
        )
    return FunctionEncoder(text, found, options), digest


def _imported(module: str, text: str) -> Any:
    """Import a module, also from the working directory."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        with user_code():
            return import_module(module)
    except Failed as error:
        raise UserError(f"The encoder {text} cannot be imported: {error}.") from error
    finally:
        if added:
            sys.path.remove(here)
