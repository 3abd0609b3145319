"""Terminal output of `review` and `serve`."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from purereplay.data.text import printable
from purereplay.report.terminal import log_to, out

_LOCAL = ("127.0.0.1", "::1", "localhost")


@contextmanager
def serving(farewell: str) -> Iterator[None]:
    """Show warnings while a page or a server runs; Ctrl-C ends it."""
    log_to(out)
    with suppress(KeyboardInterrupt):
        yield
    out.print(farewell)


def announcer(*, browser: bool, host: str) -> Callable[[str], None]:
    """Return the function that prints the address of the page, and opens it in the browser."""

    def announce(address: str) -> None:
        out.print(f"review page: [bold]{address}[/bold]")
        if host not in _LOCAL:
            out.print("[yellow]Anyone who knows this address can see the images: it is not encrypted.[/yellow]")
        out.print("Ctrl-C ends it.")
        if browser:
            webbrowser.open(address)

    return announce


def server_announcer(*, host: str, has_token: bool) -> Callable[[str, str], None]:
    """Return the function that prints the addresses of a server."""

    def announce(address: str, page: str) -> None:
        out.print(f"serving at: [bold]{address}[/bold]")
        out.print(f"review page: {page}")
        if host not in _LOCAL:
            allowed = "The connection is not encrypted." if has_token else "Anyone who can reach it may use it."
            out.print(f"[yellow]{allowed}[/yellow]")
        out.print("Ctrl-C ends it.")

    return announce


def show_exported(path: Path, n: int) -> None:
    """Print the number of labels in an exported file."""
    out.print(f"labels exported: {n:,}, in {printable(str(path))}", markup=False)
