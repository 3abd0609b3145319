"""The memory of EWC: how much every weight mattered for finished tasks, and its value.

For every finished task the loss has λ/2 Σ F (w − w*)². A sum of parabolas is a parabola, so all tasks together are kept
as ΣF and ΣF w*. F is the diagonal of the Fisher information.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from purereplay.data.forms import COUNT, Form, Forms, forms_like, n_rows, prefixed, total
from purereplay.data.seeds import derive_seed
from purereplay.nets.draws import RandomStream, uniforms
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import Network, State, is_trained, network_input, part

_AT_ONCE = 2**26  # floats for the gradients of single samples


@dataclass
class Consolidation:
    """The penalty of the finished tasks, and the last samples of the current one."""

    capacity: int  # samples
    images: Tensor  # uint8 (n, C, H, W): the last ones
    stiffness: State = field(default_factory=dict)  # ΣF of every parameter; empty before the first task's end
    drawn: State = field(default_factory=dict)  # ΣF w*
    n_tasks: int = 0

    def saw(self, images: Tensor) -> None:
        """Keep the last `capacity` images of the current task."""
        self.images = torch.cat([self.images, images])[-self.capacity :].clone()

    def end_task(self, network: Network, weights: State, seed: int) -> None:
        """Add the penalty of a task that ends with these weights."""
        for name, f in fisher(network, weights, self.images, derive_seed(seed, "fisher", self.n_tasks)).items():
            self.stiffness[name] = self.stiffness.get(name, 0) + f
            self.drawn[name] = self.drawn.get(name, 0) + f * weights[name]
        self.images = self.images[:0].clone()
        self.n_tasks += 1

    def extra(self, weights: State) -> State:
        """Return the tensors that `Elastic` works with; the stiffness is 0 before the first task's end."""
        names = [name for name in weights if is_trained(name)]
        stiffness = {n: self.stiffness.get(n, torch.zeros_like(weights[n])) for n in names}
        drawn = {n: self.drawn.get(n, torch.zeros_like(weights[n])) for n in names}
        # where the stiffness is 0, the centre does not matter
        centre = {n: torch.where(stiffness[n] > 0, drawn[n] / stiffness[n], weights[n]) for n in names}
        return prefixed("centre.", centre) | prefixed("stiffness.", stiffness)

    def state(self) -> State:
        state = {"images": self.images, "n_tasks": torch.tensor(self.n_tasks)}
        return state | prefixed("stiffness.", self.stiffness) | prefixed("drawn.", self.drawn)

    def forms(self, state: State, weights: State) -> Forms:
        """Return the forms that the tensors of a saved `state` must have, for a network with these weights."""
        n = n_rows(state, "images", self.capacity)
        forms = {"images": Form(torch.uint8, (n, *self.images.shape[1:])), "n_tasks": COUNT}
        if total(state, "n_tasks"):
            own = forms_like({name: t for name, t in weights.items() if is_trained(name)})
            stiff = {name: form._replace(least=0) for name, form in own.items()}
            forms |= prefixed("stiffness.", stiff) | prefixed("drawn.", own)
        return forms

    def load(self, state: State) -> None:
        device = self.images.device
        self.images, self.n_tasks = state["images"].to(device), int(state["n_tasks"])
        self.stiffness = {n: t.to(device) for n, t in part(state, "stiffness.").items()}
        self.drawn = {n: t.to(device) for n, t in part(state, "drawn.").items()}


def fisher(network: Network, weights: State, images: Tensor, seed: int) -> State:
    """Return the diagonal Fisher information of every parameter.

    It is the mean over images uint8 (n, C, H, W) of the squared gradient of the log-probability of a label that is
    drawn from the network's own prediction.
    """
    names = [name for name in weights if is_trained(name)]
    sums = {name: torch.zeros_like(weights[name]) for name in names}
    size = max(1, _AT_ONCE // sum(weights[name].numel() for name in names))
    for number, some in enumerate(torch.split(images, size)):
        k = some.shape[0]
        # one copy of the network per sample, so that every gradient is that of one sample
        state = {n: t.expand(k, *t.shape).clone().requires_grad_(n in sums) for n, t in weights.items()}
        logits = network.outputs(state, network_input(some[:, None]))  # (k, 1, classes)
        key = torch.tensor([seed], device=images.device)
        u = uniforms(key, torch.tensor(number, device=images.device), k, stream=RandomStream.FISHER_LABELS)
        bounds = logits.detach().softmax(-1)[:, 0].cumsum(-1)
        labels = (bounds < u.view(k, 1)).sum(-1).clamp(max=logits.shape[-1] - 1)
        losses = sample_losses(logits, labels[:, None])
        for name, g in zip(names, torch.autograd.grad(losses.sum(), [state[n] for n in names]), strict=True):
            sums[name] += g.square().sum(0)
    return {name: total / max(1, len(images)) for name, total in sums.items()}
