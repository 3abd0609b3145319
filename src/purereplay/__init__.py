"""Self-Purified Replay: continual learning from image streams whose labels cannot be trusted.

The public names are loaded when first used, so that `purereplay --version` does not wait for PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from purereplay.data.batch import Batch
    from purereplay.estimator import SelfPurifiedClassifier
    from purereplay.learners.spr.build import make_spr
    from purereplay.purify.beta_mixture import BetaMixture
    from purereplay.purify.filter import SelfCenteredFilter
    from purereplay.purify.opinions import FeatureMap, choose_model, judge_labels
    from purereplay.purify.patches import patch_features
    from purereplay.purify.self_centered import clean_probability

_WHERE = {
    "Batch": "purereplay.data.batch",
    "SelfPurifiedClassifier": "purereplay.estimator",
    "make_spr": "purereplay.learners.spr.build",
    "BetaMixture": "purereplay.purify.beta_mixture",
    "SelfCenteredFilter": "purereplay.purify.filter",
    "FeatureMap": "purereplay.purify.opinions",
    "choose_model": "purereplay.purify.opinions",
    "judge_labels": "purereplay.purify.opinions",
    "patch_features": "purereplay.purify.patches",
    "clean_probability": "purereplay.purify.self_centered",
}

__all__ = [
    "Batch",
    "BetaMixture",
    "FeatureMap",
    "SelfCenteredFilter",
    "SelfPurifiedClassifier",
    "__version__",
    "choose_model",
    "clean_probability",
    "judge_labels",
    "make_spr",
    "patch_features",
]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'purereplay' has no attribute {name!r}")
