"""Self-Centered filter as an estimator for any number of samples; classes are scored a few at a time.

In: features (n, d), for example of your own network, and given labels (n,). Out: a clean probability and a centrality
per sample (high = clean), as `self_centered.score_samples` computes them for one buffer. Large classes are split into
blocks (see `blocks`), which bounds memory and time per sample.

Features are prepared first: the main directions of all samples (see `directions`); `prepare="none"` leaves them as they
are. Given prepared features, the result of a class does not depend on other classes, their order, or the number of
threads, to the last bit. Each
thread computes a batch of blocks alone, and random numbers are named by (seed, label, block, graph). A class of one
block gets exactly the result of `score_samples`. Within a class, the order of the samples decides which random numbers
each of them gets, like a change of seed.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from purereplay.data.features import first_not_finite
from purereplay.data.labels import is_missing
from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.purify.blocks import Block, batches, cut
from purereplay.purify.directions import MOST_FEATURES, Directions
from purereplay.purify.graph import seed_part
from purereplay.purify.options import (
    BLOCK_SIZE,
    DEFAULTS,
    PREPARATION,
    FilterOptions,
    Posterior,
    Preparation,
    Scaling,
    SmallClass,
    check_choice,
)
from purereplay.purify.self_centered import members_of, score_buffers, select

_ENTRIES = 2**23  # matrix entries that a thread holds at once (64 MiB); a larger graph is still built whole
_MAX_THREADS = 8  # default limit: each thread needs about 0.2 GB at blocks of 2,048
_THREADS_LOCK = threading.Lock()  # PyTorch's number of threads belongs to the process


class SelfCenteredFilter(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Clean probability of each sample, in memory that does not grow with the number of classes.

    The clean probability sorts samples and is not calibrated: on data without wrong labels its mean is about one half.

    Parameters:
        n_graphs: stochastic graphs per class; 0 or None uses the similarity graph itself
        seed: of the graphs, the blocks and the selection
        small_class, scaling, posterior, n_iter: see `FilterOptions` and `beta_mixture`
        prepare: "directions" compares the main directions of the features, centred and partly whitened (see
            `directions`); "none" compares the features as given, as the paper does
        block_size: largest number of samples that are compared with each other
        n_jobs: threads; None uses as many as PyTorch has, at most 8

    Attributes after `fit`:
        clean_probability_: float64 (n,) in [0, 1], high = clean
        centrality_: float64 (n,) > 0, high = central; 1 is the root mean square within a block and graph
        classes_: (k,), sorted if the labels can be compared, else in order of first appearance
        class_sizes_, n_blocks_: (k,), samples and blocks of each class
        converged_: bool (k,), whether all centralities and mixtures of the class converged. With the default of ten
            steps many mixtures of large classes do not; their posterior is used all the same.
        n_features_in_: int
        preparation_: str, what was done; "none" also for features wider than 16,384
    """

    clean_probability_: NDArray[np.float64]
    centrality_: NDArray[np.float64]
    classes_: NDArray[Any]
    class_sizes_: NDArray[np.int64]
    n_blocks_: NDArray[np.int64]
    converged_: NDArray[np.bool_]
    n_features_in_: int
    preparation_: Preparation

    def __init__(
        self,
        *,
        n_graphs: int | None = DEFAULTS.n_graphs,
        seed: int = 0,
        small_class: SmallClass = DEFAULTS.small_class,
        scaling: Scaling = DEFAULTS.scaling,
        posterior: Posterior = DEFAULTS.posterior,
        n_iter: int = DEFAULTS.n_iter,
        prepare: Preparation = PREPARATION,
        block_size: int = BLOCK_SIZE,
        n_jobs: int | None = None,
    ) -> None:
        self.n_graphs = n_graphs
        self.seed = seed
        self.small_class = small_class
        self.scaling = scaling
        self.posterior = posterior
        self.n_iter = n_iter
        self.prepare = prepare
        self.block_size = block_size
        self.n_jobs = n_jobs

    def fit(
        self, features: ArrayLike | Tensor, labels: ArrayLike | Tensor, *, progress: Progress | None = None
    ) -> Self:
        """Score features (n, d), real and finite, with given labels (n,), hashable and none missing.

        Features keep their dtype, and a memory map stays on disk; the computation is in float64. `progress` is called
        after each batch of blocks.
        """
        if self.n_jobs is not None and self.n_jobs < 1:
            raise UserError(f"n_jobs is {self.n_jobs}, but must be at least 1.")
        check_choice("prepare", self.prepare, get_args(Preparation))
        values = _checked_matrix(features)
        members = _checked_classes(labels, len(values))
        cuts = {label: cut(label, rows, self.block_size, int(self.seed)) for label, rows in members.items()}
        probability, centrality = np.empty(len(values)), np.empty(len(values))
        blocks = [block for own in cuts.values() for block in own]
        prepares = self.prepare == "directions" and values.shape[1] <= MOST_FEATURES
        directions = Directions.fit(values, int(self.seed)) if prepares else None
        converged = self._score(blocks, values, directions, probability, centrality, progress)
        self.clean_probability_, self.centrality_ = probability, centrality
        self.classes_ = _with_dtype_of(labels, list(members))
        self.class_sizes_ = np.array([len(rows) for rows in members.values()])
        self.n_blocks_ = np.array([len(own) for own in cuts.values()])
        self.converged_ = np.array([converged[label] for label in members])
        self.n_features_in_ = values.shape[1]
        self.preparation_ = "none" if directions is None else self.prepare
        self._members = members
        return self

    def select(self, seed: int | None = None) -> NDArray[np.bool_]:
        """Return a bool mask (n,) of the samples selected, each with its own clean probability.

        `seed` None uses the filter's own. The draws of a class do not depend on other classes either.
        """
        if not hasattr(self, "clean_probability_"):
            raise UserError("The filter must be fitted before it can select.")
        mask = np.empty(len(self.clean_probability_), dtype=bool)
        for label, rows in self._members.items():
            own = derive_seed(int(self.seed if seed is None else seed), "class", seed_part(label))
            mask[rows] = select(self.clean_probability_[rows], own)
        return mask

    def _score(
        self,
        blocks: Sequence[Block],
        features: NDArray[Any],
        directions: Directions | None,
        probability: NDArray[np.float64],
        centrality: NDArray[np.float64],
        progress: Progress | None,
    ) -> dict[Hashable, bool]:
        """Fill in probability and centrality (n,); return for each class whether all its fits converged."""
        options = FilterOptions(
            n_graphs=int(self.n_graphs or 0),
            small_class=self.small_class,
            scaling=self.scaling,
            posterior=self.posterior,
            n_iter=self.n_iter,
        )

        def score_batch(batch: list[Block]) -> list[tuple[Hashable, bool]]:
            verdicts = score_buffers(
                [_prepared(_rows_of(features, block.rows), directions) for block in batch],
                [_repeated(block.label, len(block.rows)) for block in batch],
                [block.seed for block in batch],
                options=options,
                max_entries=_ENTRIES,
            )
            for block, verdict in zip(batch, verdicts, strict=True):
                probability[block.rows], centrality[block.rows] = verdict.clean_probability, verdict.centrality
            fits = [verdict.fits[0] for verdict in verdicts]
            return [(fit.label, all(fit.converged) and all(fit.central)) for fit in fits]

        width = features.shape[1] if directions is None else max(1, directions.projection.shape[1])
        work = list(batches(blocks, options.n_graphs, width, _ENTRIES // 2))
        converged: dict[Hashable, bool] = {}
        done, total = 0, sum(amount for _, amount in work)
        with _THREADS_LOCK:
            n_before = torch.get_num_threads()
            torch.set_num_threads(1)  # inherited by the threads of the pool
            pool = ThreadPoolExecutor(self.n_jobs or min(n_before, _MAX_THREADS))
            try:
                waiting = {pool.submit(score_batch, batch): amount for batch, amount in work}
                for finished in as_completed(waiting):
                    for label, fine in finished.result():
                        converged[label] = converged.get(label, True) and fine
                    done += waiting[finished]
                    if progress:
                        progress("scoring", done, total)
            finally:
                pool.shutdown(cancel_futures=True)
                torch.set_num_threads(n_before)
        return converged


def _checked_matrix(features: ArrayLike | Tensor) -> NDArray[Any]:
    """Return features as an array (n, d) of their own dtype; UserError unless they are a finite matrix."""
    try:
        if isinstance(features, Tensor):
            values = features.detach().cpu()
            array: NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        else:
            array = np.asarray(features)
            array = array if array.dtype.kind in "fiubc" else array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError("Features must be a matrix of numbers, one row per sample.") from None
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # the computation is in float64
        with np.errstate(over="ignore"):  # infinity is reported below
            array = array.astype(np.float64)
    if array.ndim != 2 or array.dtype.kind == "c" or 0 in array.shape:
        raise UserError(f"Features have shape {array.shape}, but must be (n, d) real numbers with n, d ≥ 1.")
    if (row := first_not_finite(array)) is not None:
        raise UserError(f"Features of row {row} hold NaN or infinity.")
    return array


def _checked_classes(labels: ArrayLike | Tensor, n: int) -> dict[Hashable, NDArray[np.int64]]:
    """Return the ascending rows of each class; classes are sorted if possible, else in order of first appearance."""
    members = members_of(labels, 0, n)
    for label, rows in members.items():
        if is_missing(label) or (isinstance(label, str | bytes) and not label.strip()):
            raise UserError(f"The label of row {rows[0]} is missing or empty.")
    try:
        names = sorted(members)  # type: ignore[type-var]
    except TypeError:
        names = list(members)
    return {label: np.array(members[label]) for label in names}


def _with_dtype_of(labels: ArrayLike | Tensor, names: list[Hashable]) -> NDArray[Any]:
    """Return names (k,) as an array of the labels' dtype."""
    kind = (labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)).dtype
    array = np.empty(len(names), dtype=object)
    for i, name in enumerate(names):  # one by one, as a name may be a tuple
        array[i] = name
    return array.astype(kind)


def _rows_of(features: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows, given in ascending order; adjacent ones are not copied."""
    adjacent = rows[-1] - rows[0] + 1 == len(rows)
    return features[rows[0] : rows[-1] + 1] if adjacent else features[rows]


def _prepared(rows: NDArray[Any], directions: Directions | None) -> NDArray[Any]:
    """Return features on the main directions, or as they are; without any direction all are equal."""
    if directions is None:
        return rows
    found = directions.apply(rows)
    return found if found.shape[1] else np.ones((len(rows), 1))


def _repeated(label: Hashable, n: int) -> NDArray[Any]:
    labels = np.empty(n, dtype=object)
    labels.fill(label)
    return labels
