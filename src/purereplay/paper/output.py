"""Tables and figures from the store of runs, as text and files; each says which seeds, budget and version it has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from purereplay import __version__
from purereplay.data.files import disk_errors, write_whole
from purereplay.errors import UserError
from purereplay.evaluate.identity import RunKey, run_key
from purereplay.evaluate.records import Result, by_key, read_results
from purereplay.evaluate.settings import RunSettings
from purereplay.evaluate.store import Store
from purereplay.paper.beside import beside
from purereplay.paper.cells import Choice, PaperCell, encoder_name, our_cells, our_results, table_cells
from purereplay.paper.densities import density_panel, kept_fits
from purereplay.paper.figures import FIGURES, Panel, figure_runs, panel_table
from purereplay.paper.galleries import CLASSES, gallery, held_at_end
from purereplay.paper.numbers import PaperTable, paper_table
from purereplay.paper.reproduce import Wanted
from purereplay.report.pictures_lines import DrawnCurve, DrawnPanel, draw_images, draw_panels
from purereplay.report.table_text import FORMS, table_text


def paper_lines(name: str, dataset: str, paths: list[Path], *, budget: float = 1.0) -> tuple[list[list[str]], str, str]:
    """Return a table of the paper beside the finished runs in `paths` as lines of cells, its title and a note."""
    table, choice = paper_table(name, dataset), Choice(budget)
    lines, about = _lines_of(table, table_cells(table, choice), by_key(read_results(paths)), choice)
    if not lines:
        raise UserError(f"None of these runs belongs to the table {name} of {dataset}.")
    return lines, title_of(table), about


def title_of(table: PaperTable) -> str:
    """Return the title of a table."""
    return f"{table.name} of {table.dataset}"


def table_lines(ask: Wanted, table: PaperTable, store: Store) -> tuple[list[list[str]], str]:
    """Return a table with our numbers beside the paper's as lines of cells, and a note; no lines: nothing is measured.

    The note states seeds, budget and version.
    """
    return _lines_of(table, ask.cells(table), store.finished, ask.choice)


def _lines_of(
    table: PaperTable, cells: list[PaperCell], finished: dict[RunKey, Result], choice: Choice
) -> tuple[list[list[str]], str]:
    ours = our_cells(cells, finished, choice)
    asked = {(cell.method, cell.column) for cell in cells}
    shown = table._replace(
        values={key: value for key, value in table.values.items() if key in asked},
        columns=[column for column in table.columns if any(c == column for _, c in asked)],
    )
    if not ours:
        return [], ""
    used = [r for _, by_seed in our_results(cells, finished, choice) for r in by_seed.values()]
    lines = beside(shown, ours, encoder_name(cells, finished, choice))
    return lines, note(used, choice, f"{len(ours)} of {len(cells)} cells measured")


def write_table(lines: list[list[str]], title: str, about: str, form: str, folder: Path, name: str) -> Path:
    """Write a table into a folder; returns the file."""
    path = folder / f"{name}{FORMS[form]}"
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, table_text(lines, form, title, about).encode())
    return path


def draw_figure(ask: Wanted, name: str, store: Store, folder: Path) -> list[Path]:
    """Draw a figure as PNG and SVG and write its points as CSV; returns the files, none if nothing is measured."""
    title = FIGURES[name].title
    panels = [panel for panel in ask.panels(name) if _has_points(panel, store.richest)]
    if not panels:
        return []
    used = _results_of(panels, store)
    rows = [row for panel in panels for row in panel_table(panel, store.richest)]
    lines = [list(rows[0]), *(["" if v is None else str(v) for v in row.values()] for row in rows)]
    about = note(used.values(), ask.choice, "bands: standard deviation over seeds; rings: the paper's tables")
    points = write_table(lines, title, about, "csv", folder, name)
    pictures = [folder / f"{name}.png", folder / f"{name}.svg"]
    draw_panels([_drawn(panel, store.richest) for panel in panels], title, about, pictures)
    return [*pictures, points]


def draw_densities(runs: list[RunSettings], store: Store, choice: Choice, folder: Path) -> list[Path]:
    """Draw the densities of the beta mixture for every run whose fits the store has; returns the files."""
    panels, seeds = [], set()
    for run in runs:
        fits = kept_fits(store, run)
        if fits is not None:
            seeds.add(run.seed)
            for kind, title in (("fixed", "the graph itself"), ("sampled", "sampled graphs")):
                label = f"{run.dataset}, {title}: label {fits[kind]['label']}, {fits[kind]['n']} samples"
                panels.append(density_panel(label, fits[kind]))
    if not panels:
        return []
    pictures = [folder / "densities.png", folder / "densities.svg"]
    about = f"first delayed buffer; bands: standard deviation over graphs; seed {_ranges(sorted(seeds))}; "
    about += f"{_budget(choice)}; purereplay {__version__}."
    draw_panels(panels, "Beta mixture of the centralities, 40 % noise (figure 5)", about, pictures)
    return pictures


def draw_galleries(runs: list[RunSettings], store: Store, choice: Choice, folder: Path) -> list[Path]:
    """Draw a gallery for some classes of every run whose folder the store has; returns the files."""
    drawn = []
    for run in runs:
        held = held_at_end(store, run)
        if held is None:
            continue
        for name in CLASSES[run.dataset]:
            place = folder / f"gallery-{run.dataset}-{name.replace(' ', '-')}"
            pictures = [place.with_suffix(ending) for ending in (".png", ".svg")]
            about = f"SPR, seed {run.seed}; {_budget(choice)}; purereplay {__version__}."
            draw_images(gallery(run, held, name), f"{run.dataset}: {name}", about, pictures)
            drawn += pictures
    return drawn


def note(finished: Iterable[Result], choice: Choice, more: str) -> str:
    """Return a line about the runs behind a table or figure."""
    results = list(finished)
    seeds = sorted({result["seed"] for result in results})
    versions = sorted({str((r.get("versions") or {}).get("purereplay", "unknown")) for r in results})
    made = f"purereplay {__version__}"
    if versions != [__version__]:
        made = f"runs of purereplay {', '.join(versions)}, put together by {made}"
    return f"{more}; seed{'s' * (len(seeds) > 1)} {_ranges(seeds)}; {_budget(choice)}; {made}."


def _budget(choice: Choice) -> str:
    return "the paper's epochs" if choice.budget == 1 else f"{choice.budget:g} times SPR's self-supervised epochs"


def _ranges(seeds: list[int]) -> str:
    """Return whole numbers as text, neighbours joined: 1 to 5, 11."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts)


def _results_of(panels: list[Panel], store: Store) -> dict[RunKey, Result]:
    wanted = {run_key(run).cell: series for series, run in figure_runs(panels)}
    return {
        key: result
        for key, result in store.richest.items()
        if key.cell in wanted and wanted[key.cell].is_measured(result)
    }


def _has_points(panel: Panel, finished: dict[RunKey, Result]) -> bool:
    return any(series.points(finished) for series in panel.series)


def _drawn(panel: Panel, finished: dict[RunKey, Result]) -> DrawnPanel:
    curves = []
    for series in panel.series:
        points = series.points(finished)
        spreads = [math.nan if cell.spread is None else cell.spread for cell in points.values()]
        curves.append(DrawnCurve(series.label, list(points), [c.mean for c in points.values()], spreads, series.paper))
    return DrawnPanel(panel.title, panel.x_label, panel.y_label, curves)
