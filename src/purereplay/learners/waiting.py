"""A full delayed buffer on its way through Self-Purified Replay, with a mark for every step that it has behind it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purereplay.data.batch import Batch
from purereplay.learners.base import Report
from purereplay.nets.networks import State, part

_JUDGED = ("clean_probability", "centrality", "selected_mask", "purified_index")


@dataclass
class Waiting:
    """What is known about a full delayed buffer so far."""

    number: int
    batch: Batch
    features: Tensor | None = None  # once its expert is trained
    expert_loss: float = float("nan")
    report: Report | None = None  # once judged
    base_loss: float | None = None  # once replayed

    def state(self) -> State:
        state = {"number": torch.tensor(self.number), **self.batch._asdict()}
        state["expert_loss"] = torch.tensor(self.expert_loss, dtype=torch.float64)
        if self.features is not None:
            state["features"] = self.features
        if self.base_loss is not None:
            state["base_loss"] = torch.tensor(self.base_loss, dtype=torch.float64)
        if self.report is not None:
            state |= {f"report.{name}": getattr(self.report, name) for name in _JUDGED}
        return state

    @classmethod
    def from_state(cls, state: State, device: torch.device) -> Waiting:
        batch = Batch(*(state[name].to(device) for name in Batch._fields))
        waiting = cls(int(state["number"]), batch, expert_loss=float(state["expert_loss"]))
        if "features" in state:
            waiting.features = state["features"].to(device)
        if "base_loss" in state:
            waiting.base_loss = float(state["base_loss"])
        judged = part(state, "report.")
        if judged:
            waiting.report = Report(
                buffer=waiting.number,
                index=batch.index.cpu(),
                labels=batch.labels.cpu(),
                expert_loss=waiting.expert_loss,
                base_loss=float("nan"),
                **judged,
            )
        return waiting
