"""The command `filter`: the filter alone, on features or on images with an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

import typer

from purereplay.cli.app import app
from purereplay.cli.live import EncoderOption, some_refused
from purereplay.errors import UserError
from purereplay.purify.options import BLOCK_SIZE, DEFAULTS, PREPARATION, Preparation, SmallClass, check_choice

SELF_CENTERED, JUDGE = METHODS = ("self-centered", "judge")


@app.command("filter")
def filter_(
    features: Annotated[
        Path,
        typer.Argument(
            metavar="FEATURES",
            help="File of features: .npz, .csv or .parquet; or a folder of .parquet. With --encoder: images, as for "
            "`learn`.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File for the scores: .csv or .parquet. With --cluster: a folder that does not exist.")
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", help="Columns of features, such as 'f*,size'; for .npz the array's name. (default: all others)"
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Column or array of given labels. (default: label or labels)")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help="Column or array of sample ids. (default: id or ids, if present)")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="self-centered: compare each label's samples with each other; judge: compare all classes, which finds "
            "more and is calibrated."
        ),
    ] = SELF_CENTERED,
    graphs: Annotated[
        int, typer.Option(help="Random graphs per class; 0 uses the similarity graph itself.")
    ] = DEFAULTS.n_graphs,
    seed: Annotated[int, typer.Option(help="Seed of the graphs, the blocks and the selection.")] = 0,
    prepare: Annotated[
        str, typer.Option(help="directions: compare centred main directions; none: the features as given.")
    ] = PREPARATION,
    block_size: Annotated[
        int, typer.Option(help="Classes with more samples are split into random blocks.")
    ] = BLOCK_SIZE,
    keep_small: Annotated[
        bool, typer.Option("--keep-small", help="Give classes of fewer than 4 samples 0.5 instead of 0.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Number of threads. (default: all cores, at most 8)")] = None,
    encoder: EncoderOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Filter a folder of parquet files on a Ray cluster: ray starts one on this machine, ray=ADDRESS joins "
            "one. (default: in this process)"
        ),
    ] = None,
) -> None:
    """Score the labels of samples by your own features: a clean probability per sample, high = clean.

    An npz file holds arrays features (n, d), labels (n,) and optionally ids (n,). A table needs a header and a column
    label, and may have a column id; all other columns are features. Writes one row per sample: id (or row), label,
    clean_probability, centrality, selected, preparation. The clean probability sorts samples; it is not calibrated and
    does not tell the share of wrong labels.

    With --method judge the columns are id (or row), label, clean_probability, likely_label, accepted. This clean
    probability is calibrated, and the share of wrong labels is estimated. See docs/filter.md.

    Examples:

        purereplay filter features.npz --out scores.csv

        purereplay filter features.npz --method judge --out scores.csv

        purereplay filter table.parquet --columns 'f*' --labels category --ids path --out scores.parquet

        purereplay filter photos --encoder onnx:encoder.onnx --out scores.csv

        purereplay filter features --cluster ray=ADDRESS --prepare none --out scores
    """
    from purereplay.purify.filter import SelfCenteredFilter
    from purereplay.report.filtering import Judging, Method, filter_file, filter_folder

    check_choice("--method", method, METHODS)
    small_class: SmallClass = "keep" if keep_small else DEFAULTS.small_class
    sample_filter = SelfCenteredFilter(
        n_graphs=graphs,
        seed=seed,
        small_class=small_class,
        prepare=cast(Preparation, prepare),  # the filter checks it
        block_size=block_size,
        n_jobs=threads,
    )
    chosen: Method = sample_filter
    if method == JUDGE:
        given = {
            "--graphs": graphs != DEFAULTS.n_graphs,
            "--prepare": prepare != PREPARATION,
            "--block-size": block_size != BLOCK_SIZE,
            "--keep-small": keep_small,
            "--threads": threads is not None,
            "--cluster": cluster is not None,
        }
        if odd := [name for name, is_given in given.items() if is_given]:
            raise UserError(f"{odd[0]} belongs to --method self-centered: leave it out with --method judge.")
        chosen = Judging(seed)
    with _options_named():
        if encoder not in (None, "none"):
            if cluster is not None or columns is not None or ids is not None:
                raise UserError("--encoder reads images: leave --cluster, --columns and --ids out.")
            from purereplay.report.filtering_images import filter_images

            n_refused, n = filter_images(str(features), out, chosen, str(encoder), labels)
            if n_refused:
                raise UserError(some_refused(n_refused, n, "image", "scored"))
        elif cluster is not None:
            filter_folder(features, out, sample_filter, cluster, features=columns, labels=labels, ids=ids)
        else:
            filter_file(features, out, chosen, features=columns, labels=labels, ids=ids)


@contextmanager
def _options_named() -> Iterator[None]:
    """Name the option instead of the filter's parameter in an error."""
    options = {"n_jobs": "--threads", "n_graphs": "--graphs", "block_size": "--block-size", "prepare": "--prepare"}
    try:
        yield
    except UserError as error:
        name, _, rest = str(error).partition(" ")
        if name not in options:
            raise
        raise UserError(f"{options[name]} {rest}") from None
