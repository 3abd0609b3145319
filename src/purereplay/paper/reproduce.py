"""Every table and figure of the paper: which of its numbers are measured, which runs are missing, in which order.

Nothing is computed here. `names` lists what can be asked for; `missing_runs` gives the runs that the store lacks;
`ordered_plan` puts groups of them in the order of seconds per cell, the cheapest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import NamedTuple

from purereplay.errors import UserError
from purereplay.evaluate.identity import RunKey, run_key
from purereplay.evaluate.plan import Group, plan_groups
from purereplay.evaluate.rates import Rates
from purereplay.evaluate.settings import RunSettings, resolve
from purereplay.evaluate.store import Store
from purereplay.paper.cells import (
    Choice,
    PaperCell,
    digest_for,
    our_cells,
    our_results,
    table_cells,
    why_not_dataset,
)
from purereplay.paper.figures import FIGURES, Panel, figure_runs
from purereplay.paper.galleries import CLASSES, held_at_end
from purereplay.paper.numbers import Column, PaperTable, paper_tables

GALLERIES, DENSITIES = "galleries", "densities"
ALIASES = {"table1": "overall_accuracy", "table2": "cifar100_accuracy", "table3": "filtering_e5"}
_FITTED = ("mnist", "cifar10")  # datasets of the densities
GROUP_SIZE = 15  # five noises and three seeds


class Wanted(NamedTuple):
    """Request of a command."""

    tables: list[PaperTable]
    figures: list[str]
    others: list[str]  # galleries, densities
    patterns: list[str]  # of cells, as in mnist/SPR/symmetric 40; []: all
    seeds: list[int]
    choice: Choice

    def cells(self, table: PaperTable) -> list[PaperCell]:
        """Return the cells of a table that are asked for."""
        cells = table_cells(table, self.choice)
        return [cell for cell in cells if matches(table, cell.method, cell.column, self.patterns)]

    def panels(self, figure: str) -> list[Panel]:
        """Return the panels of a figure that are asked for: those of the patterns' datasets."""
        return [p for p in FIGURES[figure].panels(self.choice) if fits_dataset(p.dataset, self.patterns)]


def names() -> list[str]:
    """Return the names of all tables and figures."""
    return [*dict.fromkeys(table.name for table in paper_tables()), *FIGURES, GALLERIES, DENSITIES]


def wanted(
    asked: Sequence[str], patterns: Sequence[str], seeds: Sequence[int], choice: Choice, *, figures: bool = True
) -> Wanted:
    """Return the tables and figures with these names; none or `all`: everything."""
    chosen = [ALIASES.get(name, name) for name in asked]
    unknown = [name for name in chosen if name not in (*names(), "all")]
    if unknown:
        raise UserError(f"The paper has no table or figure {unknown[0]!r}: choose from {', '.join(names())}, all.")
    everything = not chosen or "all" in chosen
    return Wanted(
        [table for table in paper_tables() if everything or table.name in chosen],
        [name for name in FIGURES if figures and (everything or name in chosen)],
        [name for name in (GALLERIES, DENSITIES) if figures and name in chosen],
        list(patterns),
        list(seeds),
        choice,
    )


def unmatched(ask: Wanted) -> str | None:
    """Return the first pattern that fits nothing of what is asked for, or None.

    A figure is asked for by its dataset, with a pattern that fits a cell of any table.
    """
    drawn = {panel.dataset for name in ask.figures for panel in FIGURES[name].panels(ask.choice)}
    drawn |= {*(CLASSES if GALLERIES in ask.others else ()), *(_FITTED if DENSITIES in ask.others else ())}
    for pattern in ask.patterns:
        tables = paper_tables() if any(fits_dataset(name, [pattern]) for name in drawn) else ask.tables
        if not any(matches(table, *place, [pattern]) for table in tables for place in table.values):
            return pattern
    return None


def matches(table: PaperTable, method: str, column: Column, patterns: Iterable[str]) -> bool:
    """Return whether a cell's dataset/method/column fits one of the patterns; shorter patterns fit all the rest."""
    name = f"{table.dataset}/{method}/{column}".lower()
    patterns = [pattern.lower() for pattern in patterns]
    return not patterns or any(fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*") for pattern in patterns)


class Coverage(NamedTuple):
    """Number of a table's cells by their state."""

    table: str
    dataset: str
    # all; each is one of: measured, measured with another budget only, missing but possible here, not possible here
    counts: tuple[int, int, int, int, int]
    why: str  # why some are not possible


def coverage(ask: Wanted, store: Store) -> list[Coverage]:
    """Return the state of every table that is asked for, in the paper's order."""
    budgets = sorted({float(r.get("budget", 1.0)) for r in store.finished.values()} - {ask.choice.budget})
    rows = []
    for table in ask.tables:
        cells = ask.cells(table)
        if not cells:
            continue
        ours = our_cells(cells, store.finished, ask.choice)
        other: set[tuple[str, object]] = set()
        for budget in budgets:
            choice = ask.choice._replace(budget=budget)
            other |= our_cells(ask._replace(choice=choice).cells(table), store.finished, choice).keys()
        other -= ours.keys()
        left = [cell for cell in cells if (cell.method, cell.column) not in {*ours, *other}]
        why = sorted({cell.why_not for cell in left if cell.why_not})
        impossible = sum(bool(cell.why_not) for cell in left)
        counts = len(cells), len(ours), len(other), len(left) - impossible, impossible
        rows.append(Coverage(table.name, table.dataset, counts, "; ".join(why)))
    return rows


class MissingRun(NamedTuple):
    """A run that the store lacks, and the share of cells and curves that it fills."""

    settings: RunSettings
    fills: float


def missing_runs(ask: Wanted, store: Store) -> dict[RunKey, MissingRun]:
    """Return the runs that are needed for what is asked for and are neither finished nor impossible here."""
    found: dict[RunKey, MissingRun] = {}

    def add(key: RunKey, settings: RunSettings) -> None:
        before = found[key].fills if key in found else 0.0
        found[key] = MissingRun(settings, before + 1 / len(ask.seeds))

    for table in ask.tables:
        for cell, by_seed in our_results(ask.cells(table), store.finished, ask.choice):
            for seed in () if cell.why_not else ask.seeds:
                runs = {run_key(own, digest_for(own, ask.choice)): own for own in (_seeded(r, seed) for r in cell.runs)}
                if seed not in by_seed and not any(key in store.finished for key in runs):
                    key = next((key for key in runs if key in found), next(iter(runs)))  # one that is needed anyway
                    add(key, runs[key])
    for name in ask.figures:
        for series, run in figure_runs(ask.panels(name)):
            if not why_not_dataset(run.dataset):
                for seed in ask.seeds:
                    own = _seeded(run, seed)
                    if not series.is_measured(store.richest.get(run_key(own))):
                        add(run_key(own), own)
    if GALLERIES in ask.others:
        for own in gallery_runs(ask):
            if held_at_end(store, own) is None:
                add(run_key(own), own)
    return found


def gallery_runs(ask: Wanted) -> list[RunSettings]:
    """Return the runs whose purified buffers are shown, of the first seed."""
    runs = [_spr(name, ask) for name in CLASSES if not why_not_dataset(name)]
    return [run for run in runs if fits_dataset(run.dataset, ask.patterns)]


def density_runs(ask: Wanted) -> list[RunSettings]:
    """Return the runs whose first delayed buffers are fitted, of the first seed."""
    return [_spr(name, ask) for name in _FITTED if fits_dataset(name, ask.patterns)]


def _spr(dataset: str, ask: Wanted) -> RunSettings:
    """Return SPR with 40 % symmetric noise, or with the dataset's own."""
    choice = ask.choice
    return resolve(
        dataset=dataset,
        budget=choice.budget,
        seed=ask.seeds[0],
        device=choice.device,
        precision=choice.precision,
    )


def _seeded(run: RunSettings, seed: int) -> RunSettings:
    return replace(run, seed=seed)


def fits_dataset(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the patterns of cells name a dataset."""
    return not patterns or any(fnmatch(name, pattern.partition("/")[0].lower()) for pattern in patterns)


class Planned(NamedTuple):
    """A group of runs with its estimate."""

    group: Group
    seconds: float | None  # None: nothing similar was measured
    fills: float  # cells and curves, in shares of their seeds


def ordered_plan(ask: Wanted, store: Store, rates: Rates, group_size: int = GROUP_SIZE) -> list[Planned]:
    """Return the groups of missing runs, the cheapest per cell first; groups of unknown cost are last."""
    missing = missing_runs(ask, store)
    fills = {store.path_for(m.settings, digest_for(m.settings, ask.choice)): m for m in missing.values()}
    planned = []
    for group in plan_groups({path: m.settings for path, m in fills.items()}, group_size):
        seconds = rates.seconds_together(group.runs.values())
        planned.append(Planned(group, seconds, sum(fills[path].fills for path in group.runs)))
    return sorted(planned, key=lambda p: (p.seconds is None, (p.seconds or 0.0) / max(p.fills, 1e-9)))
