"""Graphs between the samples of one given label; the first stage of the Self-Centered filter.

In: the features of delayed buffers and the rows of each label. Out: adjacency matrices in batches, for `centrality`.
Paper: section "Self-Centered Filter", paragraphs "Centrality" and "Stochastic Ensemble".

- Vertices are the samples of a label; the edge weight is ReLU(cosine). A zero feature vector is similar to nothing but
  itself.
- A stochastic graph draws each edge once, A_ij = A_ji ~ Bernoulli(ReLU(cosine)). The diagonal is 1; zeros become
  `FLOOR`.
- Without stochastic graphs (`n_graphs=0`) a label has one graph, the weighted similarity graph.

Random numbers are raw 64-bit words of PCG64, whose stream numpy promises never to change. Each graph has its own
generator, named by (seed, label, graph number) and drawn on the CPU. So the graphs of a label do not depend on other
labels or buffers, on the device, or on how the work is sliced. An edge takes 15 bits: its probability is rounded to a
multiple of 2^-15, with 0 and 1 exact. All values are float64, so that similarities that differ between devices in their
last bits still give the same edges.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.seeds import derive_seed

FLOOR = 1e-5  # value of "no edge": the Perron-Frobenius theorem needs positive entries
MAX_ENTRIES = 2**24  # matrix entries held at once (128 MiB as float64); a larger graph is still built whole
_LEVELS = 2**15  # an edge's probability is a multiple of 1/_LEVELS
WIDE = 2**25  # entries of a label's features (256 MiB as float64); more are multiplied piece by piece
_PIECE = 2**23  # entries of such a piece
_STRIP = 128  # rows drawn at a time; a multiple of 4, as a word has four edges
_DIAGONAL = np.eye(_STRIP, dtype=bool)
_BELOW = np.tri(_STRIP, k=-1, dtype=bool)


class LabelGroup(NamedTuple):
    """Labels with a similar number of samples, padded to one width N."""

    owners: list[tuple[int, Hashable]]  # L pairs (buffer, label)
    sizes: list[int]  # samples of each pair
    rows: Tensor  # int64 (L, N): rows of the features; 0 where padded
    mask: Tensor  # bool (L, N): False where padded


def group_by_size(
    members: Sequence[Mapping[Hashable, Sequence[int]]], device: torch.device | str = "cpu"
) -> list[LabelGroup]:
    """Group the labels of all buffers by padded size; `members[buffer][label]` lists the rows of a label's features."""
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
    """Return N for a label of this size: the next multiple of 16, of 32 above 128, of 64 above 256, and so on.

    It depends on the size alone, so sums over a label are computed in the same order whatever else is in the batch.
    With a multiple of 16, no entry of a row falls into the scalar tail of a vectorised loop, which rounds differently.
    """
    step = max(16, 1 << (size - 1).bit_length() >> 3)
    return -(-size // step) * step


def similarity(features: Tensor) -> Tensor:
    """Return ReLU of the cosine between rows of float64 (..., N, d): (..., N, N) in [0, 1], diagonal 1, never NaN."""
    tiny = torch.finfo(features.dtype).tiny
    # divided by the largest entry first, so that squares of very large or small features do not over- or underflow
    largest = torch.maximum(features.amax(-1, keepdim=True), -features.amin(-1, keepdim=True))
    features = features / largest.clamp_(min=tiny)
    features /= features.norm(dim=-1, keepdim=True).clamp(min=tiny)
    return _from_cosine(features @ features.mT)


def wide_similarity(features: Tensor, rows: Tensor) -> Tensor:
    """Return the same up to rounding for the rows int64 (..., N) of features (n, d) of any type.

    The features are converted to float64 and multiplied in pieces of columns, so their width takes no more memory.
    """
    tiny = torch.finfo(torch.float64).tiny
    step = max(1, _PIECE // rows.numel())

    def pieces() -> Iterator[Tensor]:
        for start in range(0, features.shape[1], step):
            yield features[:, start : start + step][rows].to(torch.float64)

    largest = torch.full((*rows.shape, 1), tiny, dtype=torch.float64, device=features.device)
    for piece in pieces():
        largest = largest.maximum(piece.abs_().amax(-1, keepdim=True))
    squares = torch.zeros_like(largest)
    for piece in pieces():
        squares += piece.div_(largest).square_().sum(-1, keepdim=True)
    norm = squares.sqrt_().clamp_(min=tiny)
    cosine = torch.zeros((*rows.shape, rows.shape[-1]), dtype=torch.float64, device=features.device)
    for piece in pieces():
        piece.div_(largest).div_(norm)
        cosine += piece @ piece.mT
    return _from_cosine(cosine)


def _from_cosine(cosine: Tensor) -> Tensor:
    cosine.clamp_(0.0, 1.0).diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return cosine


def graph_slices(
    features: Tensor, group: LabelGroup, n_graphs: int, seeds: Sequence[int], *, max_entries: int = MAX_ENTRIES
) -> Iterator[Tensor]:
    """Yield the adjacency matrices of a group, in slices (r, N, N) of at most `max_entries` entries or one matrix.

    `features` is (n, d) of all buffers; `seeds` has one seed per buffer. Concatenated, the slices are
    (L·E, N, N), label by label, with E = max(n_graphs, 1). Padded rows and columns are 0.
    """
    n_each, width = max(n_graphs, 1), group.rows.shape[1]
    step = max(1, max_entries // width**2)  # matrices in a slice
    n_together = max(1, step // n_each)  # labels in a slice; the graphs of one label may need several slices
    for first in range(0, len(group.owners), n_together):
        owners, sizes = group.owners[first : first + n_together], group.sizes[first : first + n_together]
        mask = group.mask[first : first + n_together].to(torch.float64)
        rows = group.rows[first : first + n_together]
        if width * features.shape[1] > WIDE:
            weights = wide_similarity(features, rows)
        else:
            weights = similarity(features[rows].to(torch.float64))  # (labels of this slice, N, N)
        if not n_graphs:
            yield weights.clamp_(min=FLOOR).mul_(mask[:, :, None]).mul_(mask[:, None, :])
            continue
        # P(draw ≤ t) = (t + 1) / _LEVELS: a weight of 0 never gives an edge, a weight of 1 always does
        limits = weights.mul_(_LEVELS).round_().sub_(1).to(torch.int16)
        jobs = [
            (at, sizes[at], derive_seed(int(seeds[buffer]), "graph", seed_part(label), graph))
            for at, (buffer, label) in enumerate(owners)
            for graph in range(n_graphs)
        ]
        for start in range(0, len(jobs), step):
            some = jobs[start : start + step]
            if features.device.type == "cpu":
                yield _draw_each(limits, some)
            else:
                own = mask[[at for at, _, _ in some]]
                yield _draw_together(limits, some).mul_(own[:, :, None]).mul_(own[:, None, :])


def seed_part(label: Hashable) -> int | str:
    """Return the label in the form that `derive_seed` takes."""
    # True is an int in Python, but would be written differently in the seed
    return int(label) if isinstance(label, int) else label if isinstance(label, str) else repr(label)


def _draw_together(limits: Tensor, jobs: Sequence[tuple[int, int, int]]) -> Tensor:
    """Draw graphs (r, N, N) in a few large operations, which suits a GPU; the padding is not 0 yet.

    `limits` int16 (L, N, N): an edge exists if its draw is at most this. Jobs are (index in limits, size, seed).
    """
    width = limits.shape[1]
    draws = np.zeros((len(jobs), width, width), np.int16)
    for square, (_, size, seed) in zip(draws, jobs, strict=True):
        square[:size, :size] = _draw_rows(np.random.PCG64(seed), size, size)
    triangle = torch.from_numpy(draws).to(limits.device) <= limits[[at for at, _, _ in jobs]]
    triangle = triangle.tril_(-1).view(torch.uint8)
    edges = triangle | triangle.mT
    edges.diagonal(dim1=-2, dim2=-1).fill_(1)
    return edges.to(torch.float64).clamp_(min=FLOOR)


def _draw_each(limits: Tensor, jobs: Sequence[tuple[int, int, int]]) -> Tensor:
    """Draw the same graphs, padded with 0, in strips of rows that fit into a CPU's cache."""
    graphs = np.zeros((len(jobs), *limits.shape[1:]))  # numpy requests huge pages, PyTorch does not
    for graph, (at, size, seed) in zip(graphs, jobs, strict=True):
        limit, generator = limits[at].numpy(), np.random.PCG64(seed)
        for top in range(0, size, _STRIP):
            bottom = min(top + _STRIP, size)
            drawn = _draw_rows(generator, bottom - top, size)[:, :bottom] <= limit[top:bottom, :bottom]
            corner = drawn[:, top:]  # where the strip meets the diagonal
            corner &= _BELOW[: len(corner), : len(corner)]
            corner |= corner.T | _DIAGONAL[: len(corner), : len(corner)]
            strip = drawn.astype(np.float64)
            np.maximum(strip, FLOOR, out=strip)
            graph[top:bottom, :bottom] = strip
            graph[:top, top:bottom] = strip[:, :top].T
    return torch.from_numpy(graphs)


def _draw_rows(generator: np.random.PCG64, n_rows: int, size: int) -> NDArray[np.int16]:
    """Return the next rows of a graph's draws: uniform integers 0 … _LEVELS - 1, (n_rows, size), four per word.

    `n_rows` must be a multiple of 4 unless these are the last rows. Only the lower triangle is used.
    """
    words = generator.random_raw((n_rows * size + 3) // 4)
    bits = words.astype("<u8", copy=False).view("<i2")[: n_rows * size]  # whatever the byte order
    rows: NDArray[np.int16] = np.bitwise_and(bits, _LEVELS - 1, dtype=np.int16).reshape(n_rows, size)
    return rows
