"""Names of files and folders as text that a terminal can show: no control codes, no line ends, no markup."""

from __future__ import annotations

from rich.markup import escape


def printable(text: object) -> str:
    """Return the text on one line, with every character that controls a terminal or cannot be shown as its number."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def escaped(text: object) -> str:
    """Return printable text that the console does not read as markup."""
    return escape(printable(text))
