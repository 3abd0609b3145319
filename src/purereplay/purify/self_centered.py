"""Self-Centered filter: from features and given labels to one clean probability per sample.

In: the expert's features of a delayed buffer and the given labels. Out: clean probabilities (high = clean), which
decide on admission to the purified buffer and eviction from it. Paper: section "Self-Centered Filter"; the mean over
graphs is Eq. p(z | D_l), its integral taken over E_max = `n_graphs` sampled graphs.

features → graph (per label) → centrality → beta mixture → clean probability → selection

Labels of similar size, of one buffer or of many, are processed as one batch. All computation is in float64 on the
chosen device: graphs are identical on every device, and probabilities agree to about 1e-7. The result of a label does
not depend on other labels or buffers. On the CPU with one thread this holds to the bit. With more threads, which split
the work by its size, and on CUDA it holds up to rounding (1e-12 measured with two threads).
"""

from bisect import bisect
from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.purify.beta_mixture import RULES, Fits, fit_mixtures, read_posterior
from purereplay.purify.centrality import principal_eigenvector
from purereplay.purify.graph import MAX_ENTRIES, WIDE, LabelGroup, graph_slices, group_by_size
from purereplay.purify.options import DEFAULTS, FilterOptions, Posterior, Scaling, SmallClass, check_choice

_LARGE = tuple(map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1")))

Array = TypeVar("Array", NDArray[Any], Tensor)


class LabelFit(NamedTuple):
    """Fits of one label, one entry per graph."""

    label: Hashable
    n: int  # samples with this label
    rules: tuple[str, ...]  # each one of beta_mixture.RULES
    converged: tuple[bool, ...]  # whether the mixture converged
    central: tuple[bool, ...]  # whether the centrality converged
    alpha: NDArray[np.float64]  # (graphs, 2): noisy, clean
    beta: NDArray[np.float64]  # (graphs, 2)
    weights: NDArray[np.float64]  # (graphs, 2)


class Verdict(NamedTuple, Generic[Array]):
    """Result of the filter for one buffer, with its grounds."""

    clean_probability: Array  # float64 (n,) in [0, 1], high = clean
    centrality: Array  # float64 (n,) > 0, mean over graphs; 1 is the root mean square within a label and graph
    fits: list[LabelFit]  # one per label, in order of first appearance


def clean_probability(
    features: Array,
    labels: ArrayLike | Tensor,
    n_graphs: int | None = DEFAULTS.n_graphs,
    seed: int = 0,
    *,
    small_class: SmallClass = DEFAULTS.small_class,
    scaling: Scaling = DEFAULTS.scaling,
    posterior: Posterior = DEFAULTS.posterior,
    device: torch.device | str | None = None,
) -> Array:
    """Return the clean probability of each sample, float64 (n,), high = clean.

    Same as `score_samples`, without the grounds. `n_graphs` 0 or None selects the non-stochastic filter. See
    `FilterOptions` for the other options.
    """
    options = FilterOptions(n_graphs=int(n_graphs or 0), small_class=small_class, scaling=scaling, posterior=posterior)
    return score_samples(features, labels, seed, options=options, device=device).clean_probability


def score_samples(
    features: Array,
    labels: ArrayLike | Tensor,
    seed: int = 0,
    *,
    options: FilterOptions = DEFAULTS,
    device: torch.device | str | None = None,
    max_entries: int = MAX_ENTRIES,
) -> Verdict[Array]:
    """Score the samples of one buffer: features (n, d), given labels (n,) of any hashable kind.

    Results have the features' kind (array or tensor) and device. `device` is where to compute; the default is the
    features' own. `max_entries` bounds the memory and does not change the result.
    """
    [verdict] = score_buffers([features], [labels], [seed], options=options, device=device, max_entries=max_entries)
    return verdict


def score_buffers(
    features: Sequence[Array],
    labels: Sequence[ArrayLike | Tensor],
    seeds: Sequence[int],
    *,
    options: FilterOptions = DEFAULTS,
    device: torch.device | str | None = None,
    max_entries: int = MAX_ENTRIES,
) -> list[Verdict[Array]]:
    """Score many buffers at once: equals `score_samples` on each of them, with its own seed.

    Forty buffers take about twice as many tensor operations as one, and on a GPU these dominate the time.
    """
    if not len(features) == len(labels) == len(seeds):
        raise UserError(f"{len(features)} buffers need as many labels and seeds, not {len(labels)} and {len(seeds)}.")
    if options.n_graphs < 0:
        raise UserError(f"n_graphs is {options.n_graphs}, but must be 0 (the similarity graph itself) or more.")
    check_choice("posterior", options.posterior, get_args(Posterior))
    if not features:
        return []
    values, starts = _checked_features(features, device)
    members = [members_of(own, *place) for own, place in zip(labels, pairwise(starts), strict=True)]
    probability, centrality = (values.new_empty(len(values), dtype=torch.float64) for _ in range(2))
    reports: dict[tuple[int, Hashable], LabelFit] = {}
    for group in group_by_size(members, values.device):
        n_labels, width = group.rows.shape
        parts = [
            principal_eigenvector(adjacency)
            for adjacency in graph_slices(values, group, options.n_graphs, seeds, max_entries=max_entries)
        ]
        scores = torch.cat([part.vector for part in parts])  # (L·E, N)
        n_each = len(scores) // n_labels
        mask = group.mask.repeat_interleave(n_each, 0)
        fits = fit_mixtures(scores, mask, scaling=options.scaling, n_iter=options.n_iter)
        clean = read_posterior(fits, scores, lookup=options.posterior, small_class=options.small_class)
        places = group.mask.flatten().nonzero()[:, 0]
        rows = group.rows.flatten()[places]
        probability[rows] = clean.view(n_labels, n_each, width).mean(1).flatten()[places]
        # a unit vector's root mean square is n^-1/2; scaled by n^1/2, large and small classes are comparable
        scores = scores.view(n_labels, n_each, width).mean(1) * group.mask.sum(1, keepdim=True).sqrt()
        centrality[rows] = scores.flatten()[places]
        reports |= _report(group, fits, torch.cat([part.converged for part in parts]))
    # rounding in the mean may leave a few 1e-16 above 1
    probability.clamp_(0.0, 1.0)
    return [
        Verdict(
            _as_kind(probability[start:stop], own),
            _as_kind(centrality[start:stop], own),
            [reports[buffer, label] for label in members[buffer]],
        )
        for buffer, (own, (start, stop)) in enumerate(zip(features, pairwise(starts), strict=True))
    ]


def select(probability: Array, seed: int) -> Array:
    """Return a bool mask (n,) of the samples selected, each with its own probability; 1 always, 0 never."""
    chances = probability.detach().cpu().numpy() if isinstance(probability, Tensor) else np.asarray(probability)
    if chances.ndim != 1 or not bool(((chances >= 0) & (chances <= 1)).all()):
        raise UserError("Clean probabilities must be a vector of numbers between 0 and 1.")
    draws = np.random.Generator(np.random.PCG64(derive_seed(int(seed), "select"))).random(len(chances))
    return _as_kind(torch.from_numpy(draws < chances), probability)


def _checked_features(
    features: Sequence[NDArray[Any] | Tensor], device: torch.device | str | None
) -> tuple[Tensor, list[int]]:
    """Return all buffers' features (n, d) on the device, and the row where each buffer starts.

    They are float64, or of their own type if they are large.

    The last entry of the starts is n. UserError if the features of a buffer are not a finite matrix.
    """
    parts = [_matrix(own) for own in features]
    if len({part.shape[1] for part in parts}) > 1:
        raise UserError("Buffers scored together must have features of one width.")
    device = parts[0].device if device is None else device
    values = parts[0].to(device) if len(parts) == 1 else torch.cat([part.to(device) for part in parts])
    starts = [0, *accumulate(len(part) for part in parts)]
    if values.numel() <= WIDE:
        values = values.to(torch.float64)
    step = max(1, WIDE // values.shape[1])
    finite = torch.cat([values[i : i + step].isfinite().all(1) for i in range(0, len(values), step)])
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        buffer = bisect(starts, row) - 1
        where = f"row {row - starts[buffer]}" + (f" of buffer {buffer}" if len(parts) > 1 else "")
        raise UserError(f"Features of {where} hold NaN or infinity.")
    return values, starts


def _matrix(features: NDArray[Any] | Tensor) -> Tensor:
    """Return features as a tensor (n, d); UserError unless they are a matrix of real numbers."""
    try:
        values = features.detach() if isinstance(features, Tensor) else torch.from_numpy(_plain(features))
    except (TypeError, ValueError):
        raise UserError("Features must be a matrix of numbers, one row per sample.") from None
    if values.ndim != 2 or values.is_complex() or 0 in values.shape:
        raise UserError(f"Features have shape {tuple(values.shape)}, but must be (n, d) real numbers with n, d ≥ 1.")
    return values


def _plain(features: NDArray[Any]) -> NDArray[Any]:
    """Return features as a float64 copy; large ones as they are, if PyTorch can use them."""
    own = np.asarray(features)
    if own.size > WIDE and own.dtype in _LARGE and own.flags.writeable and min(own.strides) >= 0:
        return own
    return np.array(own, np.float64)


def members_of(labels: ArrayLike | Tensor, start: int, stop: int) -> dict[Hashable, list[int]]:
    """Return the rows of each label of the buffer in rows start … stop - 1, labels in order of first appearance."""
    members: dict[Hashable, list[int]] = {}
    n = stop - start
    try:
        array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
        if array.shape != (n,):
            raise UserError(f"Labels have shape {array.shape}, but {n} samples need ({n},).")
        for row, label in enumerate(array.tolist(), start):
            members.setdefault(label, []).append(row)
    except (TypeError, ValueError):  # ragged, or not hashable
        raise UserError("Labels must be a vector of names or numbers.") from None
    return members


def _report(group: LabelGroup, fits: Fits, central: Tensor) -> dict[tuple[int, Hashable], LabelFit]:
    """Return the fits of a group by (buffer, label), on the CPU."""
    alpha, beta, weights = (part.cpu().numpy() for part in fits.betas)
    rules, converged, done = fits.rule.tolist(), fits.converged.tolist(), central.tolist()
    n_each = len(rules) // len(group.owners)
    reports: dict[tuple[int, Hashable], LabelFit] = {}
    for i, (owner, size) in enumerate(zip(group.owners, group.sizes, strict=True)):
        own = slice(i * n_each, (i + 1) * n_each)
        names = tuple(RULES[rule] for rule in rules[own])
        flags = tuple(converged[own]), tuple(done[own])
        reports[owner] = LabelFit(owner[1], size, names, *flags, alpha[own], beta[own], weights[own])
    return reports


def _as_kind(values: Tensor, like: Array) -> Array:
    """Return `values` as a tensor on the device of `like`, or as a numpy array if `like` is one."""
    if isinstance(like, Tensor):
        return values.to(like.device)
    array: NDArray[Any] = values.cpu().numpy()
    return array
