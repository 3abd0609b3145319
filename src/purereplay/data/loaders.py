"""Loaders: from the official files in a folder to images uint8 (N, C, H, W) and labels int64 (N,).

One function per dataset, called by `datasets`. Each checks that its files are consistent, and names the file that is
not.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data import official, readers
from purereplay.data.catalogue import CIFAR100_SUPERCLASS
from purereplay.data.seeds import derive_seed
from purereplay.data.sources import Source, known_checksum
from purereplay.errors import UserError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Parts(NamedTuple):
    """Training and test part of a dataset."""

    images: Images
    labels: Labels
    test_images: Images
    test_labels: Labels


def read_digits() -> Parts:
    """Return scikit-learn's digits, scaled from 0 … 16 to 0 … 255, in a fixed split of 1,437 and 360.

    The samples are sorted by class, then by a hash of their position; every fifth is a test sample. So each class gives
    a fifth of its samples, plus or minus one, and the split does not depend on a library's random numbers.
    """
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    images = np.rint(pixels.reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8)
    labels = targets.astype(np.int64)
    order = sorted(range(len(labels)), key=lambda i: (int(labels[i]), derive_seed("digits split", i)))
    test = np.sort(np.array(order[::5]))
    train = np.setdiff1d(np.arange(len(labels)), test)
    return Parts(images[train], labels[train], images[test], labels[test])


def read_mnist(folder: Path) -> Parts:
    """Read the four IDX files, gzipped or not."""
    return Parts(*_read_mnist_part(folder, "train"), *_read_mnist_part(folder, "t10k"))


def read_cifar10(folder: Path) -> Parts:
    """Read the five training batches in order, and the test batch."""
    images, labels = [], []
    for number in range(1, 6):
        batch_images, (batch_labels,) = _read_cifar(official.CIFAR10, folder / f"data_batch_{number}", "labels")
        images.append(batch_images)
        labels.append(batch_labels)
    test_images, (test_labels,) = _read_cifar(official.CIFAR10, folder / "test_batch", "labels")
    return Parts(np.concatenate(images), np.concatenate(labels), test_images, test_labels)


def read_cifar100(folder: Path) -> Parts:
    """Read the fine labels, and check that the coarse ones are the known superclasses."""
    return Parts(*_read_cifar100_part(folder / "train"), *_read_cifar100_part(folder / "test"))


def read_human_labels(folder: Path, base: str, label_set: str, *, true_labels: Labels) -> Labels:
    """Read CIFAR-N's `label_set` for `base` ("cifar10" or "cifar100"), and check that it is in the official order."""
    candidates = (folder / f"CIFAR-{base.removeprefix('cifar')}_human.pt", folder / f"{base}n_labels.npz")
    path = next(candidate for candidate in candidates if candidate.is_file())
    source = {"cifar10": official.CIFAR10N, "cifar100": official.CIFAR100N}[base]
    sets = readers.read_label_sets(path, checksum=known_checksum(source, path.name))
    for key in ("clean_label", label_set):
        if key not in sets:
            raise UserError(f"{path} has no labels called {key!r}.")
    if not np.array_equal(sets["clean_label"], true_labels):
        raise UserError(f"The clean labels in {path} are not those of the official {base} files, so its order differs.")
    if sets[label_set].shape != true_labels.shape:
        raise UserError(f"{path} has {len(sets[label_set])} labels for {len(true_labels)} images.")
    return sets[label_set]


def _read_cifar(source: Source, path: Path, *label_keys: str) -> tuple[Images, tuple[Labels, ...]]:
    """Read a pickled batch, after its checksum was compared with the official one."""
    return readers.read_cifar(path, *label_keys, checksum=known_checksum(source, path.name))


def _read_mnist_part(folder: Path, prefix: str) -> tuple[Images, Labels]:
    paths = [folder / f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    images_path, labels_path = (path if path.exists() else path.with_suffix("") for path in paths)
    images = readers.read_idx(images_path, n_dims=3)[:, None]
    labels = readers.read_idx(labels_path, n_dims=1).astype(np.int64)
    if images.shape[1:] != (1, 28, 28):
        raise UserError(f"{images_path} holds images of {images.shape[2]} × {images.shape[3]} pixels, not 28 × 28.")
    if len(images) != len(labels):
        raise UserError(f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} labels.")
    return images, labels


def _read_cifar100_part(path: Path) -> tuple[Images, Labels]:
    images, (fine, coarse) = _read_cifar(official.CIFAR100, path, "fine_labels", "coarse_labels")
    if not np.array_equal(coarse, np.array(CIFAR100_SUPERCLASS)[np.clip(fine, 0, 99)]):
        raise UserError(f"{path} is damaged: its coarse labels are not the superclasses of its fine ones.")
    return images, fine
