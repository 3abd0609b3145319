"""A plan of `learn`: images, labels, sizes and time, before anything is written or expensive work begins.

Images are read as `learn` reads them, at most `N_READ` of them. So damaged and moved files are counted.

The time is measured on a few images: reading them, and computing their features. Judging all samples together takes
about as long per sample on any data, and a fixed time. So the estimate is rough, but of the right size.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from purereplay.errors import UserError
from purereplay.learners.spr.settings import SprSettings
from purereplay.live.encoding import Encoding
from purereplay.live.images import Encodable, Pixels, read_pixels
from purereplay.live.intake import open_source
from purereplay.live.items import Item, Offer, Outcome, Refusal, Refused
from purereplay.live.moves import Moves
from purereplay.live.settings import (
    NewSettings,
    StateSettings,
    Wanted,
    check_same,
    least_memory,
    new_settings,
    with_shape,
)
from purereplay.live.shapes import Chosen, choose, look_at_some
from purereplay.live.store import DATABASE, Store
from purereplay.purify.opinions import FeatureMap

N_READ = 2000  # images that are read
_IDS = "SELECT id FROM samples UNION SELECT id FROM moves"
_TRIAL = 24  # images whose reading and features are timed
# of processor time, by 100 to 1,500 digits and 100 photographs on two cores: 5 s, 6 s and 22 s for the digits
_START = 3.0  # seconds of any judging of all samples, with the start of the program
_JUDGING = 0.012  # seconds to judge a sample together with the others
_STORED = 400  # bytes of a sample besides its pixels
_LONG = 600  # seconds from which on the user is warned
_LARGE = 2 * 2**30  # bytes of memory from which on the user is warned


class Plan(NamedTuple):
    """Preview of a call of `learn`."""

    n_items: int
    n_read: int  # of these read; only they can be found to be damaged or moved
    refused: list[Outcome]  # unusable: without a label, damaged, or refused by the state
    n_known: int  # in the state already
    n_moved: int  # in the state already, under another path
    n_others: int  # files that are no images, which are skipped
    labels: dict[str, int]  # number of usable images by label
    new: dict[str, int]  # of these, the ones that are not in the state
    new_labels: list[str]  # of these, labels that no sample of the state has; none for a state without samples
    chosen: Chosen | None  # None: the state has a shape already, or no image can be read
    settings: StateSettings | None  # None: no image can be read
    n_bytes: int  # room on the disk for the new samples
    seconds: float | None  # None: unknown
    warnings: list[str]


def plan(
    data: str,
    state: Path,
    wanted: Wanted,
    *,
    root: Path | None = None,
    labels: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Return what `learn` would do with a folder or list; nothing is written.

    `progress` is called with the number of images that were read and their total.
    """
    if data == "-":
        raise UserError("--dry-run needs a folder or a list: a pipe cannot be read twice.")
    source = open_source(data, state=state, root=root, labels=labels)
    offers = [_with_image(offer) for offer in source.first]
    if source.total != len(source.first):
        offers += [_light(_with_image(offer)) for some in islice(source.chunks, 1, None) for offer in some]
    items = [offer for offer in offers if isinstance(offer, Item)]
    with _existing(state, wanted) as (have, store):
        chosen, settings = _shape(have, source.first)
        known = set() if store is None else {name for (name,) in store.query(_IDS)}
        known_labels = store.labels() if store else []
        encoding = _encoding(wanted, store)
        chosen = chosen and chosen._replace(encoder_size=encoding.encoder.size if encoding else 0)
        read = [item for item in items if item.image]
        read = read[:: -(-len(read) // N_READ) or 1]
        unusable, moved = _checked(read, settings, store, progress or (lambda n, total: None))
        waits = store is None or _has_waiting(store)
    usable = [item for item in items if item.id not in unusable]
    n_known = sum(item.id in known for item in items)
    new = Counter(item.label for item in usable if item.id not in known and item.id not in moved)
    n_new = sum(new.values())
    n_bytes = n_new * (_STORED + (int(np.prod(settings.shape)) if settings else 0))
    n_bytes += n_new * 4 * have.encoder.dim if have.encoder else 0
    seconds = None
    if settings is not None:
        has_work = n_new or moved or waits
        seconds = _seconds(items, settings, n_new, len(known) + n_new, encoding) if has_work else 0.0
    warnings = expensive(settings, seconds) if settings else []
    counts = Counter(item.label for item in usable)
    return Plan(
        n_items=len(offers),
        n_read=len(read) + len(offers) - len(items),
        refused=[refused for offer in offers if (refused := _refused(offer, unusable))],
        n_known=n_known,
        n_moved=len(moved),
        n_others=len(source.others),
        labels=dict(counts),
        new=dict(new),
        new_labels=[label for label in counts if known_labels and label not in known_labels],
        chosen=chosen,
        settings=settings,
        n_bytes=n_bytes,
        seconds=seconds,
        warnings=warnings,
    )


def expensive(settings: StateSettings, seconds: float | None) -> list[str]:
    """Return sentences about work that takes long or much memory."""
    _, height, width = settings.shape
    found = []
    if seconds is not None and seconds > _LONG:
        remedy = "; a smaller --size takes less" if settings.encoder is None else ""
        found.append(f"This takes about {seconds / 60:,.0f} minutes{remedy}.")
    if isinstance(settings.options, SprSettings) and least_memory(settings.options, settings.shape) > _LARGE:
        needed = least_memory(settings.options, settings.shape) / 2**30
        found.append(
            f"Training on images of {width:,} × {height:,} pixels needs at least {needed:,.0f} GiB of memory and takes "
            "long; a smaller --size takes less."
        )
    return found


def _with_image(offer: Offer) -> Offer:
    """Return an offer, or a refusal of an item whose image is empty."""
    if isinstance(offer, Item) and offer.image == b"":
        return Refusal(offer.id, "is empty", offer.line)
    return offer


def _light(offer: Offer) -> Offer:
    """Return an item without the bytes of its image, which would not fit into memory for all items."""
    return offer._replace(image=b"") if isinstance(offer, Item) and isinstance(offer.image, bytes) else offer


def estimate(
    offers: Sequence[Offer], settings: StateSettings, n_new: int, n_all: int, encoding: Encoding | None = None
) -> float | None:
    """Return the seconds that `n_new` of the offers take, of `n_all` samples; None if unknown."""
    return _seconds([offer for offer in offers if isinstance(offer, Item)], settings, n_new, n_all, encoding)


@contextmanager
def _existing(state: Path, wanted: Wanted) -> Iterator[tuple[NewSettings | StateSettings, Store | None]]:
    """Open a state for reading; yields the settings of a new one and None if there is none."""
    if not (state / DATABASE).exists():
        yield new_settings(wanted), None
        return
    with Store.reading(state, upgrade=False) as store:
        check_same(store.settings, wanted, state)
        yield store.settings, store


def _checked(
    items: Sequence[Item], settings: StateSettings | None, store: Store | None, progress: Callable[[int, int], None]
) -> tuple[dict[str, str], set[str]]:
    """Read images as `learn` would; returns the reasons to refuse some by id, and the ids of those that were moved."""
    moves = None if store is None else Moves(store)
    unusable, moved = dict[str, str](), set[str]()
    for number, item in enumerate(items):
        progress(number, len(items))
        try:
            pixels = _read(item, settings)
            if store is not None and moves is not None:
                if moves.find(item, pixels) is None:
                    store.knows(item.id, item.label, pixels)
                elif store.one(f"SELECT 1 FROM ({_IDS}) WHERE id = ?", [item.id]) is None:
                    moved.add(item.id)
        except Refused as reason:
            unusable[item.id] = str(reason)
    return unusable, moved


def _refused(offer: Offer, reasons: Mapping[str, str]) -> Outcome | None:
    """Return the outcome of an item that would be refused, or None."""
    if isinstance(offer, Item):
        reason = reasons.get(offer.id)
        return None if reason is None else Outcome(offer.id, offer.line, new=False, error=reason)
    return Outcome(offer.name, offer.line, new=False, error=offer.reason)


def _has_waiting(store: Store) -> bool:
    """Return whether samples of a state wait to be judged, as after an interruption."""
    return store.one("SELECT 1 FROM samples WHERE position NOT IN (SELECT position FROM decisions)") is not None


def _encoding(wanted: Wanted, store: Store | None) -> Encoding | None:
    """Return the encoder of a state, or of a new one; None if it has none."""
    named = None if wanted.encoder is None or isinstance(wanted.encoder, str) else wanted.encoder
    if store is None:
        return None if named is None else Encoding(named)
    return Encoding.of_state(store, named)


def _shape(have: NewSettings | StateSettings, offers: Sequence[Offer]) -> tuple[Chosen | None, StateSettings | None]:
    if isinstance(have, StateSettings):
        return None, have
    looks = look_at_some(offers)
    if not looks:
        return None, None
    chosen = choose(looks, have.size, have.channels)
    return chosen, with_shape(have, chosen.shape)


def _seconds(
    items: Sequence[Item], settings: StateSettings, n_new: int, n_all: int, encoding: Encoding | None
) -> float | None:
    """Return a rough estimate of the time, by reading some images and computing their features."""
    items = [item for item in items if item.image]
    if isinstance(settings.options, SprSettings) or not items:
        return None
    began, images = time.perf_counter(), list[Pixels]()
    some = items[:: max(1, len(items) // _TRIAL)][:_TRIAL]
    if settings.encoder is not None:
        encoded = None if encoding is None else _encoding_seconds(some, settings, encoding)
        return encoded and n_new * encoded + _judging_seconds(settings.options.capacity, n_all)
    for item in some:
        try:
            images.append(_read(item, settings))
        except Refused:
            continue
    reading = (time.perf_counter() - began) / len(some)
    if not images:
        return None
    pixels = torch.from_numpy(np.stack(images))
    features = FeatureMap.fit(pixels)
    began = time.perf_counter()
    features.transform(pixels)
    computing = (time.perf_counter() - began) / len(images)
    return n_new * reading + n_all * computing + _judging_seconds(settings.options.capacity, n_all)


def _judging_seconds(capacity: int, n_all: int) -> float:
    """Return the seconds to judge all samples together; the time of reading and features comes in addition."""
    return _START + min(n_all, capacity) * _JUDGING


def _encoding_seconds(some: Sequence[Item], settings: StateSettings, encoding: Encoding) -> float | None:
    """Return the seconds that an image takes to be read and encoded; those of the cache take less."""
    began, images = time.perf_counter(), list[Encodable]()
    names = []
    for item in some:
        try:
            images.append(encoding.read(item.image, settings, item.root))
            names.append((item.id,))
        except Refused:
            continue
    encoding.features(images, names)  # together, since an encoder takes whole batches
    return (time.perf_counter() - began) / len(images) if images else None


def _read(item: Item, settings: StateSettings | None) -> Pixels:
    if settings is None:  # no shape could be chosen
        return read_pixels(item.image, size=None, channels=None, shape=None, root=item.root)
    return read_pixels(
        item.image,
        size=settings.size,
        channels=settings.channels,
        shape=settings.shape,
        root=item.root,
        fit=settings.fit,
    )
