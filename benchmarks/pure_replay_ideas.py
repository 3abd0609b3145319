"""Ideas for Pure Replay that are not part of it, each compared with the learner as it is.

    python benchmarks/pure_replay_ideas.py --out results/pure-replay/ideas.jsonl   # digits, validation data, on a CPU

    refresh  the scores of P are lowered to the present opinion of the moving average and the present agreement
    relabel  a label of D that is believed little teaches as another class if the moving average is sure of it. Its
             probabilities are first aligned with the share of each class among the believed labels of D
    distil   the base also learns the present logits of the moving average for the same views of P (Michel et al.
             2024); the setting `distillation` keeps the logits that P had before the buffer instead

Runs are those of `purereplay run --learner pure-replay --validation`. Every finished run is a line of the file, and is
not computed again.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from purereplay.cli import main as purereplay
from purereplay.learners import pure_replay
from purereplay.learners.base import FilterReport
from purereplay.learners.pure_replay import PureReplay
from purereplay.learners.spr.buffers import ScoredBuffer
from purereplay.nets.jobs import Asks, Joint
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.steps import two_views

BELIEVED_LITTLE, SURE = 0.2, 0.8
# of a result: no run of `purereplay run` has an idea, so a line must not be taken for one
KEPT = (
    "dataset",
    "noise",
    "noise_rate",
    "preset",
    "seed",
    "judged_on",
    "accuracy",
    "auroc",
    "purity",
    "device",
    "versions",
)


class Refresh(PureReplay):
    """Pure Replay whose P is scored again before each buffer enters it."""

    def _purify(self, buffer: ScoredBuffer) -> FilterReport:
        held = self.held()
        if buffer.report is None and held.n and self.n_replays:
            again = ScoredBuffer(
                number=buffer.number,
                batch=held,
                clean_probability=torch.ones(held.n, dtype=torch.float64),
                centrality=torch.zeros(held.n, dtype=torch.float64),
            )
            scores = self._sharpened(again) ** (1 / (self.sharpening + self.agreement))
            ours = self.purified._probability[: held.n]
            ours[:] = torch.minimum(torch.from_numpy(ours), scores).numpy()
        return super()._purify(buffer)


class Relabel(PureReplay):
    """Pure Replay whose base learns the classes that the moving average gives to labels believed little."""

    def _train_jointly(self, recipe: Joint, buffer: ScoredBuffer) -> Asks[float | None]:
        labels, believed, seen = buffer.batch.labels, buffer.clean_probability, self.seen
        present = torch.unique(labels)
        if not self.n_replays or not bool(seen[present].all()):
            return (yield from super()._train_jointly(recipe, buffer))
        chances = self._by_layer(self.network.n_classes).probabilities(buffer.batch.images).double().cpu()[:, present]
        share = (F.one_hot(labels, self.n_classes)[:, present] * believed[:, None]).mean(0)
        aligned = chances * (share / chances.mean(0).clamp(min=1e-9))
        sureness, best = (aligned / aligned.sum(1, keepdim=True)).max(1)
        changed = (believed < BELIEVED_LITTLE) & (sureness > SURE)
        batch = buffer.batch._replace(labels=torch.where(changed, present[best], labels))
        taught = ScoredBuffer(
            number=buffer.number,
            batch=batch,
            clean_probability=torch.where(changed, sureness, believed),
            centrality=buffer.centrality,
        )
        return (yield from super()._train_jointly(recipe, taught))


class DistillingLoop(PlainLoop):
    """The plain loop with one more loss."""

    strength = 1.0

    def _loss(self, index: Tensor, numbers: Tensor | None = None) -> Tensor:
        loss = super()._loss(index, numbers)
        if not isinstance(self.recipe, Joint) or not self.recipe.replay_size or numbers is None:
            return loss
        views = two_views(self.recipe, self.pool, index, numbers)
        logits, wanted = (
            self.network.logits(weights, self.network.features(weights, views, training=True))
            for weights in (self.state, self.average)
        )
        taught = index.shape[1] - self.recipe.replay_size
        error = (logits - wanted.detach()).square() * self.targets["allowed"][:, 1:2]
        return loss + self.strength * error.unflatten(1, (2, -1))[:, :, taught:].mean((1, 2, 3))


@contextlib.contextmanager
def idea(name: str) -> Iterator[None]:
    """Replace the learner, or the loop that trains it, by the one with the idea."""
    learners: dict[str, type[PureReplay]] = {"refresh": Refresh, "relabel": Relabel}
    with contextlib.ExitStack() as stack:
        if name in learners:
            stack.enter_context(patch.object(pure_replay, "PureReplay", learners[name]))
        if name == "distil":
            stack.enter_context(patch("purereplay.nets.engine.PlainLoop", DistillingLoop))
            stack.enter_context(patch("purereplay.nets.engine.can_train", lambda job: False))  # by no other loop
        yield


def measure(name: str, dataset: str, noise: str, seed: int, preset: str) -> dict[str, Any]:
    """Return the result of one run."""
    with tempfile.TemporaryDirectory() as folder, idea(name):
        call = ["run", "--dataset", dataset, "--learner", "pure-replay", "--noise", noise, "--seed", str(seed)]
        call += ["--validation", "--device", "cpu", "--preset", preset, "--out", f"{folder}/run"]
        with patch.object(sys, "argv", ["purereplay", *call]), contextlib.suppress(SystemExit):
            purereplay()
        result: dict[str, Any] = json.loads((Path(folder) / "run" / "result.json").read_text())
    strength = DistillingLoop.strength if name == "distil" else None
    return {"idea": name, "strength": strength} | {name: result[name] for name in KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the results")
    parser.add_argument("--data", default="digits", help="dataset")
    parser.add_argument("--idea", nargs="*", default=["none", "refresh", "relabel", "distil"])
    parser.add_argument("--noise", nargs="*", default=["symmetric", "asymmetric"], help="40 % wrong labels")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--strength", type=float, default=1.0, help="weight of the loss of `distil`")
    parser.add_argument("--seed", type=int, nargs="*", default=[11, 12, 13, 14, 15, 16])
    options = parser.parse_args()
    DistillingLoop.strength = options.strength
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    known = {(r["idea"], r["dataset"], r["noise"], r["seed"], r["preset"]) for r in done}
    for seed, noise, name in itertools.product(options.seed, options.noise, options.idea):
        if (name, options.data, noise, seed, options.preset) in known:
            continue
        result = measure(name, options.data, noise, seed, options.preset)
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(name, noise, seed, f"{result['accuracy']:.1%}", f"AUROC {result['auroc']:.1%}", flush=True)


if __name__ == "__main__":
    main()
