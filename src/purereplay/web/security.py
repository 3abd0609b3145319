"""Access control of the review page: only this machine's browser, with the token of the printed address.

Host      must name the server; a page of another site that resolves its own name to this machine is refused
token     random for every start; the printed address has it, and a cookie keeps it
Origin    a request that changes anything must come from the page itself
body      at most MAX_BODY bytes of JSON
headers   nothing is loaded from elsewhere, and no other site may frame or read the page
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024  # bytes
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Middleware that refuses every request that does not come from the page itself."""

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int) -> None:
        self.app = app
        self.token = token
        self.host = host
        self.port = port
        self.cookie = f"purereplay-{port}"  # browsers share cookies between the ports of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let through; None: it is."""
        headers = request.headers
        if not is_own_host(headers.get("host", ""), self.host, self.port):
            return PlainTextResponse("The Host header does not name this server: use the printed address.", 421)
        given = request.query_params.get("token")
        if request.url.path == "/" and given is not None:
            if not _same(given, self.token):
                return PlainTextResponse(_NO_TOKEN, 403)
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
            return answer
        if not _same(request.cookies.get(self.cookie, ""), self.token):
            return PlainTextResponse(_NO_TOKEN, 401)
        if request.method not in ("GET", "HEAD"):
            return self._refused_change(headers)
        return None

    def _refused_change(self, headers: Headers) -> Response | None:
        if headers.get("origin") != f"http://{headers.get('host')}":
            return PlainTextResponse("This request comes from another site.", 403)
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("This request is not JSON.", 415)
        length = headers.get("content-length", "")
        if not length.isdecimal():
            return PlainTextResponse("This request has no length.", 411)
        return PlainTextResponse("This request is too long.", 413) if int(length) > MAX_BODY else None


def is_own_host(given: str, host: str, port: int | None) -> bool:
    """Return whether a Host header names a server that listens on `host`; None: at any port."""
    name, _, number = given.rpartition(":") if not given.endswith("]") else (given, "", "")
    if not name and port is None:
        name, number = given, ""
    if port is not None and number != str(port):
        return False
    name = name.strip("[]").lower()
    if name in ("localhost", "127.0.0.1", "::1", host.lower()):
        return True
    return host in ("0.0.0.0", "::") and _is_address(name)


_NO_TOKEN = "Open the address that the command printed: it has the token of this start."


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


async def json_body(request: Request) -> dict[str, Any] | None:
    """Return the JSON object of a request; None if it has none, or is longer than it said."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY:
            return None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _same(a: str, b: str) -> bool:
    return secrets.compare_digest(a.encode(), b.encode())


def _is_address(name: str) -> bool:
    """Return whether a host is an address; a name could be any site's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
