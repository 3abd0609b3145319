"""Run of `purereplay filter --encoder`: images to features, then the filter; it reads images as `learn` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable
from pathlib import Path

import numpy as np

from purereplay.data.encoders import open_encoder
from purereplay.data.encoders.base import Features
from purereplay.data.features import FeatureTable
from purereplay.data.scores import check_destination
from purereplay.data.text import printable
from purereplay.errors import UserError
from purereplay.live.encoding import PIECE, Encoding
from purereplay.live.intake import open_source
from purereplay.live.items import Item, Outcome
from purereplay.report.filtering import Method, score_table, show_summary, timed_bar
from purereplay.report.terminal import progress_bars


def filter_images(
    source: str, destination: Path, method: Method, encoder: str, labels: str | None = None
) -> tuple[int, int]:
    """Score the labels of images by the features of an encoder; returns how many images were refused, and all.

    `source` is a folder label/name.jpg, a list or packed data, as for `learn`; `labels` is its column of labels.
    """
    check_destination(destination, Path(source))
    if source == "-":
        raise UserError("filter --encoder needs a folder or a list; use `learn -` for a pipe.")
    started, encoding = time.monotonic(), Encoding(open_encoder(encoder))
    images = open_source(source, state=destination, labels=labels)
    rows, found, ids, n = list[Features](), list[str](), list[Hashable](), 0
    with progress_bars() as bars:
        show = timed_bar(bars, "encoding")
        for chunk in images.chunks:
            for start in range(0, len(chunk), PIECE):
                some = chunk[start : start + PIECE]
                for offer, own in zip(some, encoding.of_offers(some), strict=True):
                    if isinstance(offer, Item) and isinstance(own, np.ndarray):
                        rows.append(own)
                        found.append(offer.label)
                        ids.append(offer.id)
                    else:
                        name = offer.id if isinstance(offer, Item) else offer.name
                        sys.stderr.write(
                            printable(Outcome(name, offer.line, new=False, error=str(own)).sentence) + "\n"
                        )
                n += len(some)
                show("encoding", n, images.total)
        if not rows:
            raise UserError(f"{source} holds no images that can be encoded.")
        given = np.empty(len(found), dtype=object)
        given[:] = found
        summary = score_table(bars, FeatureTable(np.stack(rows), given, ids), destination, method)
    show_summary(destination, summary, started)
    return n - len(rows), n
