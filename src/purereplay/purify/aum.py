"""AUM, an alternative to the Self-Centered filter: samples that a network learns slowly (Pleiss et al. 2020).

A network is trained on the given labels. The area under the margin of a sample is the mean, over its visits, of the
logit of its label minus the largest other logit. It is low if other samples of the class contradict the label. A random
1 / (c + 1) of the samples, the threshold samples, get an extra class that no image belongs to. The 99th percentile of
their areas is the threshold above which a sample is clean. Two rounds with different threshold samples score every
sample. c is the number of labels in the buffer, so that the extra class is as large as the others.

In: images and given labels of delayed buffers. Out: a verdict for each, with probabilities 1 or 0 (high = clean) and
the areas above the threshold instead of centralities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.seeds import derive_seed
from purereplay.nets.jobs import Asks, Listed, ListedJob
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import Head, Network
from purereplay.nets.technique import Step, Technique
from purereplay.purify.self_centered import Verdict

_QUANTILE = 0.99
_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class Margins(Technique):
    """Cross-entropy that also sums up the margin of each visited sample."""

    recorded: ClassVar[tuple[str, ...]] = ("margins", "visits")

    def loss(self, step: Step) -> Tensor:
        logits = step.network.outputs(step.state, step.images, training=True)
        with torch.no_grad():
            of_label = logits.gather(2, step.labels[..., None])
            others = logits.scatter(2, step.labels[..., None], -torch.inf)
            taken = step.active[:, None].to(logits.dtype)
            margins = (of_label[..., 0] - others.amax(2)) * taken
            step.extra["margins"].scatter_add_(1, step.rows, margins)
            step.extra["visits"].scatter_add_(1, step.rows, taken.expand_as(margins))
        return sample_losses(logits, step.labels).mean(1)


@dataclass(frozen=True, kw_only=True)
class AreaUnderMargin:
    """Filter by the area under the margin; the defaults are from the SPR paper's appendix."""

    epochs: int = 150
    batch_size: int = 64
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def n_steps(self, n: int) -> int:
        """Return the number of training steps for a buffer of n samples."""
        return _ROUNDS * self.epochs * max(1, n // min(self.batch_size, n))

    def score(
        self, network: Network, buffers: Sequence[Batch], n_classes: int, seeds: Sequence[int]
    ) -> Asks[list[Verdict[Tensor]]]:
        """Return a verdict for each buffer; `network` is trained with a new head."""
        network = replace(network, head=Head(n_classes + 1))
        chosen_sets = [_threshold_samples(buffer.labels, seed) for buffer, seed in zip(buffers, seeds, strict=True)]
        jobs = [
            self._job(network, buffer, chosen, n_classes, derive_seed(seed, "round", i))
            for buffer, sets, seed in zip(buffers, chosen_sets, seeds, strict=True)
            for i, chosen in enumerate(sets)
        ]
        trained = iter((yield jobs))
        verdicts = []
        for sets in chosen_sets:
            above = []
            for chosen in sets:
                extra = next(trained).extra
                areas = (extra["margins"] / extra["visits"].clamp(min=1)).double().cpu()
                above.append(areas - torch.quantile(areas[torch.from_numpy(chosen)], _QUANTILE))
            score = above[0].clone()
            score[torch.from_numpy(sets[0])] = above[1][torch.from_numpy(sets[0])]
            verdicts.append(Verdict((score > 0).double(), score, []))
        return verdicts

    def _job(
        self, network: Network, buffer: Batch, chosen: NDArray[np.int64], extra_class: int, seed: int
    ) -> ListedJob:
        n, device = buffer.n, buffer.images.device
        size = min(self.batch_size, n)
        rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "order")))
        per_epoch = n // size
        orders = [rng.permutation(n)[: per_epoch * size] for _ in range(self.epochs)]
        labels = buffer.labels.clone()
        labels[torch.from_numpy(chosen)] = extra_class
        recipe = Listed(
            batch_size=size,
            optimizer="sgd",
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            shift_and_flip=True,
            technique=Margins(),
            epoch_steps=per_epoch,
        )
        return ListedJob(
            phase="filter",
            network=network,
            state=network.fresh(derive_seed(seed, "weights"), device),
            recipe=recipe,
            images=buffer.images,
            labels=labels.to(device),
            seed=derive_seed(seed, "draws"),
            index=torch.from_numpy(np.concatenate(orders)).view(-1, size),
            lrs=torch.full((self.epochs * per_epoch,), self.lr),
            extra={name: torch.zeros(n, device=device) for name in Margins.recorded},
        )


def _threshold_samples(labels: Tensor, seed: int) -> list[NDArray[np.int64]]:
    """Draw two disjoint sets of samples that get the extra class, one per round."""
    n = len(labels)
    size = max(1, n // (len(set(labels.tolist())) + 1))
    # "pretenders" names the random stream: another name would change every result
    order = np.random.Generator(np.random.PCG64(derive_seed(seed, "pretenders"))).permutation(n)
    return [order[i * size : (i + 1) * size] if (i + 1) * size <= n else order[:size] for i in range(_ROUNDS)]
