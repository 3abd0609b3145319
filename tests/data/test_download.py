"""Downloads against a real server on this machine: whole, cut and resumed, damaged, refused, without Range."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from purereplay.data import download as download_module
from purereplay.data.download import DownloadFailed, download
from purereplay.errors import UserError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves CONTENT at /file; how it misbehaves is set by the test."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges: list[str | None] = []  # the Range header of each request
        self.cut_first_at: int | None = None  # send so many bytes of the first answer, then hang up
        self.cut_all_at: int | None = None
        self.knows_range = True
        self.wrong_offset = False
        self.sends_length = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.ranges.append(wanted)
        if self.path != "/file":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.knows_range else 0
        if start and start >= len(server.content):
            self.send_error(416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            said = start + 1 if server.wrong_offset else start
            self.send_header("Content-Range", f"bytes {said}-{len(server.content) - 1}/{len(server.content)}")
        if server.sends_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = server.cut_all_at if len(server.ranges) > 1 or server.cut_first_at is None else server.cut_first_at
        with suppress(ConnectionError):  # the test's client may have hung up
            self.wfile.write(body if cut is None else body[:cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "file.gz"


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_whole_file_with_progress(server: Server, target: Path) -> None:
    calls: list[tuple[str, int, int | None]] = []
    assert download([server.url], target, checksum=MD5, progress=lambda *call: calls.append(call)) == target
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file.gz"]
    assert calls[-1] == ("file.gz", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert server.ranges == [None]


def test_cut_connection_is_resumed_in_the_same_call(server: Server, target: Path) -> None:
    server.cut_first_at = 400_000
    download([server.url], target, checksum=MD5)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]


def test_interrupted_download_is_resumed_in_the_next_call(server: Server, target: Path) -> None:
    server.cut_first_at = 600_000

    def interrupt(name: str, done: int, total: int | None) -> None:
        if done >= 500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download([server.url], target, checksum=MD5, progress=interrupt)
    received = part_of(target).stat().st_size
    assert 0 < received < len(CONTENT)
    assert not target.exists()

    seen: list[int] = []
    download([server.url], target, checksum=MD5, progress=lambda name, done, total: seen.append(done))
    assert server.ranges == [None, f"bytes={received}-"]
    assert seen[0] > received
    assert target.read_bytes() == CONTENT
    assert not part_of(target).exists()


def test_a_server_that_always_cuts_fails_but_keeps_what_came(server: Server, target: Path) -> None:
    server.cut_first_at = server.cut_all_at = 100_000
    with pytest.raises(DownloadFailed, match="cut after"):
        download([server.url], target, checksum=MD5)
    assert part_of(target).read_bytes() == CONTENT[: 100_000 * len(server.ranges)]
    assert not target.exists()


def test_server_without_range_starts_over(server: Server, target: Path) -> None:
    server.knows_range = False
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT[:300_000])
    download([server.url], target, checksum=MD5)
    assert server.ranges == ["bytes=300000-"]
    assert target.read_bytes() == CONTENT


def test_server_without_length(server: Server, target: Path) -> None:
    server.sends_length = False
    totals: list[int | None] = []
    download([server.url], target, checksum=MD5, progress=lambda name, done, total: totals.append(total))
    assert target.read_bytes() == CONTENT
    assert set(totals) == {None}


def test_complete_part_is_taken_as_it_is(server: Server, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT)
    download([server.url], target, checksum=MD5)
    assert server.ranges == [f"bytes={len(CONTENT)}-"]
    assert target.read_bytes() == CONTENT


def test_stale_part_longer_than_the_file_is_thrown_away(server: Server, target: Path) -> None:
    target.parent.mkdir()
    part_of(target).write_bytes(b"x" * (len(CONTENT) + 5))
    download([server.url], target, checksum=MD5)
    assert server.ranges == [f"bytes={len(CONTENT) + 5}-", None]
    assert target.read_bytes() == CONTENT


def test_server_that_resumes_elsewhere_is_not_believed(server: Server, target: Path) -> None:
    server.wrong_offset = True
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT[:300_000])
    with pytest.raises(DownloadFailed, match="wrong place"):
        download([server.url], target, checksum=MD5)
    download([server.url], target, checksum=MD5)  # the doubtful part is gone
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_damaged_content_is_deleted_and_named(server: Server, target: Path, kind: str) -> None:
    expected = f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    server.content = CONTENT[:-1] + b"?"
    found = f"{kind}:{hashlib.new(kind, server.content).hexdigest()}"
    with pytest.raises(UserError) as caught:
        download([server.url], target, checksum=expected)
    assert "file.gz" in str(caught.value)
    assert expected in str(caught.value)
    assert found in str(caught.value)
    assert list(target.parent.iterdir()) == []


def test_refusals_name_the_reason_and_mirrors_are_tried(server: Server, target: Path) -> None:
    missing = server.url.replace("/file", "/nothing")
    with pytest.raises(DownloadFailed, match="404"):
        download([missing], target, checksum=MD5)
    download([missing, server.url], target, checksum=MD5)
    assert target.read_bytes() == CONTENT


def test_refused_connection_is_a_sentence(server: Server, target: Path) -> None:
    url = "http://127.0.0.1:1/file"
    with pytest.raises(
        DownloadFailed, match=r"file\.gz could not be downloaded \(http://127\.0\.0\.1:1/file: .*efused"
    ):
        download([url], target, checksum=MD5)
    download([url, server.url], target, checksum=MD5)


def test_full_disk_is_said_before_the_download(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(UserError, match="10 bytes free"):
        download([server.url], target, checksum=MD5)


def test_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        download([server.url], tmp_path / "file" / "target", checksum=MD5)
    (tmp_path / "folder.gz.part").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        download([server.url], tmp_path / "folder.gz", checksum=MD5)
