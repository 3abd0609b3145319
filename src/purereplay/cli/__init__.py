"""The command line. Errors that a user can correct are one sentence and exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import logging
import os
import sys

import typer

from purereplay.cli import filtering, live, output, pages, reproduce, runs, serving  # noqa: F401  # with commands
from purereplay.cli.app import app, join_help_lines
from purereplay.data.text import printable
from purereplay.errors import UserError, is_out_of_memory

join_help_lines()


def main() -> None:
    """Run the command that the arguments name."""
    # PyTorch's threads wait for each other in a busy loop. If another program uses one of the cores, long waits make
    # training many times slower; a limit of some 10 µs costs almost nothing on an idle machine
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    logging.raiseExceptions = debug  # a warning that cannot be printed would be a traceback
    output.show_every_character()
    try:
        try:
            app(arguments)
        finally:
            output.flush()
    except (UserError, MemoryError, RuntimeError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # nobody reads on, as behind `head`
            output.discard()
            sys.exit(1)
        text = _sentence(error)
        if debug or text is None:
            raise
        _complain(text)
        if isinstance(error, OSError):
            output.discard()
        sys.exit(2)


def _complain(text: str) -> None:
    """Print an error on standard error, which may be full as well."""
    try:
        typer.echo(f"purereplay: {printable(text)}", err=True)
    except OSError:
        output.discard(sys.stderr)


def _sentence(error: Exception) -> str | None:
    """Return a sentence about an error that a user can correct, else None."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        return output.sentence(error) if output.failed(error) else None
    return "There is not enough memory for these settings: choose smaller sizes." if is_out_of_memory(error) else None
