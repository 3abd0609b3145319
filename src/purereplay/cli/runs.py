"""Runs: learn benchmark streams, measure, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purereplay.cli.app import Device, Preset, Seed, SetOption, app, overrides
from purereplay.cli.options import (
    Dataset,
    Episode,
    Features,
    Filter,
    Graphs,
    LearnerName,
    Precision,
    Robust,
    Validation,
    takes_run_options,
)
from purereplay.errors import UserError

if TYPE_CHECKING:
    from purereplay.evaluate.settings import RunSettings


@app.command()
@takes_run_options
def run(
    settings: RunSettings,
    out: Annotated[Path, typer.Option(help="Folder for settings, metrics, checkpoints and result.")],
) -> None:
    """Learn one noisy stream from beginning to end, and measure.

    Examples:

        purereplay run --dataset digits --preset demo --out runs/a

        purereplay run --dataset mnist --noise symmetric --noise-rate 0.4 --preset quick --seed 1 --out runs/b

        purereplay run --dataset mnist --budget 0.1 --graphs 20 --out runs/c

        purereplay run --dataset mnist --learner crs --robust sl --out runs/d
    """
    from purereplay.report import console

    console.run(settings, out, resume=False)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped or killed.")],
    device: Annotated[
        str | None, typer.Option(help="Go on on another device; results then differ in rounding.")
    ] = None,
) -> None:
    """Go on with a run after any kill; it ends as if it had never stopped.

    Example:

        purereplay resume runs/a
    """
    from purereplay.evaluate.results import RunDirectory
    from purereplay.evaluate.settings import on_device
    from purereplay.report import console

    directory, settings = RunDirectory.open(run)
    if (result := directory.result()) is not None:
        console.finished(run, result)
        return
    console.run(on_device(settings, device or settings.device), run, resume=True)


@app.command()
def sweep(
    out: Annotated[Path, typer.Option(help="Folder that gets one run folder per combination.")],
    dataset: Dataset = "digits",
    noise: Annotated[
        str | None, typer.Option(help="As for `run`; or each with a rate of its own: symmetric:0.4,asymmetric:0.2.")
    ] = None,
    noise_rate: Annotated[str, typer.Option(help="Share of wrong labels; a list, as all of these.")] = "0.4",
    episode: Episode = "A",
    learner: LearnerName = "spr",
    preset: Preset = "default",
    seed: Annotated[str, typer.Option(help="Seeds.")] = "1",
    budget: Annotated[str, typer.Option(help="Factors on the preset's self-supervised epochs.")] = "1",
    device: Device = "auto",
    precision: Precision = "auto",
    robust: Robust = None,
    filter_: Filter = None,
    graphs: Graphs = None,
    features: Features = None,
    validation: Validation = False,
    set_: SetOption = None,
) -> None:
    """Run every combination of lists, trained side by side wherever networks have one shape.

    The same command again goes on with what was stopped. On CUDA with bf16 a perceptron's run ends with the same bits
    as when it is run alone; elsewhere results side by side equal those of single runs up to rounding.

    Examples:

        purereplay sweep --dataset mnist --noise-rate 0.2,0.4 --seed 1,2,3 --budget 0.1 --out runs/rates

        purereplay sweep --dataset mnist --noise symmetric:0.2,symmetric:0.4,asymmetric:0.2 --out runs/noises

        purereplay sweep --preset demo --graphs none,5,20 --seed 1,2,3 --out runs/graphs

        purereplay sweep --dataset mnist --learner crs,gdumb --robust none,sl,jocor --seed 1,2,3 --out runs/rivals
    """
    from purereplay.evaluate.sweep import combinations
    from purereplay.report import console

    lists = {
        "dataset": dataset,
        "noise": noise or "",
        "noise_rate": noise_rate,
        "episode": episode,
        "learner": learner,
        "preset": preset,
        "budget": budget,
        "seed": seed,
    }
    chosen = overrides(set_, robust=robust, filter=filter_, graphs=graphs)
    brought = None if features is None else str(features)
    runs = combinations(
        lists, chosen, device=device, precision=precision, out=out, validation=validation, features=brought
    )
    console.sweep(runs)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run; replaced when it holds an earlier demo.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 1,
) -> None:
    """Self-Purified Replay on 1,797 handwritten digits, 40 % of the labels wrong: about a minute, no download.

    Two rivals then learn the same stream: plain replay (crs) and GDumb.

    Example:

        purereplay demo
    """
    from purereplay.evaluate.results import RunDirectory, read_json
    from purereplay.evaluate.settings import resolve
    from purereplay.report import compare, console

    learners = {out: "spr", out / "crs": "crs", out / "gdumb": "gdumb"}
    for path in learners:
        if (path / "settings.json").exists():
            earlier = read_json(path / "settings.json", "")  # perhaps of another version, so only looked at
            if (earlier.get("dataset"), earlier.get("preset")) != ("digits", "demo"):
                raise UserError(f"{path} holds a run that is not a demo: choose another --out.")
            directory = RunDirectory(path)
            with directory.locked():
                directory.remove()
    for path, learner in learners.items():
        settings = resolve(dataset="digits", learner=learner, preset_name="demo", seed=seed, device="cpu")
        console.run(settings, path, resume=False)
    compare.compare(list(learners), "accuracy", out / "compared.png")


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file; default: run.png in the folder.")] = None,
) -> None:
    """Draw a run: accuracy after each task, and how clean the purified buffer is.

    Example:

        purereplay plot runs/a --out a.png
    """
    from purereplay.report.pictures import draw_run

    path = out or run / "run.png"
    draw_run(run, path)
    typer.echo(f"drawn in {path}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; those that are not finished are passed by.")],
    measure: Annotated[str, typer.Option(help="accuracy, purity, filtered_noise or forgetting.")] = "accuracy",
    out: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file for a bar chart.")] = None,
) -> None:
    """Put runs side by side: mean ± standard deviation over seeds, the best in bold, and a bar chart.

    Examples:

        purereplay compare runs/*

        purereplay compare runs/rates/* --measure filtered_noise --out rates.png
    """
    from purereplay.report import compare as comparing

    comparing.compare(runs, measure, out)


@app.command()
def paper(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or files of results (.json, .jsonl).")],
    table: Annotated[str, typer.Option(help="Which table: overall_accuracy, filtering_e5, …")] = "overall_accuracy",
    dataset: Dataset = "mnist",
    budget: Annotated[
        float, typer.Option(help="Of spr and its parts take the runs at this factor on the epochs.")
    ] = 1.0,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Put runs beside the paper's numbers: mean ± standard deviation (the paper's), and whether it is within 3 points.

    Runs with changed options, of other presets or judged on validation data are passed by.

    Examples:

        purereplay paper runs/*

        purereplay paper runs/filters/* --table filtering_e5 --markdown
    """
    from purereplay.paper import beside

    beside.show(table, dataset, runs, markdown=markdown, budget=budget)


@app.command()
@takes_run_options
def estimate(settings: RunSettings) -> None:
    """Say how many steps, how much memory and about how long a run would take here. Takes the options of `run`.

    Example:

        purereplay estimate --dataset mnist --preset default --budget 0.1
    """
    from purereplay.report import console

    console.estimate(settings)


@app.command()
def datasets() -> None:
    """List the datasets: size, licence, where each was found or how to get it."""
    from purereplay.report import console

    console.datasets()


@app.command()
def settings(
    preset: Annotated[str | None, typer.Option(help="Show one preset only.")] = None,
    learner: LearnerName = "spr",
) -> None:
    """List every setting with its value in each preset; a rival's have no presets.

    Examples:

        purereplay settings --preset paper

        purereplay settings --learner gdumb
    """
    from purereplay.report import console

    console.settings(preset, learner)
