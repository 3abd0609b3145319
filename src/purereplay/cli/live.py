"""Commands on your own data: `learn` and the other commands on its state folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from purereplay.cli import output
from purereplay.cli.app import Device, Log, SetOption, app, overrides
from purereplay.errors import UserError

EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="Compare features of this encoder instead of pixels: onnx:FILE, torch:FILE, python:MODULE:FUNCTION, "
        "timm:NAME, hf:NAME, file:FEATURES.npz (.parquet, .csv) or none. See docs/encoders.md.",
    ),
]
SameEncoder = Annotated[
    str | None, typer.Option(help="Encoder of the state, if it runs code (python:, torch:) or its file was moved.")
]
State = Annotated[Path, typer.Option("--state", help="State folder, created by `learn`.")]


@app.command()
def learn(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder label/name.png, a CSV or JSONL list of path and label, Parquet or tar files, a folder saved "
            "by Hugging Face `datasets`, or - for a pipe."
        ),
    ],
    state: Annotated[Path, typer.Option("--state", help="State folder; created if it does not exist.")],
    follow: Annotated[bool, typer.Option("--follow", help="Keep watching the folder until Ctrl-C.")] = False,
    size: Annotated[
        int | None, typer.Option(help="Resize images to SIZE × SIZE pixels. (default: chosen by the first images)")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1: convert images to grey, 3: to colour. (default: as the first images)")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Folder that the paths of a list or pipe are relative to. "
            "(default: the list's folder, or the working directory)"
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Column of labels in Parquet files or a saved dataset. (default: label)")
    ] = None,
    rest: Annotated[
        bool | None,
        typer.Option(
            "--score-rest/--hold-rest",
            help="At the end, judge the samples that are not due yet, or hold them until more arrive. "
            "(default: hold them with a pipe or --follow)",
        ),
    ] = None,
    learner: Annotated[
        str | None, typer.Option(help="Learner: full-memory, spr or pure-replay. (default: full-memory)")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="As for `run`. (default: live)")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of networks and all random draws. (default: 1)")] = None,
    encoder: EncoderOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen: images, labels, sizes and time. Writes nothing.")
    ] = False,
    device: Device = "auto",
    log: Log = None,
    set_: SetOption = None,
) -> None:
    """Learn from your own images with unreliable labels, into a state folder.

    Images may have any size; they are resized to one that is chosen by the first images, with the aspect kept. The
    same command again continues after any interruption and adds what is new in the data. A file that was moved to the
    folder of another label has its label corrected. Size, channels, learner, preset, seed, encoder and settings are
    fixed when the state is created.

    Each line of a pipe is a JSON object with id, label, and path or image (base64 of an image file). It is answered on
    standard output with {"id": ..., "ok": true} or {"id": ..., "error": ...} once the sample is on the disk. After an
    interruption, send every line again that was not answered.

    Examples:

        purereplay learn photos --state state --dry-run

        purereplay learn photos --state state

        purereplay learn labels.csv --state state --size 32

        purereplay learn 'shards/train-*.tar' --state state

        purereplay learn 'data/train-*.parquet' --labels fine_label --state state

        purereplay learn photos --state state --encoder onnx:encoder.onnx

        camera | purereplay learn - --state state > answers.jsonl
    """
    from purereplay.live.learn import learn
    from purereplay.live.plan import plan
    from purereplay.live.settings import Wanted, wanted_encoder
    from purereplay.report import live as report

    chosen = overrides(set_)
    wanted = Wanted(
        learner=learner,
        preset=preset,
        overrides=chosen,
        seed=seed,
        size=size,
        channels=channels,
        encoder=wanted_encoder(encoder),
    )
    if dry_run:
        with report.counting("reading") as progress:
            found = plan(data, state, wanted, root=root, labels=labels, progress=progress)
        report.show_plan(found)
        return
    is_pipe = data == "-"
    with report.learning(is_pipe=is_pipe, state=state, log=log) as observer:
        done = learn(
            data,
            state,
            wanted,
            device=device,
            follow=follow,
            root=root,
            labels=labels,
            rest=rest,
            answers=sys.stdout if is_pipe else None,
            observer=observer,
        )
    report.show_learned(state, done, is_pipe=is_pipe)
    if done.n_refused:
        raise UserError(some_refused(done.n_refused, done.n_seen, "item", "added"))


@app.command()
def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of image files.")],
    state: State,
    form: Annotated[
        str, typer.Option("--format", help="table, jsonl or csv; the last two give the probability of every label.")
    ] = "table",
    encoder: SameEncoder = None,
    device: Device = "auto",
) -> None:
    """Classify images with the classifier of a state.

    Examples:

        purereplay predict --state state new/*.png

        purereplay predict --state state new --format csv > predicted.csv
    """
    _check_form(form, "table", "jsonl", "csv")
    if form != "table":
        output.show_every_byte()
    from purereplay.live.predict import image_files, predict, ready_classifier
    from purereplay.live.session import make_engine
    from purereplay.live.settings import Wanted, check_same, wanted_encoder
    from purereplay.live.store import Store
    from purereplay.report import live as report

    paths, engine = image_files(images), make_engine(device)
    named = wanted_encoder(encoder)
    with Store.reading(state) as store:
        check_same(store.settings, Wanted(encoder=named), state)
        with report.preparing():
            classifier, labels = ready_classifier(store, engine)
        own = None if isinstance(named, str) else named
        n_refused = report.show_predictions(predict(store, classifier, paths, own), labels, form)
    if n_refused:
        raise UserError(some_refused(n_refused, len(paths), "image", "classified"))


@app.command()
def audit(
    state: State,
    out: Annotated[Path, typer.Option(help="File to write: .jsonl for JSON lines, otherwise CSV.")],
    device: Device = "auto",
) -> None:
    """List every judged sample, lowest clean probability first: label, probability, decision, likely other label.

    Can be used while `learn` runs.

    Example:

        purereplay audit --state state --out audit.csv
    """
    from purereplay.live.audit import audit
    from purereplay.live.session import make_engine
    from purereplay.live.store import Store
    from purereplay.report import live as report

    engine = make_engine(device)
    with report.counting("classifying") as progress, Store.reading(state) as store:
        done = audit(store, engine, out, progress)
    report.show_audit(out, done)


@app.command()
def correct(
    fixes: Annotated[Path, typer.Argument(help="CSV file with the columns id and label, or a filled-in audit.")],
    state: State,
    device: Device = "auto",
) -> None:
    """Correct labels by a table that a person has filled in; corrected labels are trusted and learned.

    The table has the columns id and label, or is the file of `audit` with the column corrected_label filled in. A file
    moved to the folder of another label needs no table: run `learn` again. While `learn` runs, it takes the corrections
    up after its current step.

    Examples:

        purereplay correct --state state audit.csv

        purereplay correct --state state fixes.csv
    """
    from purereplay.errors import BusyError
    from purereplay.live.corrections import correct, n_teaching
    from purereplay.live.full_memory import FullMemory
    from purereplay.live.reviewed import Reviewed, record_corrections
    from purereplay.live.session import Session, make_engine
    from purereplay.live.settings import buffer_sizes
    from purereplay.report import live as report

    try:
        with Session.open(state, None, make_engine(device)) as session:
            Reviewed(session).absorb()  # decisions made before this one
            n_labels = len(session.store.labels())
            outcomes = correct(session, fixes)
            n_refused = report.show_corrections(outcomes)
            report.show_new_labels(session.store.labels()[n_labels:])
            if isinstance(session.learning, FullMemory):
                with report.settling() as session.learning.watch:
                    judged = session.settle()
                if judged is not None:
                    report.show_judged(judged)
            elif sizes := buffer_sizes(session.store.settings):
                report.show_held(outcomes, n_teaching(session, outcomes), sizes[1])
    except BusyError:
        outcomes, new_labels = record_corrections(state, fixes)
        n_refused = report.show_recorded(outcomes)
        report.show_new_labels(new_labels)
    if n_refused:
        raise UserError(some_refused(n_refused, len(outcomes), "correction", "applied"))


@app.command()
def status(
    state: State,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show the number of samples in a state: judged and waiting, accepted and rejected, by label.

    Can be used while `learn` runs.

    Example:

        purereplay status --state state
    """
    _check_form(form, "table", "json")
    from purereplay.live.status import status
    from purereplay.live.store import Store
    from purereplay.report import live as report

    with Store.reading(state) as store:
        found = status(store)
    report.show_status(found, form)


def some_refused(n: int, total: int, noun: str, done: str) -> str:
    if n == total:
        return f"The only {noun} was refused." if n == 1 else f"All {total:,} {noun}s were refused."
    return f"{n:,} of {total:,} {noun}s were refused; the others were {done}."


def _check_form(form: str, *known: str) -> None:
    if form not in known:
        raise UserError(f"The format {form!r} is unknown: choose {', '.join(known[:-1])} or {known[-1]}.")
