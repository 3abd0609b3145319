"""A full delayed buffer on its way through Self-Purified Replay, with a mark for every step that it has behind it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.learners.base import Report
from purereplay.nets.networks import State, part

_PURIFIED = ("selected_mask", "purified_index")


@dataclass
class Waiting:
    """What is known about a full delayed buffer so far."""

    number: int
    batch: Batch  # the images on the device, labels and index on the CPU
    clean_probability: Tensor | None = None  # once its expert is trained: float64 (n,) on the CPU, high = clean
    centrality: Tensor | None = None  # likewise, high = central
    expert_loss: float | None = None
    report: Report | None = None  # once purified
    base_loss: float | None = None  # of the base trained on it
    replayed: bool = False  # whether the base's turn is over

    def state(self) -> State:
        state = {"number": torch.tensor(self.number), **self.batch._asdict()}
        state["replayed"] = torch.tensor(self.replayed)
        if self.expert_loss is not None:
            state["expert_loss"] = torch.tensor(self.expert_loss, dtype=torch.float64)
        if self.clean_probability is not None and self.centrality is not None:
            state |= {"clean_probability": self.clean_probability, "centrality": self.centrality}
        if self.base_loss is not None:
            state["base_loss"] = torch.tensor(self.base_loss, dtype=torch.float64)
        if self.report is not None:
            state |= {f"report.{name}": getattr(self.report, name) for name in _PURIFIED}
        return state

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> Waiting:
        batch = Batch(state["images"].to(device), state["labels"].cpu(), state["index"].cpu())
        waiting = cls(int(state["number"]), batch, replayed=bool(state["replayed"]))
        if "expert_loss" in state:
            waiting.expert_loss = float(state["expert_loss"])
        if "clean_probability" in state:
            waiting.clean_probability, waiting.centrality = state["clean_probability"].cpu(), state["centrality"].cpu()
        if "base_loss" in state:
            waiting.base_loss = float(state["base_loss"])
        purified = part(state, "report.")
        if purified:
            waiting.report = waiting.reported(**{name: purified[name].cpu() for name in _PURIFIED})
        return waiting

    def reported(self, selected_mask: Tensor, purified_index: Tensor) -> Report:
        """What became of the buffer, without the base's loss."""
        assert self.clean_probability is not None and self.centrality is not None
        return Report(
            buffer=self.number,
            index=self.batch.index,
            labels=self.batch.labels,
            clean_probability=self.clean_probability,
            centrality=self.centrality,
            selected_mask=selected_mask,
            purified_index=purified_index,
            expert_loss=self.expert_loss,
            base_loss=None,
        )
