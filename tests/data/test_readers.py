"""Readers: what was written comes back, damage is named, and no pickle runs anything."""

import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from purereplay.data.readers import read_cifar, read_idx, read_label_sets, read_pickle
from purereplay.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_idx_comes_back(tmp_path: Path, write_idx: Callable[[Path, np.ndarray], Path], suffix: str) -> None:
    read = read_idx(write_idx(tmp_path / f"images{suffix}", IMAGES), n_dims=3)
    assert np.array_equal(read, IMAGES)
    assert read.flags.writeable


def test_damaged_idx_is_named(tmp_path: Path, write_idx: Callable[[Path, np.ndarray], Path]) -> None:
    plain = write_idx(tmp_path / "whole", IMAGES).read_bytes()
    damaged = {
        "cut.gz": gzip.compress(plain)[:-12],
        "cut": plain[:-1],
        "long": plain + b"x",
        "magic": b"\x00\x00\x09\x03" + plain[4:],
        "header": plain[:10],
        "empty": b"",
        "zeroed.gz": gzip.compress(plain)[:30] + bytes(20) + gzip.compress(plain)[50:],
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            read_idx(tmp_path / name, n_dims=3)
    with pytest.raises(UserError, match="1 dimensions"):
        read_idx(tmp_path / "whole", n_dims=1)
    with pytest.raises(UserError, match="absent cannot be read"):
        read_idx(tmp_path / "absent", n_dims=1)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_cifar_batches_come_back(tmp_path: Path, protocol: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    content = {"data": pixels, "labels": [3, 1, 4, 1], "batch_label": "training batch 1 of 5", "filenames": ["a"] * 4}
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol=protocol))
    images, (labels,) = read_cifar(tmp_path / "batch", "labels")
    assert np.array_equal(images.reshape(4, -1), pixels)
    assert images.shape == (4, 3, 32, 32)
    assert labels.tolist() == [3, 1, 4, 1]
    (tmp_path / "bytes").write_bytes(pickle.dumps({b"data": pixels, b"labels": [3, 1, 4, 1]}))
    assert np.array_equal(read_cifar(tmp_path / "bytes", "labels")[0], images)


def test_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    """The official files are Python 2's: the pixels and every string are 8-bit strings."""
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8)
    raw = pixels.tobytes()
    content = (
        b"\x80\x02}(U\x04dataccnumpy.core.multiarray\n_reconstruct\n".replace(b"cc", b"c")
        + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tbU\x06labels](K\x07K\x02eu."
    )
    (tmp_path / "batch").write_bytes(content)
    images, (labels,) = read_cifar(tmp_path / "batch", "labels")
    assert np.array_equal(images.ravel(), pixels)
    assert labels.tolist() == [7, 2]


class Malicious:
    """Pickled, it refers to a shell command."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "batch").write_bytes(pickle.dumps({"data": Malicious(trace)}, protocol=protocol))
    with pytest.raises(UserError, match=r"batch was refused: it refers to (posix|nt)\.system"):
        read_pickle(tmp_path / "batch")
    assert not trace.exists()
    pickle.loads((tmp_path / "batch").read_bytes())  # the proof that it would have run
    assert trace.exists()


def test_builtins_and_other_codecs_are_refused(tmp_path: Path) -> None:
    for global_name in ("builtins\neval", "builtins\ngetattr", "numpy\nload", "numpy.core.multiarray\nscalar"):
        (tmp_path / "batch").write_bytes(f"c{global_name}\n.".encode())
        with pytest.raises(UserError, match="was refused"):
            read_pickle(tmp_path / "batch")
    (tmp_path / "batch").write_bytes(b"c_codecs\nencode\n(Vabc\nVrot13\ntR.")
    with pytest.raises(UserError, match="rot13"):
        read_pickle(tmp_path / "batch")


def test_damaged_cifar_is_named(tmp_path: Path) -> None:
    pixels = np.zeros((4, 3072), dtype=np.uint8)
    contents: list[object] = [
        {"labels": [1] * 4},
        {"data": pixels},
        {"data": pixels[:, :100], "labels": [1] * 4},
        {"data": pixels.astype(np.int64), "labels": [1] * 4},
        {"data": pixels, "labels": [1] * 3},
        {"data": pixels, "labels": ["a"] * 4},
        {"data": pixels, "labels": 3},
        [pixels],
    ]
    whole = pickle.dumps({"data": pixels, "labels": [1] * 4}, protocol=2)
    damaged = [pickle.dumps(content, protocol=2) for content in contents] + [whole[:-100], whole[:5], b"", b"hello"]
    for content in damaged:
        (tmp_path / "batch").write_bytes(content)
        with pytest.raises(UserError, match="batch"):
            read_cifar(tmp_path / "batch", "labels")


LABEL_SETS = {"clean_label": np.arange(6), "worse_label": np.array([0, 1, 2, 3, 9, 9])}


@pytest.mark.parametrize("form", ["npz", "pt", "old pt"])
def test_label_sets_come_back(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"labels.{form[-3:].strip()}"
    if form == "npz":
        np.savez(path, **LABEL_SETS)  # type: ignore[arg-type]
    else:
        torch.save(LABEL_SETS, path, _use_new_zipfile_serialization=form == "pt")
    sets = read_label_sets(path)
    assert {name: labels.tolist() for name, labels in sets.items()} == {
        name: labels.tolist() for name, labels in LABEL_SETS.items()
    }
    assert all(labels.dtype == np.int64 for labels in sets.values())


def test_bad_label_files_are_named_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    torch.save({"clean_label": Malicious(trace)}, tmp_path / "malicious.pt")
    np.savez(tmp_path / "objects.npz", clean_label=np.array([Malicious(trace)], dtype=object))
    np.savez(tmp_path / "floats.npz", clean_label=np.zeros(3))
    np.savez(tmp_path / "whole.npz", **LABEL_SETS)  # type: ignore[arg-type]
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:100])
    (tmp_path / "cut.pt").write_bytes((tmp_path / "malicious.pt").read_bytes()[:100])
    torch.save([1], tmp_path / "list.pt")
    for name in (
        "malicious.pt",
        "objects.npz",
        "floats.npz",
        "cut.npz",
        "cut.pt",
        "list.pt",
        "absent.pt",
        "absent.npz",
    ):
        with pytest.raises(UserError, match=name) as caught:
            read_label_sets(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert not trace.exists()
