"""Small datasets in the official formats, written by the tests themselves."""

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from purereplay.data.catalogue import CIFAR100_SUPERCLASS


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty data folder and an empty cache folder, set in the environment."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("PUREREPLAY_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return data, cache / "purereplay"


@pytest.fixture
def unofficial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept small files of the tests instead of official ones with known checksums."""
    monkeypatch.setattr("purereplay.data.loaders.known_checksum", lambda source, name: None)


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def write_idx() -> Callable[[Path, np.ndarray], Path]:
    def write(path: Path, array: np.ndarray) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = idx_bytes(array)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return write


@pytest.fixture
def write_mnist(write_idx: Callable[[Path, np.ndarray], Path]) -> Callable[[Path], dict[str, np.ndarray]]:
    def write(folder: Path, suffix: str = ".gz") -> dict[str, np.ndarray]:
        rng = np.random.default_rng(1)
        arrays = {
            "train-images-idx3-ubyte": rng.integers(0, 256, (30, 28, 28)),
            "train-labels-idx1-ubyte": np.arange(30) % 10,
            "t10k-images-idx3-ubyte": rng.integers(0, 256, (10, 28, 28)),
            "t10k-labels-idx1-ubyte": np.arange(10),
        }
        for name, array in arrays.items():
            write_idx(folder / (name + suffix), array)
        return arrays

    return write


def cifar_bytes(n: int, *, seed: int, protocol: int = 2, fine: bool = False) -> bytes:
    """A batch of `n` random images as CIFAR's authors pickled them."""
    rng = np.random.default_rng(seed)
    content: dict[str, object] = {"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8)}
    if fine:
        labels = rng.integers(0, 100, n).tolist()
        content |= {"fine_labels": labels, "coarse_labels": [CIFAR100_SUPERCLASS[label] for label in labels]}
    else:
        content["labels"] = rng.integers(0, 10, n).tolist()
    return pickle.dumps(content, protocol=protocol)


@pytest.fixture
def cifar10_files() -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {name: cifar_bytes(8, seed=seed) for seed, name in enumerate(names)}


@pytest.fixture
def cifar100_files() -> dict[str, bytes]:
    return {"train": cifar_bytes(20, seed=1, fine=True), "test": cifar_bytes(10, seed=2, fine=True)}


@pytest.fixture
def write_files() -> Callable[[Path, dict[str, bytes]], Path]:
    def write(folder: Path, files: dict[str, bytes]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return write


@pytest.fixture
def tar_bytes() -> Callable[[dict[str, bytes]], bytes]:
    def pack(members: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return buffer.getvalue()

    return pack
