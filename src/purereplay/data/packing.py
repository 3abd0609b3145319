"""Tensors and a few facts in one safetensors file that carries digests of all its contents; nothing is pickled.

Used by checkpoints, state folders and saved estimators. `files.write_whole` puts the bytes on the disk. `digest` covers
the tensors and identifies them: it names files of a state. `seal` covers the digest and the facts. Files of version
0.1.0 have no seal. A file with any other metadata is refused, so a damaged name cannot hide a seal.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from purereplay.data.files import open_regular

_UNSEALED = {"facts", "digest"}  # metadata of a file of version 0.1.0
_MAX_HEADER = 100_000_000  # bytes; the limit of the format


class Packed(NamedTuple):
    """Contents of a packed file."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # anything JSON can hold
    digest: str  # of the tensors


def pack_tensors(tensors: dict[str, Tensor], facts: dict[str, Any]) -> tuple[bytes, str]:
    """Return the bytes of a file with tensors, facts and their digests, and the digest of the tensors."""
    # copies, since the format does not allow tensors that share memory
    whole = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    digest, text = _digest(whole), json.dumps(facts)
    return save(whole, {"facts": text, "digest": digest, "seal": _seal(digest, text)}), digest


def unpack_tensors(path: Path, *, most: int | None = None, follow: bool = True) -> Packed:
    """Return the contents of a packed file; ValueError with the reason if it is missing, damaged or of another kind.

    A file of more than `most` bytes is refused before it is read, and so is one whose size is not that of its tensors.
    Without `follow` a link is refused too.
    """
    try:
        content = _read(path, most, follow)
        tensors = load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        digest = _digest(tensors)
        if metadata.keys() - {"seal"} != _UNSEALED:
            raise ValueError("it holds no digest, or unknown metadata")
    except Exception as error:  # a damaged file can raise nearly anything, such as errors of the parser's own types
        raise ValueError(f"cannot be read: {_one_line(error)}") from error
    sealed = metadata.get("seal", _seal(digest, metadata["facts"]))
    if digest != metadata["digest"] or sealed != _seal(digest, metadata["facts"]):
        raise ValueError("is damaged: its contents do not match its digest")
    try:
        facts = json.loads(metadata["facts"])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read: {_one_line(error)}") from error
    if not isinstance(facts, dict):
        raise ValueError("cannot be read: its facts are not a JSON object")
    return Packed(tensors, facts, digest)


def _read(path: Path, most: int | None, follow: bool) -> bytes:
    """Return all bytes of a packed file; the sizes in its header are compared with its own before the rest is read.

    Read at once, not memory-mapped: a later change of the file must not change tensors that were checked.
    """
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise ValueError(f"it has {size:,} bytes, more than the {most:,} that it can need")
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if length > min(size - 8, _MAX_HEADER):
            raise ValueError(f"its header has {length:,} bytes")
        header = file.read(length)
        ends = [t["data_offsets"][1] for name, t in json.loads(header).items() if name != "__metadata__"]
        needed = 8 + length + max(ends, default=0)
        if size != needed:
            raise ValueError(f"it has {size:,} bytes, but its header describes {needed:,}")
        return start + header + file.read(size - 8 - length)


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)} ".encode())
        digest.update(t.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _seal(digest: str, facts: str) -> str:
    return hashlib.sha256(f"{digest} {facts}".encode()).hexdigest()


def _one_line(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).partition("\n")[0].rstrip(".")
