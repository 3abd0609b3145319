"""Datasets by name: the start of a sample's way (paper, section 5.1).

In: a name. Out: a `Dataset`: uint8 images with true labels if they are known, and given labels if the data come with
noisy ones. `given_labels` returns the labels of a stream; from there on only the judge has the truth. CIFAR-10N's five
label sets are five names: `cifar10n` (the worst), `cifar10n-aggregate`, `cifar10n-random1` … 3.
"""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purereplay.data import loaders, official, sources, webvision
from purereplay.data.catalogue import INFOS, DatasetInfo, info_for
from purereplay.data.loaders import Parts
from purereplay.data.noise import corrupt
from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.data.sources import Source
from purereplay.errors import UserError

__all__ = [
    "INFOS",
    "Dataset",
    "DatasetInfo",
    "clean_index",
    "found_at",
    "given_labels",
    "info_for",
    "load",
    "names",
    "validation",
]

Images = NDArray[Any]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images and labels as loaded; the sizes are those of the files."""

    info: DatasetInfo
    # uint8 (N, C, H, W), WebVision's as a read-only memory map; or feature vectors float32 (N, D, 1, 1)
    images: Images
    true_labels: Labels | None  # (N,); None: unknown
    given_labels: Labels | None  # (N,); None: clean data, to which noise can be added
    test_images: Images
    test_labels: Labels
    held_out: NDArray[np.int64] | None = None  # rows of the training files that became `test_images`; see `validation`


# files that each dataset needs; digits need none
_SOURCES: dict[str, tuple[Source, ...]] = {
    "digits": (),
    "mnist": (official.MNIST,),
    "cifar10": (official.CIFAR10,),
    "cifar100": (official.CIFAR100,),
    "webvision14": (official.WEBVISION,),
    "cifar10n": (official.CIFAR10, official.CIFAR10N),
    "cifar100n": (official.CIFAR100, official.CIFAR100N),
}
_READERS = {"mnist": loaders.read_mnist, "cifar10": loaders.read_cifar10, "cifar100": loaders.read_cifar100}
_LABEL_SETS = {  # in CIFAR-N's files
    "cifar10n": "worse_label",
    "cifar10n-aggregate": "aggre_label",
    "cifar10n-random1": "random_label1",
    "cifar10n-random2": "random_label2",
    "cifar10n-random3": "random_label3",
    "cifar100n": "noisy_label",
}


def names() -> tuple[str, ...]:
    """Return the names of all datasets."""
    return tuple(INFOS)


def found_at(name: str) -> Path | None:
    """Return the folder of the dataset's files, or None if they are missing; `info_for(name).how` says how to get them.

    Only checks names and opens no file. For CIFAR-N it is the folder of the labels, for a packed archive the archive.
    """
    wanted = _sources(name)
    if not wanted:
        package = find_spec("sklearn")  # located, not imported: importing takes a second
        return None if package is None or package.origin is None else Path(package.origin).parent / "datasets" / "data"
    places = [sources.find(source) or sources.find_archive(source) for source in wanted]
    return places[-1] if all(place is not None for place in places) else None


def load(name: str, *, progress: Progress | None = None, download: bool = True) -> Dataset:
    """Read the dataset; missing files are downloaded first if `download` allows it."""
    info, wanted = info_for(name), _sources(name)
    folders = [sources.obtain(source, progress=progress, allow_download=download) for source in wanted]
    base = name.partition("-")[0].removesuffix("n") if name in _LABEL_SETS else name
    parts = _parts(base, folders[0] if folders else None, progress)
    given: Labels | None = None
    if name in _LABEL_SETS:
        given = loaders.read_human_labels(folders[1], base, _LABEL_SETS[name], true_labels=parts.labels)
    elif info.noisy:
        given = parts.labels
    for labels in (parts.labels, parts.test_labels, given):
        if labels is not None and len(labels) and not 0 <= labels.min() <= labels.max() < info.n_classes:
            raise UserError(
                f"The files of {name} in {folders[-1]} are damaged: a label is outside 0–{info.n_classes - 1}."
            )
    return Dataset(
        info=info,
        images=parts.images,
        true_labels=parts.labels if info.has_truth else None,
        given_labels=given,
        test_images=parts.test_images,
        test_labels=parts.test_labels,
    )


def given_labels(dataset: Dataset, *, noise: str = "none", rate: float = 0.0, seed: int = 0) -> Labels:
    """Return the labels of a stream (N,): the dataset's own if they are noisy, else the true ones with noise added."""
    info = dataset.info
    if dataset.given_labels is not None or dataset.true_labels is None:
        if noise != "none" or dataset.given_labels is None:
            raise UserError(f"The labels of {info.name} are already noisy: use the noise 'none', not {noise!r}.")
        return dataset.given_labels.copy()
    return corrupt(
        noise,
        dataset.true_labels,
        rate,
        np.random.default_rng(derive_seed(seed, "noise")),
        n_classes=info.n_classes,
        mapping=info.asymmetric,
        superclass=info.superclass,
    )


def clean_index(dataset: Dataset, n_each: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of `n_each` random samples per true class, int64, for learners that need clean samples."""
    info, labels = dataset.info, dataset.true_labels
    if labels is None:
        raise UserError(f"The true labels of {info.name} are unknown, so no clean samples can be drawn from it.")
    rng = np.random.default_rng(derive_seed(seed, "clean samples"))
    chosen = []
    for c in np.unique(labels).tolist():
        members = np.flatnonzero(labels == c)
        if len(members) <= n_each:
            raise UserError(
                f"Class {c} of {info.name} has {len(members)} samples: {n_each} clean samples would leave none."
            )
        chosen.append(rng.choice(members, n_each, replace=False))
    return np.concatenate(chosen).astype(np.int64)


def validation(dataset: Dataset) -> Dataset:
    """Return the dataset for choosing settings: a tenth of each class of the training data replaces the test set.

    It is the same tenth for every seed.
    """
    labels = dataset.true_labels
    if labels is None:
        raise UserError(f"The true labels of {dataset.info.name} are unknown, so it has no validation data.")
    rng = np.random.default_rng(derive_seed(0, "validation"))
    members = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    out = np.sort(np.concatenate([rng.choice(rows, -(-len(rows) // 10), replace=False) for rows in members]))
    return replace(
        dataset,
        images=np.delete(dataset.images, out, axis=0),
        true_labels=np.delete(labels, out),
        given_labels=None if dataset.given_labels is None else np.delete(dataset.given_labels, out),
        test_images=dataset.images[out],
        test_labels=labels[out],
        held_out=out,
    )


def _sources(name: str) -> tuple[Source, ...]:
    return _SOURCES[info_for(name).name.partition("-")[0]]


def _parts(base: str, folder: Path | None, progress: Progress | None) -> Parts:
    """Return images and labels of the dataset with files in `folder`."""
    if folder is None:
        return loaders.read_digits()
    if base == "webvision14":
        images, labels = webvision.load_part(folder, progress=progress, train=True)
        test_images, test_labels = webvision.load_part(folder, progress=progress, train=False)
        return Parts(images, labels, np.array(test_images), test_labels)
    return _READERS[base](folder)
