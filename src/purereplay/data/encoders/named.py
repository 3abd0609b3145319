"""From a text to an encoder, such as `onnx:lite0.onnx?size=224` on the command line."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from purereplay.data.encoders.base import CheckedEncoder, Encoder, attribute_of, checked, digest_of
from purereplay.data.encoders.feature_files import FeatureFile
from purereplay.data.encoders.options import Named, parse_name
from purereplay.data.files import open_regular
from purereplay.errors import UserError

if TYPE_CHECKING:
    from purereplay.data.encoders.onnx_files import OnnxEncoder
    from purereplay.data.encoders.torch_models import TorchEncoder

NONE = "none"
_CODE = ("python", "torch")  # kinds whose author's code runs
_FILES = ("onnx", "file")  # kinds that a state opens by itself, from a file
_LARGEST = 4 * 2**30  # bytes of a file


class EncoderFacts(NamedTuple):
    """The encoder of a state or run."""

    text: str  # by which it is opened again
    digest: str
    dim: int  # number of features
    size: int  # pixels of the side of the images that it takes; 0: none

    @property
    def name(self) -> str:
        """Its text without the folder, so that it can be given away."""
        kind, _, rest = self.text.partition(":")
        source, question, query = rest.partition("?")  # the name of an output may have a slash
        public = kind == "hf" and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source)  # owner and model
        return f"{kind}:{source if public else source.rpartition('/')[2]}{question}{query}"


def open_encoder(text: str, *, again: bool = False) -> CheckedEncoder | FeatureFile:
    """Return the encoder that a text names, after a trial; UserError if it cannot be used.

    `again`: it may be that of a state, run or classifier that exists, so an option that is not used is accepted;
    the caller refuses it for a new one by `check_options`.
    """
    named = parse_name(text)
    if named.kind == "file":
        if idle := named.idle():
            raise UserError(idle)
        return FeatureFile(Path(named.source))
    found = _from_file(named) if named.kind in ("onnx", "torch") else _from_code(named, text)
    if not again:
        found.check_options()
    return found


def _from_code(named: Named, text: str) -> CheckedEncoder:
    from purereplay.data.encoders.torch_models import hf_model, timm_model
    from purereplay.data.encoders.user_code import FunctionEncoder, python_encoder

    encoder: Encoder
    if named.kind == "python":
        encoder, digest = python_encoder(named.source, named.options)
    else:
        encoder, digest = (timm_model if named.kind == "timm" else hf_model)(named.source, named.options)
    found = checked(encoder, text=text, digest=digest_of(named.kind, digest, str(named.options)))
    is_object = named.kind == "python" and not isinstance(encoder, FunctionEncoder)
    return replace(_with_shape(found), idle=named.idle(is_object=is_object))


def as_encoder(given: str | Encoder, *, again: bool = False) -> CheckedEncoder:
    """Return the encoder for arrays in memory that a text names, or an object with name, dim and embed.

    `again`: see `open_encoder`.
    """
    if isinstance(given, str):
        found = open_encoder(given, again=again)
        if isinstance(found, FeatureFile):
            raise UserError(f"The encoder {given} holds features of files: give the features themselves as X.")
        return found
    owner, missing = type(given).__name__, object()
    if any(attribute_of(given, name, missing, owner) is missing for name in ("name", "dim", "embed")):
        raise UserError(
            f"The encoder has the type {owner}: "
            "give a text, such as python:MODULE:FUNCTION, or an object with name, dim and embed."
        )
    name, digest = (attribute_of(given, own, "", owner, str) for own in ("name", "digest"))
    return _with_shape(checked(given, text="", digest=digest_of("object", name, digest)))


def _with_shape(found: CheckedEncoder) -> CheckedEncoder:
    """Put sizes of images and features into the digest: code of the user may change both, and nothing else tells."""
    return replace(found, digest=digest_of(found.digest, str(found.dim), str(found.size)))


def reopen(text: str, digest: str, owner: str | Path) -> CheckedEncoder | FeatureFile:
    """Return the encoder that a state or saved classifier was made with; UserError if it is another one now.

    A file from somebody else may name any encoder, so one whose author's code would run is not opened.
    """
    if runs_code(text):
        raise UserError(
            f"{owner} was made with {text}, which runs code: name it again with --encoder {text} if you trust it."
        )
    named = parse_name(text)
    if named.kind in _FILES and (reason := _missing(Path(named.source))):
        options = f"?{named.query}" if named.query else ""
        raise UserError(
            f"The encoder {named.source} cannot be read: {reason}; if it was moved, name its new place with "
            f"--encoder '{named.kind}:FILE{options}'."
        )
    found = open_encoder(text, again=True)
    check_same(found, text, digest, owner)
    return found


def _missing(path: Path) -> str | None:
    """Return the reason why a file is not found, None if it is there."""
    try:
        path.stat()
    except OSError as error:
        return error.strerror or str(error)
    return None


def runs_code(text: str) -> bool:
    """Return whether opening the encoder that a text names runs code of its author."""
    return parse_name(text).kind in _CODE


def check_same(found: CheckedEncoder | FeatureFile, text: str, digest: str, owner: str | Path) -> None:
    """Raise UserError if an encoder is not the one that a state or saved classifier was made with."""
    if found.digest != digest:
        raise UserError(
            f"{owner} was made with a different encoder or version than {found.name}: "
            f"use the original {text}, or create a new state, run or classifier."
        )


def _from_file(named: Named) -> CheckedEncoder:
    path = Path(named.source)
    try:
        content = _content(path)
    except OSError as error:
        raise UserError(f"The encoder {path} cannot be read: {error.strerror or error}.") from None
    encoder: OnnxEncoder | TorchEncoder
    if named.kind == "onnx":
        from purereplay.data.encoders.onnx_files import OnnxEncoder

        encoder = OnnxEncoder(content, path, named.options, torch.get_num_threads())
    else:
        from purereplay.data.encoders.torch_models import torch_file

        encoder = torch_file(content, path, named.options)
    text = f"{named.kind}:{path.resolve()}" + (f"?{named.query}" if named.query else "")
    digest = digest_of(named.kind, content, str(named.options))
    idle = named.idle(takes_pixels=encoder.takes_pixels)
    return replace(checked(encoder, text=text, digest=digest), idle=idle)


def _content(path: Path) -> bytes:
    """Return the bytes of a file; OSError if it is a pipe or a device, which may have no end, or grows meanwhile."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "its name holds a NUL character")
    with os.fdopen(open_regular(path, follow=True), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _LARGEST:
            raise UserError(f"{path} has more than {_LARGEST // 2**30} GiB, which no encoder may have.")
        content = file.read(size + 1)
    if len(content) != size:
        raise OSError(errno.EBUSY, "it changes while it is read")
    return content
