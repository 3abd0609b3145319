"""Full delayed buffers in the queue of Self-Purified Replay, each with the results of the steps it has passed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.data.forms import FLAG, MOST, Form, Forms, Limits, batch_forms, n_rows
from purereplay.learners.base import FilterReport
from purereplay.memory.delayed import DelayedBuffer
from purereplay.nets.networks import State, part


@dataclass
class FullBuffer:
    """A full delayed buffer that is not scored yet."""

    number: int
    batch: Batch  # the images on the device, labels and index on the CPU

    def state(self) -> State:
        return {"number": torch.tensor(self.number), **self.batch._asdict(), "replayed": torch.tensor(False)}


@dataclass
class ScoredBuffer(FullBuffer):
    """A delayed buffer with the filter's scores."""

    clean_probability: Tensor  # float64 (n,) on the CPU, high = clean
    centrality: Tensor  # float64 (n,) on the CPU, high = central
    expert_loss: float | None = None
    report: FilterReport | None = None  # once its samples were offered to P; without the base's loss
    base_loss: float | None = None  # of the base trained on it
    replayed: bool = False  # whether the base's training on it is over

    def reported(self, selected_mask: Tensor, held_index: Tensor) -> FilterReport:
        """Return the report of this buffer, and keep it."""
        self.report = FilterReport(
            buffer=self.number,
            index=self.batch.index,
            labels=self.batch.labels,
            clean_probability=self.clean_probability,
            centrality=self.centrality,
            selected_mask=selected_mask,
            held_index=held_index,
            expert_loss=self.expert_loss,
        )
        return self.report

    def finished(self, report: FilterReport) -> FilterReport:
        """Return the report with the base's loss."""
        return replace(report, base_loss=self.base_loss)

    def state(self) -> State:
        state = super().state() | {"replayed": torch.tensor(self.replayed)}
        if self.expert_loss is not None:
            state["expert_loss"] = torch.tensor(self.expert_loss, dtype=torch.float64)
        state |= {"clean_probability": self.clean_probability, "centrality": self.centrality}
        if self.base_loss is not None:
            state["base_loss"] = torch.tensor(self.base_loss, dtype=torch.float64)
        if self.report is not None:
            state["report.selected_mask"] = self.report.selected_mask
            state["report.purified_index"] = self.report.held_index
        return state


def buffer_forms(state: State, number: int, delayed: DelayedBuffer, limits: Limits) -> Forms:
    """Return the forms that the tensors of a saved buffer must have; `delayed` is the buffer that it was filled in."""
    n = max(1, n_rows(state, "labels", delayed.capacity))
    forms = batch_forms(n, delayed.image_shape, delayed.dtype, limits)
    forms["number"] = Form(torch.int64, (), number, number)
    if "clean_probability" not in state:
        return forms | {"replayed": FLAG._replace(most=0)}
    forms |= {
        "replayed": FLAG,
        "clean_probability": Form(torch.float64, (n,), 0, 1, finite=True),
        "centrality": Form(torch.float64, (n,)),
    }
    forms |= {name: Form(torch.float64, ()) for name in ("expert_loss", "base_loss") if name in state}
    if part(state, "report."):
        held = n_rows(state, "report.purified_index", MOST)
        forms["report.selected_mask"] = Form(torch.bool, (n,))
        forms["report.purified_index"] = Form(torch.int64, (held,), 0, limits.n_samples - 1)
    return forms


def from_state(state: State, device: torch.device) -> FullBuffer | ScoredBuffer:
    """Restore a buffer from its `state`."""
    number = int(state["number"])
    batch = Batch(state["images"].to(device), state["labels"].cpu(), state["index"].cpu())
    if "clean_probability" not in state:
        return FullBuffer(number, batch)
    scored = ScoredBuffer(number, batch, state["clean_probability"].cpu(), state["centrality"].cpu())
    scored.replayed = bool(state["replayed"])
    scored.expert_loss = float(state["expert_loss"]) if "expert_loss" in state else None
    scored.base_loss = float(state["base_loss"]) if "base_loss" in state else None
    report = part(state, "report.")
    if report:
        scored.reported(report["selected_mask"].cpu(), report["purified_index"].cpu())
    return scored
