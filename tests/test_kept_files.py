"""Files that version 0.1.0 wrote still open, and are continued under the present names of settings."""

import csv
import io
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from purereplay import SelfPurifiedClassifier
from purereplay.live.audit import audit
from purereplay.live.items import Item
from purereplay.live.predict import ready_classifier
from purereplay.live.session import Session
from purereplay.live.settings import NewSettings, StateSettings, Wanted
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

KEPT = Path(__file__).parent / "kept" / "0.1.0"
CPU = Engine(torch.device("cpu"))
OLD_NAMES = ("learning_rate", "finetune_rate", "daily")


@pytest.fixture
def kept(tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(KEPT, tmp_path / "kept")


# ---------------------------------------------------------------- states


def items(start: int, stop: int) -> list[Item]:
    found = []
    for i in range(start, stop):
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (6, 6), np.uint8)).save(file, "PNG")
        found.append(Item(f"new{i}", f"label {i % 4}", file.getvalue()))
    return found


def saved_settings(state: Path) -> dict:
    with sqlite3.connect(state / "state.sqlite") as database:
        [[text]] = database.execute("SELECT value FROM facts WHERE name = 'settings'")
    return json.loads(text)


def test_a_dry_run_does_not_upgrade_a_state(kept, tmp_path):
    before = {path.name: path.read_bytes() for path in (kept / "state").iterdir() if path.suffix == ".sqlite"}
    folder = tmp_path / "more" / "a"
    folder.mkdir(parents=True)
    with Store.reading(kept / "state", upgrade=False) as store:
        assert store.n_samples
    after = {path.name: path.read_bytes() for path in (kept / "state").iterdir() if path.suffix == ".sqlite"}
    assert after == before and not (kept / "state" / "state.mark").exists()


def test_a_state_is_read(kept, tmp_path):
    with Store.reading(kept / "state") as store:
        found, settings = status(store), store.settings
        done = audit(store, CPU, tmp_path / "audit.csv")
        classifier, labels = ready_classifier(store, CPU)
    assert isinstance(settings, StateSettings) and settings.shape == (1, 6, 6) and settings.learner == "spr"
    assert (settings.preset, settings.options.lr, settings.options.finetune_lr) == ("live", 3e-4, 2e-3)
    assert (found["samples"], found["scored"], found["waiting"], found["buffers"]) == (50, 40, 10, 2)
    assert (found["preset"], found["delayed_size"], found["image_shape"]) == ("live", 20, (1, 6, 6))
    with (tmp_path / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == done.scored == 40 and {row["id"] for row in rows} == {f"s{i}" for i in range(40)}
    assert classifier.network.head.n_outputs == len(labels) == 3


def test_a_state_continues_to_learn(kept):
    """Also when the command names the settings that the state was created with, by their present names."""
    wanted = Wanted(preset="live", overrides={"hidden": "16", "lr": "0.0003", "finetune_lr": "0.002"})
    with Session.open(kept / "state", wanted, CPU) as session:
        assert all(outcome.new for outcome in session.take(items(50, 75)))
        session.work()
        assert session.taken == 60 and session.learning.learner.n_done == 3
        session.work(rest=True)
        assert session.taken == 75 and session.learning.learner.n_classes == 4
        assert status(session.store)["scored"] == 75
    with Store.reading(kept / "state") as store:
        assert ready_classifier(store, CPU)[1] == [f"label {i}" for i in range(4)]


def test_a_state_without_images_gets_its_shape_from_the_first_one(kept):
    state = kept / "state-without-images"
    with Store.reading(state) as store:
        assert isinstance(store.settings, NewSettings) and store.settings.preset == "live"
        assert status(store)["image_shape"] is None and status(store)["delayed_size"] == 20
    with Session.open(state, Wanted(overrides={"lr": "0.0005"}), CPU) as session:
        session.take(items(0, 25))
        session.work()
        settings = session.store.image_settings
        assert session.taken == 20 and settings.shape == (1, 6, 6)
    options = settings.options
    assert (options.lr, options.hidden, options.expert_epochs, options.features) == (5e-4, 16, 3, "projection")
    assert (options.expert_batch, options.base_batch) == (20, 20)  # chosen by the data
    saved = saved_settings(state)
    assert saved["format"] == 2 and not any(name in json.dumps(saved) for name in OLD_NAMES)
    with Session.open(state, None, CPU) as session:
        assert session.store.settings == settings


@pytest.mark.parametrize("state", ["state", "state-without-images"])
def test_settings_that_came_after_a_state_have_their_defaults(kept, state):
    values = saved_settings(kept / state)
    for name in ("features", "mixture_steps", "feature_noise"):
        del values["options"][name]
    with sqlite3.connect(kept / state / "state.sqlite") as database:
        database.execute("UPDATE facts SET value = ? WHERE name = 'settings'", [json.dumps(values)])
    with Session.open(kept / state, None, CPU) as session:
        session.take(items(100, 101))
        options = session.store.image_settings.options
    assert (options.features, options.mixture_steps, options.feature_noise) == ("projection", 10, 0.3)


# ---------------------------------------------------------------- estimators


def saved_facts(path: Path) -> dict:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["facts"])


def test_a_saved_estimator_predicts_as_before(kept):
    loaded, expected = SelfPurifiedClassifier.load(kept / "estimator.safetensors"), np.load(kept / "estimator.npz")
    np.testing.assert_allclose(loaded.predict_proba(expected["X"]), expected["proba"], atol=1e-4)
    assert (loaded.learner, loaded.preset) == ("spr", "live") and loaded.n_seen_ == 50 and loaded.n_features_in_ == 5
    assert loaded.settings == {"hidden": 8, "projection_size": 8, "finetune_lr": 0.01}
    assert len(loaded.suspects()) == 40 and len(loaded.purified().y) == 20
    assert 0 <= loaded.noise_estimate().overall.rate <= 1


def test_a_saved_estimator_continues_and_is_saved_under_the_present_names(kept, tmp_path):
    X = np.load(kept / "estimator.npz")["X"]
    loaded = SelfPurifiedClassifier.load(kept / "estimator.safetensors")
    loaded.partial_fit(X[:15] + 0.1, [i % 4 for i in range(15)])
    assert loaded.n_seen_ == 65 and len(loaded.suspects()) == 60 and loaded.classes_.tolist() == [0, 1, 2, 3]
    loaded.save(tmp_path / "again.safetensors")
    facts = saved_facts(tmp_path / "again.safetensors")
    assert facts["format"] == 2 and not any(name in json.dumps(facts) for name in OLD_NAMES)
    assert facts["learner"] == facts["params"]["learner"] == "spr"
    assert facts["options"]["lr"] == 3e-4 and facts["options"]["finetune_lr"] == 0.01
    again = SelfPurifiedClassifier.load(tmp_path / "again.safetensors")
    assert np.array_equal(again.predict_proba(X), loaded.predict_proba(X))
    refitted = again.fit(X, [i % 3 for i in range(50)])  # its parameters are still good for a new start
    assert refitted.predict(X).shape == (50,)
