"""Your own data: a learner in daily use, and the filter alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purereplay.cli.app import Device, SetOption, app, overrides
from purereplay.purify.options import BLOCK_SIZE, DEFAULTS, SmallClass

State = Annotated[Path, typer.Option("--state", help="Folder of the state, made by `learn`.")]


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

    wanted = Wanted(preset=preset, overrides=overrides(set_), seed=seed, size=size, channels=channels)
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


@app.command("filter")
def filter_(
    features: Annotated[Path, typer.Argument(metavar="FEATURES", help="File of features: .npz, .csv or .parquet.")],
    out: Annotated[Path, typer.Option(help="File for the scores: .csv or .parquet.")],
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", help="Columns of features, such as 'f*,size'; for .npz the array's name. [default: all others]"
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Column or array of given labels. [default: label or labels]")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help="Column or array of sample ids. [default: id or ids, if present]")
    ] = None,
    graphs: Annotated[
        int, typer.Option(help="Random graphs per class; 0 uses the similarity graph itself.")
    ] = DEFAULTS.n_graphs,
    seed: Annotated[int, typer.Option(help="Seed of the graphs, the blocks and the selection.")] = 0,
    block_size: Annotated[
        int, typer.Option(help="Classes with more samples are split into random blocks.")
    ] = BLOCK_SIZE,
    keep_small: Annotated[
        bool, typer.Option("--keep-small", help="Give classes of fewer than 4 samples 0.5 instead of 0.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Number of threads. [default: all cores, at most 8]")] = None,
) -> None:
    """Score the labels of samples by your own features: a clean probability per sample, high = clean.

    An npz file holds arrays features (n, d), labels (n,) and optionally ids (n,). A table needs a header and a column
    label, and may have a column id; all other columns are features. Writes one row per sample: id (or row), label,
    clean_probability, centrality, selected. See docs/filter.md.

    Examples:

        purereplay filter features.npz --out scores.csv

        purereplay filter table.parquet --columns 'f*' --labels category --ids path --out scores.parquet
    """
    from purereplay.purify.filter import SelfCenteredFilter
    from purereplay.report.filtering import filter_file

    small_class: SmallClass = "keep" if keep_small else DEFAULTS.small_class
    sample_filter = SelfCenteredFilter(
        n_graphs=graphs, seed=seed, small_class=small_class, block_size=block_size, n_jobs=threads
    )
    filter_file(features, out, sample_filter, features=columns, labels=labels, ids=ids)
