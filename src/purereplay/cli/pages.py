"""Pages in the browser and the terminal: review labels, report runs and states, watch them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purereplay.cli.app import Device, app
from purereplay.errors import UserError


@app.command()
def review(
    state: Annotated[Path | None, typer.Option("--state", help="State folder, created by `learn`.")] = None,
    audit: Annotated[Path | None, typer.Option(help="Review an audit file instead of a state; needs --images.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder that the ids of the audit are relative to.")] = None,
    test: Annotated[
        Path | None, typer.Option(help="Folder label/name.png of images with right labels: show the accuracy on it.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the decisions as the CSV file that `correct` takes, and exit.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; a local one is not reached from elsewhere.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int | None, typer.Option(help="Port. (default: 8490, or any that is free)")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    device: Device = "auto",
) -> None:
    """Review labels in the browser, the most doubtful first: one key to accept the suggestion, keep, relabel or drop.

    Every decision is on the disk before the page says so, and can be undone. The state learns from the decisions while
    you review; if `learn` runs on it, that process does. Several people may review one state. Needs the extra
    purereplay[web].

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
    from purereplay.report import review as report

    if export is not None:
        from purereplay.live.exporting import export_decisions

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

    subject = Subject(state=state, audit=audit, images=images, test=test)
    with report.reviewing():
        serve(subject, make_engine(device), host=host, port=port, announce=report.announcer(browser=browser, host=host))
