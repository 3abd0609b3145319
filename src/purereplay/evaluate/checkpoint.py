"""Checkpoints: a learner's tensors and a few facts in one safetensors file, written whole or not at all.

The two newest are kept. Each carries a digest of its contents, so a damaged one is noticed and the one before it is
used. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from purereplay.data.files import write_whole
from purereplay.errors import UserError

log = logging.getLogger(__name__)

_KEPT = 2
_PATTERN = f"checkpoint-{'[0-9]' * 8}.safetensors"


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write the next checkpoint and remove those before the last two."""
    newest = max((int(path.stem.rpartition("-")[2]) for path in folder.glob(_PATTERN)), default=-1)
    path = folder / f"checkpoint-{newest + 1:08d}.safetensors"
    write_tensors(path, tensors, facts)
    for old in sorted(folder.glob(_PATTERN))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest good checkpoint's tensors and facts, or None where there is none."""
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            return read_tensors(path)
        except UserError as error:
            log.warning("%s is passed over: %s", path, error)
    return None


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Tensors and facts as one file, whole or not at all."""
    # copies, since the format has no room for tensors that share memory
    whole = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    metadata = {"facts": json.dumps(facts), "digest": _digest(whole)}
    write_whole(path, save(whole, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; a UserError names the file where that cannot be had."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        facts = json.loads(metadata["facts"])
        intact = _digest(tensors) == metadata["digest"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not intact:
        raise UserError(f"{path} is damaged.")
    return tensors, facts


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name]
        digest.update(f"{name} {t.dtype} {tuple(t.shape)} ".encode())
        digest.update(t.numpy().reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
