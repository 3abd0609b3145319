"""Images of any size as an encoder takes them: colour, square, with the aspect kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
GREY_MODES = ("1", "L", "LA", "La")  # of Pillow
_ROWS = 32  # of an image that are composed over white at once


def padded(picture: Image.Image, *, height: int, width: int) -> Image.Image:
    """Resize an image so that it just fits, and repeat its edges beyond them."""
    if picture.size == (width, height):
        return picture
    scale = min(width / picture.width, height / picture.height)
    inner = (max(1, round(scale * picture.width)), max(1, round(scale * picture.height)))
    shrunk = np.asarray(picture.resize(inner, Image.Resampling.BILINEAR))
    left, top = (width - inner[0]) // 2, (height - inner[1]) // 2
    beyond = ((top, height - inner[1] - top), (left, width - inner[0] - left), (0, 0))
    return Image.fromarray(np.pad(shrunk, beyond[: shrunk.ndim], mode="edge"))


def as_input(picture: Image.Image, size: int) -> Pixels:
    """Return a picture as uint8 (3, size, size)."""
    fitted = padded(picture.convert("RGB"), height=size, width=size)
    return np.ascontiguousarray(np.asarray(fitted, np.uint8).transpose(2, 0, 1))


def as_inputs(images: Iterable[Pixels], size: int) -> Pixels:
    """Return images uint8 (C, H, W), of one or three channels, as uint8 (n, 3, size, size)."""
    pictures = (Image.fromarray(own[0] if len(own) == 1 else own.transpose(1, 2, 0)) for own in images)
    found = [as_input(picture, size) for picture in pictures]
    return np.stack(found) if found else np.zeros((0, 3, size, size), np.uint8)


def plain(image: Image.Image) -> Image.Image:
    """Convert an image to mode L or RGB: 16 bits to the higher eight, transparency over white.

    Mode I must come from a file of 16 bits: Pillow keeps 32 bits in it too, whose range is not known.
    """
    if image.mode.startswith("I"):  # grey with 16 bits
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        return _on_white(image, "L" if image.mode in GREY_MODES else "RGB")
    return image.convert("L" if image.mode in GREY_MODES else "RGB")


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    """Compose a transparent image over white, some rows at a time: the layers of a large one would fill the memory."""
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, _ROWS):
        layer = image.crop((0, top, image.width, min(top + _ROWS, image.height))).convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        whole.paste(Image.alpha_composite(paper, layer).convert(mode), (0, top))
    return whole
