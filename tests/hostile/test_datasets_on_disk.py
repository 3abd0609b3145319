"""Hostile dataset files and servers: crafted pickles, files that are not the official ones, endless downloads."""

import gzip
import hashlib
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from purereplay.data.datasets import load
from purereplay.data.download import DownloadFailed, download
from purereplay.data.readers import read_cifar, read_idx, read_label_sets, read_pickle
from purereplay.errors import UserError


class Built:
    """Pickles as a call and a state: what numpy.dtype and numpy.ndarray pickle to, with any arguments."""

    def __init__(self, function: object, arguments: tuple, state: object) -> None:
        self.parts = function, arguments, state

    def __reduce__(self) -> tuple:
        return self.parts


def dtype(code: object, state: object) -> Built:
    return Built(np.dtype, (code, False, True), state)


def array(shape: object, kind: object, content: object, fortran: object = False) -> Built:
    return Built(np.empty(0).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, shape, kind, fortran, content))


PLAIN = (3, "|", None, None, None, -1, -1, 0)
BYTE = dtype("u1", PLAIN)
CRAFTED = {
    "names without fields": dtype("V8", (3, "|", None, ("a",), None, 8, 1, 0)),
    "fields without names": dtype("V8", (3, "|", None, None, {"a": (BYTE, 0)}, 8, 1, 0)),
    "fields that are no tuples": dtype("V8", (3, "|", None, ("a",), {"a": 7}, 8, 1, 0)),
    "a field beyond the end": dtype("V8", (3, "|", None, ("a",), {"a": (np.dtype("O"), 2**30)}, 8, 1, 0)),
    "objects": dtype("O8", (3, "|", None, None, None, -1, -1, 63)),
    "a subarray": dtype("V8", (3, "|", (BYTE, (2**31,)), None, None, 8, 1, 0)),
    "another size": dtype("u1", (3, "|", None, None, None, 2**31 - 1, 1, 0)),
    "a negative size": dtype("V8", (3, "|", None, None, None, -(2**31), 1, 0)),
    "flags": dtype("u1", (3, "|", None, None, None, -1, -1, 255)),
    "metadata": dtype("M8", (4, "<", None, None, None, -1, -1, 0, ({}, (b"x", 1, 1, 1)))),
    "no tuple": dtype("u1", 3),
    "numbers only": dtype("u1", tuple(range(8))),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_dtype_crashed_the_process(tmp_path, what):
    path = tmp_path / "batch"
    for content in ({"data": CRAFTED[what]}, {"data": array((1, 3072), CRAFTED[what], b"\0" * 3072)}):
        path.write_bytes(pickle.dumps(content | {"labels": [1]}, protocol=2))
        with pytest.raises(UserError, match="batch is truncated or damaged") as caught:
            read_cifar(path, "labels")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "crafted",
    [
        array((2**40,), BYTE, b""),
        array((-1,), BYTE, b"\0"),
        array((2, 3072), BYTE, b"\0" * 3072),
        array([1, 3072], BYTE, b"\0" * 3072),
        array((1,) * 60, BYTE, b"\0"),
        array((1, 3072), "u1", b"\0" * 3072),
        array((1, 3072), BYTE, [0] * 3072),
        array((True, 3072), BYTE, b"\0" * 3072),
        Built(np.empty(0).__reduce__()[0], (np.dtype, (0,), b"b"), None),
        Built(np.empty(0).__reduce__()[0], (np.ndarray, (2**62,), b"O"), None),
    ],
)
def test_a_crafted_array_is_refused(tmp_path, crafted):
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": crafted, "labels": [1]}, protocol=2))
    with pytest.raises(UserError, match="batch"):
        read_cifar(tmp_path / "batch", "labels")


@pytest.mark.parametrize("kind", ["|u1", "<i2", ">i4", "<i8", "<f4", ">f8", "|b1"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_arrays_of_numbers_come_back(tmp_path, kind, protocol):
    one = np.arange(24).reshape(2, 3, 4).astype(kind)
    arrays = {"a": one, "b": np.asfortranarray(one), "c": one[0, 0, 0:1]}
    (tmp_path / "x").write_bytes(pickle.dumps(arrays, protocol=protocol))
    found = read_pickle(tmp_path / "x")
    for name, own in arrays.items():
        assert found[name].dtype == own.dtype and np.array_equal(found[name], own) and found[name].flags.writeable


def test_a_crafted_dtype_in_a_file_of_labels_is_refused(tmp_path):
    for new in (True, False):
        torch.save({"clean_label": CRAFTED["flags"]}, tmp_path / "x.pt", _use_new_zipfile_serialization=new)
        with pytest.raises(UserError, match=r"x\.pt is damaged"):
            read_label_sets(tmp_path / "x.pt")


def test_a_file_that_is_not_the_official_one_was_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("PUREREPLAY_DATA", str(tmp_path))
    monkeypatch.setattr("purereplay.data.readers._unpickled", lambda *_: pytest.fail("it was unpickled"))
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar100").mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (tmp_path / "cifar10" / name).write_bytes(pickle.dumps({"data": 1}))
    for name in ("train", "test"):
        (tmp_path / "cifar100" / name).write_bytes(pickle.dumps({"data": 1}))
    with pytest.raises(UserError, match="data_batch_1 is damaged or is not the official file: it has md5:"):
        load("cifar10", download=False)
    with pytest.raises(UserError, match="train is damaged or is not the official file"):
        load("cifar100", download=False)


def test_a_checksum_is_compared_before_anything_is_read(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"clean_label": np.arange(3)}, path)
    right = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert read_label_sets(path, checksum=right)["clean_label"].tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="is not the official file"):
        read_label_sets(path, checksum="sha256:" + "0" * 64)


def test_a_bomb_in_a_gzipped_file_is_read_up_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("purereplay.data.readers._LARGEST", 1000)
    header = bytes((0, 0, 8, 1)) + (2).to_bytes(4, "big")
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(header + bytes(10**6)))
    with pytest.raises(UserError, match=r"bomb\.gz is truncated or damaged: it has 992 bytes of data, not 2"):
        read_idx(tmp_path / "bomb.gz", n_dims=1)


# ---------------------------------------------------------------- downloads


class Endless(BaseHTTPRequestHandler):
    """Sends without end, and announces the length that the address names, if any."""

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", self.path[1:])
        self.end_headers()
        try:
            for _ in range(1000):
                self.wfile.write(bytes(100_000))
        except OSError:
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("length", ["endless", "100000000"])
def test_a_download_had_no_limit(tmp_path, address, length):
    with pytest.raises(DownloadFailed, match=r"more than the 1,000,000") as caught:
        download([f"{address}/{length}"], tmp_path / "x", checksum="md5:0", limit=10**6)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_a_download_wrote_through_a_link(tmp_path, address):
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (tmp_path / "x.part").symlink_to(victim)
    with pytest.raises(UserError, match=r"cannot be written"):
        download([f"{address}/1000"], tmp_path / "x", checksum="md5:0")
    assert victim.read_bytes() == b""


def test_every_official_file_has_a_limit():
    from purereplay.data import official

    for source in (official.MNIST, official.CIFAR10, official.CIFAR100, official.CIFAR10N, official.CIFAR100N):
        assert all(2**20 < remote.limit <= 2**28 for remote in source.remote)


def test_the_crafted_parts_are_those_of_numpy():
    """Otherwise the tests above would prove nothing."""
    assert pickle.loads(pickle.dumps(array((1,), BYTE, b"\7"))).tolist() == [7]
