"""Pages in the browser and the terminal: review labels, report runs and states, watch them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purereplay.cli.app import Device, app
from purereplay.cli.live import SameEncoder
from purereplay.errors import UserError


@app.command()
def review(
    state: Annotated[Path | None, typer.Option("--state", help="State folder, created by `learn`.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Review an audit file instead of a state; needs --images.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that the ids of the audit are relative to.")] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Folder label/name.png of images with correct labels; the page shows the accuracy on them."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the decisions as the CSV file that `correct` takes, and exit.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; a loopback address cannot be reached from other machines.")
    ] = ("127.0.0.1"),
    port: Annotated[int | None, typer.Option(help="Port. (default: 8490, or any that is free)")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    encoder: SameEncoder = None,
    device: Device = "auto",
) -> None:
    """Review labels in the browser, the most doubtful first: one key to accept the suggestion, keep, relabel or drop.

    Every decision is written to disk before the page confirms it, and can be undone. The state learns from the
    decisions while you review; if `learn` runs on it, that process does. Several people may review one state. Needs the
    extra `web`.

    Examples:

        purereplay review --state state

        purereplay review --audit audit.csv --images photos

        purereplay review --state state --export fixes.csv
    """
    if (state is None) == (audit is None):
        raise UserError("Name what to review: either --state DIR, or --audit audit.csv with --images FOLDER.")
    if (audit is None) != (images is None):
        raise UserError("--audit and --images belong together.")
    if test is not None and state is None:
        raise UserError("--test needs --state: an audit has no classifier.")
    if encoder is not None and state is None:
        raise UserError("--encoder needs --state: an audit has no encoder.")
    from purereplay.report import review as report

    if export is not None:
        from purereplay.live.reviewed import export_decisions

        report.show_exported(export, export_decisions(state, audit, export))
        return
    try:
        from purereplay.web.app import Subject
        from purereplay.web.serving import serve
    except ModuleNotFoundError as error:
        raise UserError(
            f"The review page needs the package {error.name}: install it with `pip install 'purereplay[web]'`."
        ) from None
    from purereplay.live.session import make_engine

    subject = Subject(state=state, audit=audit, images=images, test=test, encoder=encoder)
    with report.serving("The page is closed. Every decision shown as saved is on disk."):
        serve(subject, make_engine(device), host=host, port=port, announce=report.announcer(browser=browser, host=host))


@app.command("report")
def report_(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of finished runs, put side by side.")] = None,
    state: Annotated[Path | None, typer.Option("--state", help="Report a state folder instead of runs.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    images: Annotated[int, typer.Option(help="Images in each gallery.")] = 200,
    fixed_graphs: Annotated[
        int | None,
        typer.Option(
            help="Number of last buffers whose fixed graph is also computed; for a run, their experts are trained "
            "again. (default: 10 of a state, 0 of a run)"
        ),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Write a report of runs or of a state: one HTML file that opens from the disk and needs nothing else.

    Runs: accuracy over the tasks with the spread over seeds, the paper's number, confusion, forgetting, purity, times
    and settings. A state: noise by label, the purified buffer, centralities by buffer and label, galleries.

    Examples:

        purereplay report runs/a --out report.html

        purereplay report runs/rates/* --out rates.html

        purereplay report --state state --out state.html
    """
    if bool(runs) == (state is not None):
        raise UserError("Name what to report: either folders of runs, or --state DIR.")
    if images < 0 or (fixed_graphs or 0) < 0:
        raise UserError("--images and --fixed-graphs must not be negative.")
    from purereplay.report.page import Extent
    from purereplay.report.terminal import reporting

    with reporting(out) as progress:
        if state is not None:
            from purereplay.live.session import make_engine
            from purereplay.report.state_report import write_state_report

            extent = Extent(images, 10 if fixed_graphs is None else fixed_graphs)
            write_state_report(state, make_engine(device), out, extent, progress)
        else:
            from purereplay.nets.engine import flush_denormals
            from purereplay.paper.beside import paper_accuracy
            from purereplay.report.run_report import write_run_report

            flush_denormals()
            extent = Extent(images, fixed_graphs or 0)
            write_run_report(runs or [], out, paper_accuracy, extent, device, progress)


@app.command()
def watch(
    path: Annotated[Path, typer.Argument(help="Folder of a run, or a state folder.")],
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
) -> None:
    """Watch a run or a state while another process works on it: accuracy, purity, speed and remaining time.

    Ends when the run is finished, or with Ctrl-C. The other process is not disturbed.

    Examples:

        purereplay watch runs/a

        purereplay watch state --once
    """
    from purereplay.report.watching import watch

    watch(path, once=once)
