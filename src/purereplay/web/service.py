"""The application of `serve`: the interface for programs, and the review page beside it.

The paths of the page are its own; all others belong to the interface, which answers 404 if it does not know one, and
before that 401 if the token that requests need is missing. The page opens the state when somebody uses it first,
so that a server without reviewers does no work for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from purereplay.errors import UserError
from purereplay.nets.engine import Engine
from purereplay.web.app import Server, Subject, routes_of
from purereplay.web.gate import Gate, Problem
from purereplay.web.interface import Interface
from purereplay.web.protocol import Protocol
from purereplay.web.security import Guard


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `serve`."""

    state: Path
    name: str = "purereplay"  # of the model
    device: str = "cpu"
    encoder: str | None = None  # that of the state, named again
    max_bytes: int = 32 * 2**20  # of a request
    token: str | None = None  # that requests need
    host: str


class Service:
    """The application, with the token of the review page; `interface` has the parts that run."""

    def __init__(self, options: Options, engine: Engine, *, page_token: str, port: int) -> None:
        o = options
        self.interface = Interface(
            o.state, engine, name=o.name, device=o.device, max_bytes=o.max_bytes, encoder=o.encoder
        )
        gate = Middleware(Gate, metrics=self.interface.metrics, token=o.token, host=o.host, max_bytes=o.max_bytes)
        review = Server(Subject(state=o.state), engine, teaches=False)
        self._open = _OpenOnce(review)
        self.programs = Starlette(
            routes=_routes(self.interface), middleware=[gate], lifespan=self._running, exception_handlers=_HANDLERS
        )
        guard = Middleware(Guard, token=page_token, host=o.host, port=port)
        self.page = Starlette(routes=routes_of(review), middleware=[guard, Middleware(_Opening, once=self._open)])
        self.state = self.programs.state

    @asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        async with self.interface.running(app):
            try:
                yield
            finally:
                await self._open.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.page if self._is_page(scope) else self.programs)(scope, receive, send)

    def _is_page(self, scope: Scope) -> bool:
        """Return whether a request is for the page, with any method."""
        return scope["type"] == "http" and any(r.matches(scope)[0] is not Match.NONE for r in self.page.routes)


class _OpenOnce:
    """Opens the state for the page at its first request."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()
        self._is_open = False

    async def open(self) -> None:
        async with self._lock:
            if not self._is_open:
                await self._stack.enter_async_context(self.server.opened())
                self._is_open = True

    async def close(self) -> None:
        await self._stack.aclose()


class _Opening:
    """Middleware behind the guard of the page."""

    def __init__(self, app: ASGIApp, once: _OpenOnce) -> None:
        self.app = app
        self.once = once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.once.open()
        except UserError as error:  # the state was deleted or moved
            await PlainTextResponse(str(error), 503)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _routes(interface: Interface) -> list[Route]:
    protocol = Protocol(interface)
    routes = [
        Route("/predict", interface.predict, methods=["POST"]),
        Route("/learn", interface.learn, methods=["POST"]),
        Route("/judgements", interface.judgements),
        Route("/status", interface.status),
        Route("/health", interface.health),
        Route("/metrics", interface.show_metrics),
        Route("/openapi.json", interface.openapi),
        Route("/v2", protocol.server),
        Route("/v2/health/live", protocol.live),
        Route("/v2/health/ready", protocol.ready),
    ]
    for version in ("", "/versions/{version}"):
        base = "/v2/models/{name}" + version
        routes += [
            Route(base, protocol.metadata),
            Route(f"{base}/ready", protocol.model_ready),
            Route(f"{base}/infer", protocol.infer, methods=["POST"]),
        ]
    return routes


async def _missing(request: Request, error: Exception) -> Response:
    return Problem(404, "There is no such path: see /openapi.json.").response()


async def _method(request: Request, error: Exception) -> Response:
    return Problem(405, "This path does not take that method: see /openapi.json.", **_allow(error)).response()


def _allow(error: Exception) -> dict[str, str]:
    return dict(getattr(error, "headers", None) or {})


async def _failed(request: Request, error: Exception) -> Response:
    return Problem(500, "The server failed; its log has the reason.").response()


_HANDLERS = {404: _missing, 405: _method, 500: _failed}
