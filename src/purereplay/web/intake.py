"""Images and samples of requests: decoded within limits, and samples put on the disk before they are acknowledged."""

from __future__ import annotations

import base64
import binascii
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purereplay.live.encoding import Encoding
from purereplay.live.images import Pixels, look_at, read_pixels
from purereplay.live.inbox import Counts, Inbox, Receipt, Sample
from purereplay.live.items import Refused, checked_id, checked_label
from purereplay.live.settings import NewSettings, StateSettings
from purereplay.live.store import Store
from purereplay.web.gate import Problem

Input = Pixels | NDArray[np.float32]  # of a classifier: an image, or its features by an encoder
MAX_ITEMS = 1000  # images or samples of a request
MAX_PIXELS = 100_000_000  # of all images of a request, by their headers
_COUNT_SECONDS = 1.0  # between two counts of the inbox while samples come
_LARGE_IMAGE = 16_000_000  # pixels of an image that is decoded alone


class Intake:
    """The inbox of a state; its methods run in a thread of their own, which owns the database."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.reader = Reader()
        self.thread = ThreadPoolExecutor(1, "intake")
        self._stack = ExitStack()
        self.counts = Counts(0, 0, 0)  # of the inbox, about a second old while samples come
        self._counted = -math.inf  # when

    def open(self) -> None:
        """Open the inbox."""
        self._inbox = self._stack.enter_context(Inbox.opened(self.state))
        self.count()

    def close(self) -> None:
        """Close the inbox."""
        self._stack.close()

    def count(self) -> Counts:
        """Return the numbers of samples in the inbox."""
        self.counts, self._counted = self._inbox.counts(), time.monotonic()
        return self.counts

    def add(self, given: Sequence[Sample | Receipt]) -> list[Receipt]:
        """Record samples; those that were not refused are on the disk when this returns. A refusal stays as it is."""
        with Store.reading(self.state, upgrade=False) as store:
            budget, pixels = Budget(), dict[Sample, Pixels]()
            receipts: list[Receipt | None] = []
            samples: list[Sample] = []
            for sample in given:
                try:
                    if isinstance(sample, Receipt):
                        receipts.append(sample)
                        continue
                    if sample.image is not None:
                        pixels[sample] = self.reader.pixels(sample.image, store.settings, budget)
                    samples.append(sample)
                    receipts.append(None)
                except Refused as reason:
                    receipts.append(Receipt(sample.id, "refused", str(reason)))
            known = self._inbox.add(samples, lambda s: store.knows(s.id, s.label, pixels.get(s)), store.has_label)
            found = iter(known)
        if time.monotonic() - self._counted > _COUNT_SECONDS:
            self.count()
        return [next(found) if receipt is None else receipt for receipt in receipts]


class Budget:
    """Pixels that the images of a request may still have."""

    def __init__(self) -> None:
        self.left = MAX_PIXELS

    def spend(self, image: bytes, settings: NewSettings | StateSettings) -> int:
        """Return the pixels of an image by its header, counted as those of the state if these are more; or Refused."""
        if not image:
            raise Refused("is empty")
        look = look_at(image)
        n = look.width * look.height
        self.left -= max(n, math.prod(settings.shape[1:]) if isinstance(settings, StateSettings) else 0)
        if self.left < 0:
            raise Refused(f"is one too many: the images of a request may have {MAX_PIXELS:,} pixels in all")
        return n


class Reader:
    """Reads the images of requests, for the state and for its classifier."""

    def __init__(self, encoding: Encoding | None = None) -> None:
        self.encoding = encoding  # the classifier takes its features; None: the pixels
        self._one_at_a_time = threading.Lock()
        self._one_large = threading.Lock()

    def pixels(self, image: bytes, settings: NewSettings | StateSettings, budget: Budget) -> Pixels:
        """Return an image as the state keeps it; Refused if it cannot be used."""
        with self._in_turn(budget.spend(image, settings)):
            if not isinstance(settings, StateSettings):
                return read_pixels(image, size=settings.size, channels=settings.channels, shape=None, fit=settings.fit)
            if self.encoding is not None:
                return self.encoding.read(image, settings, None).pixels
            s = settings
            return read_pixels(image, size=s.size, channels=s.channels, shape=s.shape, fit=s.fit)

    def _in_turn(self, n_pixels: int) -> AbstractContextManager[object]:
        """Return a lock for a large image, since decoding it takes several hundred megabytes."""
        return self._one_large if n_pixels > _LARGE_IMAGE else nullcontext()

    def inputs(self, given: Sequence[bytes | Refused], settings: StateSettings) -> list[Input | Refused]:
        """Return image files as the classifier takes them, or the reasons for refusal."""
        budget, found = Budget(), list[Any]()
        for image in given:
            if isinstance(image, Refused):
                found.append(image)
                continue
            try:
                if self.encoding is None:
                    found.append(self.pixels(image, settings, budget))
                else:
                    with self._in_turn(budget.spend(image, settings)):
                        found.append(self.encoding.read(image, settings, None))
            except Refused as reason:
                found.append(Refused(str(reason)))  # without its traceback, which would keep the images
        if self.encoding is None:
            return found
        images = [each for each in found if not isinstance(each, Refused)]
        with self._one_at_a_time:  # two threads read images
            features = iter(self.encoding.features(images, [()] * len(images)))
        return [each if isinstance(each, Refused) else next(features) for each in found]


def read_image(text: object) -> bytes:
    """Return an image file from its base64 text, or raise Refused."""
    if not isinstance(text, str):
        raise Refused("is not base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        remedy = ": leave out what is before the comma" if text.startswith("data:") else f": {error}"
        raise Refused(f"is not base64{remedy}") from None


def read_sample(values: object) -> Sample:
    """Return a sample from its JSON object, or raise Refused."""
    if not isinstance(values, dict):
        raise Refused("is not a JSON object")
    if not values.keys() <= {"id", "label", "image"}:
        raise Refused("has other fields than id, label and image")
    if values.get("id") is None:
        raise Refused("has no id")
    identity = checked_id(values["id"])
    label = None if values.get("label") is None else checked_label(values["label"])
    image = values.get("image")
    if image is None:
        if label is None:
            raise Refused("has neither a label nor an image")
        return Sample(identity, label, None)
    try:
        return Sample(identity, label, read_image(image))
    except Refused as reason:
        raise Refused(f"has an image that {reason}") from None


def asked_images(values: dict[str, Any]) -> tuple[list[bytes | Refused], bool]:
    """Return the image files of a request for predictions, and whether it wants all probabilities."""
    wants_all = values.get("probabilities", False)
    if not isinstance(wants_all, bool):
        raise Problem(400, "The field `probabilities` must be true or false.")
    return [_image(each) for each in _items_of(values, "images", frozenset({"probabilities"}))], wants_all


def _image(text: object) -> bytes | Refused:
    try:
        return read_image(text)
    except Refused as reason:
        return Refused(str(reason))


def sent_samples(values: dict[str, Any]) -> list[Sample | Receipt]:
    """Return the samples of a request, or the receipts of those that cannot be read."""
    return [_sample(each) for each in _items_of(values, "samples")]


def _sample(values: object) -> Sample | Receipt:
    try:
        return read_sample(values)
    except Refused as reason:
        return Receipt(_name(values), "refused", str(reason))


def _items_of(values: dict[str, Any], key: str, others: frozenset[str] = frozenset()) -> list[Any]:
    """Return the list of a request; Problem if there is none, or something else beside it."""
    found = values.get(key)
    if not isinstance(found, list) or not 0 < len(found) <= MAX_ITEMS:
        raise Problem(400, f"The request needs a list `{key}` of 1 to {MAX_ITEMS:,} items.")
    if unknown := values.keys() - {key} - others:
        raise Problem(400, f"The request has the field {min(unknown)[:100]!r}, which is not known.")
    return found


def _name(values: object) -> str:
    found = values.get("id") if isinstance(values, dict) else None
    return found[:200] if isinstance(found, str) else ""
