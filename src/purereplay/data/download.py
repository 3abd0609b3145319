"""Download of one file over HTTP: resumed after interruptions, verified, and moved to its destination when complete.

In: addresses (the official one first, then mirrors), destination, checksum. Out: the file, or a `UserError` of one
sentence. Uses urllib alone; pooch, the usual choice, restarts interrupted downloads, which hurts with 160 MiB on a slow
line.
"""

import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from purereplay.data.files import disk_errors, file_checksum, move_into_place, verify
from purereplay.data.progress import Progress
from purereplay.errors import UserError

_CHUNK = 1 << 18  # bytes
_TIMEOUT = 30.0  # seconds without a response or a byte
_LIMIT = 2**30  # bytes
_ATTEMPTS = 4  # per address, as long as each receives new bytes


class DownloadFailed(UserError):
    """No address delivered the file; the bytes received are kept for the next attempt."""


class _CutShort(ConnectionError):
    """The server closed the connection before the end of the file."""


class _TooLong(Exception):
    """The server offers more bytes than the file may have."""


def download(
    urls: Sequence[str],
    destination: Path,
    *,
    checksum: str,
    limit: int = _LIMIT,
    progress: Progress | None = None,
    timeout: float = _TIMEOUT,
) -> Path:
    """Download to `destination`; `checksum` is "md5:…" or "sha256:…". After a failure, the bytes received are kept.

    A file of more than `limit` bytes is not downloaded.
    """
    with disk_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(destination.name + ".part")
    reasons = []
    for url in urls:
        reason = _try(url, part, checksum=checksum, limit=limit, progress=progress, timeout=timeout)
        if reason is None:
            verify(part, checksum, name=destination.name)
            move_into_place(part, destination)
            return destination
        reasons.append(f"{url}: {reason}")
    raise DownloadFailed(f"{destination.name} could not be downloaded ({'; '.join(reasons)}).")


def _try(url: str, part: Path, *, checksum: str, limit: int, progress: Progress | None, timeout: float) -> str | None:
    """Download `url` into `part`, resuming while that receives new bytes; return the reason of a final failure."""
    reason = ""
    for _ in range(_ATTEMPTS):
        before = _size(part)
        try:
            _fetch(url, part, checksum=checksum, limit=limit, progress=progress, timeout=timeout)
            return None
        except _TooLong as error:
            part.unlink(missing_ok=True)
            return str(error)
        except urllib.error.HTTPError as error:
            return f"the server answered {error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        if _size(part) <= before:
            break
    return reason


def _fetch(url: str, part: Path, *, checksum: str, limit: int, progress: Progress | None, timeout: float) -> None:
    """Make one request: append the missing bytes to `part`, or rewrite it if the server does not resume."""
    done = _size(part)
    try:
        response = _open(url, done, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not done:
            raise
        # no further bytes: the part is either the complete file or a part of another one
        if file_checksum(part, checksum.partition(":")[0]) == checksum:
            return
        done, response = 0, _open(url, 0, timeout=timeout)
    with response:
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            part.unlink(missing_ok=True)
            raise _CutShort("the server resumed at the wrong place")
        done = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        if max(done, total or 0) > limit:
            raise _TooLong(f"the server announces {total or done:,} bytes, more than the {limit:,} that are allowed")
        _check_space(part, None if total is None else total - done)
        with disk_errors(part):
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resumed else os.O_TRUNC)
            file = os.fdopen(os.open(part, flags | getattr(os, "O_NOFOLLOW", 0), 0o666), "wb")
        with file:
            _copy(response, file, part, done=done, total=total, limit=limit, progress=progress)


def _open(url: str, start: int, *, timeout: float) -> http.client.HTTPResponse:
    """Request `url` from byte `start` on."""
    headers = {"User-Agent": "purereplay", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    response: http.client.HTTPResponse = urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=timeout
    )
    return response


def _copy(
    response: IO[bytes],
    file: IO[bytes],
    part: Path,
    *,
    done: int,
    total: int | None,
    limit: int,
    progress: Progress | None,
) -> None:
    name = part.name.removesuffix(".part")
    while chunk := response.read(_CHUNK):
        if done + len(chunk) > limit:
            raise _TooLong(f"the server sends more than the {limit:,} bytes that are allowed")
        with disk_errors(part):
            file.write(chunk)
        done += len(chunk)
        if progress is not None:
            progress(name, done, total)
    with disk_errors(part):
        file.flush()
    if total is not None and done < total:
        raise _CutShort(f"the connection was cut after {done} of {total} bytes")


def _check_space(part: Path, needed: int | None) -> None:
    """Raise UserError if the disk lacks the space, before the download starts."""
    free = shutil.disk_usage(part.parent).free
    if needed is not None and needed > free:
        raise UserError(f"{part.parent} has {free:,} bytes free, but {part.name} needs {needed:,} more.")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
