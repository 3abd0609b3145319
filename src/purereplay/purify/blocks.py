"""Blocks: groups of samples that the filter compares with each other if a class is too large to be scored whole.

In: the rows of a class. Out: blocks of rows, and batches of blocks that are scored at once (see `filter`).

A class of n samples costs n² operations and bytes per graph. **The block rule:** a class of up to `block_size` samples
is one block. A larger class is split into ⌈n / block_size⌉ blocks whose sizes differ by at most one. Its samples are
shuffled by a permutation drawn from (seed, label), and the permutation is cut into equal pieces. Each block has its own
graphs and mixtures.

A block is a random sample of its class, so each member is as likely to be wrong as any other member of the class. The
share of wrong labels in a block differs from that of the class by chance only (standard deviation 0.014 in a block of
1,000 with 30 % wrong labels). The permutation is random so that a class sorted by date or source is not split by
source. The cost of blocks is that a rare kind of clean sample has fewer similar samples in a block than in the class.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.purify.beta_mixture import MIN_SAMPLES
from purereplay.purify.graph import padded_width, seed_part


class Block(NamedTuple):
    """Samples of one class that are scored together."""

    label: Hashable
    rows: NDArray[np.int64]  # ascending
    seed: int  # of the block's graphs


def cut(label: Hashable, rows: NDArray[np.int64], block_size: int, seed: int) -> list[Block]:
    """Split a class with samples `rows` (n,) into blocks by the block rule."""
    if block_size < 2 * MIN_SAMPLES:  # blocks of a split class hold at least half of block_size
        raise UserError(f"block_size is {block_size}, but must be at least {2 * MIN_SAMPLES}.")
    n_blocks = -(-len(rows) // block_size)
    if n_blocks <= 1:
        return [Block(label, rows, seed)]
    # raw words, whose stream numpy promises never to change
    words = np.random.PCG64(derive_seed(seed, "blocks", seed_part(label))).random_raw(len(rows))
    pieces = np.array_split(np.argsort(words, kind="stable"), n_blocks)
    return [
        Block(label, rows[np.sort(piece)], derive_seed(seed, "block", number)) for number, piece in enumerate(pieces)
    ]


def batches(
    blocks: Sequence[Block], n_graphs: int, n_features: int, max_entries: int
) -> Iterator[tuple[list[Block], int]]:
    """Yield batches of blocks, each with its number of graph and feature entries; the time is proportional to it.

    A batch has at most `max_entries` entries, but at least one block. Large blocks come first, so that no thread starts
    one at the end. Blocks of similar size share a batch, since `score_buffers` pads them to one width.
    """
    batch: list[Block] = []
    total = 0
    for block in sorted(blocks, key=lambda b: -padded_width(len(b.rows))):
        width = padded_width(len(block.rows))
        entries = max(n_graphs, 1) * width**2 + width * n_features
        if batch and total + entries > max_entries:
            yield batch, total
            batch, total = [], 0
        batch.append(block)
        total += entries
    if batch:
        yield batch, total
