"""Tensors and a few facts in one safetensors file that carries a digest of its tensors; nothing is pickled.

Used by checkpoints, state folders and saved estimators. `files.write_whole` puts the bytes on the disk.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor


class Packed(NamedTuple):
    """Contents of a packed file."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # anything JSON can hold
    digest: str  # of the tensors


def pack_tensors(tensors: dict[str, Tensor], facts: dict[str, Any]) -> tuple[bytes, str]:
    """Return the bytes of a file with tensors, facts and a digest of the tensors, and that digest."""
    # copies, since the format does not allow tensors that share memory
    whole = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    digest = _digest(whole)
    return save(whole, {"facts": json.dumps(facts), "digest": digest}), digest


def unpack_tensors(path: Path) -> Packed:
    """Return the contents of a packed file; ValueError with the reason if it is missing, damaged or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        packed = Packed(tensors, json.loads(metadata["facts"]), _digest(tensors))
        stated = metadata["digest"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if packed.digest != stated:
        raise ValueError("is damaged: its contents do not match its digest")
    return packed


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)} ".encode())
        digest.update(t.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
