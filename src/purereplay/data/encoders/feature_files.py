"""Features that were computed elsewhere: `file:FEATURES.npz`, `.parquet` or `.csv`, one row per image, found by its id.

The file needs ids, and features as in `purereplay filter`; labels are not needed. There is no network, so only images
that are in the file can be learned or classified.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from purereplay.data.encoders.base import MOST_FEATURES, Features, digest_of
from purereplay.data.features import read_named
from purereplay.errors import UserError


class FeatureFile:
    """Features by id; `rows` holds the place of each id in `features`."""

    size = 0  # takes no pixels

    def __init__(self, path: Path) -> None:
        features, ids = read_named(path)
        self.path, self.text, self.name = path, f"file:{path.resolve()}", f"file:{path.name}"
        with np.errstate(over="ignore"):
            self.features: Features = np.ascontiguousarray(features, np.float32)
        if not np.isfinite(self.features).all():
            raise UserError(f"The features in {path} are larger than float32 can hold: scale them.")
        self.dim = self.features.shape[1]
        if self.dim > MOST_FEATURES:
            raise UserError(f"{path} has {self.dim:,} features per row, more than {MOST_FEATURES:,}.")
        self.rows = {str(name): row for row, name in enumerate(ids)}
        # a later file may hold more images, so its contents are not part of it; equal ids are compared row by row
        self.digest = digest_of("file", str(self.dim))

    def find(self, *names: str) -> Features | None:
        """Return the features (dim,) of the first of some names that the file has; None if it has none."""
        row = next((self.rows[name] for name in names if name in self.rows), None)
        return None if row is None else self.features[row]
