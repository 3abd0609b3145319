"""Sources: found in the user's folder, else in the cache, else fetched; archives give only what is asked of them."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from purereplay.data import official
from purereplay.data.sources import Remote, Source, cache_root, find, how_to_place, obtain
from purereplay.errors import UserError

FILES = {"one": b"1" * 50_000, "two": b"2" * 70}


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def plain_source(address: str = "http://127.0.0.1:1/") -> Source:
    return Source(
        title="Toy",
        folders=("toy", "."),
        files=(("one", "two"),),
        remote=tuple(Remote(name=n, urls=(address + n,), checksum=md5(c)) for n, c in FILES.items()),
    )


def packed_source(archive: bytes, address: str = "http://127.0.0.1:1/") -> Source:
    return Source(
        title="Toy",
        folders=("toy",),
        files=(("one", "two"),),
        remote=(Remote(name="toy.tar.gz", urls=(address + "toy.tar.gz",), checksum=md5(archive)),),
        archive_folder="inner",
        checksums=tuple(md5(content) for content in FILES.values()),
    )


@pytest.mark.parametrize("below", ["toy", "."])
@pytest.mark.parametrize("root", [0, 1])
def test_files_are_found_in_either_root(
    places: tuple[Path, Path], write_files: Callable[[Path, dict[str, bytes]], Path], below: str, root: int
) -> None:
    assert find(plain_source()) is None
    folder = write_files(places[root] / below, FILES)
    assert find(plain_source()) == folder
    assert obtain(plain_source(), allow_download=False) == folder
    (folder / "two").unlink()
    assert find(plain_source()) is None


def test_missing_files_are_downloaded_into_the_cache(places: tuple[Path, Path], site: tuple[Path, str]) -> None:
    for name, content in FILES.items():
        (site[0] / name).write_bytes(content)
    seen: set[str] = set()
    folder = obtain(plain_source(site[1]), progress=lambda name, done, total: seen.add(name))
    assert folder == places[1] / "toy"
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert seen == set(FILES)
    assert list(places[0].iterdir()) == []
    assert obtain(plain_source(), allow_download=False) == folder


def test_no_network_says_which_file_to_put_where(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as caught:
        obtain(plain_source())
    message = str(caught.value)
    assert "one could not be downloaded" in message
    assert f"put one, two into {places[0] / 'toy'}" in message
    assert "\n" not in message
    monkeypatch.delenv("PUREREPLAY_DATA")
    with pytest.raises(UserError, match=f"put one, two into {places[1] / 'toy'}, or set PUREREPLAY_DATA"):
        obtain(plain_source())


def test_download_can_be_forbidden(places: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="Toy was not found: put one, two into"):
        obtain(plain_source(), allow_download=False)


def test_archive_is_fetched_and_only_its_named_members_leave_it(
    places: tuple[Path, Path], site: tuple[Path, str], tar_bytes: Callable[[dict[str, bytes]], bytes]
) -> None:
    outside = {"../escaped": b"x", "/absolute": b"x", "inner/extra": b"x"}
    archive = tar_bytes({f"inner/{name}": content for name, content in FILES.items()} | outside)
    (site[0] / "toy.tar.gz").write_bytes(archive)
    folder = obtain(packed_source(archive, site[1]))
    assert {path.name for path in folder.iterdir() if path.name != ".lock"} == set(FILES)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert not list(places[1].parent.rglob("escaped"))


@pytest.mark.parametrize("below", ["toy", "."])
def test_users_archive_is_read_and_stays(
    places: tuple[Path, Path], tar_bytes: Callable[[dict[str, bytes]], bytes], below: str
) -> None:
    archive = tar_bytes({f"inner/{name}": content for name, content in FILES.items()})
    (places[0] / below).mkdir(exist_ok=True)
    (places[0] / below / "toy.tar.gz").write_bytes(archive)
    assert obtain(packed_source(archive), allow_download=False) == places[1] / "toy"
    assert (places[1] / "toy" / "two").read_bytes() == FILES["two"]
    assert (places[0] / below / "toy.tar.gz").exists()


def linked_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in FILES:
            member = tarfile.TarInfo(f"inner/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            tar.addfile(member)
    return buffer.getvalue()


def test_damaged_archives_are_named(places: tuple[Path, Path], tar_bytes: Callable[[dict[str, bytes]], bytes]) -> None:
    good = tar_bytes({f"inner/{name}": content for name, content in FILES.items()})
    bad = {
        "truncated": good[: len(good) // 2],
        "no archive": b"hello",
        "missing member": tar_bytes({"inner/one": FILES["one"]}),
        "other content": tar_bytes({"inner/one": b"1", "inner/two": b"2"}),
        "a link": linked_archive(),
    }
    for content in bad.values():
        (places[0] / "toy.tar.gz").write_bytes(content)
        with pytest.raises(UserError, match=r"toy\.tar\.gz is damaged"):
            obtain(packed_source(good), allow_download=False)
        assert not (places[1] / "toy" / "two").exists()


def test_a_data_folder_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PUREREPLAY_DATA", str(tmp_path / "typo"))
    with pytest.raises(UserError, match="typo, which is not a folder"):
        find(plain_source())


def test_cache_folder_follows_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_root() == tmp_path / ".cache" / "purereplay"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_root() == tmp_path / "Library" / "Caches" / "purereplay"


def test_official_table_is_complete() -> None:
    for source in (official.MNIST, official.CIFAR10, official.CIFAR100, official.CIFAR10N, official.CIFAR100N):
        for remote in source.remote:
            kind, _, digest = remote.checksum.partition(":")
            assert len(bytes.fromhex(digest)) == {"md5": 16, "sha256": 32}[kind]
            assert all(url.startswith("https://") and url.endswith(remote.name) for url in remote.urls)
        if source.archive_folder:
            assert len(source.checksums) == len(source.files[0])
        else:
            assert {remote.name for remote in source.remote} == set(source.files[0])


def test_placing_webvision_mentions_its_images(places: tuple[Path, Path]) -> None:
    assert "images they list" in how_to_place(replace(official.WEBVISION))
