"""Standard output that may be full, closed, or unable to show a character.

A closed pipe, as behind `head`, ends a command without a word. A full disk is one sentence. A character that the
terminal's encoding lacks is shown as its number, as in `\\xe9`. CSV and JSON lines for other programs are UTF-8.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO

# of a write to standard output; a read-only or missing file has others
_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE, errno.EBADF)


def show_every_character() -> None:
    """Let standard output show characters that its encoding lacks, and file names that are not text, as numbers."""
    codecs.register_error("purereplay", _bytes_or_numbers)
    if isinstance(sys.stdout, io.TextIOWrapper):
        kept = sys.stdout.errors == "surrogateescape"  # the C locale: bytes of file names pass unchanged
        sys.stdout.reconfigure(errors="purereplay" if kept else "backslashreplace")


def show_every_byte() -> None:
    """Write UTF-8 from now on, whatever the locale, and the bytes of file names unchanged: for output to programs."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def _bytes_or_numbers(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def flush() -> None:
    """Write out what is buffered, so that a failure is noticed before the interpreter ends."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def failed(error: OSError) -> bool:
    """Return whether an error is one of standard output; those of files have a name."""
    return error.filename is None and error.errno in _FAILURES


def discard(stream: TextIO | None = None) -> None:
    """Send what standard output or a stream still buffers nowhere; the interpreter would write it again at its end."""
    with suppress(OSError, AttributeError):  # it may have no file behind it
        number = (stream or sys.stdout).fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def sentence(error: OSError) -> str:
    """Return what to say about a failed write."""
    return f"Standard output cannot be written ({error.strerror or error}): free space, or redirect it."
