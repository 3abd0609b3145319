"""Limits of `serve`: memory stays bounded, whatever is sent and by how many clients at once."""

import asyncio
import base64
import json
import threading
import urllib.request

import numpy as np
import pytest
from served_state import asking, encoded, judged, on_a_port, sample
from tiny_state import picture, png

from purereplay.web import batching, gate, intake
from purereplay.web.batching import Batcher, Overloaded


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return judged(tmp_path_factory.mktemp("served") / "state")


def test_large_requests_wait_for_room_in_the_order_of_arrival(monkeypatch):
    monkeypatch.setattr(gate, "READ_SECONDS", 0.3)
    held, order = [0], []

    async def use(room, name: str, n: int, seconds: float) -> None:
        async with room.taken(n):
            held[0] += n
            assert held[0] <= 10**6
            order.append(name)
            await asyncio.sleep(seconds)
            held[0] -= n

    async def run() -> None:
        room = gate.Room(10**6)
        first = [use(room, "a", 600_000, 0.1), use(room, "b", 600_000, 0.1), use(room, "c", 300_000, 0.1)]
        small = use(room, "small", 100, 0.0)
        await asyncio.gather(*first, small)
        assert order == ["a", "small", "b", "c"]  # c would fit beside a, but b was there before
        holding = asyncio.create_task(use(room, "d", 900_000, 1.0))
        await asyncio.sleep(0)
        with pytest.raises(gate.Problem, match="take all the room") as refused:
            await use(room, "e", 200_000, 0)
        assert refused.value.status == 503
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert room.left == 10**6

    asyncio.run(run())


def test_many_large_requests_at_once_are_all_answered_and_give_their_room_back(state, monkeypatch):
    made = []
    monkeypatch.setattr(gate, "Room", lambda n, kind=gate.Room: made.append(kind(n)) or made[-1])
    body = json.dumps({"images": [encoded(i) for i in range(5)] + ["A" * 900_000]}).encode()
    answers = []

    def ask(port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/predict", body, timeout=30) as answer:
            answers.append(len(json.loads(answer.read())["predictions"]))

    with on_a_port(state) as port:
        threads = [threading.Thread(target=ask, args=(port,)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [6] * 12
    assert [room.left for room in made] == [4 * 2**20]


def test_json_with_very_many_values_is_refused_before_it_is_parsed(state, monkeypatch):
    monkeypatch.setattr(gate, "MAX_VALUES", 1000)
    with asking(state) as (client, _):
        for path, start in (("/predict", '{"images": ['), ("/v2/models/purereplay/infer", '{"inputs": [')):
            answer = client.post(path, content=start + '{"":0},' * 1000 + "0]}")
            assert answer.status_code == 400
            assert "more than 1,000 values" in answer.json()["error"]
        assert client.post("/predict", json={"images": [encoded(1)] * 999}).status_code == 200


def test_images_that_wait_are_limited_in_bytes(monkeypatch):
    monkeypatch.setattr(batching, "MAX_WAITING", 1000)

    async def ask() -> None:
        batcher = Batcher(snapshots=None)
        batcher._run = lambda: asyncio.sleep(0)  # nothing is classified
        images = np.zeros((1, 1, 30, 30), np.uint8)
        waiting = asyncio.create_task(batcher.classify(np.concatenate([images] * 3)))  # alone, it may have more
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await asyncio.wait_for(batcher.classify(images), 5)
        waiting.cancel()
        batcher.close()

    asyncio.run(ask())


def test_small_images_count_as_those_that_they_become(state, monkeypatch):
    monkeypatch.setattr(intake, "MAX_PIXELS", 5 * 6 * 6)
    dot = base64.b64encode(png(np.zeros((1, 1), np.uint8))).decode()
    with asking(state) as (client, _):
        found = client.post("/predict", json={"images": [dot] * 7}).json()["predictions"]
    assert ["error" in each for each in found] == [False] * 5 + [True] * 2


def test_large_images_are_decoded_one_at_a_time(state, monkeypatch):
    monkeypatch.setattr(intake, "_LARGE_IMAGE", 30)
    now, most = [0], [0]
    read = intake.read_pixels

    def watched(*values, **options):
        now[0] += 1
        most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        now[0] -= 1
        return read(*values, **options)

    monkeypatch.setattr(intake, "read_pixels", watched)
    with asking(state) as (client, made):
        made.interface.ready()
        body = {"images": [encoded(i) for i in range(5)]}
        threads = [threading.Thread(target=client.post, args=("/predict",), kwargs={"json": body}) for _ in range(3)]
        threads += [threading.Thread(target=client.post, args=("/learn",), kwargs={"json": {"samples": [sample(90)]}})]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1]


def test_two_images_with_one_id_in_a_request_are_not_mistaken_for_each_other(state):
    other = sample(3) | {"image": base64.b64encode(png(picture(77))).decode()}
    with asking(state) as (client, _):
        found = client.post("/learn", json={"samples": [other, sample(3)]}).json()["samples"]
        assert "another image" in found[0]["error"] and found[1]["result"] == "known"
        found = client.post("/learn", json={"samples": [sample(3), other]}).json()["samples"]
        assert found[0]["result"] == "known" and "another image" in found[1]["error"]


def test_a_refused_image_is_not_kept_by_its_refusal(state):
    with asking(state) as (client, made):
        client.get("/health")
        snapshot = made.interface.ready()
        given, _ = intake.asked_images({"images": ["@", 3, "bm8="]})
        found = made.interface.intake.reader.inputs(given, snapshot.settings)
    assert len(found) == 3
    for reason in (*given[:2], *found):
        assert isinstance(reason, Exception) and reason.__traceback__ is None and reason.__context__ is None
