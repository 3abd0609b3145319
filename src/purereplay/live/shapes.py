"""The shape of all images of a state, chosen by the first ones that are looked at.

Images of one size that is not large are kept as they are. Others are reduced, so that the longer side has at most
`SIDE` pixels: the features see no more detail, and a sample takes little time and room. If the images differ in their
aspect, the shape is square.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from purereplay.live.images import SIDE, Look, Shape, look_at
from purereplay.live.items import Item, Offer, Refused

N_LOOKS = 200  # images that are looked at, spread over the source
_SAME_ASPECT = 1.05  # aspects that differ less are taken as equal


class Chosen(NamedTuple):
    """The shape that was chosen, and the images that it was chosen by."""

    shape: Shape
    looks: tuple[Look, ...]
    encoder_size: int = 0  # pixels of a side as an encoder takes images; 0: none takes pixels

    @property
    def resizes(self) -> bool:
        """Whether an image that was looked at has another size."""
        return any((look.height, look.width) != self.shape[1:] for look in self.looks)

    @property
    def sentence(self) -> str:
        """Description for the user."""
        channels, height, width = self.shape
        sizes = sorted({(look.width, look.height) for look in self.looks}, key=lambda size: (size[0] * size[1], size))
        seen = f"{_size(*sizes[0])} pixels" + (f" to {_size(*sizes[-1])}" if len(sizes) > 1 else "")
        n = len(self.looks)
        looked = f"{n:,} image{'s' if n > 1 else ''} looked at: {seen}."
        kind = f"{_size(width, height)}, {'colour' if channels == 3 else 'grey'}"
        if self.encoder_size:
            given = _size(self.encoder_size, self.encoder_size)
            return f"{looked} The encoder gets {given}; copies of {kind} are kept."
        what = f"resized to {kind}; the aspect is kept" if self.resizes else f"kept as {kind}"
        return f"{looked} All images are {what}."


def look_at_some(offers: Sequence[Offer]) -> list[Look]:
    """Look at images spread evenly over the offers; those that cannot be read are skipped."""
    looks = []
    step = max(1, -(-len(offers) // N_LOOKS))
    for offer in offers[::step]:
        if isinstance(offer, Item):
            try:
                looks.append(look_at(offer.image, offer.root))
            except Refused:
                continue  # it is named when it is added
    return looks


def choose(looks: Sequence[Look], size: int | None, channels: int | None) -> Chosen:
    """Choose the shape of all images; `size` and `channels` are the user's wishes."""
    kept = channels or (3 if any(look.colour for look in looks) else 1)
    if size:
        return Chosen((kept, size, size), tuple(looks))
    side = min(SIDE, round(median(max(look.width, look.height) for look in looks)))
    aspect = _aspect(looks)  # width through height
    if aspect is None:
        return Chosen((kept, side, side), tuple(looks))
    width, height = (side, side / aspect) if aspect > 1 else (side * aspect, side)
    return Chosen((kept, max(1, round(height)), max(1, round(width))), tuple(looks))


def _aspect(looks: Sequence[Look]) -> float | None:
    """Return the aspect that all images share; None if they differ."""
    aspects = [look.width / look.height for look in looks]
    return median(aspects) if max(aspects) < _SAME_ASPECT * min(aspects) else None


def _size(width: int, height: int) -> str:
    return f"{width:,} × {height:,}"
