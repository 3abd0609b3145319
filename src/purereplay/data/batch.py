"""Batch: the only data that travels from a stream to a learner."""

from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.errors import UserError


class Batch(NamedTuple):
    """Samples as a learner sees them: no true label, no task."""

    images: Tensor  # uint8 (n, channels, height, width); feature vectors: float32 (n, features, 1, 1)
    labels: Tensor  # int64 (n,): the given labels, some of them wrong
    # int64 (n,): numbers of the samples, unique within a stream; only the judge can match them with true labels
    index: Tensor  # type: ignore[assignment]  # hides tuple's own method of that name

    @property
    def n(self) -> int:
        """Number of samples."""
        return int(self.labels.shape[0])


def check_images(images: Tensor, image_shape: tuple[int, int, int], dtype: torch.dtype = torch.uint8) -> None:
    """Raise UserError unless these are images (n, *image_shape) of this dtype, or finite feature vectors."""
    if not isinstance(images, Tensor):
        raise UserError(f"Images must be a torch tensor, not {type(images).__name__}.")
    if images.dtype != dtype or images.ndim != 4 or tuple(images.shape[1:]) != image_shape:
        raise UserError(
            f"Images must be {_name(dtype)} with shape (n, {', '.join(map(str, image_shape))}), "
            f"not {_name(images.dtype)} with shape {tuple(images.shape)}."
        )
    if dtype.is_floating_point and not bool(images.isfinite().all()):
        at = int((~images.isfinite().flatten(1).all(1)).nonzero()[0, 0])
        raise UserError(f"The feature vector in row {at} holds NaN or infinity.")


def check_batch(
    batch: Batch, image_shape: tuple[int, int, int], n_classes: int, dtype: torch.dtype = torch.uint8
) -> None:
    """Raise UserError, which names the culprit, unless a learner with these settings can take the batch."""
    images, labels, index = batch
    check_images(images, image_shape, dtype)
    if not isinstance(labels, Tensor) or not isinstance(index, Tensor):
        raise UserError("Labels and index must be torch tensors.")
    if labels.dtype != torch.int64 or index.dtype != torch.int64:
        raise UserError("Labels and index must be int64.")
    if labels.ndim != 1 or index.shape != labels.shape or images.shape[0] != labels.shape[0]:
        raise UserError(
            f"A batch needs one label and one index entry for each of its {images.shape[0]} images, "
            f"not {tuple(labels.shape)} and {tuple(index.shape)}."
        )
    wrong = ((labels < 0) | (labels >= n_classes)).nonzero()
    if wrong.numel():
        at = int(wrong[0, 0])
        raise UserError(
            f"Sample {int(index[at])} has label {int(labels[at])}, but the known labels are 0 to {n_classes - 1}."
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
