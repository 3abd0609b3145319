"""What was decided about every sample of a stream, in the order in which the samples came."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Decisions(NamedTuple):
    """One entry a judged sample; the k-th sample of the stream is the k-th entry."""

    labels: Tensor  # int64 (n,): as given
    clean_probability: Tensor  # float64 (n,), high = clean
    centrality: Tensor  # float64 (n,), high = central
    buffer: Tensor  # int64 (n,): the number of the delayed buffer in which it was judged
    passed_mask: Tensor  # bool (n,): whether it passed the filter


_DTYPES = (torch.int64, torch.float64, torch.float64, torch.int64, torch.bool)


class JudgedSamples:
    """Grows with the stream, by 33 bytes a sample."""

    def __init__(self) -> None:
        self.n = 0
        self._parts = [Decisions(*(torch.zeros(0, dtype=dtype) for dtype in _DTYPES))]

    def add(self, decisions: Decisions) -> None:
        """The samples that were judged next, in the order in which they came."""
        own = [t.detach().to("cpu", dtype, copy=True) for t, dtype in zip(decisions, _DTYPES, strict=True)]
        self._parts.append(Decisions(*own))
        self.n += len(own[0])

    def table(self) -> Decisions:
        """Everything so far; not a copy."""
        if len(self._parts) > 1:
            self._parts = [Decisions(*(torch.cat(column) for column in zip(*self._parts, strict=True)))]
        return self._parts[0]

    def state(self) -> dict[str, Tensor]:
        return self.table()._asdict()

    def load(self, state: dict[str, Tensor]) -> None:
        self.__init__()  # type: ignore[misc]
        self.add(Decisions(**state))
