"""Tables as text for other programs: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io

from purereplay.errors import UserError

FORMS = {"text": ".txt", "markdown": ".md", "csv": ".csv", "latex": ".tex"}  # with the ending of their files
_LATEX = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$", "–": "--", "∪": r"$\cup$", "×": r"$\times$"}


def check_form(form: str) -> None:
    """Raise UserError for an unknown form."""
    if form not in FORMS:
        raise UserError(f"The format {form!r} is unknown: choose one of {', '.join(FORMS)}.")


def table_text(lines: list[list[str]], form: str, title: str = "", note: str = "") -> str:
    """Return a table, given as lines of cells with the head first, as text that ends with a line end."""
    check_form(form)
    if form == "csv":
        return _csv(lines)
    if form == "latex":
        return _latex(lines, title, note)
    body = _markdown(lines) if form == "markdown" else _aligned(lines)
    head = f"**{title}**\n\n" if title and form == "markdown" else f"{title}\n" if title else ""
    return head + body + (f"\n{note}\n" if note else "")


def _markdown(lines: list[list[str]]) -> str:
    rows = (lines[0], ["---"] * len(lines[0]), *lines[1:])
    return "".join(f"| {' | '.join(line)} |\n" for line in rows)


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def _csv(lines: list[list[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def _latex(lines: list[list[str]], title: str, note: str) -> str:
    def row(cells: list[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + " \\\\\n"

    shape = "l" + "r" * (len(lines[0]) - 1)
    body = row(lines[0]) + "\\midrule\n" + "".join(map(row, lines[1:]))
    table = f"\\begin{{tabular}}{{{shape}}}\n\\toprule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    caption = "".join(_LATEX.get(c, c) for c in " ".join(filter(None, (title, note))))
    return table + (f"% {caption}\n" if caption else "")
