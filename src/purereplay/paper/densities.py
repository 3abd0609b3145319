"""Densities of the beta mixture on one delayed buffer: the graph itself against sampled graphs (the paper's figure 5).

The first delayed buffer of a stream is scored twice, with features of the same expert. The fits of the label with most
samples are kept in the store as JSON; the expert is trained once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from purereplay.evaluate.experiment import versions
from purereplay.evaluate.identity import run_key
from purereplay.evaluate.json_files import read_json
from purereplay.evaluate.preparation import load, make_data_spec, make_learner, make_stream
from purereplay.evaluate.settings import RunSettings
from purereplay.evaluate.store import Store
from purereplay.learners.spr.learner import SPR
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive
from purereplay.purify.options import FilterOptions
from purereplay.purify.self_centered import LabelFit, score_samples
from purereplay.report.pictures_lines import DrawnCurve, DrawnPanel

_X = np.linspace(0.01, 0.99, 99)
_PARTS = ("noisy", "clean")


def kept_fits(store: Store, settings: RunSettings) -> dict[str, Any] | None:
    """Return the fits that the store has for these settings, or None."""
    path = _path(store, settings)
    return read_json(path, "") if path.exists() else None


def compute_fits(store: Store, settings: RunSettings) -> dict[str, Any]:
    """Train the expert of the first delayed buffer, score the buffer by both kinds of graphs and keep the fits."""
    dataset = load(settings)
    _, stream = make_stream(settings, dataset)
    engine = Engine(torch.device(settings.device), precision=settings.precision)
    learner = make_learner(settings, make_data_spec(settings, dataset), engine)
    if not isinstance(learner, SPR):
        raise TypeError("Densities need a learner with the Self-Centered filter.")
    learner.take(stream.batch(0, learner.delayed.capacity))
    [buffer] = learner.waiting
    [features], _ = drive(learner.buffer_filter.train_experts([buffer], learner._seed), engine)
    found: dict[str, Any] = {"seed": settings.seed, "budget": settings.budget, "versions": versions()}
    for name, n_graphs in (("fixed", 0), ("sampled", settings.options.graphs)):  # type: ignore[attr-defined]
        options = FilterOptions(n_graphs=n_graphs)
        fits = score_samples(features, buffer.batch.labels, learner._seed("graphs"), options=options).fits
        found[name] = _plain(max(fits, key=lambda fit: fit.n))
    store.write(_path(store, settings).name, found)
    return found


def density_panel(title: str, fit: dict[str, Any]) -> DrawnPanel:
    """Return the densities of both components, each times its weight: mean and spread over graphs."""
    curves = []
    for i, part in enumerate(_PARTS):
        each = np.stack(
            [
                w[i] * stats.beta.pdf(_X, a[i], b[i])
                for a, b, w in zip(fit["alpha"], fit["beta"], fit["weights"], strict=True)
            ]
        )
        spreads = each.std(0, ddof=1) if len(each) > 1 else np.full(len(_X), np.nan)
        curves.append(DrawnCurve(f"p(c | {part}) p({part})", _X.tolist(), each.mean(0).tolist(), spreads.tolist()))
    # in the order of colours: the clean component is blue
    return DrawnPanel(title, "centrality, scaled", "density", curves[::-1])


def _plain(fit: LabelFit) -> dict[str, Any]:
    parts = {name: getattr(fit, name).tolist() for name in ("alpha", "beta", "weights")}
    return {"label": str(fit.label), "n": fit.n, "rules": list(fit.rules), **parts}


def _path(store: Store, settings: RunSettings) -> Path:
    key = run_key(settings)
    return store.folder / f"densities-{settings.dataset}-{key.cell}-seed-{key.seed}.json"
