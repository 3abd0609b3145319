"""Text of unknown origin in places that give characters a meaning: terminals and spreadsheets.

Labels, ids and file names may hold anything. Files for programs (JSON, parquet) keep the raw text.
"""

import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control characters, marks of direction, lone surrogates, line separators


def spreadsheet_safe(text: str) -> str:
    """Return text that a spreadsheet shows instead of computing: a leading ' marks what would be read as a formula."""
    return "'" + text if text.startswith(_FORMULA) else text


def printable(text: str) -> str:
    r"""Return text for a terminal, with control characters as escapes such as \x1b."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _HIDDEN else c for c in text)
