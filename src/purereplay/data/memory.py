"""Memory of this machine, and the limit on what a file may hold once it is decoded.

A compressed file can hold a thousand times its own size. So its contents are compared with the limit before they are
decoded.
"""

import os

from purereplay.errors import UserError

MAX_SAMPLES = 2**26  # of a file
SAMPLE_BYTES = 100  # that the filter needs for each sample besides its features: label, place, scores


def machine_memory() -> int | None:
    """Return the bytes of memory of this machine; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None


def check_contents(what: str, n_bytes: int) -> None:
    """Raise UserError if decoded contents would take more than half of the memory."""
    memory = machine_memory()
    if memory is not None and n_bytes > memory // 2:
        raise UserError(
            f"{what} does not fit into memory: its contents take {n_bytes:,} bytes, and at most {memory // 2:,} "
            "(half of this machine's memory) are read."
        )


def check_samples(path: object, n_samples: int, n_bytes: int) -> None:
    """Raise UserError if a file has more samples, or larger ones, than are read; `n_bytes` are those of features."""
    if n_samples > MAX_SAMPLES:
        raise UserError(
            f"{path} has {n_samples:,} samples, more than {MAX_SAMPLES:,}: split it by label, "
            "which gives the same scores."
        )
    check_contents(str(path), n_bytes + SAMPLE_BYTES * n_samples)
