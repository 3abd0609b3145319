"""Location of a dataset's files: the user's folder, else the cache, else the official address.

In: a `Source`. Out: the folder that holds all its files. `PUREREPLAY_DATA` names the user's folder, which is only read;
downloaded and unpacked files go to the cache folder. Archives are never extracted as a whole: the listed members are
read and written under names chosen here, so no path inside an archive can point elsewhere.
"""

import hashlib
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from purereplay.data.download import DownloadFailed, download
from purereplay.data.files import disk_errors, wait_for_lock, write_whole
from purereplay.data.progress import Progress
from purereplay.errors import UserError

_LARGEST_MEMBER = 2**28  # bytes of a member of an archive; CIFAR-100's training images have 148 MiB


@dataclass(frozen=True, kw_only=True)
class Remote:
    """File that can be downloaded."""

    name: str
    urls: tuple[str, ...]  # the official address first
    checksum: str  # "md5:…" or "sha256:…"
    limit: int = 2**28  # bytes; a longer download is stopped. CIFAR's archives have 163 MiB


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files of a dataset and the places where they may be."""

    title: str  # for messages
    folders: tuple[str, ...]  # below a root, the preferred one first; the cache uses that one
    files: tuple[tuple[str, ...], ...]  # alternative groups; one complete group is enough
    remote: tuple[Remote, ...] = ()
    archive_folder: str = ""  # if the remote file is a tar archive: the folder inside it that holds `files[0]`
    checksums: tuple[str, ...] = ()  # of `files[0]`, if they come from an archive
    also: str = ""  # what else belongs in the folder, for messages


def known_checksum(source: Source, name: str) -> str | None:
    """Return the official checksum of a file, or None if there is none."""
    members = dict(zip(source.files[0], source.checksums, strict=False))
    return (members | {remote.name: remote.checksum for remote in source.remote}).get(name)


def data_root() -> Path | None:
    """Return the user's data folder, or None if none is set."""
    value = os.environ.get("PUREREPLAY_DATA")
    if not value:
        return None
    root = Path(value).expanduser()
    if not root.is_dir():
        raise UserError(f"PUREREPLAY_DATA is set to {root}, which is not a folder.")
    return root


def cache_root() -> Path:
    """Return the folder for files that can be downloaded or computed again."""
    if value := os.environ.get("XDG_CACHE_HOME"):
        return Path(value).expanduser() / "purereplay"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "purereplay" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "purereplay"
    return Path.home() / ".cache" / "purereplay"


def find(source: Source) -> Path | None:
    """Return the first folder that holds all files of one group, or None; no file is opened."""
    for folder in _candidates(source):
        if any(all((folder / file).is_file() for file in group) for group in source.files):
            return folder
    return None


def find_archive(source: Source) -> Path | None:
    """Return the dataset's archive if it is present and not unpacked, or None."""
    if not source.archive_folder:
        return None
    roots = (root for root in (data_root(), cache_root()) if root is not None)
    places = (folder / source.remote[0].name for folder in (*_candidates(source), *roots))
    return next((place for place in places if place.is_file()), None)


def obtain(source: Source, *, progress: Progress | None = None, allow_download: bool = True) -> Path:
    """Return the folder that holds the files; missing ones are downloaded and unpacked first."""
    if (folder := find(source)) is not None:
        return folder
    archive = find_archive(source)
    if archive is None and not (allow_download and source.remote):
        raise UserError(f"{source.title} was not found: {how_to_place(source)}.")
    cache = cache_root() / source.folders[0]
    with disk_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(cache / ".lock"):
        if (folder := find(source)) is not None:  # another process has done it
            return folder
        if archive is None:
            archive = _fetch(source, cache, progress=progress)
        if source.archive_folder:
            _unpack(source, archive, cache)
            if archive.parent == cache:
                archive.unlink()  # its members are verified and unpacked
    return cache


def how_to_place(source: Source) -> str:
    """Return an instruction which file to put where, as half a sentence."""
    root = data_root()
    folder = (root or cache_root()) / source.folders[0]
    names = [source.remote[0].name] if source.archive_folder else list(source.files[0])
    hint = "" if root else ", or set PUREREPLAY_DATA to the folder that holds your datasets"
    return f"put {', '.join(names)}{source.also} into {folder}{hint}"


def _candidates(source: Source) -> Iterator[Path]:
    for root in (data_root(), cache_root()):
        if root is not None:
            yield from (root / folder for folder in source.folders)


def _fetch(source: Source, cache: Path, *, progress: Progress | None) -> Path:
    """Download the files of `source` that the cache lacks; return the path of the last one."""
    for remote in source.remote:
        path = cache / remote.name
        if path.is_file():
            continue
        try:
            download(remote.urls, path, checksum=remote.checksum, limit=remote.limit, progress=progress)
        except DownloadFailed as error:
            hint = f"try again later to resume, or {how_to_place(source)}"
            raise UserError(f"{str(error).rstrip('.')}: {hint}.") from error
    return path


def _unpack(source: Source, archive: Path, folder: Path) -> None:
    """Write the members that `source` lists, and no others, into `folder`."""
    try:
        with tarfile.open(archive, "r:*") as tar:
            for name, checksum in zip(source.files[0], source.checksums, strict=True):
                member = tar.getmember(f"{source.archive_folder}/{name}")
                opened = tar.extractfile(member) if member.isfile() else None
                content = opened.read(_LARGEST_MEMBER) if opened else b""  # a bomb fails its checksum
                kind = checksum.partition(":")[0]
                found = f"{kind}:{hashlib.new(kind, content).hexdigest()}"
                if found != checksum:
                    raise UserError(f"{archive} is damaged: {name} in it should have {checksum}, but has {found}.")
                write_whole(folder / name, content)
    except (tarfile.TarError, KeyError, EOFError, zlib.error, OSError) as error:
        reason = str(error).strip("\"'")
        raise UserError(f"{archive} is damaged or is not the archive of {source.title}: {reason}.") from error
