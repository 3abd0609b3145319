"""Datasets by name, from generated files in the official formats and, where they are at hand, from the real ones."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from purereplay.data.datasets import INFOS, found_at, given_labels, info_for, load, names
from purereplay.errors import UserError

Write = Callable[[Path, dict[str, bytes]], Path]
REAL = os.environ.get("PUREREPLAY_DATA")


def test_registry_is_consistent() -> None:
    assert names() == tuple(INFOS)
    for name, info in INFOS.items():
        assert info.name == name
        assert info.n_classes == {"cifar100": 100, "cifar100n": 100, "webvision14": 14}.get(name, 10)
        assert len(set(info.class_names)) == info.n_classes
        assert (info.mean is None) == (info.std is None) == (name != "webvision14")
        assert info.licence and info.home.startswith("http") and info.how
    assert np.bincount(INFOS["cifar100"].superclass or ()).tolist() == [5] * 20


def test_unknown_name_lists_the_known_ones() -> None:
    for call in (load, found_at, info_for):
        with pytest.raises(UserError, match=r"'imagenet' is unknown: choose one of digits, mnist, .*cifar100n"):
            call("imagenet")


def test_digits_split_is_fixed_stratified_and_complete() -> None:
    digits = load("digits", download=False)
    assert digits.true_labels is not None
    assert digits.images.shape == (1437, 1, 8, 8)
    assert digits.test_images.shape == (360, 1, 8, 8)
    assert (digits.images.min(), digits.images.max()) == (0, 255)
    assert set(np.unique(digits.images)) <= {round(v * 255 / 16) for v in range(17)}
    train, test = np.bincount(digits.true_labels), np.bincount(digits.test_labels)
    assert np.all(np.abs(test - (train + test) / 5) <= 1)
    assert int(digits.test_labels[:50] @ np.arange(50)) == 5479  # recorded: a moved split must show
    assert (digits.info.n_train, digits.info.n_test) == (1437, 360)
    place = found_at("digits")
    assert place is not None and place.is_dir()


@pytest.mark.parametrize("below", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mnist(
    places: tuple[Path, Path], write_mnist: Callable[..., dict[str, np.ndarray]], below: str, suffix: str
) -> None:
    assert found_at("mnist") is None
    arrays = write_mnist(places[0] / below, suffix)
    assert found_at("mnist") == places[0] / below
    mnist = load("mnist", download=False)
    assert np.array_equal(mnist.images[:, 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(mnist.test_images[:, 0], arrays["t10k-images-idx3-ubyte"])
    assert mnist.true_labels is not None
    assert mnist.true_labels.tolist() == arrays["train-labels-idx1-ubyte"].tolist()
    assert mnist.true_labels.dtype == mnist.test_labels.dtype == np.int64
    assert mnist.given_labels is None


def test_mnist_that_does_not_hang_together(
    places: tuple[Path, Path],
    write_mnist: Callable[..., dict[str, np.ndarray]],
    write_idx: Callable[[Path, np.ndarray], Path],
) -> None:
    for name, array, culprit in [
        ("train-labels-idx1-ubyte.gz", np.zeros(29), "29 labels"),
        ("t10k-images-idx3-ubyte.gz", np.zeros((10, 8, 8)), "8 × 8"),
        ("train-labels-idx1-ubyte.gz", np.full(30, 10), "outside 0–9"),
    ]:
        write_mnist(places[0] / "mnist")
        write_idx(places[0] / "mnist" / name, array)
        with pytest.raises(UserError, match=culprit):
            load("mnist", download=False)


@pytest.mark.usefixtures("unofficial")
@pytest.mark.parametrize("below", ["cifar10", "cifar10/cifar-10-batches-py", "cifar-10-batches-py", "."])
def test_cifar10(places: tuple[Path, Path], write_files: Write, cifar10_files: dict[str, bytes], below: str) -> None:
    write_files(places[0] / below, cifar10_files)
    cifar = load("cifar10", download=False)
    batches = [pickle.loads(cifar10_files[f"data_batch_{i}"]) for i in range(1, 6)]
    assert np.array_equal(cifar.images.reshape(40, -1), np.concatenate([batch["data"] for batch in batches]))
    assert cifar.true_labels is not None
    assert cifar.true_labels.tolist() == [label for batch in batches for label in batch["labels"]]
    assert cifar.test_labels.tolist() == pickle.loads(cifar10_files["test_batch"])["labels"]


@pytest.mark.usefixtures("unofficial")
def test_truncated_cifar10_is_named(
    places: tuple[Path, Path], write_files: Write, cifar10_files: dict[str, bytes]
) -> None:
    cifar10_files["data_batch_3"] = cifar10_files["data_batch_3"][:2000]
    write_files(places[0] / "cifar10", cifar10_files)
    with pytest.raises(UserError, match="data_batch_3 is truncated"):
        load("cifar10", download=False)
    (places[0] / "cifar10" / "data_batch_3").unlink()
    with pytest.raises(UserError, match="CIFAR-10 was not found"):
        load("cifar10", download=False)


@pytest.mark.usefixtures("unofficial")
def test_cifar100(places: tuple[Path, Path], write_files: Write, cifar100_files: dict[str, bytes]) -> None:
    write_files(places[0] / "cifar-100-python", cifar100_files)
    cifar = load("cifar100", download=False)
    content = pickle.loads(cifar100_files["train"])
    assert np.array_equal(cifar.images.reshape(20, -1), content["data"])
    assert cifar.true_labels is not None
    assert cifar.true_labels.tolist() == content["fine_labels"]
    content["coarse_labels"][4] ^= 1
    (places[0] / "cifar-100-python" / "train").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError, match=r"train is damaged: its coarse labels"):
        load("cifar100", download=False)


@pytest.mark.usefixtures("unofficial")
@pytest.mark.parametrize("form", ["npz", "pt"])
@pytest.mark.parametrize("below", ["cifar-n", "cifar10n"])
def test_cifar10n(
    places: tuple[Path, Path], write_files: Write, cifar10_files: dict[str, bytes], form: str, below: str
) -> None:
    write_files(places[0] / "cifar10", cifar10_files)
    assert found_at("cifar10n") is None
    truth = load("cifar10", download=False).true_labels
    assert truth is not None
    keys = ["worse_label", "aggre_label", "random_label1", "random_label2", "random_label3"]
    sets = {"clean_label": truth} | {key: (truth + 1 + i) % 10 for i, key in enumerate(keys)}
    folder = places[0] / below
    folder.mkdir()

    def write() -> None:
        if form == "pt":
            torch.save(sets, folder / "CIFAR-10_human.pt")
        else:
            np.savez(folder / "cifar10n_labels.npz", **sets)  # type: ignore[arg-type]

    write()
    variants = ["cifar10n", "cifar10n-aggregate", "cifar10n-random1", "cifar10n-random2", "cifar10n-random3"]
    for i, name in enumerate(variants):
        dataset = load(name, download=False)
        assert found_at(name) == folder
        assert dataset.true_labels is not None and dataset.given_labels is not None
        assert np.array_equal(dataset.true_labels, truth)
        assert np.array_equal(dataset.given_labels, (truth + 1 + i) % 10)
        assert np.array_equal(given_labels(dataset), dataset.given_labels)
    sets["clean_label"] = np.roll(truth, 1)
    write()
    with pytest.raises(UserError, match="order differs"):
        load("cifar10n", download=False)


def test_given_labels_depend_on_seed_and_leave_the_truth_alone() -> None:
    digits = load("digits")
    assert digits.true_labels is not None
    truth = digits.true_labels.copy()
    noisy = given_labels(digits, noise="symmetric", rate=0.4, seed=1)
    assert np.array_equal(noisy, given_labels(digits, noise="symmetric", rate=0.4, seed=1))
    assert not np.array_equal(noisy, given_labels(digits, noise="symmetric", rate=0.4, seed=2))
    assert np.sum(noisy != truth) == sum(round(0.4 * n) for n in np.bincount(truth))
    assert np.array_equal(digits.true_labels, truth)
    assert np.array_equal(given_labels(digits), truth)
    with pytest.raises(UserError, match="superclass"):
        given_labels(digits, noise="superclass", rate=0.4)


@pytest.mark.skipif(not REAL, reason="PUREREPLAY_DATA is not set: the real files are not at hand")
@pytest.mark.parametrize(
    ("name", "wrong"), [("mnist", 0), ("cifar10", 0), ("cifar10n", 0.4021), ("cifar10n-aggregate", 0.0901)]
)
def test_real_files(name: str, wrong: float) -> None:
    if found_at(name) is None:
        pytest.skip(f"{name} is not under PUREREPLAY_DATA")
    dataset = load(name, download=False)
    info = dataset.info
    assert dataset.images.shape == (info.n_train, *info.shape)
    assert dataset.test_images.shape == (info.n_test, *info.shape)
    assert dataset.true_labels is not None
    assert np.bincount(dataset.true_labels).sum() == info.n_train
    if dataset.given_labels is not None:
        assert np.mean(dataset.given_labels != dataset.true_labels) == pytest.approx(wrong, abs=1e-4)


@pytest.mark.skipif(not REAL, reason="PUREREPLAY_DATA is not set: the real files are not at hand")
def test_superclasses_are_those_of_the_real_labels() -> None:
    path = Path(REAL or "") / "cifar-n" / "cifar100n_labels.npz"
    if not path.exists():
        pytest.skip("CIFAR-100N is not under PUREREPLAY_DATA")
    with np.load(path, allow_pickle=False) as sets:
        superclass = np.array(INFOS["cifar100"].superclass)
        assert np.array_equal(superclass[sets["clean_label"]], sets["clean_coarse_label"])
