"""A live pipe: JSON lines in, as many at once as are there; a line out for each of them once it is durable."""

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

_AHEAD = 64  # lines read before they are asked for
_PATIENCE = 0.5  # seconds until an empty chunk is given, so that whoever waits can look at other things


class _End(NamedTuple):
    error: OSError | None


def piped(file: IO[bytes], root: Path) -> Chunks:
    """Chunks of what has come; an empty one where nothing did for a while."""
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
    """What is there, after waiting for the first of it."""
    chunk: list[Offer] = []
    with suppress(Empty):
        while len(chunk) < CHUNK:
            found = queue.get(timeout=_PATIENCE) if not chunk else queue.get_nowait()
            if isinstance(found, _End):
                return chunk, found
            chunk.append(found)
    return chunk, None


def acknowledge(outcomes: Iterable[Outcome], out: IO[str]) -> None:
    """Answer every line."""
    try:
        for outcome in outcomes:
            answer: dict[str, object] = {"id": outcome.name, "ok": True}
            if outcome.error is not None:
                answer = {"id": outcome.name, "line": outcome.line, "error": outcome.sentence}
            out.write(json.dumps(answer) + "\n")
        out.flush()
    except BrokenPipeError:
        raise UserError("Nobody reads the acknowledgements any more; what was acknowledged is safe.") from None
