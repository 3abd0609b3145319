"""Access control and limits of the HTTP interface.

Host      without a token the name must be this machine's, so that no site can lead a browser here by its own name
Origin    a browser's request must come from this server itself
token     if there is one, every request but those for health needs "Authorization: Bearer TOKEN"
body      at most `max_bytes`, received within READ_SECONDS; large ones wait until there is room for them
time      a request that takes longer than ANSWER_SECONDS is given up, as with a client that does not read
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from purereplay.errors import UserError
from purereplay.web.metrics import Metrics
from purereplay.web.security import is_own_host

READ_SECONDS = 30.0
ANSWER_SECONDS = 120.0
OPEN_TO_ALL = ("/health", "/v2/health/live", "/v2/health/ready")
_METHODS = ("GET", "HEAD", "POST")  # that have a name in the metrics
_PATHS = ("/predict", "/learn", "/judgements", "/status", "/health", "/metrics", "/openapi.json")  # and /v2
_LARGE = 2**16  # bytes of a body that needs room, and of JSON that is parsed in a thread
_ROOM = 4  # times `max_bytes`, for the bodies of all requests together
MAX_VALUES = 1_000_000  # of JSON; a value takes up to 300 bytes of memory
_parser = ThreadPoolExecutor(1, "parser")  # what was parsed takes much more memory than the text: one at a time

T = TypeVar("T")


class Json(JSONResponse):
    """An answer in ASCII: a text that a client sent may be no valid UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Problem(Exception):
    """A request that cannot be answered: a status and one sentence."""

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers

    def response(self) -> Response:
        """Return the answer."""
        return Json({"error": str(self)}, self.status, headers=self.headers)


class Room:
    """Memory for the bodies of requests; those that find too little wait, in the order of their arrival."""

    def __init__(self, n_bytes: int) -> None:
        self.left = n_bytes
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, n_bytes: int) -> AsyncIterator[None]:
        """Hold room for a body within the block; Problem if none becomes free in time."""
        if n_bytes <= _LARGE:
            yield
            return
        try:
            async with asyncio.timeout(READ_SECONDS), self._turn:
                while self.left < n_bytes:
                    self._freed.clear()
                    await self._freed.wait()
                self.left -= n_bytes
        except TimeoutError:
            raise Problem(
                503,
                "Other large requests take all the room: send it again later.",
                Connection="close",
                **{"Retry-After": "5"},
            ) from None
        try:
            yield
        finally:
            self.left += n_bytes
            self._freed.set()


class Gate:
    """Middleware around the routes of the interface."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, token: str | None, host: str, max_bytes: int) -> None:
        self.app = app
        self.metrics = metrics
        self.token = token
        self.host = host
        self.max_bytes = max_bytes
        self.room = Room(_ROOM * max_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-content-type-options", b"nosniff"))
            await send(message)

        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async with self.room.taken(self._checked(Request(scope))):
                    await self.app(scope, receive, counted)
        except ClientDisconnect:
            status = status or 499  # nobody reads the answer
        except (Problem, UserError, TimeoutError) as error:
            if not status:  # otherwise the answer has begun
                await _problem(error).response()(scope, receive, counted)
        except Exception:  # the server answers 500 outside of this
            status = status or 500
            raise
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.observe(_template(scope["path"]), method, status, time.perf_counter() - began)

    def _checked(self, request: Request) -> int:
        """Return how many bytes the body of a request may have; Problem if it is not let through."""
        headers, path = request.headers, request.url.path
        if self.token is None and not is_own_host(headers.get("host", ""), self.host, None):
            raise Problem(421, "The Host header does not name this server: use its address, or start it with a token.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise Problem(403, "This request comes from another site.")
        if self.token is not None and path not in OPEN_TO_ALL and not self._has_token(headers):
            raise Problem(401, "This request needs the header `Authorization: Bearer TOKEN`.", **_BEARER)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length) > self.max_bytes:
            raise too_long(self.max_bytes)
        return self.max_bytes if "transfer-encoding" in headers else int(length)

    def _has_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and secrets.compare_digest(given.strip().encode(), (self.token or "").encode())


_BEARER = {"WWW-Authenticate": "Bearer"}


def too_long(max_bytes: int) -> Problem:
    """Return the answer to a body that is too long."""
    sentence = f"The request has more than {max_bytes / 2**20:g} MiB: send fewer images at once."
    return Problem(413, sentence, Connection="close")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request; Problem if it is too long or does not arrive."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "The request is compressed: send it as it is.")
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        raise Problem(415, "The request is a form: send the file itself, with curl by `--data-binary @FILE`.")
    parts, n = [], 0
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for part in request.stream():
                n += len(part)
                if n > max_bytes:
                    raise too_long(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise Problem(408, f"The request did not arrive within {READ_SECONDS:g} s.", Connection="close") from None
    return b"".join(parts)


async def read_json(content: bytes, read: Callable[[dict[str, Any]], T]) -> T:
    """Parse a JSON object and return what `read` makes of it, in a thread if it is large; Problem if it is not JSON."""
    if content.count(b",") >= MAX_VALUES:
        raise Problem(400, f"The request has more than {MAX_VALUES:,} values: send fewer, or tensors as binary data.")
    if len(content) < _LARGE:
        return _read_json(content, read)
    return await asyncio.get_running_loop().run_in_executor(_parser, _read_json, content, read)


def _read_json(content: bytes, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"The request is not JSON: {str(error)[:200]}.") from None
    if not isinstance(values, dict):
        raise Problem(400, "The request is not a JSON object.")
    return read(values)


def _template(path: str) -> str:
    """Return a path without the names in it, for the metrics; unknown ones are not counted apart."""
    if path == "/v2" or path.startswith("/v2/"):
        return "/v2/infer" if path.endswith("/infer") else "/v2"
    return path if path in _PATHS else "other"


def _problem(error: Problem | UserError | TimeoutError) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, TimeoutError):
        return Problem(503, f"The answer was not ready within {ANSWER_SECONDS:g} s.", Connection="close")
    logging.getLogger(__name__).warning("%s", error)
    return Problem(507 if "cannot be written" in str(error) else 503, str(error))
