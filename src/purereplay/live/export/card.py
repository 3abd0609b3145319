"""The model card of an exported classifier, as Markdown: data, noise, accuracy, settings, licence and use."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, NamedTuple

from purereplay import __version__
from purereplay.live.export.accuracy import Accuracy
from purereplay.live.export.files import NAMES, TOLERANCE, Check
from purereplay.live.export.preparation import encoder_rows, encoder_words, image_words
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.settings import StateSettings
from purereplay.live.status import NoiseStatus, Status

HEAD = "---\nlibrary_name: purereplay\n"  # of a card
NO_LICENCE = "not stated: ask the owner of the images"
_PAIRS = 10  # pairs of labels with the most wrong samples


class Facts(NamedTuple):
    """Facts on a card."""

    form: str  # onnx, torch or safetensors
    version: str  # of the classifier
    labels: list[str]
    status: Status
    settings: StateSettings
    accuracy: Accuracy | None
    check: Check
    licence: str | None
    made: str  # date


def model_card(facts: Facts) -> str:
    """Return the text of a card."""
    sections = (_header, _data, _noise, _accuracy, _input, _use, _settings)
    return "\n\n".join(section(facts) for section in sections) + "\n"


def _header(f: Facts) -> str:
    licence = json.dumps(f.licence) if f.licence else '"unknown"'
    return f"""{HEAD}pipeline_tag: image-classification
license: {licence}
---

# Image classifier with {len(f.labels)} labels

Made on {f.made} by purereplay {__version__} (`purereplay export --to {f.form}`), which learns from images whose labels
may be wrong. Version of the classifier: `{f.version}`.

Licence of the model: {_cell(f.licence) if f.licence else NO_LICENCE}. The program purereplay has the MIT licence, which
says nothing about a model made from your images."""


def _data(f: Facts) -> str:
    s = f.status
    rows = [[c["label"], c["samples"], c["scored"] - c["unjudged"], c["rejected"]] for c in s["classes"]]
    n_judged = s["scored"] - s["unjudged"]
    few = f"Not judged: {s['unjudged']:,}, since {s['unjudged_reason']}.\n" if s["unjudged"] else ""
    return f"""## Data

{s["samples"]:,} images with given labels. Judged: {n_judged:,}. Labels rejected: {s["rejected"]:,}.
{few}Labels corrected or confirmed by a person: {s["corrected"]:,}.
Samples whose label is believed: {s["purified"]:,}.

{_table(["label", "samples", "judged", "rejected"], rows)}"""


def _noise(f: Facts) -> str:
    rows = f.status["noise"]
    if not rows:
        return "## Wrong labels\n\nThe share of wrong labels was not estimated."
    overall = [row for row in rows if row["given"] is None]
    by_label = [row for row in rows if row["given"] is not None and row["likely"] is None]
    pairs = [row for row in rows if row["likely"] is not None][:_PAIRS]
    text = "## Wrong labels\n\n"
    text += "".join(f"Estimated share of wrong labels in the data: {_share(row)}. " for row in overall)
    text += "No true label was used for it.\n\n"
    text += _table(["given label", "wrong"], [[row["given"], _share(row)] for row in by_label])
    if pairs:
        shares = [[row["given"], row["likely"], _share(row)] for row in pairs]
        text += "\n\n" + _table(["given label", "likely label", "share of the given label"], shares)
    return text


def _accuracy(f: Facts) -> str:
    a = f.accuracy
    if a is None:
        return "## Accuracy\n\nNot measured: `purereplay export --test FOLDER` measures it on images with right labels."
    interval = f"{100 * a.rate:.1f} % ({100 * a.low:.1f} to {100 * a.high:.1f} %)"
    if a.measured:
        refused = f" Files that could not be used: {a.n_refused:,}." if a.n_refused else ""
        return f"## Accuracy\n\nMeasured on {a.n:,} images with right labels: {interval}, a 95 % interval.{refused}"
    return f"""## Accuracy

Estimated without true labels: {interval}. A classifier that was fitted without {a.n:,}
of the samples predicted their given labels, and the estimated share of wrong labels was taken into account. Measure the
accuracy on images with right labels before you rely on it: `purereplay export --test FOLDER`."""


def _input(f: Facts) -> str:
    encoder = f.settings.encoder
    if encoder is None:
        return f"## Input\n\n{image_words(f.settings)}"
    return f"## Input\n\n{encoder_words(encoder)}\n\n{_table(['encoder', ''], encoder_rows(encoder))}"


def _use(f: Facts) -> str:
    encoder, n = f.settings.encoder, len(f.labels)
    shape = ", ".join(map(str, f.settings.shape if encoder is None else (encoder.dim,)))
    name, dtype = ("images", "uint8") if encoder is None else ("features", "float32")
    made_by = "" if encoder is None else " The features are those of the encoder above."
    compared = f"""Compared with the state's own classifier on {f.check.n:,} samples, the largest
difference of a probability was {f.check.difference:.1e}; more than {TOLERANCE:g} would have been an error."""
    about = f"""Input `{name}`: {dtype} (n, {shape}).{made_by} Output `probabilities`: float32 (n, {n}),
in the order of the labels below. {compared}"""
    if f.form == "safetensors":
        about = f"""The file has the tensors alone. The code that computes probabilities of {n} labels with them is in
purereplay, `live/export/graphs.py`. It takes `{name}`, {dtype} (n, {shape}).{made_by}
The tensors of the file were read back. {compared}"""
    code = {
        "onnx": f"""import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{NAMES["onnx"]}")
{name} = np.zeros((1, {shape}), np.{dtype})
[probabilities] = session.run(None, {{"{name}": {name}}})""",
        "torch": f"""import torch

texts = {{"labels": ""}}
module = torch.export.load("{NAMES["torch"]}", extra_files=texts).module()  # fills in the texts
{name} = torch.zeros((1, {shape}), dtype=torch.{dtype})
probabilities = module({name})""",
        "safetensors": f"""from safetensors.torch import load_file

tensors = load_file("{NAMES["safetensors"]}")  # by name""",
    }[f.form]
    return f"## Use\n\n{about}\n\n```python\n{code}\n```\n\nLabels:\n\n```json\n{_json(f.labels)}\n```"


def _json(labels: list[str]) -> str:
    """Return labels as one line of JSON; signs that are not shown, or change the direction of a text, are escaped."""
    text = json.dumps(labels, ensure_ascii=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _settings(f: Facts) -> str:
    s = f.settings
    preset = {} if s.learner == FULL_MEMORY else {"preset": s.preset}
    values: dict[str, Any] = {"learner": s.learner, **preset, "seed": s.seed, **asdict(s.options)}
    return "## Settings\n\n" + _table(["setting", "value"], [[name, value] for name, value in values.items()])


def _share(row: NoiseStatus) -> str:
    return f"{100 * row['rate']:.1f} % ({100 * row['low']:.1f} to {100 * row['high']:.1f} %)"


def _table(header: list[str], rows: list[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    """Return a text that neither ends a table's cell nor is read as markup."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    text = "".join(c if c.isprintable() else " " for c in text)
    for sign in "\\`*_{}[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return text
