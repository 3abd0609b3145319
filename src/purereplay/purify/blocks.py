"""Blocks: the samples that the filter compares with each other when a class is too large to be scored whole.

In: the rows of a class. Out: blocks of them, and batches of blocks that are scored in one go (`filter`).

A class of n samples costs n² operations and bytes a graph. **The block rule:** a class of up to `block_size` samples is
one block. A larger one is cut into ⌈n / block_size⌉ blocks whose sizes differ by one at most: its samples are put in a
random order, drawn from (seed, label), and the order is cut into equal pieces. Every block has graphs and mixtures of
its own.

That is sound because a block is a random sample of its class, drawn without looking at anything: each of its members is
as likely to be wrong as any other of the class, and its share of wrong labels differs from the class's by chance only
(by 0.014, one standard deviation, in a block of 1,000 with 30 % wrong labels). The order is random so that a class that
is sorted, by date or by source, is not cut into pieces that know one source each. What is lost is company: a rare
kind of clean sample finds fewer of its like in a block than in the whole class.
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
    seed: int  # of its graphs


def cut(label: Hashable, rows: NDArray[np.int64], block_size: int, seed: int) -> list[Block]:
    """The blocks of a class whose samples are `rows` (n,), by the block rule."""
    if block_size < 2 * MIN_SAMPLES:  # the blocks of a class that is cut hold at least half of it
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
    """Batches of blocks, each with its number of entries of graphs and features, to which its time is proportional.

    At most `max_entries` a batch, but at least one block. Large blocks come first, so that no thread is left with one
    at the end; blocks of like size come together, as `score_buffers` wants them.
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
