"""The command `export`: a classifier as a file, with a model card beside it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from purereplay import __version__
from purereplay.data.files import disk_errors, write_whole
from purereplay.data.progress import Progress
from purereplay.errors import UserError
from purereplay.live.encoding import inputs
from purereplay.live.export.accuracy import Accuracy, estimate, measure
from purereplay.live.export.card import HEAD, Facts, model_card
from purereplay.live.export.files import NAMES, Check, Images, write_model
from purereplay.live.predict import Predictor, ready_classifier
from purereplay.live.session import make_engine
from purereplay.live.settings import Opened, StateSettings, Wanted, check_same
from purereplay.live.status import status
from purereplay.live.store import Store

CARD = "README.md"
_N_COMPARED = 1000  # samples that a file is compared on


class Exported(NamedTuple):
    """Files that were written."""

    model: Path
    card: Path
    check: Check
    accuracy: Accuracy | None


def export(
    state: Path,
    form: str,
    out: Path,
    *,
    test: Path | None = None,
    licence: str | None = None,
    encoder: Opened | Literal["none"] | None = None,
    watch: Progress | None = None,
) -> Exported:
    """Write the classifier of a state and its model card into a folder; UserError if the file predicts otherwise."""
    if form not in NAMES:
        raise UserError(f"The form {form!r} is unknown: choose {', '.join(NAMES)}.")
    with Store.reading(state) as store:
        if out.exists() and out.samefile(state):
            raise UserError(f"{out} is the folder of the state: choose another --out.")
        for name in (NAMES[form], CARD):
            store.check_destination(out / name)
        _check_card(out / CARD)
        check_same(store.settings, Wanted(encoder=encoder), state)
        classifier, labels, version = _classifier(store)
        facts: dict[str, Any] = {
            "labels": json.dumps(labels),
            **_input_facts(store.image_settings),
            "version": version,
            "purereplay": __version__,
        }
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        accuracy = (
            estimate(store, watch)
            if test is None
            else measure(store, classifier, test, None if isinstance(encoder, str) else encoder)
        )
        if watch:
            watch("writing", 0, None)
        check = write_model(form, classifier, facts, _some_inputs(store), out / NAMES[form])
        card = Facts(
            form=form,
            version=version,
            labels=labels,
            status=status(store),
            settings=store.image_settings,
            accuracy=accuracy,
            check=check,
            licence=licence,
            made=time.strftime("%Y-%m-%d"),
        )
        write_whole(out / CARD, model_card(card).encode())
    return Exported(out / NAMES[form], out / CARD, check, accuracy)


def _classifier(store: Store) -> tuple[Predictor, list[str], str]:
    """Return the classifier, its labels and its version; another process may replace it meanwhile."""
    while True:
        before = store.current()
        classifier, labels = ready_classifier(store, make_engine("cpu"))
        if before is not None and before == store.current():
            return classifier, labels, before.digest[:16]


def _input_facts(settings: StateSettings) -> dict[str, Any]:
    """Return the description of the input; with an encoder it is features, not the small copies of the images."""
    encoder = settings.encoder
    if encoder is None:
        return {"image_shape": json.dumps(settings.shape), "encoder": "none"}
    facts = {"encoder": encoder.name, "encoder_digest": encoder.digest, "encoder_size": encoder.size}
    return facts | {"features": encoder.dim}


def _check_card(path: Path) -> None:
    """Raise UserError if the card would replace another document, a folder or a pipe."""
    if not path.exists():
        return
    head = b""
    if path.is_file():
        with disk_errors(path), path.open("rb") as file:
            head = file.read(len(HEAD))
    if head != HEAD.encode():
        raise UserError(f"{path} exists and is not a model card of purereplay: choose another --out.")


def _some_inputs(store: Store) -> Images:
    """Return images of random samples, uint8 (n, C, H, W), or their features by the encoder, float32 (n, dim)."""
    order = np.random.default_rng(0).permutation(store.n_samples)[:_N_COMPARED]
    return np.asarray(inputs(store, np.sort(order)).numpy())
