"""A pipe of JSON lines: read as they arrive, and answered with one line each once they are on the disk."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from purereplay.errors import UserError
from purereplay.live.items import CHUNK, CHUNK_BYTES, Chunks, Offer, Outcome, embedded_bytes
from purereplay.live.lists import read_lines

_AHEAD = 64  # lines read in advance
_WAIT = 0.5  # seconds until an empty chunk is yielded, so that the caller can check for Ctrl-C


class _End(NamedTuple):
    error: OSError | None


def piped(file: IO[bytes], root: Path) -> Chunks:
    """Yield chunks of the lines that have arrived; an empty chunk if none arrived for a while."""
    queue = _Lines()

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
        chunk, end = queue.available()
        yield chunk
    if end.error is not None:
        raise UserError(f"The pipe cannot be read: {end.error.strerror or end.error}.")


class _Lines:
    """Lines read in advance, limited in number and in bytes of embedded images."""

    def __init__(self) -> None:
        self._lines: deque[Offer | _End] = deque()
        self._n_bytes = 0
        self._changed = threading.Condition()

    def put(self, line: Offer | _End) -> None:
        """Add a line; waits until there is room."""
        n_bytes = _bytes(line)
        with self._changed:
            self._changed.wait_for(
                lambda: not self._lines or (len(self._lines) < _AHEAD and self._n_bytes + n_bytes <= CHUNK_BYTES)
            )
            self._lines.append(line)
            self._n_bytes += n_bytes
            self._changed.notify_all()

    def available(self) -> tuple[list[Offer], _End | None]:
        """Return the lines that have arrived, after waiting for the first one."""
        chunk: list[Offer] = []
        taken = 0
        with self._changed:
            self._changed.wait_for(lambda: self._lines, _WAIT)
            while self._lines and len(chunk) < CHUNK and (not chunk or taken + _bytes(self._lines[0]) <= CHUNK_BYTES):
                line = self._lines.popleft()
                self._n_bytes -= _bytes(line)
                self._changed.notify_all()
                if isinstance(line, _End):
                    return chunk, line
                taken += _bytes(line)
                chunk.append(line)
        return chunk, None


def _bytes(line: Offer | _End) -> int:
    return 0 if isinstance(line, _End) else embedded_bytes(line)


def acknowledge(outcomes: Iterable[Outcome], out: IO[str]) -> None:
    """Write one answer per line of the pipe."""
    try:
        for outcome in outcomes:
            answer: dict[str, object] = {"id": outcome.name, "ok": True}
            if outcome.error is not None:
                answer = {"id": outcome.name, "line": outcome.line, "error": outcome.sentence}
            out.write(json.dumps(answer) + "\n")
        out.flush()
    except OSError as error:
        _discard(out)
        if isinstance(error, BrokenPipeError):
            raise UserError("The reader of the answers has closed the pipe; all answered samples are stored.") from None
        raise UserError(
            f"The answers cannot be written ({error.strerror or error}): make room and send every line again that was "
            "not answered."
        ) from None


def _discard(out: IO[str]) -> None:
    """Send the answers that are still buffered nowhere; closing the file would try to write them once more."""
    with suppress(OSError, ValueError, AttributeError):  # it may have no descriptor
        number = out.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
