"""Names of files and folders as text for the console: no control codes, no line ends, no markup."""

from __future__ import annotations

from rich.markup import escape

from purereplay.data.text import printable


def escaped(text: object) -> str:
    """Return printable text that the console does not read as markup."""
    return escape(printable(str(text)))
