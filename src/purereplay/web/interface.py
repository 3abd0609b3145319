"""The routes of `serve`: predict, learn, judgements, status, health and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from purereplay import __version__
from purereplay.errors import UserError
from purereplay.live.encoding import Encoding
from purereplay.live.images import starts_as_image
from purereplay.live.inbox import FullInbox, Receipt
from purereplay.live.items import Refused
from purereplay.live.judgements import MAX_JUDGEMENTS, judgements
from purereplay.live.settings import Wanted, check_same, wanted_encoder
from purereplay.live.status import Status, status
from purereplay.live.store import DATABASE, Store
from purereplay.nets.engine import Engine
from purereplay.web.batching import Answer, Batcher, Inputs, NoClassifier, Overloaded
from purereplay.web.gate import Json, Problem, read_body, read_json
from purereplay.web.intake import Intake, asked_images, sent_samples
from purereplay.web.metrics import Metrics
from purereplay.web.openapi import document
from purereplay.web.snapshots import Snapshot, Snapshots
from purereplay.web.training import Trainer

_DECODERS = 2  # threads
_STATUS_SECONDS = 1.0  # for which the numbers of a state are kept


class Interface:
    """Parts that the routes share; running between `start` and `stop`."""

    def __init__(
        self, state: Path, engine: Engine, *, name: str, device: str, max_bytes: int, encoder: str | None = None
    ) -> None:
        self.state = state
        self.encoder = encoder
        self.name = name
        self.max_bytes = max_bytes
        self.metrics = Metrics()
        self.snapshots = Snapshots(state, engine)
        self.batcher = Batcher(self.snapshots)
        self.intake = Intake(state)
        self.trainer = Trainer(state, device, on_model=self.snapshots.refresh, encoder=encoder)
        self.began = time.time()
        self._decoders = ThreadPoolExecutor(_DECODERS, "decoder")
        self._status: tuple[float, Status] | None = None
        self._reading = asyncio.Lock()
        self._n_adding = 0  # requests that add samples now

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """Start training and open the inbox; stop both at the end."""
        try:
            with Store.reading(self.state) as store:  # an error in one sentence, before anything is started
                named = wanted_encoder(self.encoder)
                check_same(store.settings, Wanted(encoder=named), self.state)
                self.intake.reader.encoding = Encoding.of_state(store, None if isinstance(named, str) else named)
            self.trainer.start()
            await asyncio.to_thread(self.trainer.wait_until_ready)
            await self._in_intake(self.intake.open)
        except UserError as error:
            app.state.failure = error  # the server only says that the start failed
            raise
        try:
            yield
        finally:
            await asyncio.to_thread(self.trainer.stop)
            await self._in_intake(self.intake.close)
            self.batcher.close()

    async def _in_intake(self, use: Any, *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.intake.thread, use, *values)

    # ---------------------------------------------------------------- predict

    async def predict(self, request: Request) -> Response:
        body = await read_body(request, self.max_bytes)
        if request.headers.get("content-type", "").startswith("image/") or starts_as_image(body):
            given: list[bytes | Refused] = [body]
            wants_all = request.query_params.get("probabilities") == "true"
        else:
            given, wants_all = await read_json(body, asked_images)
        snapshot = self.ready()
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._decoders, self.intake.reader.inputs, given, snapshot.settings)
        images = [each for each in found if not isinstance(each, Refused)]
        self.metrics.n_refused += len(found) - len(images)
        if not images:
            problems = [{"error": f"The image {reason}."} for reason in found]
            return Json({"error": problems[0]["error"], "predictions": problems}, 400)
        answer = await self.classify(np.stack(images))
        rows = iter(_predictions(answer, wants_all))
        predictions = [{"error": f"The image {each}."} if isinstance(each, Refused) else next(rows) for each in found]
        return Json({"model": self.model_facts(answer.snapshot), "predictions": predictions})

    def ready(self) -> Snapshot:
        """Return the snapshot in use; Problem if there is none yet."""
        snapshot = self.snapshots.current
        if snapshot is None:
            raise Problem(503, "There is no classifier yet: send more samples to /learn.", **{"Retry-After": "10"})
        return snapshot

    async def classify(self, images: Inputs) -> Answer:
        """Classify images uint8 (n, C, H, W), or their features float32 (n, dim)."""
        try:
            answer = await self.batcher.classify(images)
        except Overloaded:
            raise Problem(503, "Too many images wait to be classified.", **{"Retry-After": "1"}) from None
        except NoClassifier:
            raise Problem(503, "There is no classifier yet.", **{"Retry-After": "10"}) from None
        self.metrics.n_images += len(images)
        return answer

    def model_facts(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return name and version of a snapshot."""
        return {"name": self.name, "version": snapshot.version}

    # ---------------------------------------------------------------- learn

    async def learn(self, request: Request) -> Response:
        given = await read_json(await read_body(request, self.max_bytes), sent_samples)
        self._n_adding += 1
        try:
            receipts = await self._in_intake(self.intake.add, given)
        except FullInbox as error:
            raise Problem(503, str(error), **{"Retry-After": "60"}) from None
        finally:
            self._n_adding -= 1
        self.trainer.look()
        results = [_result(r) for r in receipts]
        n = sum(r.error is None for r in receipts)
        self.metrics.n_learned += n
        self.metrics.n_refused += len(receipts) - n
        answer = {"acknowledged": n, "refused": len(receipts) - n, "samples": results}
        return Json(answer if n else {"error": results[0]["error"], **answer}, 202 if n else 400)

    async def judgements(self, request: Request) -> Response:
        since = _number(request, "since", 0, 0, 2**62)
        limit = _number(request, "limit", MAX_JUDGEMENTS, 1, MAX_JUDGEMENTS)
        found = await asyncio.to_thread(_read_judgements, self.state, since, limit + 1)
        more, found = len(found) > limit, found[:limit]
        last = found[-1].number if found else since
        return Json({"judgements": [each._asdict() for each in found], "next": last, "more": more})

    # ---------------------------------------------------------------- numbers

    async def status(self, request: Request) -> Response:
        return Json({"state": await self._numbers(), "server": self._facts()})

    async def _numbers(self) -> Status:
        """Return the numbers of the state, at most a second old."""
        async with self._reading:
            if self._status is None or time.monotonic() - self._status[0] > _STATUS_SECONDS:
                if not self._n_adding:  # otherwise adding counts, and may take long
                    await self._in_intake(self.intake.count)
                found = await asyncio.to_thread(_read_status, self.state)
                self._status = (time.monotonic(), found)
            return self._status[1]

    def _facts(self) -> dict[str, Any]:
        snapshot, counts = self.snapshots.current, self.intake.counts
        return {
            "version": __version__,
            "seconds": round(time.time() - self.began, 1),
            "model": None if snapshot is None else {**self.model_facts(snapshot), "n_samples": snapshot.n_samples},
            "labels": [] if snapshot is None else list(snapshot.labels),
            "swaps": self.snapshots.n_swaps,
            "failed_snapshots": self.snapshots.n_failures,
            "failure": self.snapshots.failure,
            "training": self.trainer.activity,
            "training_error": self.trainer.error,
            "training_starts": self.trainer.n_starts,
            "inbox": {"waiting": counts.waiting, "unlabelled": counts.unlabelled, "refused": counts.refused},
        }

    async def health(self, request: Request) -> Response:
        has_state, runs = (self.state / DATABASE).exists(), self.trainer.responds
        facts = {
            "status": "no state" if not has_state else "ok" if runs else "not training",
            "predicts": self.snapshots.current is not None,
            "trains": has_state and runs,
        }
        return Json(facts, 200 if facts["trains"] else 503)

    async def show_metrics(self, request: Request) -> Response:
        facts, state = self._facts(), await self._numbers()
        snapshot = self.snapshots.current
        gauges = {
            "snapshot_swaps_total": ("counter", "Classifiers loaded.", facts["swaps"]),
            "snapshot_failures_total": ("counter", "Classifiers that failed to load.", facts["failed_snapshots"]),
            "snapshot_age_seconds": ("gauge", "Age of the classifier.", time.time() - snapshot.made if snapshot else 0),
            "training_up": ("gauge", "1 while the process that trains runs.", float(self.trainer.responds)),
            "training_starts_total": ("counter", "Starts of the process that trains.", facts["training_starts"]),
            "inbox_waiting": ("gauge", "Acknowledged samples that wait for training.", facts["inbox"]["waiting"]),
            "inbox_unlabelled": ("gauge", "Samples without a label yet.", facts["inbox"]["unlabelled"]),
            "inbox_refused": ("gauge", "Acknowledged samples that the state refuses.", facts["inbox"]["refused"]),
            "images_waiting": ("gauge", "Images that wait to be classified.", self.batcher.n_waiting),
            "state_samples": ("gauge", "Samples of the state.", state["samples"]),
            "state_rejected": ("gauge", "Samples whose label is rejected.", state["rejected"]),
            "state_bytes": ("gauge", "Size of the state folder.", state["bytes"]),
        }
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return Json(document(__version__, self.name))


def _predictions(answer: Answer, wants_all: bool) -> list[dict[str, Any]]:
    labels = answer.snapshot.labels
    found = []
    for row, code in zip(answer.probabilities.tolist(), answer.probabilities.argmax(1).tolist(), strict=True):
        one: dict[str, Any] = {"label": labels[code], "probability": row[code]}
        if wants_all:
            one["probabilities"] = dict(zip(labels, row, strict=True))
        found.append(one)
    return found


def _result(receipt: Receipt) -> dict[str, Any]:
    """Return the answer to one sample of /learn."""
    if receipt.error is not None:
        return {"id": receipt.id, "error": f"The sample {receipt.error}."}
    found: dict[str, Any] = {"id": receipt.id, "result": receipt.result}
    return found | {"new_label": True} if receipt.new_label else found


def _read_judgements(state: Path, since: int, limit: int) -> list[Any]:
    with Store.reading(state, upgrade=False) as store:
        return judgements(store, since, limit)


def _read_status(state: Path) -> Status:
    with Store.reading(state, upgrade=False) as store:
        return status(store)


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or not least <= int(text) <= most:
        raise Problem(400, f"`{name}` must be a whole number from {least} to {most}.")
    return int(text)
