"""Extension of mkdocstrings: the comment behind a field of a class is its description in the reference."""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

from griffe import Attribute, Docstring, Extension

NOT_TEXT = ("type:", "noqa")


class FieldComments(Extension):
    """Takes `name: type = value  # comment`, or a comment on the line above, as documentation of `name`."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **_: Any) -> None:
        if attr.docstring is not None or not isinstance(node, ast.AST) or attr.parent is None:
            return
        if not attr.parent.is_class or attr.name.startswith("_"):
            return
        source = attr.lines_collection[attr.filepath]
        above = source[attr.lineno - 2].strip()
        text = comment("\n".join(attr.lines) + "\n") or (comment(above + "\n") if above.startswith("#") else "")
        if text:
            first = text.split()[0]
            shown = text if any(c in first for c in "`(0123456789") else text[0].upper() + text[1:]
            attr.docstring = Docstring(f"{shown}.", parent=attr, lineno=attr.lineno)


def comment(line: str) -> str:
    """Return the comment at the end of a statement without its mark; empty if there is none."""
    try:
        tokens = tokenize.generate_tokens(io.StringIO(line.lstrip()).readline)
        found = [token.string for token in tokens if token.type == tokenize.COMMENT]
    except (tokenize.TokenError, IndentationError):
        return ""
    texts = [text.lstrip("# ").rstrip(". ") for text in found]
    return next((text for text in texts if text and not text.startswith(NOT_TEXT)), "")
