"""A pipe whose reader is killed again and again: what was acknowledged is there, once, and the end is the same."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_commands import line
from tiny_state import TINY_OPTIONS, fingerprint

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Feeder:
    """A client that sends a stream, and after a cut whatever was not answered."""

    def __init__(self, state: Path, n: int) -> None:
        self.call = [sys.executable, "-m", "purereplay.cli", "learn", "-", "--state", str(state), *TINY_OPTIONS]
        self.lines = [line(i) for i in range(n)]
        self.answered: list[str] = []  # ids, in the order of their answers

    def live(self, n_more: int | None, wait: float | None, since_answer: bool) -> bool:
        """One life of the reader: killed after a while, or fed to the end; whether the kill met it alive.

        It is sent `n_more` lines that are not answered yet, None: all; the while begins with the start or with the
        first answer.
        """
        process = subprocess.Popen(
            self.call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        begun = threading.Event()
        todo = self.lines[len(set(self.answered)) :][:n_more]

        def send() -> None:
            try:
                for text in todo:
                    process.stdin.write(text.encode())
                    process.stdin.flush()
                if wait is None:
                    process.stdin.close()
            except BrokenPipeError:
                pass

        def hear() -> None:
            for answer in process.stdout:
                if answer.endswith(b"\n"):
                    assert json.loads(answer)["ok"]
                    self.answered.append(json.loads(answer)["id"])
                    begun.set()

        threads = [threading.Thread(target=send), threading.Thread(target=hear)]
        for thread in threads:
            thread.start()
        if wait is None:
            process.wait(timeout=600)
        else:
            if since_answer:
                begun.wait(timeout=60)
            time.sleep(wait)
        was_alive = process.poll() is None
        if was_alive:
            process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
        process.wait()
        error = process.stderr.read().decode()
        assert process.returncode in (0, -signal.SIGKILL), error
        return was_alive


def kill(state: Path, n_kills: int, n: int, seed: int) -> list[str]:
    """The ids that were answered, through so many kills and a life to the end."""
    dice, feeder, hits = random.Random(seed), Feeder(state, n), 0
    while hits < n_kills:
        early = dice.random() < 0.1  # some die before they have read anything
        wait = dice.uniform(0.0, 3.0) if early else dice.uniform(0.0, 0.4)
        hits += feeder.live(dice.randint(1, 2 * n // n_kills), wait, since_answer=not early)
        check(state, feeder.answered)
    feeder.live(None, None, since_answer=False)
    check(state, feeder.answered)
    return feeder.answered


def check(state: Path, answered: list[str]) -> None:
    """What was acknowledged is in the state, once each and in order."""
    if not answered:
        return
    held = [row[1] for row in fingerprint(state)["samples"]]
    assert len(held) == len(set(held)) and held == [f"s{i}" for i in range(len(held))]
    assert set(answered) <= set(held)


def ends_the_same(tmp_path: Path, n_kills: int, n: int) -> None:
    feeder = Feeder(tmp_path / "whole", n)
    feeder.live(None, None, since_answer=False)
    assert feeder.answered == [f"s{i}" for i in range(n)]
    answered = kill(tmp_path / "killed", n_kills, n, seed=1)
    whole, killed = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "killed")
    assert set(answered) == {row[1] for row in killed["samples"]} and len(killed["samples"]) == n
    assert killed == whole  # samples, decisions, the purified buffer, and the digest of the networks
    assert len(whole["decisions"]) == n // 20 * 20


@pytest.mark.long
def test_killed_three_times(tmp_path):
    ends_the_same(tmp_path, n_kills=3, n=90)


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path):
    ends_the_same(tmp_path, n_kills=100, n=3010)
