"""Checkpoints: a learner's tensors and a few facts in one safetensors file, written whole or not at all.

The two newest are kept. Each carries a digest of its contents, so a damaged one is noticed and the one before it is
used. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from purereplay.data.files import write_whole

log = logging.getLogger(__name__)

_KEPT = 2
_PATTERN = f"checkpoint-{'[0-9]' * 8}.safetensors"


class Saved(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    digest: str


def packed(tensors: dict[str, Tensor], facts: dict[str, Any]) -> tuple[bytes, str]:
    """The content of a file with tensors, facts and a digest of the tensors; and that digest."""
    # copies, since the format has no room for tensors that share memory
    whole = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    digest = _digest(whole)
    return save(whole, {"facts": json.dumps(facts), "digest": digest}), digest


def read_packed(path: Path) -> Saved:
    """The file's contents; ValueError with the reason where it is missing, damaged or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        saved = Saved(tensors, json.loads(metadata["facts"]), _digest(tensors))
        stated = metadata["digest"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if saved.digest != stated:
        raise ValueError("is damaged: its contents are not those of its digest")
    return saved


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write the next checkpoint and remove those before the last two."""
    newest = max((int(path.stem.rpartition("-")[2]) for path in folder.glob(_PATTERN)), default=-1)
    path = folder / f"checkpoint-{newest + 1:08d}.safetensors"
    write_whole(path, packed(tensors, facts)[0])
    for old in sorted(folder.glob(_PATTERN))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest good checkpoint's tensors and facts, or None where there is none."""
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            saved = read_packed(path)
            return saved.tensors, saved.facts
        except ValueError as error:
            log.warning("%s %s; it is passed over", path, error)
    return None


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)} ".encode())
        digest.update(t.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
