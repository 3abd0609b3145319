"""The command line. Errors a user can mend are one sentence and exit code 2; `--debug` shows where they came from."""

from __future__ import annotations

import os
import sys

import typer

from purereplay.cli import live, runs  # noqa: F401  # they add their commands to the application
from purereplay.cli.app import app
from purereplay.errors import UserError


def main() -> None:
    """The entry point: UserError is one sentence and exit code 2."""
    # PyTorch's threads wait for each other by spinning; when another program has one of the cores, spinning for long
    # makes training many times slower, while giving up after some 10 µs costs next to nothing on an idle one
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        app(arguments)
    except (UserError, MemoryError, RuntimeError) as error:
        text = str(error) if isinstance(error, UserError) else _out_of_memory(error)
        if debug or text is None:
            raise
        typer.echo(f"purereplay: {text}", err=True)
        sys.exit(2)


def _out_of_memory(error: Exception) -> str | None:
    """PyTorch has no error of its own for a CPU that is out of memory."""
    words = ("not enough memory", "out of memory", "can't allocate", "overflow", "exceeds")
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in words):
        return "There is not enough memory for these settings: choose smaller sizes."
    return None
