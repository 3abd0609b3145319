"""`--features-file`: the filter on the user's own features."""

from pathlib import Path

import numpy as np
import pytest
import torch

from purereplay.data.datasets import load
from purereplay.errors import UserError
from purereplay.evaluate.estimate import count_steps
from purereplay.evaluate.experiment import prepare
from purereplay.evaluate.settings import RunSettings, resolve
from purereplay.learners.spr.build import make_spr
from purereplay.nets.lockstep import drive
from purereplay.purify.self_centered import score_samples

SHORT = {"base_epochs": "2", "finetune_epochs": "2", "hidden": "16"}


def settings(path: Path | None, **more) -> RunSettings:
    given = {"dataset": "digits", "preset_name": "demo", "device": "cpu", "overrides": SHORT} | more
    return resolve(features_file=None if path is None else str(path), **given)


@pytest.fixture
def pixels(tmp_path) -> Path:
    path = tmp_path / "features.npz"
    np.savez(path, features=load("digits").images.reshape(-1, 64).astype(np.float32))
    return path


def test_no_expert_is_trained_and_the_filter_sees_those_features(pixels, tmp_path):
    chosen = settings(pixels)
    experiment = prepare(chosen, tmp_path / "run")
    assert chosen.options.features == "file" and "expert" not in count_steps(chosen, (1437,)).steps
    reports = experiment.learner.observe(experiment.stream.batch(0, 100))
    index, labels = reports[0].index, reports[0].labels
    features = torch.from_numpy(np.load(pixels)["features"])[index]
    expected = score_samples(features, labels, experiment.learner._seed("graphs", 0)).clean_probability
    assert torch.equal(reports[0].clean_probability, expected.cpu()) and reports[0].expert_loss is None
    whole = prepare(chosen, tmp_path / "whole")
    result = drive(whole.running(), whole.engine)
    assert "expert" not in result["steps"] and result["filtered_noise"] > 0.3  # digits are told apart by their pixels


def test_held_out_samples_take_their_features_with_them(pixels, tmp_path):
    experiment = prepare(settings(pixels, validation=True), tmp_path / "run")
    batch = experiment.stream.batch(0, 50)
    assert torch.equal(experiment.learner.buffer_filter.own_features[batch.index], batch.images.flatten(1).float())


def test_a_run_goes_on_with_the_features_it_began_with(pixels, tmp_path):
    experiment = prepare(settings(pixels), tmp_path / "run")
    experiment.learner.observe(experiment.stream.batch(0, 100))
    experiment._save()
    prepare(settings(pixels), tmp_path / "run", resume=True)
    np.savez(pixels, features=np.load(pixels)["features"] + 1)
    with pytest.raises(UserError, match=r"features\.npz changed since .*run began"):
        prepare(settings(pixels), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"features": np.zeros((7, 3), np.float32)}, "has features of 7 samples, but digits has 1437 training images"),
        ({"x": np.zeros((7, 3))}, "has no array 'features'; its arrays are: x"),
        ({"features": np.zeros(7)}, r"are float64 of shape \(7,\), but must be \(n, d\)"),
        ({"features": np.full((2, 3), np.nan)}, "row 0 of .* hold NaN or infinity"),
    ],
)
def test_features_that_do_not_fit_are_one_sentence(tmp_path, arrays, sentence):
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(UserError, match=sentence):
        prepare(settings(tmp_path / "f.npz"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_asked_for_in_vain_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"missing\.npz cannot be read"):
        prepare(settings(tmp_path / "missing.npz"), tmp_path / "run")
    with pytest.raises(UserError, match=r"features\.csv is not an npz file"):
        prepare(settings(tmp_path / "features.csv"), tmp_path / "run")
    with pytest.raises(UserError, match="crs has no filter"):
        settings(tmp_path / "f.npz", learner="crs")
    with pytest.raises(UserError, match="needs a file of features"):
        make_spr((1, 8, 8), 10, preset="demo", features="file")
