"""Log of the filter's verdicts on every sample of a stream, in stream order."""

from __future__ import annotations

import copy
from typing import NamedTuple, Self

import torch
from torch import Tensor

from purereplay.data.forms import MOST, Form, Forms, Limits, n_rows


class Verdicts(NamedTuple):
    """One entry per scored sample; entry k belongs to sample k of the stream."""

    labels: Tensor  # int64 (n,): as given
    clean_probability: Tensor  # float64 (n,), high = clean
    centrality: Tensor  # float64 (n,), high = central
    buffer: Tensor  # int64 (n,): number of the delayed buffer in which the sample was scored
    passed_mask: Tensor  # bool (n,): whether the sample passed the filter


_DTYPES = (torch.int64, torch.float64, torch.float64, torch.int64, torch.bool)


class VerdictLog:
    """Log that grows with the stream, by 33 bytes per sample."""

    def __init__(self) -> None:
        self._parts = [Verdicts(*(torch.zeros(0, dtype=dtype) for dtype in _DTYPES))]

    @property
    def n(self) -> int:
        """Number of verdicts."""
        return sum(len(own.labels) for own in self._parts)

    def copy(self) -> Self:
        """Return a log to which verdicts can be added while this one stays as it is."""
        return copy.copy(self)

    def add(self, verdicts: Verdicts) -> None:
        """Append the verdicts on the next samples, in stream order."""
        own = [t.detach().to("cpu", dtype, copy=True) for t, dtype in zip(verdicts, _DTYPES, strict=True)]
        self._parts = [*self._parts, Verdicts(*own)]  # copies share the old list

    def table(self) -> Verdicts:
        """Return all verdicts so far; not a copy."""
        if len(self._parts) > 1:
            self._parts = [Verdicts(*(torch.cat(column) for column in zip(*self._parts, strict=True)))]
        return self._parts[0]

    def state(self) -> dict[str, Tensor]:
        return self.table()._asdict()

    def forms(self, state: dict[str, Tensor], limits: Limits) -> Forms:
        """Return the forms that the tensors of a saved `state` must have."""
        n = n_rows(state, "labels", limits.n_samples)
        return {
            "labels": Form(torch.int64, (n,), 0, limits.n_classes - 1),
            "clean_probability": Form(torch.float64, (n,), 0, 1, finite=True),
            "centrality": Form(torch.float64, (n,)),
            "buffer": Form(torch.int64, (n,), 0, MOST),
            "passed_mask": Form(torch.bool, (n,)),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        self.__init__()  # type: ignore[misc]
        self.add(Verdicts(**state))
