"""An encoder and what is checked of it: the number of features, finite values, and one row per image.

`Encoder` is the protocol; anything with these three names is an encoder. `CheckedEncoder` wraps one. It asks for
features in batches of one size: the last batch is filled up with copies, so that the features of an image do not depend
on how many images came with it.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from purereplay.data.encoders.calls import Failed, user_code
from purereplay.data.encoders.pictures import Pixels
from purereplay.errors import UserError

SIZE = 224  # pixels of an image's side, unless the encoder says otherwise
BATCH = 8  # images at once, unless the encoder says otherwise
LARGEST = 1024  # pixels of an image's side
_MOST_AT_ONCE = 1024  # images in a batch
_NEAR = 1e-3  # difference between two computations of the same features, as a share of the largest one
MOST_FEATURES = 65_536
_MOST = 10**9  # to which numbers of the user are cut, before they are compared with their limits

Features = NDArray[np.float32]


class Encoder(Protocol):
    """Images to features.

    An encoder may also have `size`, the side of the images that it takes (default: 224 pixels), `batch`, the number of
    images that it takes at once (default: 8), and `digest`, a text that changes with its results.
    """

    name: str
    dim: int  # number of features

    def embed(self, images: Pixels) -> Features:
        """Images uint8 (n, 3, size, size) -> features float32 (n, dim)."""


class Embedded(NamedTuple):
    """Features of images; an image without features has a row of zeros and a reason."""

    features: Features  # (n, dim)
    reasons: dict[int, str]  # by row, as the end of a sentence that starts with the image's name


@dataclass(frozen=True, eq=False)
class CheckedEncoder:
    """An encoder whose features are checked; made by `checked`."""

    encoder: Encoder
    text: str  # by which it can be opened again, with an absolute path
    name: str  # short, for messages
    digest: str  # of its file or weights, and of its options
    dim: int
    size: int
    batch: int
    idle: str = ""  # the sentence that refuses an option that it does not use, if it was named with one

    def check_options(self) -> None:
        """Raise UserError if an option of its text is not used; states that name such an option still open."""
        if self.idle:
            raise UserError(self.idle)

    def embed(self, images: Pixels) -> Embedded:
        """Images uint8 (n, 3, size, size) -> their features; UserError if the encoder no longer works."""
        n = len(images)
        features, reasons = np.zeros((n, self.dim), np.float32), dict[int, str]()
        for start in range(0, n, self.batch):
            part = images[start : start + self.batch]
            try:
                features[start : start + len(part)] = self._rows(part)
            except _Wrong:
                self._check_works()
                found = len(reasons)
                for row, image in enumerate(part, start):
                    try:
                        features[row] = self._alone(image[None])[0]
                    except _Wrong as reason:
                        reasons[row] = str(reason)
                if len(reasons) > found:
                    self._check_works()  # still: it may have begun to fail meanwhile
        return Embedded(features, reasons)

    def _alone(self, image: Pixels) -> Features:
        """Return the features (1, dim) of an image; a failure that passes, such as a lack of memory, is not its own."""
        try:
            return self._rows(image)
        except _Wrong:
            self._check_works()
            return self._rows(image)

    def _check_works(self) -> None:
        """Raise UserError if the encoder fails on the trial images too, so that the images are not to blame.

        An image with a reason is refused for ever, so a failure of the encoder itself must not become one.
        """
        try:
            _asked(self.encoder, _trial(self.size, self.batch), self.dim)
        except _Wrong as reason:
            raise UserError(f"The encoder {self.name} no longer works: an image {reason}.") from None

    def _rows(self, images: Pixels) -> Features:
        filled = np.concatenate([images, np.repeat(images[:1], self.batch - len(images), 0)])
        return _asked(self.encoder, filled, self.dim)[: len(images)]


class _Wrong(Exception):
    """The reason why an encoder has no features for images, as the end of a sentence that starts with a name."""


def checked(encoder: Encoder, *, text: str, digest: str) -> CheckedEncoder:
    """Ask an encoder for the features of two images, and return it; UserError if they cannot be used."""
    name = attribute_of(encoder, "name", text, text or type(encoder).__name__, str)
    size, batch = (_whole(encoder, own, default, name) for own, default in (("size", SIZE), ("batch", BATCH)))
    if not (1 <= size <= LARGEST and 1 <= batch <= _MOST_AT_ONCE):
        raise UserError(
            f"The encoder {name} takes images of {size:,} pixels, {batch:,} at once: use a size of 1 to {LARGEST:,} "
            f"and a batch of 1 to {_MOST_AT_ONCE:,}."
        )
    images = _trial(size, batch)
    dim = None if attribute_of(encoder, "dim", None, name) is None else _whole(encoder, "dim", 0, name)
    try:
        found = _asked(encoder, images, dim)
        again = _asked(encoder, np.repeat(images[:1], batch, 0), dim)  # the same image among others
    except _Wrong as reason:
        raise UserError(f"The encoder {name} cannot be used: a trial image {reason}.") from reason
    if not 1 <= found.shape[1] <= MOST_FEATURES:
        raise UserError(f"The encoder {name} gives {found.shape[1]:,} features, not 1 to {MOST_FEATURES:,}.")
    if batch > 1 and np.array_equal(found[0], found[1]):
        raise UserError(f"The encoder {name} cannot be used: it gives two different trial images the same features.")
    if np.abs(found[0] - again[0]).max() > _NEAR * np.abs(found[0]).max():
        raise UserError(
            f"The encoder {name} gives an image other features in another batch or at another time: "
            "save the model in evaluation mode, or remove what is random in it."
        )
    return CheckedEncoder(encoder, text, name, digest, found.shape[1], size, batch)


def attribute_of(
    encoder: Encoder, attribute: str, default: Any, owner: str, kind: Callable[[Any], Any] | None = None
) -> Any:
    """Return an attribute, as `kind` converts it, by code that may be the user's; UserError if that fails."""
    try:
        with user_code():
            value = getattr(encoder, attribute, default)
            return value if kind is None else kind(value)
    except Failed as error:
        raise UserError(f"The attribute {attribute} of the encoder {owner} cannot be read: {error}.") from None


def _whole(encoder: Encoder, attribute: str, default: int, name: str) -> int:
    """Return an attribute that must be a whole number; UserError if it is something else."""

    def read(value: Any) -> int | str:
        try:
            number = operator.index(value)
        except TypeError:
            return type(value).__name__
        return max(-1, min(number, _MOST))  # a longer number could not even be printed

    found = attribute_of(encoder, attribute, default, name, read)
    if isinstance(found, str):
        raise UserError(
            f"The encoder {name} has a {attribute} of the type {found}: set it to a whole number, such as "
            f"{default or 512}."
        )
    return int(found)


def _trial(size: int, batch: int) -> Pixels:
    """Return a batch of two made-up images in turn."""
    ramp = np.arange(3 * size * size, dtype=np.int64).reshape(3, size, size)
    images = np.stack([(ramp * step % 251).astype(np.uint8) for step in (1, 7)])
    return images[np.arange(batch) % 2]


def _asked(encoder: Encoder, images: Pixels, dim: int | None) -> Features:
    """Return the encoder's features of images, or raise _Wrong."""
    try:
        with user_code():
            values = np.asarray(encoder.embed(images.copy()))
            if np.iscomplexobj(values):
                raise ValueError("it has complex features")
            with np.errstate(over="ignore"):  # found as infinity below
                found = values.astype(np.float32)
    except Failed as error:
        raise _Wrong(f"cannot be encoded: {error}") from error
    if found.ndim != 2 or len(found) != len(images) or (dim is not None and found.shape[1] != dim):
        wanted = "d" if dim is None else dim
        raise _Wrong(f"gets features of shape {found.shape} from the encoder, not ({len(images)}, {wanted})")
    if not np.isfinite(found).all():
        raise _Wrong("gets NaN or infinity from the encoder")
    return found


def pooled(values: NDArray[Any], name: str) -> Features:
    """Return the output of a network as (n, d): an average over positions, if it has two axes of them."""
    found = np.asarray(values, np.float32)
    if found.ndim == 4:
        found = found.mean((2, 3), dtype=np.float32)
    if found.ndim != 2:
        raise UserError(f"{name} gives an output of shape {found.shape}, and (n, d) or (n, d, h, w) is needed")
    return found


def digest_of(*parts: str | bytes) -> str:
    """Return a digest of texts and bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        own = part.encode() if isinstance(part, str) else part
        digest.update(len(own).to_bytes(8, "little") + own)
    return digest.hexdigest()
