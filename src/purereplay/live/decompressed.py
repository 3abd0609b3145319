"""Contents of a file that may be compressed by gzip, bzip2 or xz: read once, from start to end, a piece at a time.

The form is detected by the first bytes. Checksums are compared, and a file that ends inside its compressed data is an
error. The standard library's `tarfile` ignores the checksum of gzip, and decompresses a piece however large it becomes.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

_PIECE = 2**16  # bytes read, and decompressed, at a time
_XZ_MEMORY = 2**28  # bytes; `xz -9` needs 65 MiB


class Damaged(ValueError):
    """The reason why a file cannot be read to its end."""


class Stream:
    """Decompressed contents of an open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._pieces = _pieces(file)
        self._piece, self._at = b"", 0

    def read(self, n: int) -> bytes:
        """Return the next n bytes, or fewer at the end."""
        found = list[bytes]()
        while n > 0:
            if self._at == len(self._piece):
                self._piece, self._at = next(self._pieces, b""), 0
                if not self._piece:
                    break
            found.append(self._piece[self._at : self._at + n])
            self._at += len(found[-1])
            n -= len(found[-1])
        return b"".join(found)

    def skip(self, n: int) -> None:
        """Read n bytes and drop them."""
        while n > 0:
            n_read = len(self.read(min(n, _PIECE)))
            if not n_read:
                raise Damaged("it ends early")
            n -= n_read


class _Decompressor(Protocol):
    """Interface of the decompressors of bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """Decompressor of zlib with the interface of the others; it compares the checksum."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._full = False  # whether the last piece was as long as allowed, so that there may be more

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not (self._full or self._zlib.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self._full = len(piece) == max_length
        return piece


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    data = file.read(_PIECE)
    new = _decompressor(data)
    if new is None:
        while data:
            yield data
            data = file.read(_PIECE)
        return
    while data:  # several compressed parts may follow one another
        current = new()
        try:
            while not current.eof:
                if current.needs_input:
                    data = data or file.read(_PIECE)
                    if not data:
                        raise Damaged("its compressed data end early")
                if piece := current.decompress(data if current.needs_input else b"", _PIECE):
                    yield piece
                data = b""
        except (zlib.error, lzma.LZMAError, OSError) as error:
            raise Damaged(f"its compressed data are damaged: {error}") from None
        data = current.unused_data
        while not data.strip(b"\0") and (more := file.read(_PIECE)):  # padding
            data = more
        data = data.lstrip(b"\0")


def _decompressor(start: bytes) -> Callable[[], _Decompressor] | None:
    """Return what makes a decompressor by the first bytes of a file; None: it is not compressed."""
    if start.startswith(b"\x1f\x8b"):
        return _Gzip
    if start.startswith(b"BZh"):
        return bz2.BZ2Decompressor
    if start.startswith((b"\xfd7zXZ", b"\x5d\0\0\x80")):
        return lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    return None
