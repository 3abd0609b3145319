"""Failures around `serve`: a state that is gone, odd requests, clients that go on sending, a trainer that is killed."""

import io
import os
import shutil
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from review_page import wait_until
from served_state import asking, encoded, judged, on_a_port, sample

from purereplay.errors import UserError
from purereplay.live.inbox import Receipt
from purereplay.nets.engine import Engine
from purereplay.web import serving, training
from purereplay.web.snapshots import Snapshots
from purereplay.web.training import Trainer


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return judged(tmp_path_factory.mktemp("served") / "state")


def exchange(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(20)
        link.sendall(request)
        return b"".join(iter(lambda: link.recv(10_000), b""))


ODD = ["OPTIONS *", "CONNECT localhost:80", "GET health", "GET http://127.0.0.1/health"]


def test_a_path_without_a_slash_is_no_failure_of_the_server(state):
    with on_a_port(state) as port:
        for line in ODD:
            answer = exchange(port, f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 404 "), line
            assert b"There is no such path" in answer
        found = exchange(port, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").decode()
    assert {line.split('"')[1] for line in found.splitlines() if line.startswith("purereplay_requests")} == {"other"}


def test_a_client_that_goes_on_sending_after_its_answer_is_given_up(state, monkeypatch):
    monkeypatch.setattr(serving, "REST_SECONDS", 0.3)
    with on_a_port(state) as port, socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"POST /status HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        link.settimeout(0.05)
        began, answer = time.monotonic(), b""
        while time.monotonic() - began < 4:
            try:
                link.sendall(b"1\r\na\r\n")
                if (part := link.recv(1000)) == b"":
                    break
                answer += part
            except TimeoutError:
                pass
            except OSError:  # the server has closed
                break
        assert b" 405 " in answer.split(b"\r\n")[0]
        assert time.monotonic() - began < 3


def test_a_state_that_is_gone_is_told_and_predictions_go_on(state, tmp_path):
    moved = tmp_path / "state"
    shutil.copytree(state, moved)
    with asking(moved) as (client, _):
        assert client.get("/health").status_code == 200
        moved.rename(tmp_path / "elsewhere")
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "no state")
        for path in ("/status", "/metrics", "/judgements"):
            answer = client.get(path)
            assert answer.status_code == 503 and "holds no state" in answer.json()["error"]
        answer = client.post("/learn", json={"samples": [sample(90)]})
        assert answer.status_code == 503 and "acknowledged" not in answer.json()
        assert client.post("/predict", json={"images": [encoded(1)]}).status_code == 200
        page = client.get("/", params={"token": "the-token"})
        assert page.status_code == 503 and "holds no state" in page.text
        (tmp_path / "elsewhere").rename(moved)
        assert client.get("/status").status_code == client.get("/").status_code == 200


def test_a_request_that_fails_is_counted_with_status_500(state, monkeypatch):
    with asking(state) as (client, made):
        monkeypatch.setattr(made.interface.intake.reader, "inputs", lambda *values: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            client.post("/predict", json={"images": ["AAAA"]})
        monkeypatch.undo()
        found = [line for line in client.get("/metrics").text.splitlines() if 'path="/predict"' in line]
    assert any('status="500"' in line for line in found) and not any('status="0"' in line for line in found)


def test_a_snapshot_that_raises_anything_does_not_end_the_thread(state, monkeypatch):
    found = Snapshots(state, Engine(torch.device("cpu")))
    assert found.refresh()
    before = found.current
    monkeypatch.setattr(found, "_load", lambda: 1 / 0)
    assert not found.refresh()
    assert found.current is before and "cannot be loaded: division by zero" in found.failure


def test_a_process_that_cannot_be_started_does_not_end_the_thread(tmp_path, monkeypatch):
    """It is started again, and a first start that fails is told at once."""
    monkeypatch.setattr(training, "_BACKOFF", (0.01, 0.01))
    tries = []

    def start(*values, **options):
        tries.append(values)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(training.subprocess, "Popen", start)
    trainer = Trainer(tmp_path, "cpu", on_model=lambda: None)
    trainer.start()
    try:
        wait_until(lambda: len(tries) >= 3)
        assert trainer.is_alive() and trainer.error.startswith("The process that trains cannot be run: ")
        assert "Cannot allocate memory." in trainer.error
        with pytest.raises(UserError, match="Cannot allocate memory"):
            trainer.wait_until_ready()
    finally:
        trainer.stop()
        trainer.join()


def test_a_line_that_a_kill_has_cut_does_not_end_the_thread(tmp_path, monkeypatch):
    lines = ['{"event": "ready", "text": ""}\n', "7\n", '{"event": "mod']
    process = SimpleNamespace(stdout=io.StringIO("".join(lines)), stdin=io.StringIO(), wait=lambda: -9)
    monkeypatch.setattr(training.subprocess, "Popen", lambda *values, **options: process)
    trainer = Trainer(tmp_path, "cpu", on_model=lambda: None)
    trainer._follow()
    assert trainer.ready.is_set() and trainer.error == "The process that trains ended with code -9."


def test_a_classifier_that_loads_for_long_is_no_silence(tmp_path, monkeypatch):
    now, found = [0.0], []

    def load():
        now[0] += 1000
        found.append(trainer.responds)

    lines = ['{"event": "model", "text": ""}\n']
    process = SimpleNamespace(
        stdout=io.StringIO("".join(lines)), stdin=io.StringIO(), poll=lambda: None, pid=1, wait=lambda: 0
    )
    monkeypatch.setattr(training.subprocess, "Popen", lambda *values, **options: process)
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: now[0]))
    trainer = Trainer(tmp_path, "cpu", on_model=load)
    trainer._follow()
    assert found == [True] and trainer.responds
    now[0] += 1000
    assert not trainer.responds


ALIVE = """
import threading
from purereplay.live import trainer
trainer._BEAT = 0.05
trainer._beat(lambda *event: print(event, flush=True), threading.Event())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX")
def test_a_training_process_that_is_stopped_is_told(state, monkeypatch):
    monkeypatch.setattr(training, "_SILENCE", 2)
    start = training.subprocess.Popen
    monkeypatch.setattr(training.subprocess, "Popen", lambda _, **how: start([sys.executable, "-c", ALIVE], **how))
    with asking(state) as (client, made):
        trainer = made.interface.trainer = Trainer(state, "cpu", on_model=lambda: None)
        thread = threading.Thread(target=trainer._follow)
        thread.start()
        try:
            wait_until(lambda: trainer.pid is not None and client.get("/health").status_code == 200)
            os.kill(trainer.pid, signal.SIGSTOP)
            wait_until(lambda: client.get("/health").status_code == 503)
            assert client.get("/health").json() == {"status": "not training", "predicts": True, "trains": False}
            os.kill(trainer.pid, signal.SIGCONT)
            wait_until(lambda: client.get("/health").status_code == 200)
        finally:
            trainer._process.kill()
            thread.join()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX")
def test_a_training_process_that_is_stopped_does_not_hold_the_server(tmp_path, monkeypatch):
    """A pipe takes 64 KiB; the process learns what it missed when it goes on."""
    start = training.subprocess.Popen
    monkeypatch.setattr(training.subprocess, "Popen", lambda _, **how: start([sys.executable, "-c", ALIVE], **how))
    trainer = Trainer(tmp_path, "cpu", on_model=lambda: None)
    follower = threading.Thread(target=trainer._follow)
    follower.start()
    try:
        wait_until(lambda: trainer.pid is not None)
        os.kill(trainer.pid, signal.SIGSTOP)
        told = threading.Thread(target=lambda: [trainer.look() for _ in range(20_000)], daemon=True)
        told.start()
        told.join(20)
        assert not told.is_alive()
    finally:
        trainer._process.kill()
        follower.join()


def test_the_status_does_not_wait_for_samples_that_take_long(state, monkeypatch):
    begun, release = threading.Event(), threading.Event()
    with asking(state) as (client, made):

        def slow(given):
            begun.set()
            release.wait(20)
            return [Receipt("s90", "stored")]

        monkeypatch.setattr(made.interface.intake, "add", slow)
        teaching = threading.Thread(target=client.post, args=("/learn",), kwargs={"json": {"samples": [sample(90)]}})
        teaching.start()
        assert begun.wait(10)
        try:
            monkeypatch.setattr("purereplay.web.gate.ANSWER_SECONDS", 2)
            assert client.get("/status").status_code == client.get("/metrics").status_code == 200
        finally:
            release.set()
            teaching.join()
