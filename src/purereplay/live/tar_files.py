"""Files in a tar archive, read once from start to end: the forms of POSIX (ustar and pax) and of GNU.

An archive is read only if it is whole: every header has its checksum, two blocks of zeros mark the end, and nothing but
zeros follows. The standard library's `tarfile` takes a damaged header for the end of the archive. Headers of long names
are limited, since a small compressed file can hold a large one. Sparse files are refused.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple

from purereplay.live.decompressed import Damaged, Stream
from purereplay.live.items import short

_BLOCK = tarfile.BLOCKSIZE
_MAX_HEADERS = 2**20  # bytes of the headers of one file, and of those of all files
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_FIELDS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EMPTY = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


class Member(NamedTuple):
    """A file in an archive. It is read before the next one is asked for, or not at all."""

    name: str
    size: int
    is_file: bool  # False: a folder, link or device
    stream: Stream

    def read(self) -> bytes:
        """Return the contents."""
        content = self.stream.read(self.size)
        if len(content) < self.size:
            raise Damaged(f"{short(self.name)} ends early")
        return content


def members(file: IO[bytes]) -> Iterator[Member]:
    """Yield the files of an open archive, which may be compressed; Damaged if it is not whole."""
    stream = _Counted(file)
    common = _Header()  # pax fields of all files that follow
    header, n_bytes = common, 0
    while block := stream.read(_BLOCK):
        if block == bytes(_BLOCK):
            _check_end(stream)
            return
        info = _info(block, stream.position - len(block))
        if info.type in (*_NAMES, *_FIELDS):
            n_bytes += info.size
            if n_bytes > _MAX_HEADERS:
                raise Damaged(f"a header has more than {_MAX_HEADERS:,} bytes")
            content = Member("a header", _padded(info.size), False, stream).read()[: info.size]
            if info.type == tarfile.GNUTYPE_LONGNAME:
                header = header._replace(name=content.partition(b"\0")[0])
            elif info.type == tarfile.XGLTYPE:
                common = _with_fields(common, content)
                header = _with_fields(header, content)
            elif info.type in _FIELDS:
                header = _with_fields(header, content)
            continue
        name = info.name if header.name is None else header.name.decode(errors="surrogateescape").rstrip("/")
        if info.type == tarfile.GNUTYPE_SPARSE or header.is_sparse:
            raise Damaged(f"{short(name)} is stored as a sparse file: pack it without --sparse")
        size = info.size if header.size is None else header.size
        size = 0 if info.type in _EMPTY else size
        start = stream.position
        yield Member(name, size, info.isreg(), stream)
        stream.skip(start + _padded(size) - stream.position)
        header, n_bytes = common, 0
    raise Damaged("it ends without an end marker" if stream.position else "it is empty")


class _Counted(Stream):
    """A stream that knows how many bytes were read."""

    position = 0

    def read(self, n: int) -> bytes:
        content = super().read(n)
        self.position += len(content)
        return content


class _Header(NamedTuple):
    """Name and size of a file in pax fields and GNU's long names; None where its own header counts."""

    name: bytes | None = None
    size: int | None = None
    is_sparse: bool = False


def _info(block: bytes, position: int) -> tarfile.TarInfo:
    """Return the header in a block."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise Damaged(f"the header at byte {position:,} is damaged: {error}") from None
    if info.size < 0:
        raise Damaged(f"the header at byte {position:,} is damaged: negative size")
    return info


def _with_fields(header: _Header, content: bytes) -> _Header:
    """Return a header with the fields of a pax header: records of `LENGTH KEY=VALUE`, each with a newline."""
    at = 0
    while at < len(content):
        length, blank, _ = content[at : at + 12].partition(b" ")
        if not (blank and length.isdigit()) or not len(length) < int(length) <= len(content) - at:
            raise Damaged("a pax header is damaged")
        key, equals, value = content[at + len(length) + 1 : at + int(length)].partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise Damaged("a pax header is damaged")
        at, value = at + int(length), value[:-1]
        if key == b"path":
            header = header._replace(name=value)
        elif key == b"size":
            if not (value.isdigit() and len(value) < 20):
                raise Damaged("a pax header states a size that is not a number")
            header = header._replace(size=int(value))
        elif key.startswith(b"GNU.sparse."):
            header = header._replace(is_sparse=True)
    return header


def _check_end(stream: Stream) -> None:
    """Raise Damaged unless an archive ends after its first block of zeros as it should."""
    n_zeros = _BLOCK
    while piece := stream.read(2**16):
        if piece.strip(b"\0"):
            raise Damaged("data follow its end marker: keep concatenated archives as separate files")
        n_zeros += len(piece)
    if n_zeros < 2 * _BLOCK:
        raise Damaged("its end marker is truncated")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
