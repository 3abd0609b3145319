"""A state in daily use by other programs: the server, and the export of its classifier."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from purereplay.cli.app import Device, app
from purereplay.cli.live import SameEncoder, State
from purereplay.errors import UserError

_TOKEN = "PUREREPLAY_TOKEN"


@app.command()
def serve(
    state: State,
    host: Annotated[
        str, typer.Option(help="Address to listen on; a loopback address cannot be reached from other machines.")
    ] = ("127.0.0.1"),
    port: Annotated[int | None, typer.Option(help="Port; 0 chooses a free one. (default: 8491)")] = None,
    name: Annotated[str, typer.Option(help="Name of the model in the Open Inference Protocol.")] = "purereplay",
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the bearer token that requests need. (default: the variable {_TOKEN}, if set)"),
    ] = None,
    max_request: Annotated[float, typer.Option(help="Largest request, in MiB.")] = 32.0,
    encoder: SameEncoder = None,
    device: Device = "auto",
) -> None:
    """Serve a state over HTTP: classify images, take new samples, and learn from them meanwhile.

    POST /predict classifies images. POST /learn adds samples, and answers 202 once they are on the disk; a label may
    come later, by the id. GET /judgements?since=N returns verdicts. /status, /health, /metrics (for Prometheus) and
    /openapi.json describe the server, and /v2 is the Open Inference Protocol. The review page is at /. Training runs in
    a process of its own. Nothing that was acknowledged is lost by a kill. Needs the extra `web`.

    Examples:

        purereplay serve --state state

        purereplay serve --state state --host 0.0.0.0 --token-file token.txt

        curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8491/predict
    """
    token = _token(token_file)
    if not 0.1 <= max_request <= 1024:
        raise UserError("--max-request must be between 0.1 and 1024 MiB.")
    if not name.isascii() or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UserError("--name may have letters, digits, dots, hyphens and underscores.")
    try:
        from purereplay.web.service import Options
        from purereplay.web.serving import serve_state
    except ModuleNotFoundError as error:
        raise UserError(
            f"The server needs the package {error.name}: install it with `pip install 'purereplay[web]'`."
        ) from None
    from purereplay.live.session import make_engine
    from purereplay.report import review as report

    options = Options(
        state=state,
        name=name,
        device=device,
        encoder=encoder,
        max_bytes=int(max_request * 2**20),
        token=token,
        host=host,
    )
    with report.serving("The server has stopped. Every acknowledged sample is on disk."):
        announce = report.server_announcer(host=host, has_token=token is not None)
        serve_state(options, make_engine(device), port=port, announce=announce)


@app.command()
def export(
    state: State,
    to: Annotated[str, typer.Option("--to", help="onnx, torch (a program of torch.export) or safetensors.")],
    out: Annotated[Path, typer.Option(help="Folder for the file and its model card.")],
    test: Annotated[
        Path | None,
        typer.Option(
            help="Folder label/name.png of images with right labels, to measure the accuracy. (default: estimate it)"
        ),
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--license", help="Licence of the model, for the card. (default: not stated)")
    ] = None,
    encoder: SameEncoder = None,
) -> None:
    """Write the classifier of a state as a file that needs no purereplay, with a model card.

    The card has the data, the estimated share of wrong labels, the accuracy, the settings and the licence. The file
    takes images and returns probabilities; if the state has an encoder, it takes features. It is compared with the
    state's own classifier on up to 1,000 samples, and not written if a probability differs by more than 0.0001. ONNX
    needs the extra `export`.

    Examples:

        purereplay export --state state --to onnx --out model

        purereplay export --state state --to torch --out model --test checked --license CC-BY-4.0
    """
    from purereplay.live.export.exporter import export
    from purereplay.live.settings import wanted_encoder
    from purereplay.report import live as report

    with report.exporting() as watch:
        done = export(state, to, out, test=test, licence=licence, encoder=wanted_encoder(encoder), watch=watch)
    report.show_model(done)


def _token(file: Path | None) -> str | None:
    """Return the token of a file or of the environment; None: requests need none."""
    if file is None:
        found = os.environ.get(_TOKEN)
    else:
        try:
            found = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if found is None:
        return None
    token = found.strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError("The bearer token must have at least 16 letters, digits or signs, and no blanks.")
    return token
