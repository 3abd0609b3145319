"""Features of a state's samples: from image files by its encoder when they arrive, from the database afterwards.

Images are read and encoded a few at a time, so that the memory does not grow with their number or size. Features that
were computed before for the same file and encoder come from the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.encoders import FeatureCache, FeatureFile, reopen
from purereplay.data.encoders.base import Features
from purereplay.errors import UserError
from purereplay.live.images import Encodable, Pixels, read_encodable, read_pixels
from purereplay.live.items import Item, Offer, Refused
from purereplay.live.settings import Opened, StateSettings
from purereplay.live.store import Store

PIECE = 32  # images read and encoded at once
_READ = 500  # samples read from the database at once
_COMPARED = 10_000  # digests of features read at once
_NONE = np.zeros((3, 0, 0), np.uint8)  # pixels that are not needed


class Encoded(NamedTuple):
    """An image of a state with an encoder."""

    pixels: Pixels  # as the state keeps it
    features: Features | Refused | None  # None: its id is known already


class Encoding:
    """The encoder of a state, with its cache."""

    def __init__(self, encoder: Opened) -> None:
        self.encoder = encoder
        self._cache = None if isinstance(encoder, FeatureFile) else FeatureCache(encoder)

    @classmethod
    def of_state(cls, store: Store, named: Opened | None = None) -> Encoding | None:
        """Return the encoding of a state, None if it has none; `named`: the encoder that the user named again."""
        facts = store.settings.encoder
        if facts is None:
            return None
        found = cls(named or reopen(facts.text, facts.digest, store.folder))
        found._check_rows(store)
        return found

    def read(self, image: Path | bytes, settings: StateSettings, root: Path | None) -> Encodable:
        """Read an image for this encoder, or raise Refused."""
        channels, shape = settings.channels, settings.shape
        if isinstance(self.encoder, FeatureFile):
            pixels = read_pixels(image, size=None, channels=channels, shape=shape, root=root, fit="pad")
            return Encodable(pixels, _NONE, b"")
        return read_encodable(image, channels=channels, shape=shape, size=self.encoder.size, root=root)

    def features(self, images: Sequence[Encodable], names: Sequence[Sequence[str]]) -> list[Features | Refused]:
        """Return the features (dim,) of images, or the reason why there are none.

        `names`: ids of each image, by which a file of features knows it. UserError if the encoder no longer works.
        """
        if isinstance(self.encoder, FeatureFile):
            return [_or_refused(self.encoder, own) for own in names]
        assert self._cache is not None
        kept = self._cache.find([image.content for image in images])
        new = {image.content: image.given for image in images if image.content not in kept}
        reasons: dict[bytes, str] = {}
        if new:
            keys = list(new)
            found = self.encoder.embed(np.stack([new[key] for key in keys]))
            reasons = {keys[row]: reason for row, reason in found.reasons.items()}
            made = {key: found.features[row] for row, key in enumerate(keys) if key not in reasons}
            self._cache.keep(made)
            kept |= made
        return [kept[i.content] if i.content in kept else Refused(reasons[i.content]) for i in images]

    def prepared(self, offers: Sequence[Offer], store: Store) -> dict[int, Encoded]:
        """Return the images of offers, with the features of those whose id is new, by their place among the offers."""
        settings, images, found = store.image_settings, dict[int, Encodable](), dict[int, Encoded]()
        for row, offer in enumerate(offers):
            if isinstance(offer, Item):
                try:
                    images[row] = self.read(offer.image, settings, offer.root)
                except Refused as reason:
                    found[row] = Encoded(_NONE, reason)
        names = {row: offer.id for row in images if isinstance(offer := offers[row], Item)}
        new = [row for row in images if store.one("SELECT 1 FROM samples WHERE id = ?", [names[row]]) is None]
        features = self.features([images[row] for row in new], [(names[row],) for row in new])
        found |= {row: Encoded(image.pixels, None) for row, image in images.items()}
        return found | {row: Encoded(images[row].pixels, own) for row, own in zip(new, features, strict=True)}

    def of_offers(self, offers: Sequence[Offer]) -> list[Features | Refused]:
        """Return the features (dim,) of offers that belong to no state, or the reason why there are none."""
        found: list[Features | Refused | None] = []
        images, names = list[Encodable](), list[tuple[str]]()
        for offer in offers:
            try:
                if not isinstance(offer, Item):
                    raise Refused(offer.reason)
                if isinstance(self.encoder, FeatureFile):
                    images.append(Encodable(_NONE, _NONE, b""))
                else:
                    size = self.encoder.size
                    images.append(read_encodable(offer.image, channels=3, shape=(3, 1, 1), size=size, root=offer.root))
                names.append((offer.id,))
                found.append(None)
            except Refused as reason:
                found.append(reason)
        features = iter(self.features(images, names))
        return [next(features) if own is None else own for own in found]

    def _check_rows(self, store: Store) -> None:
        """Raise UserError if a file of features has other features of the state's samples than when they were added."""
        if not isinstance(self.encoder, FeatureFile):
            return
        for start in range(0, store.n_samples, _COMPARED):
            rows = store.query(
                "SELECT position, id, f.digest FROM samples JOIN features f USING (position)"
                " WHERE position >= ? AND position < ?",
                [start, start + _COMPARED],
            )
            for position, name, digest in rows:
                own = self.encoder.find(name)
                # the digest is that of the features, so they are read only if it differs, as for 0 and -0
                if own is None or digest == _digest(position, _bytes(own)):
                    continue
                if not np.array_equal(own, inputs(store, np.array([position]))[0].numpy()):
                    raise UserError(
                        f"{self.encoder.path} has other features of {name} than {store.folder}: use the features that "
                        "the state was created with, or another --state."
                    )


def _or_refused(file: FeatureFile, names: Sequence[str]) -> Features | Refused:
    found = file.find(*names)
    return Refused(f"has no features in {file.path.name}") if found is None else found


def write_features(store: Store, position: int, features: Features) -> None:
    """Save the features of a sample within the transaction that adds it."""
    content = _bytes(features)
    digest = _digest(position, content)
    store.insert_sealed("features", (position, digest, content), (position, digest))


def inputs(store: Store, positions: NDArray[np.int64]) -> Tensor:
    """Return samples as the classifier takes them: features float32 (n, dim), or images uint8 (n, C, H, W).

    Each is checked against its digest.
    """
    settings = store.image_settings
    if settings.encoder is None:
        images = np.empty((len(positions), *settings.shape), np.uint8)
        at = 0
        for start, stop in _runs(positions):
            for row in store.span(start, stop):
                images[at] = row.pixels
                at += 1
        return torch.from_numpy(images)
    found = np.empty((len(positions), settings.encoder.dim), np.float32)
    at = 0
    for start, stop in _runs(positions):
        rows = store.query(
            "SELECT position, digest, features FROM features WHERE position >= ? AND position < ? ORDER BY position",
            [start, stop],
        )
        for position, digest, content in rows:
            if digest != _digest(position, content) or len(content) != 4 * settings.encoder.dim:
                raise UserError(f"{store.path} is damaged: features of sample {position} do not match their digest.")
            found[at] = np.frombuffer(content, "<f4")
            at += 1
        if len(rows) != stop - start:
            raise UserError(f"{store.path} is damaged: features of samples {start} to {stop - 1} are missing.")
    return torch.from_numpy(found)


def _bytes(features: Features) -> bytes:
    return features.astype("<f4").tobytes()


def _digest(position: int, content: bytes) -> bytes:
    return hashlib.blake2b(f"{position} ".encode() + content, digest_size=16).digest()


def _runs(positions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of runs of consecutive positions, of at most _READ each."""
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    for run in np.split(positions, breaks):
        for start in range(0, len(run), _READ):
            part = run[start : start + _READ]
            if len(part):
                yield int(part[0]), int(part[-1]) + 1
