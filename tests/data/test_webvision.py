"""WebVision-14 on a small generated tree of JPEGs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from purereplay.data import webvision
from purereplay.data.catalogue import WEBVISION_CLASSES
from purereplay.data.datasets import found_at, given_labels, load
from purereplay.errors import UserError

CLASS_IDS = tuple(WEBVISION_CLASSES)


def colour(label: int, number: int) -> tuple[int, int, int]:
    return 17 * label, 255 - 17 * label, 100 * number


def write_tree(root: Path) -> None:
    """Two training images and one validation image a class, and lines of classes that do not count."""
    (root / "info").mkdir(parents=True)
    synsets = [f"n{i:08d} something else" for i in range(1000)]
    train, val = ["google/q0001/other.jpg 7"], ["val000999.jpg 999"]
    for label, (class_id, word) in enumerate(WEBVISION_CLASSES.items()):
        synsets[class_id] = f"n{class_id:08d} first name, {word}, last name"
        for number in range(2):
            name = f"google/q{class_id:04d}/image {number}.jpg"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (300 + 10 * label, 200), colour(label, number)).save(root / name, quality=95)
            train.append(f"{name} {class_id}")
        (root / "val_images").mkdir(exist_ok=True)
        Image.new("L", (50, 60), 10 * label).save(root / "val_images" / f"val{label:06d}.jpg", quality=95)
        val.append(f"val{label:06d}.jpg {class_id}")
    (root / "info" / "synsets.txt").write_text("\n".join(synsets))
    (root / "info" / "train_filelist_google.txt").write_text("\n".join(train) + "\n")
    (root / "info" / "val_filelist.txt").write_text("\n".join(val) + "\n")


@pytest.fixture
def tree(places: tuple[Path, Path]) -> Path:
    root = places[0] / "webvision14"
    write_tree(root)
    return root


def test_images_labels_and_unknown_truth(tree: Path) -> None:
    assert found_at("webvision14") == tree
    calls: list[tuple[str, int, int | None]] = []
    dataset = load("webvision14", progress=lambda *call: calls.append(call))
    assert dataset.true_labels is None
    assert not dataset.info.has_truth
    assert dataset.given_labels is not None
    assert dataset.given_labels.tolist() == [label for label in range(14) for _ in range(2)]
    assert dataset.test_labels.tolist() == list(range(14))
    assert dataset.images.shape == (28, 3, 84, 84)
    assert dataset.images.dtype == np.uint8
    for i, label in enumerate(dataset.given_labels):
        mean = dataset.images[i].mean(axis=(1, 2))
        assert np.allclose(mean, colour(int(label), i % 2), atol=3)  # JPEG rounds colours
    assert np.allclose(dataset.test_images.mean(axis=(1, 2, 3)), 10 * np.arange(14), atol=2)
    assert [call[1:] for call in calls] == [(28, 28), (14, 14)]
    assert given_labels(dataset).tolist() == dataset.given_labels.tolist()
    with pytest.raises(UserError, match="already noisy"):
        given_labels(dataset, noise="symmetric", rate=0.2)


def test_second_start_decodes_nothing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("webvision14")

    def fail(path: Path) -> np.ndarray:
        raise AssertionError(f"{path} was decoded again")

    monkeypatch.setattr(webvision, "decode", fail)
    second = load("webvision14")
    assert isinstance(second.images, np.memmap)
    assert np.array_equal(first.images, second.images)


def test_changed_lists_are_decoded_anew(tree: Path, places: tuple[Path, Path]) -> None:
    load("webvision14")
    listing = tree / "info" / "train_filelist_google.txt"
    listing.write_text("\n".join(listing.read_text().splitlines()[:5]) + "\n")
    assert load("webvision14").images.shape[0] == 4
    assert len(list((places[1] / "webvision14").glob("train-*.npy"))) == 2


def test_image_is_stretched_not_cropped(tmp_path: Path) -> None:
    wide = Image.new("RGB", (400, 100), (0, 0, 0))
    wide.paste((255, 255, 255), (0, 0, 200, 100))
    wide.save(tmp_path / "wide.png")
    pixels = webvision.decode(tmp_path / "wide.png")
    assert (pixels[:, :, :40] == 255).all()
    assert (pixels[:, :, 44:] == 0).all()


def break_image(root: Path) -> None:
    path = root / "google" / f"q{CLASS_IDS[3]:04d}" / "image 1.jpg"
    path.write_bytes(path.read_bytes()[:400])


def remove_image(root: Path) -> None:
    (root / "google" / f"q{CLASS_IDS[3]:04d}" / "image 1.jpg").unlink()


def break_listing(root: Path) -> None:
    (root / "info" / "train_filelist_google.txt").write_text("google/one.jpg\n")


def escape_listing(root: Path) -> None:
    (root / "info" / "train_filelist_google.txt").write_text("../../secret.jpg 412\n")


def empty_listing(root: Path) -> None:
    (root / "info" / "val_filelist.txt").write_text("a.jpg 0\n")


def other_synsets(root: Path) -> None:
    (root / "info" / "synsets.txt").write_text("\n".join(f"n{i:08d} class {i}" for i in range(5000)))


@pytest.mark.parametrize(
    ("damage", "culprit"),
    [
        (break_image, "image 1.jpg is missing or damaged"),
        (remove_image, "image 1.jpg is missing or damaged"),
        (break_listing, "Line 1 of .*train_filelist_google.txt"),
        (escape_listing, "points outside the folder"),
        (empty_listing, "val_filelist.txt lists no image"),
        (other_synsets, "synsets.txt is not WebVision 1.0's"),
    ],
)
def test_damage_is_named(tree: Path, places: tuple[Path, Path], damage: Callable[[Path], None], culprit: str) -> None:
    damage(tree)
    with pytest.raises(UserError, match=culprit):
        load("webvision14")


def test_damaged_cache_is_named(tree: Path, places: tuple[Path, Path]) -> None:
    load("webvision14")
    (decoded,) = (places[1] / "webvision14").glob("train-*.npy")
    decoded.write_bytes(decoded.read_bytes()[:1000])
    with pytest.raises(UserError, match="delete it"):
        load("webvision14")
