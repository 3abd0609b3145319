"""Start of a server: an address on this machine, printed with the token of the review page."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h11
import torch
import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from purereplay.errors import UserError
from purereplay.nets.engine import Engine
from purereplay.web.app import Subject, make_app
from purereplay.web.security import new_token
from purereplay.web.service import Options, Service

PORT = 8490  # tried first, so that the address stays the same
SERVICE_PORT = 8491
HEADER_SECONDS = 15.0  # within which the header of a request must arrive
REST_SECONDS = 5.0  # for the rest of a request that was answered before its end
_MAX_CONNECTIONS = 1000
_BACKLOG = 1024
_MMAP_THRESHOLD = (-3, 2**20)  # option of glibc's mallopt, bytes


def serve(subject: Subject, engine: Engine, *, host: str, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `announce` receives its address once it answers."""
    listening = _listen(host, (PORT, 0) if port is None else (port,))
    number, token = int(listening.getsockname()[1]), new_token()
    app = make_app(subject, engine, token=token, host=host, port=number)
    _run(app, listening, lambda: announce(f"{_address(host, number)}/?token={token}"), "The review page", 5)


def serve_state(options: Options, engine: Engine, *, port: int | None, announce: Callable[[str, str], None]) -> None:
    """Serve a state until Ctrl-C or SIGTERM; `announce` receives its address, and that of the review page."""
    listening = _listen(options.host, (SERVICE_PORT,) if port is None else (port,))
    number, token = int(listening.getsockname()[1]), new_token()
    address = _address(options.host, number)
    app = Service(options, engine, page_token=token, port=number)
    _return_memory()
    # threads that wait for each other are slow while training uses the same cores
    n_threads = max(1, (os.cpu_count() or 1) // 4)
    torch.set_num_threads(min(torch.get_num_threads(), n_threads))
    with threadpool_limits(n_threads, "blas"):
        _run(app, listening, lambda: announce(address, f"{address}/?token={token}"), "The server", 20)


def _return_memory() -> None:
    """Give large blocks back to the system as soon as they are free; glibc keeps those of former large images."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(*_MMAP_THRESHOLD)


def _run(app: Any, listening: socket.socket, ready: Callable[[], None], what: str, patience: int) -> None:
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        http=Timed,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=patience,
    )
    sys.setswitchinterval(0.001)  # requests are answered while another thread computes
    server = _Server(config, ready)
    with listening:
        try:
            server.run(sockets=[listening])
        except SystemExit:
            raise getattr(app.state, "failure", UserError(f"{what} could not be started.")) from None


class Timed(H11Protocol):
    """HTTP that closes a connection whose next header, or the rest of whose request, does not arrive in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._in_time()
        elif self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # nobody reads it
            self.loop.call_later(REST_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    """A server that says when it is ready, and for which Ctrl-C and SIGTERM are the same end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logging.getLogger("uvicorn.error").setLevel("WARNING")
            self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal; uvicorn's own version raises it again at the end, so that SIGTERM looks like a failure."""
        if threading.current_thread() is not threading.main_thread():  # no other thread can set handlers
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _listen(host: str, ports: tuple[int, ...]) -> socket.socket:
    """Return a socket on the first port that can be used; 0: any that is free."""
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise UserError(f"The host {host!r} is not known: {error.strerror or error}.") from None
    last: OSError | None = None
    for number in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(_BACKLOG)
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            last = error if isinstance(error, OSError) else OSError(None, "it must be from 0 to 65535")
    reason = last.strerror if last else ""
    raise UserError(f"Port {ports[-1]} of {host} cannot be used: {reason}; choose another --port.")
