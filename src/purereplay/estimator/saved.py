"""Facts of a saved estimator, checked before a learner is built from them.

A file with a right digest may still hold anything. The functions for reading raise ValueError, or UserError for
settings, with the reason; the caller adds the name of the file. The same checks come before a file is written.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import fields
from typing import Any

import torch

from purereplay.data.encoders import NONE, runs_code
from purereplay.data.forms import Form, check_forms, forms_like, n_rows
from purereplay.data.labels import label_from_json, read_labels
from purereplay.errors import UserError
from purereplay.learners import full_memory
from purereplay.learners.base import DataSpec
from purereplay.learners.own_data import UNNAMED, settings_class
from purereplay.learners.settings import completed, from_json
from purereplay.learners.spr.build import make_network
from purereplay.nets.device import DEVICES
from purereplay.nets.networks import CLASSES, State, part

_FACTS = {"learner": str, "params": dict, "options": dict, "seed": int, "shape": list, "vectors": bool, "labels": list}
_PARAMS: dict[str, tuple[type, ...]] = {
    "learner": (str, type(None)),
    "preset": (str,),
    "delayed_size": (int, type(None)),
    "purified_size": (int, type(None)),
    "expert_epochs": (int, type(None)),
    "base_epochs": (int, type(None)),
    "settings": (dict, type(None)),
    "device": (str,),
    "random_state": (int, bool, type(None)),
    "verbose": (bool, int, type(None)),
    "encoder": (str, type(None)),
}


def with_learner(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a saved estimator with the name of its learner, which earlier versions did not save."""
    params = facts.get("params")
    if isinstance(params, dict):
        facts = facts | {"params": {"learner": UNNAMED, "verbose": None, "encoder": None} | params}
    return {"learner": UNNAMED} | facts


def as_saved(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts as a file will hold them; UserError names the parameter with which it could not be loaded."""
    why = "The classifier cannot be saved: "
    for name, value in facts["params"].items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise UserError(f"{why}the parameter {name} cannot be {_short(value)}; change it by set_params.") from None
    own: dict[str, Any] = json.loads(json.dumps(facts))
    try:
        check_facts(own)
    except ValueError as error:
        raise UserError(f"{why}{error}; change it by set_params.") from error
    if (encoder := own["params"]["encoder"]) not in (None, NONE):
        runs_code(encoder)  # it must have the form of one
    return own


def check_facts(facts: dict[str, Any]) -> None:
    """Check names and types of the facts of a saved estimator, and that they fit together."""
    for name, kind in _FACTS.items():
        if type(facts.get(name)) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}, not {_short(facts.get(name))}")
    params, shape = facts["params"], facts["shape"]
    if not isinstance(facts.get("encoder_digest"), str | None):
        raise ValueError(f"encoder_digest must be a text, not {_short(facts['encoder_digest'])}")
    if params.keys() != _PARAMS.keys():
        raise ValueError(f"its parameters are {_short(sorted(params))}")
    for name, kinds in _PARAMS.items():
        if type(params[name]) not in kinds:
            raise ValueError(f"the parameter {name} cannot be {_short(params[name])}")
    if params["device"] not in DEVICES:
        raise ValueError(f"the parameter device cannot be {_short(params['device'])}")
    channels = shape[:1] if facts["vectors"] else [1, 3]
    if len(shape) != 3 or any(type(n) is not int or n < 1 for n in shape) or shape[0] not in channels:
        raise ValueError(f"samples cannot have the shape {_short(shape)}")
    if facts["vectors"] and shape[1:] != [1, 1]:
        raise ValueError(f"feature vectors cannot have the shape {_short(shape)}")


def read_saved_labels(saved: list[Any]) -> list[Hashable]:
    """Return the labels of a saved estimator."""
    try:
        labels = read_labels([label_from_json(label) for label in saved])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"a label cannot be read: {error}") from error
    if len(set(labels)) < len(labels):
        raise ValueError("two classes have the same label")
    return labels


def check_options(facts: dict[str, Any], tensors: State) -> None:
    """Check the settings of a saved estimator, the sizes of its network, and the form of its names of samples."""
    names = {name: t for name, t in tensors.items() if name == "sample_ids"}
    check_forms(names, {"sample_ids": Form(torch.uint8, (n_rows(tensors, "sample_ids"),))})
    if facts["learner"] == full_memory.NAME:
        if facts["options"]:
            raise ValueError(f"its settings are {_short(sorted(facts['options']))}, but {full_memory.NAME} has none")
        return
    cls = settings_class(facts["learner"])
    known = {f.name for f in fields(cls)}
    if (found := completed(cls, facts["options"]).keys()) != known:
        raise ValueError(f"its settings differ in {_short(sorted(found ^ known))}")
    options = from_json(cls, facts["options"])
    options.check()
    channels, height, width = facts["shape"]
    n_classes = n_rows(tensors, f"learner.base.{CLASSES}bias", len(facts["labels"]))  # classes trained on so far
    data = DataSpec(image_shape=(channels, height, width), n_classes=n_classes, is_vectors=facts["vectors"])
    with torch.device("meta"):  # sizes alone: a hostile width must not use up the memory
        expected = forms_like(make_network(options, data).init(0))
    check_forms(part(tensors, "learner.base."), expected)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
