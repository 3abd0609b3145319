"""Progress of a long call as lines on the standard error stream: for users of the scikit-learn interface."""

from __future__ import annotations

import sys
import time

from purereplay.purify.opinions import JudgingShare

_LONG = 10.0  # seconds after which a call reports unasked, and between two such reports
_OFTEN = 1.0  # seconds between two reports that were asked for


class ProgressLine:
    """Callback of `data.progress.Progress`; `verbose` None reports only what takes long."""

    def __init__(self, verbose: bool | None) -> None:
        self.share = JudgingShare()
        self.interval = _OFTEN if verbose else _LONG
        self.began = time.monotonic()
        self.last = self.began if verbose is None else -float("inf")

    def start(self) -> None:
        """Measure the time from now on."""
        waits = self.last > -float("inf")
        self.began = time.monotonic()
        self.last = self.began if waits else self.last

    def __call__(self, name: str, done: int, total: int | None) -> None:
        share, now = self.share(name, done, total), time.monotonic()
        if now - self.last < self.interval:
            return
        self.last = now
        text = name + (f" {done:,} of {total:,}" if total else "") if share is None else self.share.text(share)
        sys.stderr.write(f"purereplay: {text}, {now - self.began:.0f} s so far\n")
        sys.stderr.flush()
