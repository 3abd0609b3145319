"""Runs: learn benchmark streams, measure, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purereplay.cli.app import Log, Seed, app
from purereplay.cli.options import Cluster, Dataset, takes_lists_of_run_options, takes_run_options
from purereplay.errors import UserError
from purereplay.learners.registry import names

if TYPE_CHECKING:
    from purereplay.evaluate.judge import Line
    from purereplay.evaluate.settings import RunSettings


@app.command()
@takes_run_options
def run(
    settings: RunSettings,
    out: Annotated[Path, typer.Option(help="Folder for settings, metrics, checkpoints and result.")],
    log: Log = None,
) -> None:
    """Learn one noisy stream from beginning to end, and measure.

    Examples:

        purereplay run --dataset digits --preset demo --out runs/a

        purereplay run --dataset mnist --noise symmetric --noise-rate 0.4 --preset quick --seed 1 --out runs/b

        purereplay run --dataset mnist --budget 0.1 --graphs 20 --out runs/c

        purereplay run --dataset mnist --learner crs --robust sl --out runs/d

        purereplay run --dataset cifar10 --encoder onnx:encoder.onnx --budget 0.1 --out runs/e
    """
    _run(settings, out, resume=False, log=log)


def _run(settings: RunSettings, path: Path, *, resume: bool, log: str | None = None) -> Line:
    """Run with progress, and show the result."""
    from purereplay.evaluate import running
    from purereplay.nets.engine import flush_denormals
    from purereplay.report import runs as report
    from purereplay.report.progress import run_bars

    flush_denormals()
    with run_bars(report.announce, log) as observer:
        result = running.run(settings, path, observer, resume=resume)
    report.show_result(path, result)
    return result


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped or killed.")],
    device: Annotated[
        str | None, typer.Option(help="Continue on another device; results then differ in rounding.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder of the run, if it runs code: python: or torch:.")] = None,
) -> None:
    """Continue a run after a stop or a kill; its result is the same as without the interruption.

    A run of a sweep is continued by the command of the sweep. Continued alone its numbers differ by rounding, which may
    change the accuracy.

    Example:

        purereplay resume runs/a
    """
    from purereplay.evaluate.results import RunDirectory
    from purereplay.evaluate.settings import on_device
    from purereplay.report.runs import show_result

    directory, settings = RunDirectory.open(run)
    if (result := directory.result()) is not None:
        show_result(run, result, earlier=True)
        return
    if encoder is not None:
        from purereplay.evaluate.encoded import name_again

        name_again(encoder, settings.encoder, run)
    _run(on_device(settings, device or settings.device), run, resume=True)


@app.command()
@takes_lists_of_run_options
def sweep(
    runs: dict[Path, RunSettings],
    out: Annotated[Path, typer.Option(help="Folder that gets one run folder per combination.")],
    group_size: Annotated[
        int | None,
        typer.Option(help="Runs that train in lockstep. (default: all of them; 20 on a cluster)"),
    ] = None,
    cluster: Cluster = None,
    log: Log = None,
) -> None:
    """Run every combination of lists; networks of one shape are trained side by side.

    Options take comma-separated lists. A noise may have its own rate, as in symmetric:0.4,asymmetric:0.2. A setting may
    concern one learner only, as in --set gdumb.epochs=50.

    The same command continues a sweep that was stopped, also on a cluster. A group of runs is one task of the cluster.
    On CUDA with bf16, runs with network=mlp have the same bits as when run alone. Others differ by rounding.

    Examples:

        purereplay sweep --dataset mnist --noise-rate 0.2,0.4 --seed 1,2,3 --budget 0.1 --out runs/rates

        purereplay sweep --dataset mnist --noise symmetric:0.2,symmetric:0.4,asymmetric:0.2 --out runs/noises

        purereplay sweep --preset demo --graphs none,5,20 --seed 1,2,3 --out runs/graphs

        purereplay sweep --dataset mnist --learner crs,gdumb --robust none,sl,jocor --seed 1,2,3 --out runs/baselines

        purereplay sweep --preset demo --seed 1,2,3,4 --cluster ray --group-size 2 --out runs/cluster
    """
    from purereplay.evaluate import running
    from purereplay.evaluate.executors import execute_sweep
    from purereplay.nets.engine import flush_denormals
    from purereplay.report import runs as report
    from purereplay.report.progress import run_bars
    from purereplay.report.terminal import out as console

    if group_size is not None and group_size < 1:
        raise UserError("--group-size must be at least 1.")
    if log is not None and cluster is not None:
        raise UserError("--log does not work with --cluster: leave one of them out.")
    n_left = len(running.unfinished_runs(runs))
    console.print(f"{len(runs)} runs, {len(runs) - n_left} of them already finished")
    flush_denormals()
    with run_bars(report.announce, log) as observer:
        outcome = execute_sweep(runs, out, observer, group_size=group_size, cluster=cluster)
    report.show_sweep(outcome)
    if outcome.failure is not None:
        raise outcome.failure


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run; an earlier demo in it is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 1,
) -> None:
    """Compare three learners on 1,797 handwritten digits with 40 % wrong labels: half a minute, no download.

    Pure Replay (pure-replay), Self-Purified Replay (spr) and plain replay (crs) learn the same stream. In the end its
    images are learned into a state, whose labels can be reviewed in the browser.

    Example:

        purereplay demo
    """
    from purereplay.data.own_folder import refuse_links
    from purereplay.evaluate.compare import collect
    from purereplay.evaluate.running import clear_demo
    from purereplay.evaluate.settings import resolve
    from purereplay.report.compare import show_comparison

    learners = {out: "pure-replay", out / "spr": "spr", out / "crs": "crs"}
    clear_demo(list(learners))
    refuse_links([out / "compared.png"])
    for path, learner in learners.items():
        settings = resolve(dataset="digits", learner=learner, preset_name="demo", seed=seed, device="cpu")
        _run(settings, path, resume=False)
    show_comparison(collect(list(learners), "accuracy"), "accuracy", out / "compared.png", follow=False)
    _prepare_review(settings, out / f"review-{seed}")


def _prepare_review(settings: RunSettings, folder: Path) -> None:
    """Learn the images of a run, with their given labels, into a state, and name the command that reviews it."""
    from purereplay.evaluate.preparation import write_list
    from purereplay.live.learn import learn
    from purereplay.live.settings import Wanted
    from purereplay.report import live as report

    state = folder / "state"
    with report.learning(is_pipe=False, state=state) as observer:
        learn(str(write_list(settings, folder)), state, Wanted(), device="cpu", observer=observer)
    report.show_review(state)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a run; or several, stores and files of results.")],
    out: Annotated[
        Path | None, typer.Option(help="PNG, SVG or PDF file. (default for one run: run.png in its folder)")
    ] = None,
) -> None:
    """Draw a run: accuracy after each task, and wrong labels in the stream, after the filter and in P.

    Several runs, a store or a file of results: accuracy after each task, with a band over seeds. Needs --out.

    Examples:

        purereplay plot runs/a --out a.png

        purereplay plot results/mnist-self-replay.jsonl --out curves.png
    """
    from purereplay.data.text import printable
    from purereplay.evaluate.compare import finished_runs
    from purereplay.evaluate.results import RunDirectory
    from purereplay.report.compare import draw_curves
    from purereplay.report.pictures import draw_run

    is_run = len(runs) == 1 and RunDirectory(runs[0]).exists
    finished = [] if is_run else finished_runs(runs)
    if is_run or (len(runs) == 1 and not finished and not runs[0].is_file()):
        typer.echo(f"drawn in {printable(str(draw_run(runs[0], out)))}")
        return
    if out is None:
        raise UserError("--out is missing: name a PNG, SVG or PDF file for the curves of several runs.")
    draw_curves(finished, out)
    typer.echo(f"drawn in {printable(str(out))}")


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, stores or files of results; unfinished runs are skipped.")
    ],
    measure: Annotated[
        str,
        typer.Option(
            help="accuracy, purity, filtered_noise, auroc, average_incremental_accuracy, forgetting, forgetting_max, "
            "backward_transfer or forward_transfer."
        ),
    ] = "accuracy",
    out: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file for a bar chart.")] = None,
) -> None:
    """Compare runs: mean ± standard deviation over seeds, the best in bold, and a bar chart.

    Examples:

        purereplay compare runs/*

        purereplay compare runs/rates/* --measure filtered_noise --out rates.png
    """
    from purereplay.evaluate.compare import collect
    from purereplay.report.compare import show_comparison

    show_comparison(collect(runs, measure), measure, out)


@app.command()
def paper(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, stores, or files of results (.json, .jsonl).")],
    table: Annotated[str, typer.Option(help="Table of the paper: overall_accuracy, filtering_e5, …")] = (
        "overall_accuracy"
    ),
    dataset: Dataset = "mnist",
    budget: Annotated[float, typer.Option(help="Use the runs of spr and its parts with this budget.")] = 1.0,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """Compare runs with the paper: mean ± standard deviation, the paper's value, and whether they agree to 3 points.

    A run belongs to a cell if every setting that has an effect is the one that the cell asks for, also the size of the
    buffers. Runs evaluated on validation data are skipped. A line below the table states seeds, budget and version.

    Examples:

        purereplay paper runs/*

        purereplay paper runs/filters/* --table filtering_e5 --markdown
    """
    from purereplay.paper.output import paper_lines
    from purereplay.report.table_text import table_text
    from purereplay.report.terminal import out

    lines, title, about = paper_lines(table, dataset, runs, budget=budget)
    out.print(table_text(lines, "markdown" if markdown else "text", title, about), markup=False, end="")


@app.command()
@takes_run_options
def estimate(settings: RunSettings) -> None:
    """Print the steps, memory and approximate time of a run on this machine. Takes the options of `run`.

    Example:

        purereplay estimate --dataset mnist --preset default --budget 0.1
    """
    import torch

    from purereplay.evaluate.estimate import estimate as estimate_run
    from purereplay.evaluate.experiment import device_name
    from purereplay.evaluate.preparation import load, make_data_spec, make_learner, make_stream
    from purereplay.nets.engine import Engine, flush_denormals
    from purereplay.report.runs import show_estimate
    from purereplay.report.terminal import loading_bars, out, progress_bars

    with progress_bars() as bars:
        data = load(settings, loading_bars(bars))
    _, stream = make_stream(settings, data)
    flush_denormals()
    engine = Engine(torch.device(settings.device), precision=settings.precision)
    with out.status("timing a few steps of each phase"):
        learner = make_learner(settings, make_data_spec(settings, data), engine)
        guess = estimate_run(settings, learner, stream.task_ends)
    show_estimate(settings, len(stream), guess, device_name(engine.device))


@app.command()
def datasets() -> None:
    """List the datasets: size, licence, where each was found or how to get it."""
    from purereplay.data import datasets as data
    from purereplay.data.catalogue import info_for
    from purereplay.data.sources import cache_root
    from purereplay.report.runs import show_datasets

    show_datasets([(info_for(name), data.found_at(name)) for name in data.names()], cache_root())


@app.command()
def settings(
    learner: Annotated[
        str, typer.Argument(help=f"Learner: {', '.join(names())}; full-memory, the default of `learn`.")
    ] = "spr",
    preset: Annotated[str | None, typer.Option(help="Show the values of this preset.")] = None,
) -> None:
    """List every setting of a learner: default, unit, meaning, and its source in the paper or the released code.

    Examples:

        purereplay settings

        purereplay settings gdumb

        purereplay settings spr --preset paper
    """
    from purereplay.learners.full_memory import NAME as FULL_MEMORY
    from purereplay.learners.registry import entry
    from purereplay.learners.settings import preset_values
    from purereplay.report.live import show_memory_settings
    from purereplay.report.runs import show_settings

    if learner == FULL_MEMORY:
        show_memory_settings()
        return
    found = entry(learner)
    if preset is not None:
        preset_values(found.settings, preset)  # an unknown preset is an error
    show_settings(found, preset)
