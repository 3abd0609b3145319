"""`serve` and `export` on a state with an encoder: images become features, and the protocol takes features."""

import base64
import json

import numpy as np
import pytest
import torch
from served_state import asking
from tiny_state import picture, png

from purereplay.errors import UserError
from purereplay.live.encoding import inputs
from purereplay.live.export.exporter import export
from purereplay.live.inbox import Inbox
from purereplay.live.items import Item
from purereplay.live.predict import ready_classifier
from purereplay.live.session import Session
from purereplay.live.settings import Wanted, wanted_encoder
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

CODE = """
import numpy as np

def embed(images):
    if (images[:, 0] == 255).all((1, 2)).any():
        raise RuntimeError("too bright")
    found = images.astype(np.float32).reshape(len(images), 3, 2, 8, 2, 8).mean((3, 5))
    return found.reshape(len(images), -1)

embed.size = 16
"""
ENGINE = Engine(torch.device("cpu"))


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """Forty judged samples of three labels, by the means of their quarters."""
    folder = tmp_path_factory.mktemp("encoded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.syspath_prepend(folder)
        (folder / "quarters.py").write_text(CODE)
        wanted = Wanted(encoder=wanted_encoder("python:quarters:embed"))
        with Session.open(folder / "state", wanted, ENGINE) as session:
            session.take([Item(f"s{i}", f"label {i % 3}", png(picture(i, i % 3))) for i in range(40)])
            session.work(rest=True)
        yield folder / "state"


@pytest.fixture(scope="module")
def client(state):
    with asking(state, encoder="python:quarters:embed") as (client, _):
        yield client


def test_the_author_s_code_runs_only_if_it_is_named_again(state):
    with pytest.raises(UserError, match="name it again with --encoder python:quarters:embed"), asking(state):
        pass
    with pytest.raises(UserError, match="was created with encoder"), asking(state, encoder="none"):
        pass


def own(state, positions):
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, ENGINE)
        features = inputs(store, np.array(positions))
        return features.numpy(), classifier.probabilities(features).numpy()


def encoded(seed):
    return base64.b64encode(png(picture(seed, seed % 3))).decode()


def test_images_are_encoded_before_they_are_classified(client, state):
    answer = client.post("/predict", json={"images": [encoded(i) for i in range(5)], "probabilities": True})
    found = np.array([list(p["probabilities"].values()) for p in answer.json()["predictions"]])
    np.testing.assert_allclose(found, own(state, range(5))[1], atol=1e-6)


def test_an_image_that_the_encoder_refuses_does_not_hurt_the_others(client):
    bright = base64.b64encode(png(np.full((6, 6), 255, np.uint8))).decode()
    first, second, third = client.post("/predict", json={"images": [encoded(1), bright, "no"]}).json()["predictions"]
    assert "label" in first
    assert "too bright" in second["error"]
    assert "base64" in third["error"]


def test_a_known_sample_is_known(client, state):
    values = {"id": "s3", "label": "label 0", "image": encoded(3)}
    [receipt] = client.post("/learn", json={"samples": [values]}).json()["samples"]
    assert receipt == {"id": "s3", "result": "known"}
    values |= {"id": "new"}
    assert client.post("/learn", json={"samples": [values]}).status_code == 202
    with Inbox.opened(state) as inbox:
        assert inbox.counts().waiting == 1


def test_the_protocol_takes_features(client, state):
    [facts] = client.get("/v2/models/purereplay").json()["inputs"]
    assert facts == {"name": "features", "datatype": "FP32", "shape": [-1, 12]}
    features, expected = own(state, range(4))
    tensor = {"name": "features", "datatype": "FP32", "shape": [4, 12], "data": features.ravel().tolist()}
    answer = client.post("/v2/models/purereplay/infer", json={"inputs": [tensor]}).json()
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected.ravel(), atol=1e-6)
    binary = {**tensor, "parameters": {"binary_data_size": 4 * features.size}}
    del binary["data"]
    header = json.dumps({"inputs": [binary]}).encode()
    again = client.post(
        "/v2/models/purereplay/infer",
        content=header + features.astype("<f4").tobytes(),
        headers={"Inference-Header-Content-Length": str(len(header))},
    )
    assert again.json()["outputs"] == answer["outputs"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "images"},
        {"datatype": "UINT8"},
        {"shape": [1, 11]},
        {"data": [0.5] * 11},
        {"data": ["a"] * 12},
        {"data": [1e300] * 12},
        {"data": [10**400] * 12},
        {"data": [True] + [0.5] * 11},
        {"data": [[0.5] * 6, [0.5] * 6]},
        {"data": None},
    ],
)
def test_other_tensors_are_refused(client, change):
    tensor = {"name": "features", "datatype": "FP32", "shape": [1, 12], "data": [0.5] * 12} | change
    answer = client.post("/v2/models/purereplay/infer", json={"inputs": [tensor]})
    assert (answer.status_code, "error" in answer.json()) == (400, True)


@pytest.mark.long
@pytest.mark.parametrize("form", ["onnx", "safetensors"])
def test_the_exported_classifier_takes_features(tmp_path, state, form):
    pytest.importorskip("onnxscript")
    done = export(state, form, tmp_path / "model")
    assert done.check.difference < 1e-4
    card = done.card.read_text()
    told = "It takes `features`, float32 (n, 12)." if form == "safetensors" else "Input `features`: float32 (n, 12)."
    assert told in card
    assert "quarters" in card
    if form == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(done.model))
        features, expected = own(state, range(10))
        np.testing.assert_allclose(session.run(None, {"features": features})[0], expected, atol=1e-4)
