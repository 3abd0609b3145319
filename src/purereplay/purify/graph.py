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
_STRIP = 128  # rows drawn at a time; a multiple of 4, as a word has four edges
_DIAGONAL = np.eye(_STRIP, dtype=bool)
_BELOW = np.tri(_STRIP, k=-1, dtype=bool)


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
    step = max(1, max_entries // width**2)  # matrices in a slice
    n_together = max(1, step // n_each)  # labels in a slice; the graphs of one label may also need several
    for first in range(0, len(group.owners), n_together):
        owners, sizes = group.owners[first : first + n_together], group.sizes[first : first + n_together]
        mask = group.mask[first : first + n_together].to(features.dtype)
        weights = similarity(features[group.rows[first : first + n_together]])  # (labels of this slice, N, N)
        if not n_graphs:
            yield weights.clamp_(min=FLOOR).mul_(mask[:, :, None]).mul_(mask[:, None, :])
            continue
        # P(dice ≤ t) = (t + 1) / _LEVELS: a weight of 0 never gives an edge, a weight of 1 always does
        bars = weights.mul_(_LEVELS).round_().sub_(1).to(torch.int16)
        jobs = [
            (at, sizes[at], derive_seed(int(seeds[buffer]), "graph", seed_part(label), graph))
            for at, (buffer, label) in enumerate(owners)
            for graph in range(n_graphs)
        ]
        for start in range(0, len(jobs), step):
            some = jobs[start : start + step]
            if features.device.type == "cpu":
                yield _draw_each(bars, some)
            else:
                own = mask[[at for at, _, _ in some]]
                yield _draw_together(bars, some).mul_(own[:, :, None]).mul_(own[:, None, :])


def seed_part(label: Hashable) -> int | str:
    """The label as a part of a seed."""
    # True is an int to Python, but would be spelt otherwise in the seed
    return int(label) if isinstance(label, int) else label if isinstance(label, str) else repr(label)


def _draw_together(bars: Tensor, jobs: Sequence[tuple[int, int, int]]) -> Tensor:
    """Graphs (r, N, N) in few large operations, as a GPU likes them; the padding is not 0 yet.

    `bars` int16 (L, N, N): an edge is there if its dice show no more than this. Jobs are (place in bars, size, seed).
    """
    width = bars.shape[1]
    dice = np.zeros((len(jobs), width, width), np.int16)
    for square, (_, size, seed) in zip(dice, jobs, strict=True):
        square[:size, :size] = _roll(np.random.PCG64(seed), size, size)
    triangle = torch.from_numpy(dice).to(bars.device) <= bars[[at for at, _, _ in jobs]]
    triangle = triangle.tril_(-1).view(torch.uint8)
    edges = triangle | triangle.mT
    edges.diagonal(dim1=-2, dim2=-1).fill_(1)
    return edges.to(torch.float64).clamp_(min=FLOOR)


def _draw_each(bars: Tensor, jobs: Sequence[tuple[int, int, int]]) -> Tensor:
    """The same graphs, padded with 0, in strips of rows that stay in a CPU's cache until they are done."""
    graphs = np.zeros((len(jobs), *bars.shape[1:]))  # numpy asks for huge pages, PyTorch does not
    for graph, (at, size, seed) in zip(graphs, jobs, strict=True):
        bar, generator = bars[at].numpy(), np.random.PCG64(seed)
        for top in range(0, size, _STRIP):
            bottom = min(top + _STRIP, size)
            drawn = _roll(generator, bottom - top, size)[:, :bottom] <= bar[top:bottom, :bottom]
            corner = drawn[:, top:]  # where the strip meets the diagonal
            corner &= _BELOW[: len(corner), : len(corner)]
            corner |= corner.T | _DIAGONAL[: len(corner), : len(corner)]
            strip = drawn.astype(np.float64)
            np.maximum(strip, FLOOR, out=strip)
            graph[top:bottom, :bottom] = strip
            graph[:top, top:bottom] = strip[:, :top].T
    return torch.from_numpy(graphs)


def _roll(generator: np.random.PCG64, n_rows: int, size: int) -> NDArray[np.int16]:
    """The next rows of a graph's dice: uniform integers 0 … _LEVELS - 1, (n_rows, size), four a word.

    `n_rows` must be a multiple of 4 unless these are the last rows. Only the lower triangle will be looked at.
    """
    words = generator.random_raw((n_rows * size + 3) // 4)
    bits = words.astype("<u8", copy=False).view("<i2")[: n_rows * size]  # whatever the byte order
    rolled: NDArray[np.int16] = np.bitwise_and(bits, _LEVELS - 1, dtype=np.int16).reshape(n_rows, size)
    return rolled
