"""Requests that arrive together are classified together: one thread computes, and takes all that wait at once."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.web.snapshots import Snapshot, Snapshots

MAX_WAITING = 256 * 2**20  # bytes of images; a request that is alone may have more
_AT_ONCE = 64  # images of several requests

Inputs = NDArray[Any]  # images uint8, or their features by an encoder, float32
Real = NDArray[np.float64]


class Overloaded(Exception):
    """Too many images wait already."""


class NoClassifier(Exception):
    """The state has no classifier yet."""


class Answer(NamedTuple):
    """Probabilities (n, labels) of one request's images, and the snapshot that gave them."""

    snapshot: Snapshot
    probabilities: Real


class _Waiting(NamedTuple):
    images: Inputs
    answer: asyncio.Future[Answer]


class Batcher:
    """Classifies images by the current snapshot; used by one event loop."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.snapshots = snapshots
        self.n_waiting = 0  # images
        self._n_bytes = 0  # of these
        self._queue: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "classifier")

    async def classify(self, images: Inputs) -> Answer:
        """Return the probabilities of images uint8 (n, C, H, W), or of their features float32 (n, dim)."""
        if self._n_bytes and self._n_bytes + images.nbytes > MAX_WAITING:
            raise Overloaded
        loop = asyncio.get_running_loop()
        waiting = _Waiting(images, loop.create_future())
        self._queue.append(waiting)
        self.n_waiting += len(images)
        self._n_bytes += images.nbytes
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await waiting.answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            group = self._next()
            try:
                answers = await loop.run_in_executor(self._thread, self._compute, [w.images for w in group])
            except Exception as error:
                answers = None
                for waiting in group:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
            self.n_waiting -= sum(len(w.images) for w in group)
            self._n_bytes -= sum(w.images.nbytes for w in group)
            for waiting, answer in zip(group, answers or [], strict=False):
                if not waiting.answer.done():  # a client may be gone
                    waiting.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """Return requests that are classified at once, oldest first."""
        group = [self._queue.popleft()]
        n = len(group[0].images)
        while self._queue and n + len(self._queue[0].images) <= _AT_ONCE:
            group.append(self._queue.popleft())
            n += len(group[-1].images)
        return group

    def _compute(self, parts: list[Inputs]) -> list[Answer]:
        snapshot = self.snapshots.current
        if snapshot is None:
            raise NoClassifier
        found = snapshot.probabilities(np.concatenate(parts))
        ends = np.cumsum([len(part) for part in parts])
        return [Answer(snapshot, own) for own in np.split(found, ends[:-1])]

    def close(self) -> None:
        """End the thread after its current batch."""
        self._thread.shutdown(wait=False, cancel_futures=True)
