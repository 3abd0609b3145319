"""Our numbers beside the paper's, with a verdict on every cell."""

from __future__ import annotations

from purereplay.data.text import printable
from purereplay.evaluate.compare import Cell
from purereplay.evaluate.records import Result, by_key
from purereplay.paper.cells import PRETRAINED, Choice, our_cells, table_cells
from purereplay.paper.numbers import Column, PaperTable, paper_tables

CLOSE = 3.0  # points within which a cell counts as reproduced

Cells = dict[tuple[str, Column], Cell]


def paper_accuracy(result: Result) -> float | None:
    """Return the accuracy in % that the paper states for a run of these settings, or None."""
    finished = by_key([result])
    for table in paper_tables():
        if table.measure == "accuracy" and table.dataset == result["dataset"]:
            for key in our_cells(table_cells(table), finished):
                return table.values[key]
    return None


def beside(table: PaperTable, cells: Cells, encoder: str | None = None) -> list[list[str]]:
    """Return the table's lines, the head first: in each cell our value, the paper's and the verdict.

    The row of the user's features names the encoder that made them.
    """
    lines = [[f"{table.measure.replace('_', ' ')}, %", *map(str, table.columns)]]
    for method in table.methods:
        texts = [cell_text(cells.get((method, column)), table.values.get((method, column))) for column in table.columns]
        if any((method, column) in cells for column in table.columns):
            own = f"{method}: {printable(encoder)}" if method == PRETRAINED and encoder else method
            lines.append([own, *texts])
    return lines


def cell_text(ours: Cell | None, theirs: float | None) -> str:
    """Return our value, the paper's and the verdict; "" if there is neither value."""
    if ours is None:
        return "" if theirs is None else f"– ({theirs:.1f})"
    return f"{ours.text()} ({'–' if theirs is None else f'{theirs:.1f}'}{verdict(ours.mean, theirs)})"


def verdict(ours: float, theirs: float | None) -> str:
    """Return "" within three points, else ", better" or ", worse"."""
    if theirs is None or abs(ours - theirs) <= CLOSE:
        return ""
    return ", better" if ours > theirs else ", worse"


def cells_of(table: PaperTable, results: list[Result], budget: float = 1.0) -> Cells:
    """Return our runs in the table's cells, over their seeds.

    A run belongs to a cell if everything that decides its numbers is what the cell asks for: data, noise, episode,
    learner and every setting, evaluated on the test set. `budget` concerns learners with self-supervised epochs only.
    """
    choice = Choice(budget=budget)
    return our_cells(table_cells(table, choice), by_key(results), choice)
