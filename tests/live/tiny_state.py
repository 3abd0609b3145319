"""Small images, a learner that trains in no time, and the contents of a state."""

import io
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from purereplay.live.items import Item
from purereplay.live.session import Session
from purereplay.live.settings import Wanted
from purereplay.nets.engine import Engine

TINY = {
    "delayed_size": "20",
    "purified_size": "20",
    "hidden": "16",
    "projection_size": "8",
    "expert_epochs": "3",
    "base_epochs": "2",
    "finetune_epochs": "2",
}
TINY_MEMORY = {"first": "20", "growth": "0.5", "piece": "5"}  # of the learner full-memory
LEARNERS = ["spr", "pure-replay"]  # with delayed buffers
ALL_LEARNERS = [*LEARNERS, "full-memory"]


def tiny_options(learner: str) -> list[str]:
    """Options of the command `learn` for a new state."""
    values = TINY_MEMORY if learner == "full-memory" else TINY
    settings = [text for name, value in values.items() for text in ("--set", f"{name}={value}")]
    return ["--learner", learner, *settings, "--device", "cpu"]


TINY_OPTIONS = tiny_options("spr")


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def picture(number: int, label: int = 0, size: int = 6) -> np.ndarray:
    """A grey image that differs from all others, and more from those of other labels."""
    noise = np.random.default_rng(number).integers(0, 120, (size, size))
    noise[label % size] += 100
    return noise.astype(np.uint8)


def items(start: int, stop: int, n_labels: int = 3) -> list[Item]:
    """A stream: the label of sample i is "label" and i modulo n_labels."""
    return [Item(f"s{i}", f"label {i % n_labels}", png(picture(i, i % n_labels))) for i in range(start, stop)]


@contextmanager
def tiny(folder: Path, learner: str | None = None, **overrides: str) -> Iterator[Session]:
    """Open a state; a new one has the learner spr, unless another is named, and trains in no time."""
    if learner is None and (folder / "state.sqlite").exists():
        wanted = Wanted(overrides=overrides)
    else:
        settings = TINY_MEMORY if learner == "full-memory" else TINY
        wanted = Wanted(learner=learner or "spr", overrides=settings | overrides)
    with Session.open(folder, wanted, Engine(torch.device("cpu"))) as session:
        yield session


def fingerprint(folder: Path) -> dict[str, list[tuple]]:
    """The contents of a state: every table, with the digest of the networks and buffers."""
    with sqlite3.connect(folder / "state.sqlite") as database:
        tables = ("facts", "classes", "samples", "decisions", "purified", "learner", "corrections")
        tables += ("moves", "revisions", "verdicts", "likely", "noise")
        return {name: database.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in tables}
