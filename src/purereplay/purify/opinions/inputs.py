"""Checks of features and labels that come from users, for verdicts and classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from purereplay.errors import InputError


def checked_features(features: ArrayLike) -> NDArray[np.float32]:
    """Return features as float32 (n, d), all finite."""
    try:
        values = np.ascontiguousarray(features, np.float32)
    except (TypeError, ValueError):
        raise InputError("Features must be a matrix of real numbers, one row per sample.") from None
    if values.ndim != 2:
        raise InputError(f"Features have shape {values.shape}, but must be (n, d).")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(1))[0])
        raise InputError(f"Features of row {row} hold NaN or infinity.")
    return values


def checked_labels(labels: ArrayLike, n: int, n_classes: int) -> NDArray[np.int64]:
    """Return labels as int64 (n,) below `n_classes`."""
    given: NDArray[Any] = np.asarray(labels)
    if given.shape != (n,):
        raise InputError(f"Labels have shape {given.shape}, but {n} samples need ({n},).")
    if n and given.dtype.kind not in "iu":
        raise InputError(
            f"Labels are {given.dtype}, but must be integers from 0 to {n_classes - 1}: number them by "
            "names, labels = numpy.unique(labels, return_inverse=True)."
        )
    numbers = given.astype(np.int64)
    if n and not 0 <= numbers.min() <= numbers.max() < n_classes:
        raise InputError(f"Labels must lie between 0 and {n_classes - 1}.")
    return numbers
