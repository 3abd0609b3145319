"""The command line. Errors a user can mend are one sentence and exit code 2; `--debug` shows where they came from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from purereplay import __version__
from purereplay.errors import UserError

if TYPE_CHECKING:
    from purereplay.evaluate.settings import RunSettings
    from purereplay.purify.beta_mixture import SmallClass

# what takes long to import is imported by the commands that need it, so that --help answers at once

app = typer.Typer(
    name="purereplay",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Self-Purified Replay: learn continually from a stream whose labels you cannot trust.",
    epilog="Start with [bold]purereplay demo[/bold]. Every command has --help with examples.",
)

Dataset = Annotated[str, typer.Option(help="Which data; `purereplay datasets` lists them.")]
Noise = Annotated[
    str | None,
    typer.Option(help="symmetric, asymmetric, superclass or none. [default: symmetric; none where labels come noisy]"),
]
NoiseRate = Annotated[float, typer.Option(help="Share of wrong labels in each touched class, 0 to 1.")]
Episode = Annotated[str, typer.Option(help="Which classes form the tasks: A (the paper's), B or C.")]
LearnerName = Annotated[
    str,
    typer.Option(
        "--learner",
        help="Who learns: spr; its parts self-replay, self-centered-filter; "
        "finetune, ewc, crs, prs, mir, gdumb, multitask.",
    ),
]
Preset = Annotated[
    str, typer.Option(help="default, paper, reference, quick, demo or daily; `purereplay settings` shows them.")
]
Seed = Annotated[int, typer.Option(help="Fixes noise, stream, networks and every draw.")]
Budget = Annotated[float, typer.Option(help="Factor on the preset's self-supervised epochs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: CUDA where there is one.")]
Precision = Annotated[
    str,
    typer.Option(
        help="float32; tf32 or bf16: faster, rounded more; auto: bf16 on CUDA, float32 on the CPU. "
        "Each gives the same bits every time on the same device, and other bits than the others."
    ),
]
Robust = Annotated[
    str | None, typer.Option(help="With crs, prs, mir or gdumb: l2r, pencil, sl or jocor, against wrong labels.")
]
Filter = Annotated[
    str | None, typer.Option("--filter", help="Who judges the delayed buffers: self-centered, aum, incv or none.")
]
Graphs = Annotated[
    str | None, typer.Option(help="Graphs that the Self-Centered filter samples; none: the similarities themselves.")
]
Features = Annotated[
    Path | None,
    typer.Option(help="npz file: its array `features`, a row for each training image, takes the experts' place."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change one setting of the preset; repeatable.")
]


State = Annotated[Path, typer.Option("--state", help="Folder of the state, made by `learn`.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere.")] = False,
) -> None:
    if version:
        typer.echo(f"purereplay {__version__}")
        raise typer.Exit()


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder for settings, metrics, checkpoints and result.")],
    dataset: Dataset = "digits",
    noise: Noise = None,
    noise_rate: NoiseRate = 0.4,
    episode: Episode = "A",
    learner: LearnerName = "spr",
    preset: Preset = "default",
    seed: Seed = 1,
    budget: Budget = 1.0,
    device: Device = "auto",
    precision: Precision = "auto",
    robust: Robust = None,
    filter_: Filter = None,
    graphs: Graphs = None,
    features: Features = None,
    set_: SetOption = None,
) -> None:
    """Learn one noisy stream from beginning to end, and measure.

    Examples:

        purereplay run --dataset digits --preset demo --out runs/a

        purereplay run --dataset mnist --noise symmetric --noise-rate 0.4 --preset quick --seed 1 --out runs/b

        purereplay run --dataset mnist --budget 0.1 --graphs 20 --out runs/c

        purereplay run --dataset mnist --learner crs --robust sl --out runs/d
    """
    from purereplay.report import console

    overrides = _overrides(set_, robust=robust, filter=filter_, graphs=graphs)
    settings = _resolve(
        dataset, noise, noise_rate, episode, learner, preset, seed, budget, device, precision, overrides, features
    )
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
    overrides = _overrides(set_, robust=robust, filter=filter_, graphs=graphs)
    brought = None if features is None else str(features)
    console.sweep(combinations(lists, overrides, device=device, precision=precision, out=out, features=brought))


@app.command()
def learn(
    data: Annotated[
        str, typer.Argument(help="A folder label/name.png, a CSV or JSONL list of path and label, or - for a pipe.")
    ],
    state: Annotated[Path, typer.Option("--state", help="Folder of the state; begun where there is none.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on watching the folder, until Ctrl-C.")] = False,
    size: Annotated[
        int | None, typer.Option(help="Stretch images to so many pixels square. [default: as the first one comes]")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1: make images grey, 3: colour. [default: as the first one comes]")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of a list's paths. [default: the list's own, or the present one]")
    ] = None,
    rest: Annotated[
        bool | None,
        typer.Option(
            "--judge-rest/--hold-rest",
            help="At the end, judge what does not fill a buffer, or hold it back until more comes. "
            "[default: hold it back in a pipe]",
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="As for `run`. [default: daily]")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes networks and every draw. [default: 1]")] = None,
    device: Device = "auto",
    set_: SetOption = None,
) -> None:
    """Learn images of your own, with labels you cannot trust, into a state folder.

    The same command again goes on where it was, after any kill too, and takes in what is new. Size, channels, preset,
    seed and settings are fixed when the state is begun.

    In a pipe every line is an object with id, label, and path or image (base64 of an image file); the answer on
    standard output, {"id": ..., "ok": true} or {"id": ..., "error": ...}, comes when it is safe on the disk. Who was
    cut off sends again whatever was not answered.

    Examples:

        purereplay learn photos --state state

        purereplay learn labels.csv --state state --size 32

        camera | purereplay learn - --state state > answers.jsonl
    """
    from purereplay.live.settings import Wanted
    from purereplay.report import daily

    wanted = Wanted(preset=preset, overrides=_overrides(set_), seed=seed, size=size, channels=channels)
    daily.learn(data, state, wanted, device=device, follow=follow, root=root, rest=rest)


@app.command()
def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    state: State,
    form: Annotated[
        str, typer.Option("--format", help="table, jsonl or csv: the last two with every label.")
    ] = "table",
    device: Device = "auto",
) -> None:
    """Classify images by what a state has learned, with probabilities.

    Examples:

        purereplay predict --state state new/*.png

        purereplay predict --state state new --format csv > predicted.csv
    """
    from purereplay.report import daily

    daily.predict(state, images, form, device)


@app.command()
def audit(
    state: State,
    out: Annotated[Path, typer.Option(help="CSV file to be written.")],
    device: Device = "auto",
) -> None:
    """List every sample ever judged, the least believed first: label, probability, decision, likely other label.

    May be asked for while `learn` runs.

    Example:

        purereplay audit --state state --out audit.csv
    """
    from purereplay.report import daily

    daily.audit(state, out, device)


@app.command()
def correct(
    fixes: Annotated[Path, typer.Argument(help="CSV file with the columns id and label.")],
    state: State,
    device: Device = "auto",
) -> None:
    """Put labels right: samples with a label that a person gave go into the purified buffer, with probability 1.

    Example:

        purereplay correct --state state fixes.csv
    """
    from purereplay.report import daily

    daily.correct(state, fixes, device)


@app.command()
def status(
    state: State,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show what a state holds: samples, judged and waiting, accepted and rejected, by label.

    May be asked for while `learn` runs.

    Example:

        purereplay status --state state
    """
    from purereplay.report import daily

    daily.status(state, form)


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
        settings = _resolve("digits", "symmetric", 0.4, "A", learner, "demo", seed, 1.0, "cpu", "float32", {})
        console.run(settings, path, resume=False)
    compare.compare(list(learners), "accuracy", out / "compared.png")


@app.command("filter")
def filter_(
    features: Annotated[Path, typer.Argument(metavar="FEATURES", help="File of features: .npz, .csv or .parquet.")],
    out: Annotated[Path, typer.Option(help="File for the scores: .csv or .parquet.")],
    columns: Annotated[
        str | None,
        typer.Option("--features", help="Array of features, or columns, as in 'f*,size' (default: all)."),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="Array or column of labels (default: labels or label).")] = None,
    ids: Annotated[str | None, typer.Option(help="Array or column of names (default: ids or id, if there).")] = None,
    graphs: Annotated[int, typer.Option(help="Random graphs a class; 0: the similarity graph itself.")] = 5,
    seed: Annotated[int, typer.Option(help="Fixes graphs, blocks and selection.")] = 0,
    block_size: Annotated[int, typer.Option(help="Classes with more samples are judged in random blocks.")] = 2048,
    keep_small: Annotated[
        bool, typer.Option("--keep-small", help="Classes of fewer than 4 samples get 0.5 instead of 0.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Classes judged at once (default: all cores, at most 8).")] = None,
) -> None:
    """Judge features you bring: a probability of being clean for every sample, high = clean.

    An npz file holds arrays features (n, d), labels (n,) and perhaps ids (n,). A table has a header with a column label
    and perhaps a column id; all other columns are features. Out comes a row a sample: id (or row), label,
    clean_probability, centrality, selected. See docs/filter.md.

    Examples:

        purereplay filter features.npz --out scores.csv

        purereplay filter table.parquet --features 'f*' --labels category --ids path --out scores.parquet
    """
    from purereplay.purify.filter import SelfCenteredFilter
    from purereplay.report.filtering import filter_file

    small_class: SmallClass = "keep" if keep_small else "drop"
    judge = SelfCenteredFilter(
        n_graphs=graphs, seed=seed, small_class=small_class, block_size=block_size, n_jobs=threads
    )
    filter_file(features, out, judge, features=columns, labels=labels, ids=ids)


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
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
) -> None:
    """Put runs beside the paper's numbers: mean ± standard deviation (the paper's), and whether it is within 3 points.

    Examples:

        purereplay paper runs/*

        purereplay paper runs/filters/* --table filtering_e5 --markdown
    """
    from purereplay.paper import beside

    beside.show(table, dataset, runs, markdown=markdown)


@app.command()
def estimate(
    dataset: Dataset = "digits",
    noise: Noise = None,
    noise_rate: NoiseRate = 0.4,
    episode: Episode = "A",
    learner: LearnerName = "spr",
    preset: Preset = "default",
    seed: Seed = 1,
    budget: Budget = 1.0,
    device: Device = "auto",
    precision: Precision = "auto",
    robust: Robust = None,
    filter_: Filter = None,
    graphs: Graphs = None,
    features: Features = None,
    set_: SetOption = None,
) -> None:
    """Say how many steps, how much memory and about how long a run would take here. Takes the options of `run`.

    Example:

        purereplay estimate --dataset mnist --preset default --budget 0.1
    """
    from purereplay.report import console

    overrides = _overrides(set_, robust=robust, filter=filter_, graphs=graphs)
    settings = _resolve(
        dataset, noise, noise_rate, episode, learner, preset, seed, budget, device, precision, overrides, features
    )
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


def _resolve(
    dataset: str,
    noise: str | None,
    noise_rate: float,
    episode: str,
    learner: str,
    preset: str,
    seed: int,
    budget: float,
    device: str,
    precision: str,
    overrides: dict[str, str],
    features: Path | None = None,
) -> RunSettings:
    from purereplay.evaluate.settings import resolve

    return resolve(
        dataset=dataset,
        noise=noise,
        noise_rate=noise_rate,
        episode=episode,
        learner=learner,
        preset_name=preset,
        budget=budget,
        seed=seed,
        device=device,
        precision=precision,
        features=None if features is None else str(features),
        overrides=overrides,
    )


def _overrides(texts: list[str] | None, **named: str | None) -> dict[str, str]:
    """NAME=VALUE, as given to --set, and the settings that have an option of their own."""
    overrides = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, not {text!r}.")
        overrides[name.strip().replace("-", "_")] = value.strip()
    for name, option in named.items():
        if option is None:
            continue
        if name in overrides:
            raise UserError(f"--{name} and --set {name} say the same thing: leave one of them out.")
        overrides[name] = option
    if "graphs" in overrides:
        counts = overrides["graphs"].split(",")
        overrides["graphs"] = ",".join("0" if n.strip().lower() == "none" else n for n in counts)
    return overrides


def main() -> None:
    """The entry point: UserError is one sentence and exit code 2."""
    # PyTorch's threads wait for each other by spinning; when another program has one of the cores, spinning for long
    # makes training many times slower, while giving up after some 10 µs costs next to nothing on an idle one
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        app(arguments)
    except (UserError, MemoryError, RuntimeError) as error:
        text = str(error) if isinstance(error, UserError) else _out_of_memory(error)
        if debug or text is None:
            raise
        typer.echo(f"purereplay: {text}", err=True)
        sys.exit(2)


def _out_of_memory(error: Exception) -> str | None:
    """PyTorch has no error of its own for a CPU that is out of memory."""
    words = ("not enough memory", "out of memory", "can't allocate", "overflow", "exceeds")
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in words):
        return "There is not enough memory for these settings: choose smaller sizes."
    return None


if __name__ == "__main__":
    main()
