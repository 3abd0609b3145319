"""Image files to pixels: the conversion of every kind of image, and the reasons for refusing one.

In: a file or its bytes in PNG, JPEG, BMP, GIF or WebP, detected by content and not by name. Out: uint8 (channels,
height, width), one channel for grey and three for colour.

    EXIF orientation   applied
    1 bit              black and white as grey
    palette            converted to colour
    16 bits a channel  the higher eight bits
    alpha              composed over white
    CMYK               converted without a colour profile
    several frames     refused, except a JPEG with a preview
    more than MAX_PIXELS according to the header: refused before decoding
    JPEG with more than MAX_SCANNED pixels times scans: refused before decoding
    more than MAX_SECONDS: refused when the decoder asks for more bytes

A state has images of one shape. `shapes.py` chooses it, and images of other shapes are resized: the whole image is kept
with its aspect, and its edges are repeated to fill the rest. (On CIFAR-10 images cut to other aspects this gave better
features than a black or mean filling, a centre crop or a changed aspect.)

A file is opened once, without following links out of its folder; only a regular file is read, and at most MAX_BYTES.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from purereplay.data.encoders.pictures import GREY_MODES, as_input, padded, plain
from purereplay.data.files import folder_below
from purereplay.live.items import Refused

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
_NAMES = re.compile(  # ends of the names of images, also of those that are not read
    r"\.(a?png|jpe?g?|jfif|bmp|dib|gif|webp|tiff?|hei[cf]|avif|jxl|jp2|svg|ico|psd|tga|p[pgbn]m|raw|dng|cr[23]|nef|arw|orf)",
    re.IGNORECASE,
)
_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"GIF8", b"RIFF")  # first bytes of the formats
MAX_PIXELS = 50_000_000
MAX_BYTES = 64 * 2**20  # of a file
MAX_SCANNED = 2_000_000_000  # a decoder goes through all pixels in every scan of a JPEG; some seconds
MAX_SECONDS = 20.0  # for one image
SIDE = 64  # pixels of the longer side of images in a state, unless the user chooses another size

Pixels = NDArray[np.uint8]
Shape = tuple[int, int, int]  # channels, height, width
# pad: resized with the aspect kept, and filled; exact: refused unless the shape is right, as in former states, where
# `size` changes the aspect
Fit = Literal["pad", "exact"]
_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange height and width


class Look(NamedTuple):
    """The size of an image as it is shown, and whether it has colour."""

    width: int
    height: int
    colour: bool


def read_pixels(
    image: Path | bytes,
    *,
    size: int | None,
    channels: int | None,
    shape: Shape | None,
    root: Path | None = None,
    fit: Fit = "exact",
) -> Pixels:
    """Return an image as uint8 (channels, height, width), or raise Refused.

    `root` is a folder that the file must be in, both as absolute paths without links; None: links are followed.
    `channels` 1 or 3 converts it to grey or colour. The result has `shape`. With `fit` pad the image is resized and
    converted. With exact it is resized to `size` × `size`, if given. A grey image is converted if `shape` has colour;
    any other difference is refused.
    """
    content = read_content(image, root)
    picture = _decode(content, None if fit == "exact" or shape is None else 2 * max(shape[1:]))
    return _fitted(picture, size, channels, shape, fit)


class Encodable(NamedTuple):
    """An image as a state keeps it, as an encoder takes it, and the digest of its file."""

    pixels: Pixels
    given: Pixels  # uint8 (3, size, size)
    content: bytes


def read_encodable(
    image: Path | bytes, *, channels: int | None, shape: Shape, size: int, root: Path | None = None
) -> Encodable:
    """Read an image once, for a state whose images have `shape` and for an encoder of images of `size`; or Refused."""
    content = read_content(image, root)
    # features depend on the file and the encoder, and not on the shape that a state keeps: they are cached for all
    least = 2 * max(size, SIDE)
    picture = _decode(content, least)
    large = 2 * max(shape[1:]) > least
    pixels = _fitted(_decode(content, 2 * max(shape[1:])) if large else picture, None, channels, shape, "pad")
    return Encodable(pixels, as_input(picture, size), hashlib.blake2b(content, digest_size=32).digest())


class View(NamedTuple):
    """An image as a person sees it, perhaps smaller than it is."""

    pixels: Pixels  # uint8 (channels, height, width)
    width: int  # of the image itself
    height: int


def read_view(content: bytes, size: int) -> View:
    """Decode an image for a person, at most `size` pixels wide and high, or raise Refused."""
    look, picture = look_at(content), _decode(content, size)
    picture.thumbnail((size, size))
    return View(_fitted(picture, None, None, None, "exact"), look.width, look.height)


def _fitted(picture: Image.Image, size: int | None, channels: int | None, shape: Shape | None, fit: Fit) -> Pixels:
    wanted = channels or (shape[0] if shape and (fit == "pad" or shape[0] == 3) else None)
    if wanted:
        picture = picture.convert("L" if wanted == 1 else "RGB")
    if fit == "pad" and shape:
        picture = padded(picture, height=shape[1], width=shape[2])
    elif size:
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    array = np.asarray(picture, dtype=np.uint8)
    pixels = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    if shape and pixels.shape != shape:
        raise Refused(f"is {named(pixels.shape)}, but the images here are {named(shape)}")
    return pixels.copy()  # contiguous and writable, which Pillow's array is not


def is_other_file(path: Path) -> bool:
    """Return whether a regular file is no image, neither by its name nor by its first bytes."""
    if _NAMES.fullmatch(path.suffix) or not stat.S_ISREG(path.lstat().st_mode):
        return False
    try:
        descriptor = os.open(path, _READ | _flags("O_NOFOLLOW"))
        try:
            return not os.read(descriptor, 8).startswith(_STARTS)
        finally:
            os.close(descriptor)
    except OSError:
        return True


def starts_as_image(content: bytes) -> bool:
    """Return whether the first bytes are those of an image file."""
    return content.startswith(_STARTS)


def look_at(image: Path | bytes, root: Path | None = None) -> Look:
    """Return the size and colour of an image by what precedes its pixels, which are not decoded; raises Refused.

    The orientation of a PNG is not known here if it follows the pixels.
    """
    with _opened(read_content(image, root)) as opened:
        width, height = opened.size
        # a PNG's own method decodes the pixels in search of the orientation
        if Image.Image.getexif(opened).get(0x0112) in _TURNED:
            width, height = height, width
        return Look(width, height, opened.mode not in GREY_MODES and not opened.mode.startswith("I"))


def named(shape: tuple[int, ...]) -> str:
    """Describe a shape in words."""
    channels, height, width = shape
    return f"a {'grey' if channels == 1 else 'colour'} image of {width}×{height}"


def read_content(image: Path | bytes, root: Path | None) -> bytes:
    """Return the bytes of an image, or raise Refused."""
    content = image if isinstance(image, bytes) else _read(image, root)
    if not content:
        raise Refused("is empty")
    return content


def _read(path: Path, root: Path | None) -> bytes:
    try:
        descriptor = _open(root, path)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Refused("is not a file")
            if found.st_size > MAX_BYTES:
                raise Refused(f"has {found.st_size:,} bytes, more than {MAX_BYTES:,}")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_BYTES + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a name that contains NUL
        raise Refused(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MAX_BYTES:
        raise Refused(f"has more than {MAX_BYTES:,} bytes")
    return content


def _flags(*names: str) -> int:
    """Return flags of `os.open`; those that the system does not have are left out."""
    return sum(getattr(os, name, 0) for name in names)


# O_NONBLOCK: opening a FIFO that nobody writes to returns at once; O_NOCTTY: a terminal does not become this process's
_READ = _flags("O_RDONLY", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")


def _open(root: Path | None, path: Path) -> int:
    """Open a file; below `root`, a link that replaced a file or folder meanwhile is not followed."""
    if root is None:
        return os.open(path, _READ)
    *folders, name = path.relative_to(root).parts or (".",)
    try:
        with folder_below(root, folders) as folder:
            own = path if folder is None else name
            return os.open(own, _READ | _flags("O_NOFOLLOW"), dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused("was replaced by a link, which is not followed") from None
        raise


class _Timed(io.BytesIO):
    """Bytes of an image that can be read for a limited time."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.end = time.monotonic() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self.end:
            raise Refused(f"takes more than {MAX_SECONDS:g} seconds to decode")
        return super().read(size)


def _decode(content: bytes, least: int | None) -> Image.Image:
    """Return the image in mode L or RGB; a JPEG may be decoded smaller, with sides of at least `least` pixels."""
    with _opened(content) as image:
        width, height = image.size
        # every scan begins with these two bytes; others in embedded previews are few
        n_scans = content.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 0
        if width * height * n_scans > MAX_SCANNED:
            raise Refused(f"has {n_scans:,} scans of {width:,} × {height:,} pixels, too many to decode")
        if least:
            image.draft(None, (least, least))
        image.load()
        return plain(ImageOps.exif_transpose(image))


@contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """Open an image whose pixels are not decoded yet; errors within the block are turned into Refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about images refused below, and odd metadata
            with Image.open(_Timed(content), formats=FORMATS) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise Refused(f"has {width:,} × {height:,} pixels, more than {MAX_PIXELS:,}")
                if image.format != "MPO" and getattr(image, "is_animated", False):
                    raise Refused("is an animation: a single image is needed")
                yield image
    except Refused:
        raise
    except UnidentifiedImageError:
        raise Refused("is not an image in PNG, JPEG, BMP, GIF or WebP") from None
    except Image.DecompressionBombError as error:  # Pillow has a higher limit of its own, which it checks first
        found = re.search(r"\((\d+) pixels\)", str(error))
        size = f"{int(found[1]):,}" if found else "too many"
        raise Refused(f"has {size} pixels, more than {MAX_PIXELS:,}") from None
    except Exception as error:  # a decoder may raise anything on a damaged file
        raise Refused(f"is damaged: {str(error).rstrip('.')}") from None
