"""INCV, an alternative to the Self-Centered filter: iterative noisy cross-validation (Chen et al. 2019).

The candidates are split into two halves. A network trained on one half and on all samples chosen so far predicts the
other half; samples whose given label it predicts are chosen. Then the halves change roles. In each half the samples
with the largest losses are dropped for good: the estimated noise rate times the number of chosen ones. The rest are
candidates again. After some rounds the chosen samples are taken to be clean.

Choices where the papers leave them open: the noise rate ε explains the first round's agreement a under symmetric noise,
a = (1 − ε)² + ε² / (c − 1); an epoch always has as many steps as half a buffer has batches.

In: images and given labels of delayed buffers. Out: a verdict for each, with probabilities 1 or 0 (high = clean) and,
instead of centralities, the log-probability of the label by the last network that was not trained on the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.seeds import derive_seed
from purereplay.nets.inference import embed
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.networks import Head, Network, State
from purereplay.purify.self_centered import Verdict

Rows = NDArray[np.int64]


@dataclass
class _Case:
    """State of one buffer between rounds."""

    buffer: Batch
    seed: int
    chosen: NDArray[np.bool_]
    candidates: NDArray[np.bool_]
    score: NDArray[np.float64]  # log-probability of the given label by the last network not trained on the sample
    noise_rate: float = 0.0

    def halves(self, number: int) -> tuple[Rows, Rows]:
        rng = np.random.Generator(np.random.PCG64(derive_seed(self.seed, "split", number)))
        order = rng.permutation(np.flatnonzero(self.candidates))
        return order[: len(order) // 2], order[len(order) // 2 :]


@dataclass(frozen=True, kw_only=True)
class NoisyCrossValidation:
    """Filter by noisy cross-validation; the defaults are from the SPR paper's appendix."""

    rounds: int = 4
    epochs: int = 200
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 1e-4

    def n_steps(self, n: int) -> int:
        """Return the number of training steps for a buffer of n samples."""
        return 2 * self.rounds * self.epochs * self._per_epoch(n)

    def _per_epoch(self, n: int) -> int:
        return max(1, n // 2 // self._size(n))

    def _size(self, n: int) -> int:
        return min(self.batch_size, max(1, n // 2))

    def score(
        self, network: Network, buffers: Sequence[Batch], n_classes: int, seeds: Sequence[int]
    ) -> Asks[list[Verdict[Tensor]]]:
        """Return a verdict for each buffer; `network` is trained with a new head."""
        network = replace(network, head=Head(n_classes))
        cases = [
            _Case(b, seed, np.zeros(b.n, bool), np.ones(b.n, bool), np.full(b.n, -np.inf))
            for b, seed in zip(buffers, seeds, strict=True)
        ]
        for number in range(self.rounds):
            split = [case.halves(number) for case in cases]
            jobs = [
                self._job(network, case, half, derive_seed(case.seed, "half", 2 * number + i))
                for case, halves in zip(cases, split, strict=True)
                for i, half in enumerate(halves)
            ]
            trained = iter((yield jobs))
            for case, (first, second) in zip(cases, split, strict=True):
                _choose(network, case, [(second, next(trained).state), (first, next(trained).state)], n_classes, number)
        return [Verdict(torch.from_numpy(case.chosen).double(), torch.from_numpy(case.score), []) for case in cases]

    def _job(self, network: Network, case: _Case, half: Rows, seed: int) -> ListedJob:
        """Return the training job for one half and all chosen samples; buffers of one size give jobs of one shape."""
        n, device = case.buffer.n, case.buffer.images.device
        rows = np.union1d(half, np.flatnonzero(case.chosen))
        rows = rows if len(rows) else np.arange(n)
        size, n_steps = self._size(n), self.epochs * self._per_epoch(n)
        rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "order")))
        orders = [rng.permutation(rows) for _ in range(-(-n_steps * size // len(rows)))]
        index = np.concatenate(orders)[: n_steps * size].reshape(n_steps, size)
        return ListedJob(
            phase="filter",
            network=network,
            state=network.fresh(derive_seed(seed, "weights"), device),
            recipe=Listed(batch_size=size, optimizer="adam", weight_decay=self.weight_decay, shift_and_flip=True),
            images=case.buffer.images,
            labels=case.buffer.labels.to(device),
            seed=derive_seed(seed, "draws"),
            index=torch.from_numpy(index.astype(np.int64)),
            lrs=torch.full((n_steps,), self.lr),
        )


def _choose(network: Network, case: _Case, halves: list[tuple[Rows, State]], n_classes: int, number: int) -> None:
    """Update chosen samples and candidates from both halves, each predicted by the network not trained on it."""
    agree = np.zeros(case.buffer.n, bool)
    for rows, state in halves:
        if not len(rows):
            continue
        at = torch.from_numpy(rows)
        log_p = (
            embed(network, state, case.buffer.images[at.to(case.buffer.images.device)]).double().log_softmax(1).cpu()
        )
        labels = case.buffer.labels[at]
        agree[rows] = (log_p.argmax(1) == labels).numpy()
        case.score[rows] = log_p.gather(1, labels[:, None])[:, 0].numpy()
    predicted = np.concatenate([rows for rows, _ in halves])
    if number == 0 and len(predicted):
        case.noise_rate = noise_rate(float(agree[predicted].mean()), n_classes)
    for rows, _ in halves:
        n_dropped = round(case.noise_rate * int(agree[rows].sum()))
        worst = rows[np.argsort(case.score[rows], kind="stable")[:n_dropped]]
        case.candidates[worst[~agree[worst]]] = False
    case.chosen |= agree
    case.candidates &= ~agree


def noise_rate(agreement: float, n_classes: int) -> float:
    """Return the lower ε in [0, 1] with (1 − ε)² + ε² / (c − 1) = agreement, or the closest one if none exists."""
    c = max(2, n_classes)
    a, b = 1 + 1 / (c - 1), 1 - agreement  # a ε² − 2 ε + b = 0
    inside = 1 - a * b
    return float((1 - np.sqrt(max(0.0, inside))) / a)
