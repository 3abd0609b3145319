"""`run --encoder`: the samples of a run are the features of an encoder."""

import json
import sys

import numpy as np
import pytest
import torch

from purereplay.cli import main
from purereplay.data.datasets import load as load_pixels
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate import encoded
from purereplay.evaluate.compare import describe_data, describe_learner
from purereplay.evaluate.encoded import name_again, name_encoder
from purereplay.evaluate.estimate import count_steps, estimate, memory_of
from purereplay.evaluate.experiment import prepare
from purereplay.evaluate.identity import result_key, run_key, settings_of
from purereplay.evaluate.preparation import load
from purereplay.evaluate.settings import RunSettings, read_settings, resolve, to_json
from purereplay.nets.lockstep import drive
from purereplay.purify.directions import main_directions
from purereplay.purify.self_centered import score_samples
from small_onnx import write_onnx

SHORT = {"base_epochs": "2", "finetune_epochs": "2", "hidden": "16"}
CODE = """
import numpy as np

def embed(images):  # 8 × 8 grey pixels, and one feature that is constant
    return np.concatenate([images[:, 0].reshape(len(images), -1) * {scale}, np.ones((len(images), 1))], 1)

embed.size = 8
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(encoded, "_named", {})


@pytest.fixture
def cli(monkeypatch, capsys):
    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["purereplay", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().err

    return call


@pytest.fixture
def code(tmp_path, monkeypatch):
    def write(scale: float = 1.0) -> str:
        (tmp_path / "pixels.py").write_text(CODE.format(scale=scale))
        monkeypatch.delitem(sys.modules, "pixels", raising=False)
        return "python:pixels:embed"

    return write


def settings(text: str, **more) -> RunSettings:
    given = {"dataset": "digits", "preset_name": "demo", "device": "cpu", "overrides": SHORT} | more
    return resolve(encoder=name_encoder(text), **given)


def test_samples_are_standardised_features_and_the_filter_compares_them(code, tmp_path):
    chosen, seen = settings(code()), []
    data = load(chosen, lambda name, done, total: seen.append((name, done, total)))
    pixels = load_pixels("digits").images.reshape(-1, 64).astype(np.float64)
    mean, std = pixels.mean(0), pixels.std(0)
    expected = ((pixels - mean) / np.where(std == 0, 1, std)).clip(-10, 10)
    assert data.images.dtype == np.float32 and data.images.shape == (1437, 65, 1, 1)
    assert np.allclose(data.images[:, :64, 0, 0], expected, atol=1e-5) and not data.images[:, 64].any()
    assert data.test_images.shape == (360, 65, 1, 1) and ("encoding", 0, 1437) in seen
    assert chosen.options.features == "inputs" and chosen.options.network == "mlp"
    assert "expert" not in count_steps(chosen, (1437,)).steps
    experiment = prepare(chosen, tmp_path / "run", dataset=data)
    batch = experiment.stream.batch(0, 100)
    [report] = experiment.learner.observe(batch)
    features = main_directions(batch.images.flatten(1))
    own = score_samples(features, batch.labels, experiment.learner._seed("graphs", 0))
    assert torch.equal(report.clean_probability, own.clean_probability.cpu())
    assert experiment.learner.purified.contents()[0].images.dtype == torch.float32  # features are replayed


@pytest.mark.parametrize("learner", ["spr", "pure-replay", "supervised-base"])
def test_a_stopped_run_ends_the_same(code, tmp_path, learner):
    chosen = settings(code(), learner=learner)
    whole = prepare(chosen, tmp_path / "whole")
    expected = drive(whole.running(), whole.engine)
    assert expected["filtered_noise"] > 0.3 and expected["encoder"]["dim"] == 65
    first, lines = prepare(chosen, tmp_path / "run"), []

    def stop(line):
        lines.append(line)
        if len(lines) == 9:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        drive(first.running(stop), first.engine)
    again = prepare(read_settings(json.loads(json.dumps(to_json(chosen)))), tmp_path / "run", resume=True)
    found = drive(again.running(), again.engine)
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}


def test_a_run_is_known_by_the_digest_of_its_encoder(code, tmp_path):
    chosen = settings(code())
    plain = resolve(dataset="digits", preset_name="demo", device="cpu", overrides=SHORT | {"features": "inputs"})
    other = settings(code(2.0))
    assert len({run_key(own).cell for own in (chosen, plain, other)}) == 3
    experiment = prepare(chosen, tmp_path / "run")
    result = drive(experiment.running(), experiment.engine)
    assert result_key(result) == run_key(chosen) and settings_of(result).encoder == chosen.encoder
    assert (
        describe_data(chosen) == f"digits, symmetric 40 %, features of python:pixels:embed {chosen.encoder.digest[:8]}"
    )
    assert describe_data(chosen) != describe_data(other)  # another encoder of the same name
    assert "network" not in describe_learner(chosen)  # it is the usual one of features
    assert memory_of(chosen) > 0 and estimate(chosen, prepare(chosen, tmp_path / "b").learner, (1437,)).seconds > 0


@pytest.mark.parametrize("on_features", [False, True])
def test_the_time_of_pure_replay_is_estimated(code, tmp_path, on_features):
    given = {"dataset": "digits", "learner": "pure-replay", "preset_name": "demo", "device": "cpu"}
    short = {"base_epochs": "2", "hidden": "16"}
    chosen = resolve(**given, overrides=short, encoder=name_encoder(code()) if on_features else None)
    found = estimate(chosen, prepare(chosen, tmp_path / "run").learner, (1437,))
    assert found.seconds > 0 and "base" in found.seconds_per_step


def test_a_run_goes_on_with_its_encoder_alone(code, tmp_path):
    experiment = prepare(settings(code()), tmp_path / "run")
    experiment.learner.observe(experiment.stream.batch(0, 100))
    experiment._save()
    # features times two are the same once they are standardised, but it is another encoder
    with pytest.raises(UserError, match=r"encoder was .*, and is"):
        prepare(settings(code(2.0)), tmp_path / "run", resume=True)


def test_code_runs_only_if_the_user_names_it(cli, code, tmp_path, monkeypatch):
    name = code()
    prepare(settings(name), tmp_path / "run")._save()
    monkeypatch.setattr(encoded, "_named", {})  # as in another process
    ended, told = cli("resume", "run")
    assert ended == 2 and "The run was made with python:pixels:embed, which runs code" in told
    (tmp_path / "pixels.py").write_text(CODE.format(scale=3))
    monkeypatch.delitem(sys.modules, "pixels")
    ended, told = cli("resume", "run", "--encoder", name)
    assert ended == 2 and "run was made with a different encoder or version than python:pixels:embed" in told
    assert cli("resume", "run", "--encoder", code())[0] == 0
    with pytest.raises(UserError, match="has no encoder: leave --encoder out"):
        name_again(name, None, "run")


def test_an_onnx_file_is_found_again_by_itself(tmp_path, monkeypatch):
    chosen = settings(f"onnx:{write_onnx(tmp_path / 'm.onnx')}")
    monkeypatch.setattr(encoded, "_named", {})
    assert load(chosen).images.shape == (1437, 3, 1, 1)
    experiment = prepare(chosen, tmp_path / "run")
    result = drive(experiment.running(), experiment.engine)
    assert result["encoder"]["text"] == "onnx:m.onnx"  # a result may be given away: no folder of this machine
    assert result_key(result) == run_key(chosen)


def test_a_sweep_with_an_encoder(cli, code, tmp_path):
    options = [part for key, value in SHORT.items() for part in ("--set", f"{key}={value}")]
    common = ("sweep", "--preset", "demo", "--encoder", code(), "--device", "cpu", "--seed", "1,2", "--out", "runs")
    assert cli(*common, *options)[0] == 0
    results = [json.loads(path.read_text()) for path in sorted((tmp_path / "runs").glob("*/result.json"))]
    assert [own["seed"] for own in results] == [1, 2] and {own["encoder"]["text"] for own in results} == {code()}


def test_what_does_not_go_together_is_one_sentence(code, tmp_path):
    name = code()
    with pytest.raises(
        UserError, match="crs takes images, not the features of an encoder: use one of spr, pure-replay"
    ):
        settings(name, learner="crs")
    with pytest.raises(UserError, match="--encoder and --features-file both give features"):
        settings(name, features_file="f.npz")
    with pytest.raises(UserError, match=r"A run takes no encoder file:f\.npz"):
        settings("file:f.npz")
    values = to_json(settings(name))
    for wrong in ({"text": name}, values["encoder"] | {"dim": 0}, values["encoder"] | {"digest": 3}):
        with pytest.raises(UserError):
            read_settings(values | {"encoder": wrong})
    picky = "def embed(x):\n    assert x.max() <= 250\n    return x[:, 0, 0]\nembed.size = 8\n"
    (tmp_path / "pixels.py").write_text(picky)
    sys.modules.pop("pixels")
    with pytest.raises(UserError, match="Sample 1 of digits cannot be encoded"):
        load(settings(name))
