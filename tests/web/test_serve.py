"""The interface of `serve`, with a classifier and without training."""

import asyncio
import base64
import json
import socket
import time
import tracemalloc

import numpy as np
import pytest
import torch
from served_state import ADDRESS, asking, encoded, judged, on_a_port, sample
from starlette.testclient import TestClient
from test_images import huge_png
from tiny_state import items, picture, png, tiny

from purereplay.live.inbox import Inbox, absorb
from purereplay.live.predict import ready_classifier
from purereplay.live.store import Store
from purereplay.nets.engine import Engine
from purereplay.web import gate, serving, snapshots
from purereplay.web.batching import Batcher
from purereplay.web.openapi import document
from purereplay.web.snapshots import Snapshots


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return judged(tmp_path_factory.mktemp("served") / "state")


@pytest.fixture(scope="module")
def both(state):
    with asking(state) as both:
        yield both


@pytest.fixture
def client(both):
    return both[0]


def own_probabilities(state, images: np.ndarray) -> np.ndarray:
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, Engine(torch.device("cpu")))
        return classifier.probabilities(torch.from_numpy(images)).numpy()


def some_images(n: int) -> np.ndarray:
    return np.stack([picture(100 + i, i % 3)[None] for i in range(n)])


# ---------------------------------------------------------------- predict


def test_predictions_are_those_of_the_classifier(client, state):
    answer = client.post(
        "/predict", json={"images": [encoded(100 + i, i % 3) for i in range(6)], "probabilities": True}
    )
    assert answer.status_code == 200
    found = np.array([list(p["probabilities"].values()) for p in answer.json()["predictions"]])
    expected = own_probabilities(state, some_images(6))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert [p["label"] for p in answer.json()["predictions"]] == [f"label {c}" for c in expected.argmax(1)]


def test_one_image_file_is_a_request(client):
    answer = client.post("/predict", content=png(picture(100)), headers={"Content-Type": "image/png"})
    assert (
        answer.json()["predictions"] == client.post("/predict", json={"images": [encoded(100)]}).json()["predictions"]
    )


def test_an_image_file_is_known_by_its_content_too(client):
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl sends without a header
    answer = client.post("/predict", content=png(picture(100)), headers=form)
    assert answer.status_code == 200 and "label" in answer.json()["predictions"][0]


def test_an_image_that_cannot_be_read_does_not_hurt_the_others(client):
    answer = client.post("/predict", json={"images": [encoded(1), "bm8=", "@", 3]})
    assert answer.status_code == 200
    good, *bad = answer.json()["predictions"]
    assert "label" in good
    assert [b["error"][:26] for b in bad] == [
        "The image is not an image ",
        "The image is not base64: O",
        "The image is not base64 te",
    ]


BAD = {
    "malformed JSON": (b'{"images": [', "is not JSON"),
    "not an object": (b"[1]", "is not a JSON object"),
    "nested too deep": (b"[" * 100_000, "is not JSON"),
    "no images": (b"{}", "list `images`"),
    "an empty list": (b'{"images": []}', "list `images`"),
    "an unknown field": (b'{"images": ["a"], "x": 1}', "'x', which is not known"),
    "a wrong flag": (b'{"images": ["a"], "probabilities": 1}', "true or false"),
    "only unusable images": (b'{"images": ["a"]}', "is not base64"),
    "a data URI": (b'{"images": ["data:image/png;base64,YQ=="]}', "leave out what is before the comma"),
    "not UTF-8": (b'{"images": ["\xff"]}', "is not JSON"),
    "nothing": (b"", "is not JSON"),
}


@pytest.mark.parametrize(("body", "error"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_one_sentence(client, body, error):
    answer = client.post("/predict", content=body)
    assert answer.status_code == 400
    assert error in answer.json()["error"] and answer.json()["error"].endswith(".")


def test_many_large_images_in_a_small_request_are_refused(client):
    blank = base64.b64encode(png(np.zeros((5000, 5000), np.uint8))).decode()
    answer = client.post("/predict", json={"images": [blank] * 6})
    errors = [p.get("error", "") for p in answer.json()["predictions"]]
    assert [bool(e) for e in errors] == [False] * 4 + [True] * 2
    assert "100,000,000 pixels in all" in errors[5]


def test_an_image_of_too_many_pixels_is_refused_with_the_limit(client):
    image = base64.b64encode(huge_png(20_000, 20_000)).decode()
    answer = client.post("/predict", json={"images": [image]}).json()
    assert answer["error"] == "The image has 400,000,000 pixels, more than 50,000,000."


def test_a_compressed_request_is_refused(client):
    assert client.post("/predict", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415


def test_a_form_is_refused_with_the_remedy(client):
    for path in ("/predict", "/learn"):
        answer = client.post(path, files={"file": ("photo.png", png(picture(100)), "image/png")})
        assert answer.status_code == 415 and "--data-binary @FILE" in answer.json()["error"]


def test_other_paths_and_methods(client):
    assert client.get("/predict").status_code == 405
    assert client.get("/v2/nothing").status_code == 404


# ---------------------------------------------------------------- limits


def test_a_request_of_100_megabytes_is_refused_before_it_is_read(state):
    with on_a_port(state) as port, socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"POST /learn HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n")
        answer = b"".join(iter(lambda: link.recv(10_000), b""))  # until the server closes
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"more than 1 MiB" in answer


def test_a_request_that_hides_its_length_is_refused(client):
    answer = client.post("/learn", content=(b"x" * 2**17 for _ in range(20)))
    assert answer.status_code == 413


def test_a_client_that_hangs_is_given_up(state, monkeypatch):
    monkeypatch.setattr(gate, "READ_SECONDS", 0.3)
    monkeypatch.setattr(serving, "HEADER_SECONDS", 0.6)
    with on_a_port(state) as port:
        links = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        silent, in_header, in_body = links
        in_header.sendall(b"POST /predict HTTP/1.1\r\nHost: 127")
        in_body.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
        began = time.monotonic()
        for link in links:
            link.settimeout(10)
        assert b" 408 " in in_body.recv(1000).split(b"\r\n")[0]
        assert silent.recv(1000) == b"" and in_header.recv(1000) == b""
        assert time.monotonic() - began < 5
        with socket.create_connection(("127.0.0.1", port)) as link:  # others are served
            link.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in link.recv(1000)
        for link in links:
            link.close()


def test_a_token_is_needed_except_for_health(state):
    with asking(state, token="a-token-of-16-letters") as (client, _):
        assert client.get("/status").status_code == 401
        assert client.get("/status", headers={"Authorization": "Bearer another-token-of-16"}).status_code == 401
        assert client.post("/v2/models/purereplay/infer", json={}).status_code == 401
        assert client.get("/status", headers={"Authorization": "Bearer a-token-of-16-letters"}).status_code == 200
        assert client.get("/health").status_code == client.get("/v2/health/live").status_code == 200


def test_other_sites_are_refused(client):
    assert client.get("/status", headers={"Host": "evil.example:8491"}).status_code == 421
    other = {"Origin": "http://evil.example"}
    assert client.post("/learn", json={"samples": [sample(900)]}, headers=other).status_code == 403
    assert client.get("/status", headers={"Origin": ADDRESS}).status_code == 200


# ---------------------------------------------------------------- learn


def test_samples_are_on_the_disk_when_they_are_acknowledged(client, both, state):
    looks = both[1].interface.trainer.n_looks
    answer = client.post("/learn", json={"samples": [sample(50), sample(51)]})
    assert answer.status_code == 202
    assert answer.json()["samples"] == [{"id": "s50", "result": "stored"}, {"id": "s51", "result": "stored"}]
    with Inbox.opened(state) as inbox:
        assert [item.id for _, item in inbox.next()] == ["s50", "s51"]
    assert both[1].interface.trainer.n_looks == looks + 1


def test_the_same_sample_again_is_known(client):
    again = {"samples": [sample(3), sample(52), sample(52), {"id": "s3", "label": "label 0"}, {"id": "s4"} | sample(4)]}
    answer = client.post("/learn", json=again)
    results = [s.get("result") for s in answer.json()["samples"]]
    assert results == ["known", "stored", "known", "known", "known"]


def test_a_label_may_come_later(client, state):
    def send(**values: str) -> dict:
        return client.post("/learn", json={"samples": [values]}).json()["samples"][0]

    assert send(id="late", image=encoded(60)) == {"id": "late", "result": "waits for a label"}
    assert send(id="late", image=encoded(60)) == {"id": "late", "result": "waits for a label"}
    assert "another image" in send(id="late", image=encoded(61), label="label 1")["error"]
    assert send(id="late", label="label 1") == {"id": "late", "result": "labelled"}
    assert send(id="late", label="label 1") == {"id": "late", "result": "known"}
    assert "with the label 'label 1'" in send(id="late", label="label 2")["error"]
    with Inbox.opened(state) as inbox:
        assert {item.id: item.label for _, item in inbox.next()}["late"] == "label 1"


def test_a_label_that_no_sample_had_is_named_once(tmp_path):
    state = judged(tmp_path / "state")

    def new(number: int, **values: str) -> dict[str, str]:
        return {"id": f"n{number}", "label": "cat", "image": encoded(700 + number)} | values

    def results(client, *samples: dict) -> list[dict]:
        return client.post("/learn", json={"samples": list(samples)}).json()["samples"]

    with asking(state) as (client, _):
        assert results(client, new(1), new(2), sample(50)) == [
            {"id": "n1", "result": "stored", "new_label": True},
            {"id": "n2", "result": "stored"},
            {"id": "s50", "result": "stored"},
        ]
        assert results(client, new(1), new(3)) == [{"id": "n1", "result": "known"}, {"id": "n3", "result": "stored"}]
        late = new(4)
        del late["label"]
        assert results(client, late) == [{"id": "n4", "result": "waits for a label"}]
        assert results(client, {"id": "n4", "label": "dog"}) == [{"id": "n4", "result": "labelled", "new_label": True}]
        assert "error" in results(client, new(5, label="bird", image="bm8="))[0]
        assert results(client, new(5, label="bird"))[0]["new_label"]  # the refused one did not count
    with tiny(state) as session, Inbox.opened(state) as inbox:
        absorb(session, inbox)
    with asking(state) as (client, _):
        assert results(client, new(6)) == [{"id": "n6", "result": "stored"}]


REFUSED = {
    "no object": (3, "is not a JSON object"),
    "no id": ({"label": "a", "image": ""}, "has no id"),
    "a number as id": ({"id": 3, "label": "a"}, "an id that is a number"),
    "an empty label": ({"id": "n", "label": " ", "image": ""}, "an empty label"),
    "a number as label": ({"id": "n", "label": 3, "image": ""}, "a label that is a number"),
    "no image and no label": ({"id": "n"}, "neither a label nor an image"),
    "a label of an unknown sample": ({"id": "n", "label": "a"}, "is unknown: send its image"),
    "no base64": ({"id": "n", "label": "a", "image": "@"}, "an image that is not base64"),
    "no image": ({"id": "n", "label": "a", "image": "bm8="}, "is not an image"),
    "an empty image": ({"id": "n", "label": "a", "image": ""}, "is empty"),
    "another field": ({"id": "n", "label": "a", "path": "/etc/passwd"}, "other fields"),
    "another label": ({"id": "s3", "label": "label 1"}, "was added before with the label 'label 0'"),
    "another image": ({"id": "s3", "label": "label 0", "image": encoded(99)}, "was added before with another image"),
    "half a surrogate": ({"id": "\ud800", "label": "a"}, "not valid UTF-8"),
}


@pytest.mark.parametrize(("values", "error"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_sample_is_refused_and_the_others_are_added(client, values, error):
    answer = client.post("/learn", content=json.dumps({"samples": [values]}))
    assert answer.status_code == 400
    assert error in answer.json()["error"]
    answer = client.post("/learn", content=json.dumps({"samples": [values, sample(53)]}))
    assert answer.status_code == 202
    assert (answer.json()["acknowledged"], answer.json()["refused"]) == (1, 1)


def test_a_full_disk_acknowledges_nothing_and_predictions_go_on(tmp_path, state):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 40))
        session.work(rest=True)
    with asking(tmp_path / "state") as (client, made):
        intake = made.interface.intake

        def limit(n: int) -> None:
            intake._inbox.database.execute(f"PRAGMA max_page_count = {n}")

        intake.thread.submit(limit, 4).result()
        large = np.random.default_rng(0).integers(0, 256, (200, 200), np.uint8)
        values = {"id": "n", "label": "a", "image": base64.b64encode(png(large)).decode()}
        answer = client.post("/learn", json={"samples": [sample(60), values]})
        assert answer.status_code == 507
        assert answer.json()["error"].endswith("inbox.sqlite cannot be written: database or disk is full.")
        assert client.post("/predict", json={"images": [encoded(1)]}).status_code == 200
        intake.thread.submit(limit, 2**30).result()
        assert client.get("/status").json()["server"]["inbox"]["waiting"] == 0
        assert client.post("/learn", json={"samples": [sample(60), values]}).json()["acknowledged"] == 2


# ---------------------------------------------------------------- judgements and numbers


def test_judgements_can_be_read_in_pieces(client):
    whole = client.get("/judgements").json()
    assert len(whole["judgements"]) == 40 and not whole["more"]
    first = client.get("/judgements?limit=15").json()
    assert first["more"] and first["next"] == first["judgements"][-1]["number"]
    rest = client.get(f"/judgements?since={first['next']}").json()
    assert first["judgements"] + rest["judgements"] == whole["judgements"]
    assert client.get(f"/judgements?since={rest['next']}").json()["judgements"] == []
    assert {j["decision"] for j in whole["judgements"]} <= {"accepted", "rejected"}


@pytest.mark.parametrize("query", ["since=-1", "since=x", "since=9999999999999999999999", "limit=0", "limit=5000"])
def test_a_bad_query_is_refused(client, query):
    assert client.get(f"/judgements?{query}").status_code == 400


def test_status_health_and_metrics(client):
    found = client.get("/status").json()
    assert found["state"]["samples"] == 40 and found["server"]["model"]["name"] == "purereplay"
    assert client.get("/health").json() == {"status": "ok", "predicts": True, "trains": True}
    lines = client.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["purereplay_state_samples"] == "40"
    assert float(values['purereplay_requests_total{path="/health",method="GET",status="200"}']) >= 1
    key = 'purereplay_request_seconds_bucket{path="/health",le="+Inf"}'
    assert values[key] == values['purereplay_request_seconds_count{path="/health"}']


def test_the_document_names_every_route(both):
    described = {
        (path, method.upper()) for path, methods in document("1", "purereplay")["paths"].items() for method in methods
    }
    routes = {(r.path, m) for r in both[1].programs.routes for m in r.methods - {"HEAD"}}
    assert described == routes
    assert both[0].get("/openapi.json").json() == document(both[0].get("/v2").json()["version"], "purereplay")


def test_a_state_without_a_classifier_answers_503(tmp_path):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 5))
    with asking(tmp_path / "state") as (client, _):
        for answer in (client.post("/predict", json={"images": [encoded(1)]}), client.get("/v2/models/purereplay")):
            assert answer.status_code == 503 and "no classifier yet" in answer.json()["error"]
        assert client.get("/v2/health/ready").status_code == 503
        assert client.get("/v2/health/live").status_code == 200


# ---------------------------------------------------------------- Open Inference Protocol

INFER = "/v2/models/purereplay/infer"


def tensor(images: np.ndarray, **more: object) -> dict:
    flat = images.ravel().tolist()
    return {"name": "images", "datatype": "UINT8", "shape": list(images.shape), "data": flat} | more


def test_inference_as_json(client, state):
    images = some_images(4)
    answer = client.post(INFER, json={"id": "7", "inputs": [tensor(images)]}).json()
    probabilities, label = answer["outputs"]
    assert (answer["id"], answer["model_name"]) == ("7", "purereplay")
    assert (probabilities["shape"], probabilities["datatype"]) == ([4, 3], "FP32")
    expected = own_probabilities(state, images)
    np.testing.assert_allclose(np.reshape(probabilities["data"], (4, 3)), expected, atol=1e-6)
    assert label["data"] == [f"label {c}" for c in expected.argmax(1)]
    nested = client.post(INFER, json={"inputs": [tensor(images, data=images.tolist())]}).json()
    assert nested["outputs"] == answer["outputs"]
    only = client.post(INFER, json={"inputs": [tensor(images)], "outputs": [{"name": "label"}]}).json()
    assert only["outputs"] == [label]


def test_inference_with_binary_tensors(client):
    images = some_images(4)
    own = tensor(images, parameters={"binary_data_size": images.size})
    del own["data"]
    header = json.dumps({"inputs": [own], "parameters": {"binary_data_output": True}}).encode()
    split = {"Inference-Header-Content-Length": str(len(header))}
    answer = client.post(INFER, content=header + images.tobytes(), headers=split)
    n = int(answer.headers["Inference-Header-Content-Length"])
    outputs = json.loads(answer.content[:n])["outputs"]
    assert [o["parameters"]["binary_data_size"] for o in outputs] == [48, 4 * (4 + 7)]
    plain = client.post(INFER, json={"inputs": [tensor(images)]}).json()["outputs"]
    found = np.frombuffer(answer.content[n : n + 48], "<f4")
    np.testing.assert_allclose(found, plain[0]["data"], atol=1e-7)
    assert answer.content[n + 52 : n + 59].decode() == plain[1]["data"][0]


ONE = some_images(1)
WRONG = {
    "no inputs": {},
    "inputs of another type": {"inputs": {"name": "images"}},
    "two inputs": {"inputs": [tensor(ONE), tensor(ONE)]},
    "another name": {"inputs": [tensor(ONE, name="x")]},
    "another datatype": {"inputs": [tensor(ONE, datatype="FP32")]},
    "no datatype": {"inputs": [tensor(ONE, datatype=None)]},
    "a wrong height": {"inputs": [tensor(ONE, shape=[1, 1, 7, 6])]},
    "too few axes": {"inputs": [tensor(ONE, shape=[36])]},
    "a shape of text": {"inputs": [tensor(ONE, shape="1")]},
    "a shape with true": {"inputs": [tensor(ONE, shape=[True, 1, 6, 6])]},
    "no images": {"inputs": [tensor(ONE, shape=[0, 1, 6, 6], data=[])]},
    "too many images": {"inputs": [tensor(ONE, shape=[10**9, 1, 6, 6])]},
    "too few numbers": {"inputs": [tensor(ONE, data=[1, 2])]},
    "a number above 255": {"inputs": [tensor(ONE, data=[256] * 36)]},
    "a negative number": {"inputs": [tensor(ONE, data=[-1] * 36)]},
    "a huge number": {"inputs": [tensor(ONE, data=[10**30] * 36)]},
    "fractions": {"inputs": [tensor(ONE, data=[0.5] * 36)]},
    "text": {"inputs": [tensor(ONE, data=["a"] * 36)]},
    "true": {"inputs": [tensor(ONE, data=[True] * 36)]},
    "true among numbers": {"inputs": [tensor(ONE, data=[True] + [1] * 35)]},
    "one long text and many short ones": {"inputs": [tensor(ONE, data=["x" * 1000] + ["a"] * 35)]},
    "ragged data": {"inputs": [tensor(ONE, data=[[1] * 35, 1])]},
    "one level too few": {"inputs": [tensor(ONE, data=ONE[0].tolist())]},
    "one level too many": {"inputs": [tensor(ONE, data=[ONE.tolist()])]},
    "channels last": {"inputs": [tensor(ONE, data=ONE.transpose(0, 2, 3, 1).tolist())]},
    "another height and width": {"inputs": [tensor(ONE, data=ONE.reshape(1, 1, 4, 9).tolist())]},
    "rows": {"inputs": [tensor(ONE, data=ONE.reshape(18, 2).tolist())]},
    "a list among numbers": {"inputs": [tensor(ONE, data=[1] * 35 + [[1]])]},
    "an object as data": {"inputs": [tensor(ONE, data={"0": 1})]},
    "no data": {"inputs": [tensor(ONE, data=None)]},
    "binary data that is missing": {"inputs": [tensor(ONE, parameters={"binary_data_size": 36})]},
    "parameters of another type": {"inputs": [tensor(ONE)], "parameters": 3},
    "an unknown output": {"inputs": [tensor(ONE)], "outputs": [{"name": "x"}]},
    "an output twice": {"inputs": [tensor(ONE)], "outputs": [{"name": "label"}] * 2},
    "outputs of another type": {"inputs": [tensor(ONE)], "outputs": 3},
    "an id of another type": {"inputs": [tensor(ONE)], "id": 3},
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG.keys())
def test_wrong_shapes_and_types_are_refused(client, values):
    answer = client.post(INFER, json=values)
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")


def test_one_long_text_among_many_does_not_fill_the_memory(client):
    body = {"inputs": [tensor(ONE, data=["x" * 100_000] + ["a"] * 1000)]}  # numpy would take 400 MB
    tracemalloc.start()
    try:
        assert client.post(INFER, json=body).status_code == 400
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", ["x", "-1", "10000", "9" * 30])
def test_a_wrong_header_length_is_refused(client, length):
    headers = {"Inference-Header-Content-Length": length}
    assert client.post(INFER, json={"inputs": []}, headers=headers).status_code == 400


def test_models_and_versions_that_are_not_here(client):
    version = client.get("/v2/models/purereplay").json()["versions"][0]
    assert client.get(f"/v2/models/purereplay/versions/{version}/ready").status_code == 200
    assert client.get("/v2/models/purereplay/versions/1").status_code == 404
    assert client.get("/v2/models/other/ready").status_code == 404
    assert client.post("/v2/models/other/infer", json={}).status_code == 404


# ---------------------------------------------------------------- snapshots


class Broken:
    """A classifier that returns no probabilities."""

    n_classes = 3

    def __init__(self, result: object) -> None:
        self.result = result

    def probabilities(self, images: torch.Tensor) -> torch.Tensor:
        if isinstance(self.result, Exception):
            raise self.result
        return torch.full((len(images), 3), self.result)


@pytest.mark.parametrize("result", [float("nan"), 0.9, RuntimeError("no memory")])
def test_a_snapshot_that_fails_its_warm_up_never_serves(tmp_path, monkeypatch, result):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 40))
        session.work(rest=True)
    with asking(tmp_path / "state") as (client, made):
        before = client.post("/predict", json={"images": [encoded(1)]}).json()
        with tiny(tmp_path / "state") as session:
            session.take(items(40, 80))
            session.work(rest=True)
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "ready_kept", lambda *values: Broken(result))
            assert not made.interface.snapshots.refresh()
        assert client.post("/predict", json={"images": [encoded(1)]}).json() == before
        found = client.get("/status").json()["server"]
        assert "failed its warm-up" in found["failure"] and found["failed_snapshots"] == 1
        assert made.interface.snapshots.refresh()  # the classifier itself is whole
        after = client.post("/predict", json={"images": [encoded(1)]}).json()
        assert after["model"]["version"] != before["model"]["version"]
        assert client.get("/status").json()["server"]["failure"] is None


def test_requests_that_wait_together_get_their_own_answers(state):
    async def ask() -> None:
        found = Snapshots(state, Engine(torch.device("cpu")))
        found.refresh()
        batcher = Batcher(found)
        parts = [some_images(n + 1)[n // 2 :] for n in range(12)]
        answers = await asyncio.gather(*(batcher.classify(part) for part in parts))
        for part, answer in zip(parts, answers, strict=True):
            np.testing.assert_allclose(answer.probabilities, own_probabilities(state, part), atol=1e-6)
        batcher.close()

    asyncio.run(ask())


def test_an_unknown_path_is_told_as_such(both, state):
    client = TestClient(both[1], base_url=ADDRESS)  # without the token of the page
    for path in ("/docs", "/favicon.ico", "/api/nothing", "/image", "/v2/nothing", "/api"):
        answer = client.get(path)
        assert answer.status_code == 404 and "no such path" in answer.json()["error"], path
    for path in ("/", "/main.js", "/api/begin", "/image/0", "/image/no"):
        assert client.get(path).status_code == 401, path
    assert client.get("/docs", headers={"Host": "evil.example:8491"}).status_code == 421
    found = {line.split('"')[1] for line in client.get("/metrics").text.splitlines() if line.startswith("purereplay_r")}
    assert "other" in found and not found & {"/docs", "/favicon.ico"}  # not one number for each
    with asking(state, token="a-token-of-16-letters") as (client, _):  # the same answer for all paths
        for path in ("/docs", "/status", "/v2/nothing"):
            assert client.get(path).status_code == 401, path
        assert client.get("/docs", headers={"Authorization": "Bearer a-token-of-16-letters"}).status_code == 404


def test_the_review_page_runs_inside(both):
    client = TestClient(both[1], base_url=ADDRESS)  # its own cookies
    assert client.get("/").status_code == 401
    page = client.get("/", params={"token": "the-token"})
    assert page.status_code == 200 and "<!doctype html>" in page.text.lower()
