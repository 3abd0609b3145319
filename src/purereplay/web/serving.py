"""Start of the server: an address on this machine, printed with its token."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable

import uvicorn

from purereplay.errors import UserError
from purereplay.nets.engine import Engine
from purereplay.web.app import Subject, make_app
from purereplay.web.security import new_token

PORT = 8490  # tried first, so that the address stays the same


def serve(subject: Subject, engine: Engine, *, host: str, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `announce` receives its address once it answers."""
    listening = _listen(host, port)
    number, token = int(listening.getsockname()[1]), new_token()
    app = make_app(subject, engine, token=token, host=host, port=number)
    shown = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, server_header=False, date_header=False, timeout_graceful_shutdown=5
    )
    sys.setswitchinterval(0.001)  # requests are answered while another thread computes
    server = _Server(config, lambda: announce(f"http://{shown}:{number}/?token={token}"))
    with listening:
        try:
            server.run(sockets=[listening])
        except SystemExit:
            raise getattr(app.state, "failure", UserError("The review page could not be started.")) from None


class _Server(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logging.getLogger("uvicorn.error").setLevel("WARNING")
            self._ready()


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a socket on the port; None: the usual one, or any that is free."""
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise UserError(f"The host {host!r} is not known: {error.strerror or error}.") from None
    last: OSError | None = None
    for number in (PORT, 0) if port is None else (port,):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(128)
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            last = error if isinstance(error, OSError) else OSError(None, str(error))
    raise UserError(f"Port {port} of {host} cannot be used: {last.strerror if last else ''}; choose another --port.")
