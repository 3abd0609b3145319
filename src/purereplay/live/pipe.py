"""A pipe of JSON lines: read as they arrive, and answered with one line each once they are on the disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, NamedTuple

from purereplay.errors import UserError
from purereplay.live.items import CHUNK, Chunks, Offer, Outcome
from purereplay.live.lists import read_lines

_AHEAD = 64  # lines read in advance
_WAIT = 0.5  # seconds until an empty chunk is yielded, so that the caller can check for Ctrl-C


class _End(NamedTuple):
    error: OSError | None


def piped(file: IO[bytes], root: Path) -> Chunks:
    """Yield chunks of the lines that have arrived; an empty chunk if none arrived for a while."""
    queue: Queue[Offer | _End] = Queue(_AHEAD)

    def read() -> None:
        try:
            for offer in read_lines(file, root):
                queue.put(offer)
            queue.put(_End(None))
        except OSError as error:
            queue.put(_End(error))

    threading.Thread(target=read, daemon=True).start()
    end = None
    while end is None:
        chunk, end = _available(queue)
        yield chunk
    if end.error is not None:
        raise UserError(f"The pipe cannot be read: {end.error.strerror or end.error}.")


def _available(queue: Queue[Offer | _End]) -> tuple[list[Offer], _End | None]:
    """Return the lines in the queue, after waiting for the first one."""
    chunk: list[Offer] = []
    with suppress(Empty):
        while len(chunk) < CHUNK:
            found = queue.get(timeout=_WAIT) if not chunk else queue.get_nowait()
            if isinstance(found, _End):
                return chunk, found
            chunk.append(found)
    return chunk, None


def acknowledge(outcomes: Iterable[Outcome], out: IO[str]) -> None:
    """Write one answer per line of the pipe."""
    try:
        for outcome in outcomes:
            answer: dict[str, object] = {"id": outcome.name, "ok": True}
            if outcome.error is not None:
                answer = {"id": outcome.name, "line": outcome.line, "error": outcome.sentence}
            out.write(json.dumps(answer) + "\n")
        out.flush()
    except BrokenPipeError:
        raise UserError("The reader of the answers has closed the pipe; all answered samples are stored.") from None
