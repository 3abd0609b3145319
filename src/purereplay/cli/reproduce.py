"""The command that computes and shows the tables and figures of the paper."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purereplay.cli.app import Device, app
from purereplay.cli.options import Cluster, Evaluate, Precision, named_encoder
from purereplay.errors import UserError

if TYPE_CHECKING:
    from purereplay.evaluate.plan import Group
    from purereplay.evaluate.store import Store
    from purereplay.paper.reproduce import Wanted

_SOURCES = "results"


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures, or all. (default: everything with --list)")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show what is measured, missing and not possible here; compute nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the missing runs with time and memory; compute nothing.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print and draw what is measured; compute nothing.")] = False,
    cells: Annotated[
        str | None,
        typer.Option(help="Only these cells: dataset/method/column with * as in mnist/SPR*, separated by commas."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds to compute; all measured seeds are shown.")] = "1,2,3",
    budget: Annotated[float, typer.Option(help="Factor on the self-supervised epochs of SPR and its parts.")] = 1.0,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; run the same command to continue.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Folder of the store, where no run is computed twice.")] = Path(
        "runs/store"
    ),
    sources: Annotated[
        str,
        typer.Option(help="Other results that count, separated by commas: files, run folders, stores; '' for none."),
    ] = _SOURCES,
    out: Annotated[Path | None, typer.Option(help="Folder for the tables and figures. (default: the store)")] = None,
    form: Annotated[str, typer.Option("--format", help="Of tables: text, markdown, csv or latex.")] = "text",
    features_file: Annotated[
        Path | None, typer.Option(help="npz file of ImageNet features, for the table filtering_imagenet_features.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Encoder trained on ImageNet that makes these features: onnx:FILE, torch:FILE, "
            "python:MODULE:FUNCTION, timm:NAME, hf:NAME or none."
        ),
    ] = None,
    evaluate: Evaluate = "tasks",
    group_size: Annotated[int, typer.Option(help="Runs that train in lockstep.")] = 15,
    cluster: Cluster = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Reproduce tables and figures of the paper: compute the missing runs, then print, write and draw.

    The cheapest cells come first. Runs that are in the store or in other results are not computed again. Killed runs
    continue from their last checkpoint; finished runs are kept.

    Examples:

        purereplay reproduce --list

        purereplay reproduce all --dry-run --cells 'mnist/*'

        purereplay reproduce table1 --cells 'mnist/SPR' --seeds 1 --budget 0.1

        purereplay reproduce ensemble_size variance --show --out figures
    """
    from purereplay.evaluate.store import Store
    from purereplay.nets.device import pick_device
    from purereplay.nets.engine import flush_denormals
    from purereplay.paper.cells import Choice
    from purereplay.paper.reproduce import unmatched, wanted
    from purereplay.report.table_text import check_form

    check_form(form)
    if not (budget > 0 and group_size > 0 and (minutes is None or minutes > 0)):
        raise UserError("--budget, --group-size and --minutes must be more than 0.")
    far = cluster is not None and device == "cuda"  # this machine may have no GPU
    gpu = device == "cuda" or pick_device(device) == "cuda"
    if features_file is not None and encoder not in (None, "none"):
        raise UserError("--encoder and --features-file both give features: leave one of them out.")
    features = *_features(features_file), named_encoder(encoder)
    planned = dry_run and device == "cuda"  # a plan for a GPU does not need it here
    choice = Choice(budget, "cpu" if far or planned else device, "auto" if planned else precision, *features, evaluate)
    patterns = [] if cells is None else [p.strip() for p in cells.split(",")]
    ask = wanted(names or [], patterns, _seeds(seeds), choice)
    if (pattern := unmatched(ask)) is not None:
        raise UserError(f"--cells {pattern!r} matches no cell: patterns look like 'mnist/SPR' or 'cifar10/*'.")
    others = [Path(s.strip()) for s in sources.split(",") if s.strip()]
    if missing := [path for path in others if sources != _SOURCES and not path.exists()]:
        raise UserError(f"--sources names {missing[0]}, which does not exist.")
    # the project's own results hold some runs several times, by versions and machines that round differently
    kept = Store(store, others, warn=sources != _SOURCES)
    if dry_run:
        _show_plan(ask, kept, group_size, gpu=gpu)
    elif list_ or not names:
        _show_coverage(ask, kept)
    else:
        if not show:
            flush_denormals()
            ask = _with_features(ask, kept)
            _compute(ask, kept, group_size, minutes, cluster, gpu=gpu, far=far)
            _compute_densities(ask, kept)
        _show_results(ask, kept, form, out or store)


def _seeds(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UserError(f"--seeds takes whole numbers separated by commas, not {text!r}.") from None


def _features(path: Path | None) -> tuple[str | None, str | None]:
    """Return the file of features and the digest of its values."""
    if path is None:
        return None, None
    from purereplay.evaluate.preparation import features_digest

    return str(path), features_digest(path)


def _with_features(ask: Wanted, store: Store) -> Wanted:
    """Return what is asked for with a file of the encoder's features, which is made if a missing run needs it."""
    from purereplay.data.datasets import load
    from purereplay.evaluate.encoded import write_features
    from purereplay.evaluate.preparation import features_digest
    from purereplay.paper.reproduce import missing_runs
    from purereplay.report.terminal import loading_bars, progress_bars

    choice = ask.choice
    runs = [m.settings for m in missing_runs(ask, store).values() if m.settings.features_file is not None]
    if choice.encoder is None or not runs:
        return ask
    [dataset] = {run.dataset for run in runs}
    path = store.folder / f"features-{dataset}-{choice.encoder.digest[:16]}.npz"
    if not path.exists():
        store.make()
        with progress_bars() as bars:
            progress = loading_bars(bars)
            write_features(path, load(dataset, progress=progress), choice.encoder, progress)
    made = choice._replace(features_file=str(path), features_digest=features_digest(path))
    return ask._replace(choice=made)


def _show_coverage(ask: Wanted, store: Store) -> None:
    from purereplay.paper.densities import kept_fits
    from purereplay.paper.galleries import held_at_end
    from purereplay.paper.reproduce import GALLERIES, coverage, density_runs, gallery_runs
    from purereplay.report.terminal import counted

    rows = coverage(ask, store)
    if rows:
        head = ["table", "dataset", "cells", "measured", "with another budget only", "missing", "not possible"]
        lines = [[r.table, r.dataset, *map(str, r.counts)] for r in rows]
        total = [str(sum(column)) for column in zip(*(r.counts for r in rows), strict=True)]
        _print_table([head, *lines, ["all", "", *total]])
    for why in dict.fromkeys(r.why for r in rows if r.why):
        n = sum(r.counts[-1] for r in rows if r.why == why)
        typer.echo(f"not possible here: {why} ({counted(n, 'cell')})")
    head, *curves = _figure_lines(ask, store)
    if curves:
        typer.echo("\n" if rows else "", nl=False)
        _print_table([head, *curves])
    for name in ask.others:
        runs, kept = (gallery_runs(ask), held_at_end) if name == GALLERIES else (density_runs(ask), kept_fits)
        n = sum(kept(store, run) is not None for run in runs)
        typer.echo(f"{name}: {n} of {counted(len(runs), 'dataset')} measured")


def _print_table(lines: list[list[str]]) -> None:
    """Print a table whose lines are not broken, however narrow the terminal is."""
    from purereplay.report.table_text import table_text

    typer.echo(table_text(lines, "text"), nl=False)


def _figure_lines(ask: Wanted, store: Store) -> list[list[str]]:
    from purereplay.paper.figures import FIGURES

    lines = [["figure", "curves", "measured", "partly", "title"]]
    for name in ask.figures:
        curves = [series for panel in ask.panels(name) for series in panel.series]
        if not curves:
            continue
        found = [len(s.points(store.richest)) for s in curves]
        whole = [n >= (len(set(s.xs)) or 5) for n, s in zip(found, curves, strict=True)]
        partly = sum(bool(n) and not w for n, w in zip(found, whole, strict=True))
        lines.append([name, str(len(curves)), str(sum(whole)), str(partly), FIGURES[name].title])
    return lines


def _show_plan(ask: Wanted, store: Store, group_size: int, *, gpu: bool) -> None:
    from purereplay.evaluate.compare import describe_learner
    from purereplay.evaluate.estimate import memory_of
    from purereplay.evaluate.rates import Rates
    from purereplay.paper.reproduce import ordered_plan
    from purereplay.report.terminal import counted, duration, out

    plan = ordered_plan(ask, store, Rates(store.finished.values(), gpu=gpu), group_size)
    head = ["dataset", "runs of", "n", "fills", "a run", "group", "so far", "memory of a run"]
    lines, total, fills = [head], 0.0, 0.0
    for planned in plan:
        first = next(iter(planned.group.runs.values()))
        kinds = list(dict.fromkeys(describe_learner(settings) for settings in planned.group.runs.values()))
        episodes = sorted({settings.episode for settings in planned.group.runs.values()})
        more = f" and {counted(len(kinds) - 1, 'other setting')}" if len(kinds) > 1 else ""
        more += "" if episodes == ["A"] else f", episode{'s' * (len(episodes) > 1)} {', '.join(episodes)}"
        fills += planned.fills
        total += planned.seconds or 0.0
        times = ["unknown"] * 3
        if planned.seconds is not None:
            times = [duration(t) for t in (planned.seconds / len(planned.group.runs), planned.seconds, total)]
        memory = memory_of(first)
        lines.append(
            [
                first.dataset,
                kinds[0] + more,
                str(len(planned.group.runs)),
                f"{planned.fills:.1f}",
                *times,
                f"{memory / 2**20:,.0f} MiB",
            ]
        )
    if len(lines) == 1:
        out.print("nothing is missing")
        return
    _print_table(lines)
    n_runs = sum(len(p.group.runs) for p in plan)
    unknown = sum(planned.seconds is None for planned in plan)
    takes = f"in about {duration(total)}" + (f" and {counted(unknown, 'group')} of unknown time" if unknown else "")
    filled = "1 cell or curve" if round(fills, 1) == 1 else f"{round(fills, 1):g} cells and curves"
    out.print(
        f"{counted(n_runs, 'run')} in {counted(len(plan), 'group')} fill{'s' * (n_runs == 1)} {filled} "
        + ("in an unknown time" if unknown == len(plan) else takes)
    )
    kind = "NVIDIA H200" if gpu else "CPU with two cores"
    out.print(f"times: from the kept results of one {kind}; a run's share of a group in lockstep")


def _compute(
    ask: Wanted,
    store: Store,
    group_size: int,
    minutes: float | None,
    cluster: str | None,
    *,
    gpu: bool,
    far: bool,
) -> None:
    """Compute the missing runs, group by group, into the store; `gpu`: on a GPU; `far`: on those of the cluster."""
    from purereplay.evaluate.executors import Executor, Local
    from purereplay.evaluate.plan import plan_json
    from purereplay.evaluate.rates import Rates
    from purereplay.paper.reproduce import ordered_plan
    from purereplay.report import runs as report
    from purereplay.report.progress import run_bars
    from purereplay.report.terminal import counted, out

    with store.locked():
        store.load()
        store.take_finished()
        plan = ordered_plan(ask, store, Rates(store.finished.values(), gpu=gpu), group_size)
        groups = [_for_gpus(planned.group) if far else planned.group for planned in plan]
        n_runs = sum(len(group.runs) for group in groups)
        out.print(f"{counted(n_runs, 'missing run')} in {counted(len(groups), 'group')}")
        if not groups:
            return
        store.write("plan.json", plan_json(groups, store.folder))
        with run_bars(report.announce) as observer:
            observer.deadline = None if minutes is None else time.monotonic() + 60 * minutes
            executor: Executor = Local(observer)
            if cluster is not None:
                from purereplay.evaluate.ray_cluster import ray_executor

                executor = ray_executor(cluster, observer, store.folder / "plan.json")

            def take(group: Group) -> None:
                store.take(group.runs)

            failures = executor.execute(groups, take)
    if failures:
        raise failures[0]


def _for_gpus(group: Group) -> Group:
    from purereplay.evaluate.ray_cluster import on_gpus

    return group._replace(runs={path: on_gpus(settings) for path, settings in group.runs.items()})


def _compute_densities(ask: Wanted, store: Store) -> None:
    from purereplay.paper.densities import compute_fits, kept_fits
    from purereplay.paper.reproduce import DENSITIES, density_runs
    from purereplay.report.terminal import out

    for run in density_runs(ask) if DENSITIES in ask.others else []:
        if kept_fits(store, run) is None:
            with out.status(f"training the expert of the first delayed buffer of {run.dataset}"):
                compute_fits(store, run)


def _show_results(ask: Wanted, store: Store, form: str, folder: Path) -> None:
    from purereplay.paper.output import draw_densities, draw_figure, draw_galleries, table_lines, title_of, write_table
    from purereplay.paper.reproduce import DENSITIES, GALLERIES, density_runs, gallery_runs
    from purereplay.report.plain import escaped
    from purereplay.report.table_text import table_text
    from purereplay.report.terminal import out

    for table in ask.tables:
        if not ask.cells(table):
            continue
        lines, about = table_lines(ask, table, store)
        title = title_of(table)
        if not lines:
            out.print(f"{title}: nothing is measured")
            continue
        typer.echo(table_text(lines, form, title, about), nl=False)
        path = write_table(lines, title, about, form, folder / "tables", f"{table.name}-{table.dataset}")
        out.print(f"in {escaped(path)}\n")
    drawn_by_name = {name: draw_figure(ask, name, store, folder / "figures") for name in ask.figures}
    if DENSITIES in ask.others:
        drawn_by_name[DENSITIES] = draw_densities(density_runs(ask), store, ask.choice, folder / "figures")
    if GALLERIES in ask.others:
        drawn_by_name[GALLERIES] = draw_galleries(gallery_runs(ask), store, ask.choice, folder / "figures")
    for name, files in drawn_by_name.items():
        drawn = ", ".join(escaped(path) for path in files) or "nothing is measured"
        out.print(f"{name}: {drawn}")
