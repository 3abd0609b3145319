"""Graphs between the samples that carry one given label; the first stop of the Self-Centered filter.

In: the features of delayed buffers and the samples of every label. Out: adjacency matrices, many at once, to be
turned into centralities. Paper: section "Self-Centered Filter", paragraphs "Centrality" and "Stochastic Ensemble".

- Vertices are the samples of a label; the edge weight is ReLU(cosine). A zero feature vector is similar to nothing
  but itself.
- A stochastic graph draws every edge once, A_ij = A_ji ~ Bernoulli(ReLU(cosine)); the diagonal is 1; zeros become
  `FLOOR`.
- Without stochastic graphs (`n_graphs=0`) the weighted similarity graph itself is the one graph of a label.

Random numbers are raw 64-bit words of PCG64, whose stream numpy promises never to change. Every graph owns a
generator named by (seed, label, graph number) and drawn on the CPU, so a label's graphs depend neither on the other
labels and buffers, nor on the device, nor on how the work is sliced. An edge takes 15 bits: its probability is rounded
to a multiple of 2^-15, with 0 and 1 exact. Everything is float64, so a similarity that differs in its last bits between
devices still gives the same edges.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.seeds import derive_seed

FLOOR = 1e-5  # stands for "no edge": the Perron-Frobenius theorem wants positive entries
MAX_ENTRIES = 2**24  # matrix entries held at once (128 MiB as float64); a single larger graph is still built whole
_LEVELS = 2**15  # an edge's probability is a multiple of 1/_LEVELS


class LabelGroup(NamedTuple):
    """Labels with about equally many samples, padded to one width N."""

    owners: list[tuple[int, Hashable]]  # L pairs of a buffer and a label
    sizes: list[int]  # samples of each
    rows: Tensor  # int64 (L, N): places in the features; 0 where padded
    mask: Tensor  # bool (L, N): False where padded


def group_by_size(
    members: Sequence[Mapping[Hashable, Sequence[int]]], device: torch.device | str = "cpu"
) -> list[LabelGroup]:
    """Groups of the labels of all buffers; `members[buffer][label]` says where a label's features are."""
    buckets: dict[int, list[tuple[int, Hashable]]] = {}
    for buffer, labels in enumerate(members):
        for label, own in labels.items():
            buckets.setdefault(padded_width(len(own)), []).append((buffer, label))
    groups = []
    for width, owners in sorted(buckets.items()):
        sizes = [len(members[buffer][label]) for buffer, label in owners]
        rows = np.zeros((len(owners), width), np.int64)
        for row, (buffer, label), size in zip(rows, owners, sizes, strict=True):
            row[:size] = members[buffer][label]
        mask = np.arange(width) < np.array(sizes)[:, None]
        groups.append(LabelGroup(owners, sizes, torch.from_numpy(rows).to(device), torch.from_numpy(mask).to(device)))
    return groups


def padded_width(size: int) -> int:
    """N for a label of this size: the next multiple of 16, of 32 above 128, of 64 above 256, and so on.

    It depends on nothing else, so a label is padded, and its numbers are added up, in one way whoever is beside it; and
    in a multiple of 16 no number of a row falls to the scalar end of a vectorised loop, which rounds otherwise.
    """
    step = max(16, 1 << (size - 1).bit_length() >> 3)
    return -(-size // step) * step


def similarity(features: Tensor) -> Tensor:
    """ReLU of the cosine between the rows of float64 (..., N, d): (..., N, N) in [0, 1], diagonal 1, never NaN."""
    tiny = torch.finfo(features.dtype).tiny
    # divided by the largest entry first: squares of huge or minute features neither overflow nor vanish
    features = features / features.abs().amax(-1, keepdim=True).clamp(min=tiny)
    features = features / features.norm(dim=-1, keepdim=True).clamp(min=tiny)
    cosine = (features @ features.mT).clamp_(0.0, 1.0)
    cosine.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return cosine


def graph_slices(
    features: Tensor, group: LabelGroup, n_graphs: int, seeds: Sequence[int], *, max_entries: int = MAX_ENTRIES
) -> Iterator[Tensor]:
    """Adjacency matrices of a group, in slices (r, N, N) of at most `max_entries` entries but at least one matrix.

    `features` is float64 (n, d), those of all buffers; `seeds` has one seed a buffer. Joined, the slices are
    (L·E, N, N), label by label, with E = max(n_graphs, 1); padded rows and columns are 0.
    """
    n_each, width = max(n_graphs, 1), group.rows.shape[1]
    step = max(1, max_entries // width**2)
    n_jobs = len(group.owners) * n_each
    for start in range(0, n_jobs, step):
        jobs = range(start, min(start + step, n_jobs))
        first, last = jobs[0] // n_each, jobs[-1] // n_each
        weights = similarity(features[group.rows[first : last + 1]])  # (labels of this slice, N, N)
        which = torch.tensor([job // n_each - first for job in jobs], device=features.device)
        if n_graphs:
            dice = np.zeros((len(jobs), width, width), np.int16)
            for square, job in zip(dice, jobs, strict=True):
                (buffer, label), size = group.owners[job // n_each], group.sizes[job // n_each]
                _roll(square[:size, :size], derive_seed(int(seeds[buffer]), "graph", _name(label), job % n_each))
            adjacency = _draw(weights, which, torch.from_numpy(dice).to(features.device))
        else:
            adjacency = weights.clamp_(min=FLOOR)
        mask = group.mask[first + which].to(adjacency.dtype)
        yield adjacency.mul_(mask[:, :, None]).mul_(mask[:, None, :])


def _name(label: Hashable) -> int | str:
    """The label as a part of a seed."""
    # True is an int to Python, but would be spelt otherwise in the seed
    return int(label) if isinstance(label, int) else label if isinstance(label, str) else repr(label)


def _roll(square: NDArray[np.int16], seed: int) -> None:
    """Fill (n, n) with uniform integers 0 … _LEVELS - 1, of which only the lower triangle will be looked at."""
    words = np.random.PCG64(seed).random_raw((square.size + 3) // 4)
    bits = words.astype("<u8", copy=False).view("<i2")[: square.size]  # four edges a word, whatever the byte order
    np.bitwise_and(bits.reshape(square.shape), _LEVELS - 1, out=square)


def _draw(weights: Tensor, which: Tensor, dice: Tensor) -> Tensor:
    """Binary symmetric matrices (r, N, N) of the `weights[which]`, one triangle drawn and mirrored, zeros → `FLOOR`."""
    # P(dice ≤ t) = (t + 1) / _LEVELS: a weight of 0 never gives an edge, a weight of 1 always does
    bar = (weights * _LEVELS).round_().sub_(1).to(torch.int16)
    triangle = (dice <= bar[which]).tril_(-1).view(torch.uint8)
    edges = triangle | triangle.mT
    edges.diagonal(dim1=-2, dim2=-1).fill_(1)
    return edges.to(weights.dtype).clamp_(min=FLOOR)
