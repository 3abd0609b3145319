"""Galleries: images of a class as the stream labels them, beside those that the purified buffer holds (appendix).

Drawn from a run folder in the store, whose metrics.jsonl lists the samples held at the end. The paper shows four
classes of WebVision; the other datasets have classes of our choice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from purereplay.data.catalogue import info_for
from purereplay.data.seeds import derive_seed
from purereplay.evaluate.preparation import load, make_stream
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings
from purereplay.evaluate.store import Store
from purereplay.paper.numbers import WEBVISION_COLUMNS

CLASSES = {
    "webvision14": tuple(WEBVISION_COLUMNS.values()),
    "cifar10": ("cat", "deer", "frog", "truck"),
    "mnist": ("2", "3", "5", "7"),
}
_SHOWN = 50  # images of a class, as in the paper


def held_at_end(store: Store, settings: RunSettings) -> NDArray[np.int64] | None:
    """Return the samples that P holds at the end of a run in the store; None if it has no such run folder."""
    path = store.path_for(settings)
    if not RunDirectory(path).exists or RunDirectory(path).result() is None:
        return None
    lines = [line for line in RunDirectory(path).read_lines() if line["event"] == "memory"]
    return np.array(lines[-1]["index"], np.int64) if lines else None


def gallery(settings: RunSettings, held: NDArray[np.int64], class_name: str) -> dict[str, NDArray[np.uint8]]:
    """Return sheets of images (n, C, H, W): random ones of a given label in the stream, and those in P."""
    dataset = load(settings)
    given, stream = make_stream(settings, dataset)
    number = info_for(settings.dataset).class_names.index(class_name)
    rng = np.random.Generator(np.random.PCG64(derive_seed(settings.seed, "gallery", number)))
    sheets = {}
    for name, index in (("random, with this label", stream.order), ("in the purified buffer", held)):
        of_class = index[given[index] == number]
        chosen = rng.permutation(of_class)[:_SHOWN]
        sheets[f"{name}: {len(chosen)} of {len(of_class)}"] = np.asarray(dataset.images[chosen])
    return sheets
