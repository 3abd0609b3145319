"""The command line. Errors that a user can correct are one sentence and exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import os
import sys

import typer

from purereplay.cli import live, runs  # noqa: F401  # they add their commands to the application
from purereplay.cli.app import app
from purereplay.data.text import printable
from purereplay.errors import UserError

# messages of PyTorch's CPU allocator and of tensors whose size cannot be represented
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "storage size calculation overflowed")


def main() -> None:
    """Run the command that the arguments name."""
    # PyTorch's threads wait for each other in a busy loop. If another program uses one of the cores, long waits make
    # training many times slower; a limit of some 10 µs costs almost nothing on an idle machine
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        app(arguments)
    except (UserError, MemoryError, RuntimeError) as error:
        text = str(error) if isinstance(error, UserError) else _out_of_memory(error)
        if debug or text is None:
            raise
        typer.echo(f"purereplay: {printable(text)}", err=True)  # names in it may hold terminal escapes
        sys.exit(2)


def _out_of_memory(error: Exception) -> str | None:
    """Return a sentence if memory ran out, else None; PyTorch has no error type for the CPU's memory."""
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return "There is not enough memory for these settings: choose smaller sizes."
    return None
