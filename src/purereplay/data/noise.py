"""Label noise: from the true labels of a dataset to the given labels of a stream (paper, section 5.1).

In: true labels and a generator. Out: new labels, in which exactly round(rate × n) samples of each affected class have a
different label. All functions are pure. Noise is added before a stream is split into tasks, so symmetric noise brings
images of every class into every task.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from purereplay.errors import UserError

Labels = NDArray[np.int64]
KINDS = ("none", "symmetric", "asymmetric", "superclass")


def corrupt(
    kind: str,
    labels: Labels,
    rate: float,
    generator: np.random.Generator,
    *,
    n_classes: int,
    mapping: Mapping[int, int] | None = None,
    superclass: Sequence[int] | None = None,
) -> Labels:
    """Return new labels (n,) in which `rate` of each affected class is wrong; `kind` is one of `KINDS`.

    "asymmetric" needs `mapping` (class → class), "superclass" needs `superclass` (one id per class).
    """
    if kind not in KINDS:
        raise UserError(f"The noise {kind!r} is unknown: choose one of {', '.join(KINDS)}.")
    if not 0.0 <= rate <= 1.0:  # also false for NaN
        raise UserError(f"The noise rate {rate} is outside [0, 1].")
    if kind == "symmetric":
        return symmetric(labels, rate, generator, n_classes=n_classes)
    if kind == "asymmetric":
        if mapping is None:
            raise UserError("Asymmetric noise needs a class mapping, which this dataset does not have.")
        return asymmetric(labels, rate, generator, mapping=mapping)
    if kind == "superclass":
        if superclass is None:
            raise UserError("Superclass noise needs superclasses, which this dataset does not have.")
        return within_superclass(labels, rate, generator, superclass=superclass)
    return labels.copy()


def symmetric(labels: Labels, rate: float, generator: np.random.Generator, *, n_classes: int) -> Labels:
    """Give `rate` of each class one of the other classes, uniformly."""

    def other(label: int, n: int) -> Labels:
        return (label + generator.integers(1, n_classes, size=n)) % n_classes

    if n_classes < 2:
        raise UserError("Symmetric noise needs at least two classes.")
    return _flip(labels, rate, generator, classes=range(n_classes), draw=other)


def asymmetric(labels: Labels, rate: float, generator: np.random.Generator, *, mapping: Mapping[int, int]) -> Labels:
    """Give `rate` of each class in `mapping` the class it is mistaken for; other classes stay clean."""

    def mistaken(label: int, n: int) -> Labels:
        return np.full(n, mapping[label], dtype=np.int64)

    if any(label == target for label, target in mapping.items()):
        raise UserError("A class mapping for asymmetric noise must not map a class to itself.")
    return _flip(labels, rate, generator, classes=sorted(mapping), draw=mistaken)


def within_superclass(
    labels: Labels, rate: float, generator: np.random.Generator, *, superclass: Sequence[int]
) -> Labels:
    """Give `rate` of each class one of the other classes of its superclass, uniformly."""
    groups = np.asarray(superclass)

    def sibling(label: int, n: int) -> Labels:
        siblings = np.flatnonzero(groups == groups[label])
        siblings = siblings[siblings != label]
        if n and not len(siblings):
            raise UserError(f"Class {label} is alone in its superclass, so superclass noise cannot change it.")
        return generator.choice(siblings, size=n).astype(np.int64) if n else np.empty(0, dtype=np.int64)

    return _flip(labels, rate, generator, classes=range(len(groups)), draw=sibling)


def _flip(
    labels: Labels,
    rate: float,
    generator: np.random.Generator,
    *,
    classes: Sequence[int],
    draw: Callable[[int, int], Labels],
) -> Labels:
    """Replace a random round(rate × n) labels of each of `classes` by `draw(label, number)`."""
    noisy = np.array(labels, dtype=np.int64)
    for label in classes:
        members = np.flatnonzero(labels == label)
        chosen = generator.permutation(members)[: round(rate * len(members))]
        noisy[chosen] = draw(label, len(chosen))
    return noisy
