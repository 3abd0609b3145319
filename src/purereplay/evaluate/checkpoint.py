"""Checkpoints: a learner's tensors and a few facts in one safetensors file, written atomically.

The two newest are kept. Each contains a digest of its contents: if one is damaged, the one before it is used. Nothing
is pickled.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from purereplay.data.own_folder import OwnFolder, refuse_links
from purereplay.data.packing import pack_tensors, unpack_tensors

log = logging.getLogger(__name__)

_KEPT = 2
_PATTERN = f"checkpoint-{'[0-9]' * 8}.safetensors"


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Path:
    """Write the next checkpoint and remove those before the last two; no link is followed, not even `folder` itself."""
    own = OwnFolder(folder.parent)
    newest = max((int(path.stem.rpartition("-")[2]) for path in folder.glob(_PATTERN)), default=-1)
    path = folder / f"checkpoint-{newest + 1:08d}.safetensors"
    own.write(f"{folder.name}/{path.name}", pack_tensors(tensors, facts)[0])
    for old in sorted(folder.glob(_PATTERN))[:-_KEPT]:
        own.remove(f"{folder.name}/{old.name}")
    return path


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return the tensors and facts of the newest intact checkpoint, or None if there is none."""
    refuse_links([folder, *folder.glob(_PATTERN)])
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        try:
            saved = unpack_tensors(path)
            return saved.tensors, saved.facts
        except ValueError as error:
            log.warning("%s %s; it is skipped", path, error)
    return None
