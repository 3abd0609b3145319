"""The server of the review page: a few routes over the desk, in the thread of the event loop; others decode files."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from purereplay.errors import UserError
from purereplay.live.decisions import KINDS, DecisionLog
from purereplay.live.images import Pixels
from purereplay.live.items import Refused
from purereplay.live.originals import THUMBNAIL
from purereplay.live.reviewed import absorbed, check_log, warn_of_new_log
from purereplay.live.settings import Opened, Wanted, check_same, wanted_encoder
from purereplay.live.store import Store
from purereplay.nets.engine import Engine
from purereplay.web import opinions
from purereplay.web.desk import LEASE_SECONDS, MAX_AT_ONCE, Desk, Filter
from purereplay.web.samples import AuditSamples, Samples, StateSamples
from purereplay.web.security import Guard, json_body
from purereplay.web.teaching import Teacher

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CHOICES = ("open", "decided", *KINDS)  # of the filter by decision
_VERDICTS = ("accepted", "rejected", "unjudged")
_MAX_NAME = 100  # characters of a name that the page chose: reviewer, page, action
_LARGE, _LARGEST = 1024, 2048  # pixels of an image, unless the page asks for fewer, and at most
_READERS = 2  # files decoded at once
_MAX_NOTES = 1000


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Subject of a review: a state, or an audit with a folder of images."""

    state: Path | None = None
    audit: Path | None = None
    images: Path | None = None
    test: Path | None = None  # labelled images, whose accuracy is shown
    encoder: str | None = None  # that of the state, named again


class Server:
    """The routes; `desk` exists while the application runs."""

    def __init__(self, subject: Subject, engine: Engine, *, teaches: bool = True) -> None:
        self.subject = subject
        self.engine = engine
        self.teaches = teaches  # False: another process learns from the decisions
        self.start = secrets.token_hex(4)  # part of the images' addresses, which the browser keeps
        self.teacher: Teacher | None = None
        self.desk: Desk
        self.name = ""  # of the subject, the same after every start
        self.first_accuracy: float | None = None
        self.notes: dict[int, str] = {}  # where the large images come from, by number
        self.readers = ThreadPoolExecutor(_READERS, "reader")  # of files
        self.n_opinions = 0  # counts the changes of what is suggested
        folder = (files("purereplay.web") / "static").iterdir()
        self.static = {file.name: file.read_bytes() for file in folder if Path(file.name).suffix in _TYPES}

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """Open samples and log; the thread of the event loop owns them."""
        try:
            async with self.opened():
                yield
        except UserError as error:
            app.state.failure = error  # the server only says that the start failed
            raise

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open samples and log, and follow the state."""
        with ExitStack() as stack:
            samples = self._samples(stack)
            self.name = hashlib.blake2b(str(samples.log.resolve()).encode(), digest_size=8).hexdigest()
            if isinstance(samples, StateSamples):
                encoder = self._encoder(samples.store)
                warn_of_new_log(samples.log, absorbed(samples.store))
            log = stack.enter_context(DecisionLog.writing(samples.log, samples.floor))
            if isinstance(samples, StateSamples):
                check_log(log, absorbed(samples.store))
                self.desk = Desk(samples, log, opinions.unknown(0))
                self.teacher = Teacher(
                    samples, self.engine, self._publish, self.subject.test, absorbs=self.teaches, encoder=encoder
                )
                self.teacher.start()
            else:
                assert isinstance(samples, AuditSamples)
                self.desk = Desk(samples, log, opinions.of_audit(samples))
            try:
                yield
            finally:
                self.readers.shutdown(wait=False, cancel_futures=True)
                if self.teacher is not None:
                    self.teacher.end()

    def _encoder(self, store: Store) -> Opened | None:
        """Return the encoder that the user named; UserError if it is not that of the state."""
        named = wanted_encoder(self.subject.encoder)
        check_same(store.settings, Wanted(encoder=named), store.folder)
        return None if isinstance(named, str) else named

    def _samples(self, stack: ExitStack) -> Samples:
        s = self.subject
        if s.state is not None:
            return StateSamples(stack.enter_context(Store.reading(s.state)))
        assert s.audit is not None and s.images is not None
        return AuditSamples(s.audit, s.images)

    def _publish(self, opinion: opinions.Opinion) -> None:
        self.desk.opinion = opinion
        self.n_opinions += 1

    # ---------------------------------------------------------------- routes

    async def page(self, request: Request) -> Response:
        return self._file("index.html")

    async def file(self, request: Request) -> Response:
        return self._file(request.url.path[1:])

    def _file(self, name: str) -> Response:
        return Response(self.static[name], media_type=_TYPES[Path(name).suffix])

    async def image(self, request: Request) -> Response:
        number, size = (
            _short_number(text) for text in (request.path_params["number"], request.query_params.get("size"))
        )
        if number is None or not self.desk.has(number):
            return PlainTextResponse("There is no such image.", 404)
        try:
            content = await self._picture(number, max(1, min(size or _LARGE, _LARGEST)))
        except Refused as reason:
            return PlainTextResponse(f"The image {reason}.", 404)
        except UserError as error:  # the state is damaged
            return PlainTextResponse(str(error), 500)
        headers = {"Cache-Control": "private, max-age=600"}
        return Response(content, media_type="image/png", headers=headers)

    async def _picture(self, number: int, size: int) -> bytes:
        """Return an image as PNG, and remember where it comes from; Refused if it cannot be read."""
        found = self.desk.samples.image(number, size)  # the database belongs to this thread, files do not

        def picture() -> tuple[bytes, str]:
            shown = found() if callable(found) else found
            return _png(shown.pixels, size), shown.note

        in_thread = asyncio.get_running_loop().run_in_executor
        content, note = await in_thread(self.readers, picture) if callable(found) else picture()
        if size > THUMBNAIL:
            self.notes[number] = note
        if len(self.notes) > _MAX_NOTES:
            del self.notes[next(iter(self.notes))]
        return content

    async def source(self, values: dict[str, Any]) -> Response:
        """Say where the large image of a sample comes from."""
        [number] = _numbers(values, "samples")[:1] or [-1]
        if not self.desk.has(number):
            raise Refused("names an unknown sample")
        if number not in self.notes:
            await self._picture(number, _LARGE)
        return JSONResponse({"sample": number, "note": self.notes[number]})

    async def begin(self, request: Request) -> Response:
        self.desk.follow()
        table, labels = self.desk.samples.table, self.desk.samples.labels
        counts = np.bincount(table.label, minlength=len(labels)).tolist()
        return JSONResponse(
            {
                "labels": [{"label": label, "n": n} for label, n in zip(labels, counts, strict=True)],
                "buffers": int(table.buffer.max()) + 1 if self.desk.samples.has_buffers and len(table.buffer) else 0,
                "start": self.start,
                "title": self._title(),
                "subject": self.name,
                **self._status(),
            }
        )

    def _title(self) -> str:
        found = self.subject.state or self.subject.audit
        return "" if found is None else found.name

    def _status(self) -> dict[str, Any]:
        teacher = self.teacher
        if self.first_accuracy is None:
            self.first_accuracy = self.desk.opinion.accuracy
        return {
            "statistics": self.desk.statistics(),
            "pages": self.desk.log.n_pages(),
            "teaches": teacher is not None,
            "activity": "" if teacher is None else teacher.activity,
            "absorbed": 0 if teacher is None else teacher.n_absorbed,
            "last": self.desk.in_effect.last,
            "opinion": self.n_opinions,
            "accuracy": self.desk.opinion.accuracy,
            "first_accuracy": self.first_accuracy,
        }

    async def status(self, values: dict[str, Any]) -> Response:
        self.desk.log.renew(_name(values, "page"), LEASE_SECONDS)
        return JSONResponse(self._status())

    async def release(self, values: dict[str, Any]) -> Response:
        self.desk.log.release(_name(values, "page"))
        return JSONResponse({})

    async def next(self, values: dict[str, Any]) -> Response:
        held = _numbers(values, "held")
        items = self.desk.next(_name(values, "page"), _filter(values.get("filter")), _count(values), held)
        return JSONResponse({"items": items, **self._status()})

    async def items(self, values: dict[str, Any]) -> Response:
        """Return samples again, with the suggestions of the present classifier."""
        self.desk.follow()
        numbers = [n for n in _numbers(values, "samples") if self.desk.has(n)][:MAX_AT_ONCE]
        return JSONResponse({"items": [self.desk.item(n) for n in numbers]})

    async def pairs(self, values: dict[str, Any]) -> Response:
        return JSONResponse({"pairs": self.desk.pairs()})

    async def decide(self, values: dict[str, Any]) -> Response:
        given = values.get("decisions")
        if not isinstance(given, list) or not 0 < len(given) <= MAX_AT_ONCE:
            raise Refused(f"needs 1 to {MAX_AT_ONCE} decisions")
        decisions = []
        for one in given:
            number, kind, label = (one.get(k) if isinstance(one, dict) else None for k in ("sample", "kind", "label"))
            if type(number) is not int or not self.desk.has(number):
                raise Refused("names an unknown sample")
            if kind not in KINDS:
                raise Refused(f"has an unknown decision: it must be one of {', '.join(KINDS)}")
            if one.get("name") not in (None, *self.desk.samples.names([number])):
                raise Refused("has a sample number and an id that do not match")
            decisions.append((number, kind, label if kind == "label" else None))
        reviewer, page, action = (_name(values, key) for key in ("reviewer", "page", "action"))
        items = self.desk.decide(reviewer, page, action, decisions)
        return JSONResponse({"items": items, **self._status()})

    async def undo(self, values: dict[str, Any]) -> Response:
        reviewer, page, action = (_name(values, key) for key in ("reviewer", "page", "action"))
        items = self.desk.undo(reviewer, page, action)
        return JSONResponse({"items": items, **self._status()})

    async def export(self, request: Request) -> Response:
        headers = {"Content-Disposition": 'attachment; filename="fixes.csv"'}
        return Response(self.desk.export(), media_type="text/csv", headers=headers)


def make_app(subject: Subject, engine: Engine, *, token: str, host: str, port: int) -> Starlette:
    """Return the application."""
    server = Server(subject, engine)
    guard = Middleware(Guard, token=token, host=host, port=port)
    return Starlette(routes=routes_of(server), middleware=[guard], lifespan=server.running)


def routes_of(server: Server) -> list[Route]:
    """Return the routes of the page."""
    posts = (
        server.status,
        server.release,
        server.next,
        server.items,
        server.source,
        server.pairs,
        server.decide,
        server.undo,
    )
    return [
        Route("/", server.page),
        Route("/api/begin", server.begin),
        Route("/api/export.csv", server.export),
        Route("/image/{number}", server.image),
        *(Route(f"/api/{post.__name__}", _posted(server, post), methods=["POST"]) for post in posts),
        *(Route(f"/{name}", server.file) for name in server.static),
    ]


def _posted(
    server: Server, use: Callable[[dict[str, Any]], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that reads a JSON object; what cannot be done is one sentence with status 400, 409 or 500."""

    async def route(request: Request) -> Response:
        values = await json_body(request)
        if values is None:
            return JSONResponse({"error": "The request is not a JSON object."}, 400)
        if values.get("subject") not in (None, server.name):  # its samples have other numbers
            return JSONResponse({"error": "This page shows another state than the server has: reload it."}, 409)
        try:
            return await use(values)
        except Refused as reason:
            return JSONResponse({"error": f"The request {reason}."}, 400)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 500)

    return route


def _short_number(text: str | None) -> int | None:
    """Return the number of an address, or None if it is none; Python reads no numbers of thousands of digits."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else None


def _name(values: dict[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME or not value.isascii() or not value.isprintable():
        raise Refused(f"has no {key}")
    return value


def _numbers(values: dict[str, Any], key: str) -> list[int]:
    numbers = values.get(key, [])
    if not isinstance(numbers, list) or not all(type(n) is int and abs(n) < 2**62 for n in numbers):
        raise Refused(f"has no list of samples named {key}")
    return numbers


def _count(values: dict[str, Any]) -> int:
    n = values.get("n", 1)
    if not isinstance(n, int) or not 0 < n <= MAX_AT_ONCE:
        raise Refused(f"asks for {n!r} samples, not 1 to {MAX_AT_ONCE}"[:200])
    return n


def _filter(values: Any) -> Filter:
    """Return the filter that the page chose, or raise Refused."""
    if values is None:
        return Filter()
    kinds = {"label": str, "suggested": str, "buffer": int, "decision": str, "verdict": str}
    if not isinstance(values, dict) or not values.keys() <= kinds.keys():
        raise Refused("has an unknown filter")
    chosen = {name: value for name, value in values.items() if value is not None}
    if not all(type(value) is kinds[name] for name, value in chosen.items()):
        raise Refused("has a filter of the wrong type")
    if chosen.get("decision", "open") not in _CHOICES:
        raise Refused(f"has an unknown filter by decision: it must be one of {', '.join(_CHOICES)}")
    if chosen.get("verdict", "accepted") not in _VERDICTS:
        raise Refused(f"has an unknown filter by verdict: it must be one of {', '.join(_VERDICTS)}")
    return Filter(**chosen)


def _png(pixels: Pixels, size: int) -> bytes:
    """Return an image as PNG, at most `size` pixels wide and high; no other bytes of its file go into it."""
    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0))
    image.thumbnail((size, size))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
