"""Runs on the features of an encoder: the images of a dataset become feature vectors before the stream begins.

In: a dataset and the encoder of a run. Out: the same dataset with vectors float32 (N, D, 1, 1) as its images. They are
standardised by mean and standard deviation of the training images, as pixels are; labels are not used. Features come
from the cache of encoders if the images were encoded before.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from purereplay.data.datasets import Dataset
from purereplay.data.encoders import CheckedEncoder, EncoderFacts, as_encoder, check_same, reopen
from purereplay.data.encoders.arrays import embedded
from purereplay.data.features import write_rows
from purereplay.data.progress import Progress
from purereplay.data.scale import fit_scale
from purereplay.errors import InputError, UserError

_named: dict[str, CheckedEncoder] = {}  # encoders that the user of this process has named, by digest


def name_encoder(text: str, *, again: bool = False) -> EncoderFacts:
    """Open an encoder that the user has named, also one that runs code; UserError if it cannot be used.

    `again`: whether it is the encoder of a saved run.
    """
    if text.startswith("file:"):
        raise UserError(f"A run takes no encoder {text}: its filter compares a file of features with --features-file.")
    found = as_encoder(text, again=again)
    _named[found.digest] = found
    return EncoderFacts(found.text, found.digest, found.dim, found.size)


def name_again(text: str, facts: EncoderFacts | None, owner: object) -> None:
    """Open the encoder of a saved run, which the user names again; UserError if it is another one."""
    if facts is None:
        raise UserError(f"{owner} has no encoder: leave --encoder out.")
    check_same(_named[name_encoder(text, again=True).digest], facts.text, facts.digest, str(owner))


def encode(dataset: Dataset, facts: EncoderFacts, progress: Progress | None = None) -> Dataset:
    """Return a dataset whose images are the features of an encoder."""
    encoder = _named.get(facts.digest) or reopen(facts.text, facts.digest, "The run")
    if not isinstance(encoder, CheckedEncoder):
        raise UserError(f"The encoder {facts.text} holds features of files, which a run does not read.")
    parts = [
        _embedded(encoder, images, dataset, progress).double()[:, :, None, None]
        for images in (dataset.images, dataset.test_images)
    ]
    scale = fit_scale(parts[0])
    training, test = (scale.apply(part).numpy() for part in parts)
    return replace(dataset, images=training, test_images=test)


def write_features(path: Path, dataset: Dataset, facts: EncoderFacts, progress: Progress | None = None) -> None:
    """Write the features of all training images, in the dataset's order, as a file for `--features-file`."""
    features = _embedded(_named[facts.digest], dataset.images, dataset, progress)
    write_rows(path, features.numpy(), facts.name, facts.digest)


def _embedded(
    encoder: CheckedEncoder, images: NDArray[Any], dataset: Dataset, progress: Progress | None
) -> torch.Tensor:
    try:
        return embedded(encoder, list(images), progress)
    except InputError as error:
        raise UserError(str(error).replace(" of X ", f" of {dataset.info.name} ", 1)) from None
