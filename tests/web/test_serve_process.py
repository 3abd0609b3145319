"""`purereplay serve` as a process: training beside predictions, kills, and a graceful stop."""

import os
import signal
import urllib.request
from pathlib import Path

import pytest
from review_page import wait_until
from served_state import Serve, encoded, sample
from tiny_state import items, tiny

from purereplay.live.store import Store


@pytest.fixture
def state(tmp_path):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 20))
        session.work()
    return tmp_path / "state"


def n_stored(state) -> int:
    with Store.reading(state) as store:
        return store.n_samples


@pytest.mark.long
def test_samples_teach_a_classifier_that_takes_over_and_survive_kills(state):
    server = Serve(state, "--name", "photos")
    try:
        before = server.ask("/predict", {"images": [encoded(1)]})[1]["model"]
        assert before["name"] == "photos"
        status, answer = server.ask("/learn", {"samples": [sample(i) for i in range(20, 33)]})
        assert (status, answer["acknowledged"]) == (202, 13)
        wait_until(lambda: server.status()["server"]["swaps"] == 2)
        assert server.ask("/predict", {"images": [encoded(1)]})[1]["model"]["version"] != before["version"]
        wait_until(lambda: server.status()["state"]["scored"] == 33)  # three are judged without being due
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(server.page) as page:
            assert b"<html" in page.read()
        status, _ = server.ask("/learn", {"samples": [sample(33)]})
        server.kill()
        server.start()
        wait_until(lambda: server.status()["state"]["samples"] == 34)
        trainer = _trainer_of(server)
        os.kill(trainer, signal.SIGKILL)  # a new one takes its place
        wait_until(lambda: server.status()["server"]["training_starts"] == 2)
        wait_until(lambda: server.ask("/health")[0] == 200)
        server.ask("/learn", {"samples": [sample(i) for i in range(34, 40)]})
        wait_until(lambda: server.status()["state"]["samples"] == 40)
        assert "Every acknowledged sample is on disk" in server.end()
        assert server.process.returncode == 0
        wait_until(lambda: not _runs(trainer))
        assert n_stored(state) == 40
    finally:
        server.kill()


def _trainer_of(server: Serve) -> int:
    task = Path("/proc", str(server.process.pid), "task")
    found = [number for each in task.iterdir() for number in (each / "children").read_text().split()]
    return int(found[0])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_server_in_the_same_way(state, how):
    server = Serve(state)
    try:
        trainer = _trainer_of(server)
        assert server.ask("/learn", {"samples": [sample(20)]})[0] == 202
        assert "The server has stopped. Every acknowledged sample is on disk." in server.end(how)
        assert server.process.returncode == 0
        assert not _runs(trainer)
        with tiny(state) as session:  # the lock is free
            assert session.store.n_samples <= 21
    finally:
        server.kill()


@pytest.mark.slow
def test_twenty_kills_lose_nothing_that_was_acknowledged(state):
    acknowledged, next_one = 20, 20
    server = Serve(state)
    for kill in range(20):
        for _ in range(kill % 4 + 1):
            answer = server.ask("/learn", {"samples": [sample(next_one + i) for i in range(5)]})[1]
            acknowledged += answer["acknowledged"]
            next_one += 5
        server.kill()
        server.start()
        assert server.process.poll() is None
    try:
        wait_until(lambda: server.status()["state"]["samples"] == acknowledged)
        again = server.ask("/learn", {"samples": [sample(i) for i in range(20, min(next_one, 500))]})[1]
        assert {s["result"] for s in again["samples"]} == {"known"}
        assert server.status()["state"]["samples"] == acknowledged == next_one
    finally:
        server.kill()


def test_what_serve_refuses(tmp_path, state, monkeypatch, capsys):
    from purereplay.cli import main

    (tmp_path / "short").write_text("abc\n")
    cases = {
        ("--state", str(tmp_path / "nothing")): "nothing holds no state",
        ("--state", str(state), "--token-file", str(tmp_path / "short")): "at least 16 letters",
        ("--state", str(state), "--token-file", str(tmp_path / "missing")): "missing cannot be read",
        ("--state", str(state), "--name", "a/b"): "--name may have letters",
        ("--state", str(state), "--max-request", "0"): "--max-request must be",
        ("--state", str(state), "--host", "no.such.host.example"): "is not known",
        ("--state", str(state), "--port", "99999"): "choose another --port",
    }
    for options, error in cases.items():
        monkeypatch.setattr("sys.argv", ["purereplay", "serve", *options])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert error in capsys.readouterr().err
