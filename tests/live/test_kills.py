"""A pipe whose reader is killed repeatedly: answered samples are stored once, and the result is the same."""

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
from tiny_state import ALL_LEARNERS, fingerprint, tiny_options

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Feeder:
    """A client that sends a stream, and after an interruption every line that was not answered."""

    def __init__(self, state: Path, n: int, learner: str) -> None:
        self.call = [sys.executable, "-m", "purereplay.cli", "learn", "-", "--state", str(state)]
        self.call += tiny_options(learner)
        self.lines = [line(i) for i in range(n)]
        self.answered: list[str] = []  # ids, in the order of their answers

    def run(self, n_more: int | None, wait: float | None, since_answer: bool) -> bool:
        """Run the reader once, and kill it after `wait` seconds or let it finish; returns whether it was killed.

        It gets the next `n_more` lines that are not answered yet, None: all. The waiting time starts with the process,
        or with the first answer.
        """
        process = subprocess.Popen(
            self.call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        answered = threading.Event()
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

        def receive() -> None:
            for answer in process.stdout:
                if answer.endswith(b"\n"):
                    assert json.loads(answer)["ok"]
                    self.answered.append(json.loads(answer)["id"])
                    answered.set()

        threads = [threading.Thread(target=send), threading.Thread(target=receive)]
        for thread in threads:
            thread.start()
        if wait is None:
            process.wait(timeout=600)
        else:
            if since_answer:
                answered.wait(timeout=60)
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


def kill(state: Path, n_kills: int, n: int, learner: str, seed: int) -> list[str]:
    """Kill the reader `n_kills` times, then let it finish; returns the answered ids."""
    dice, feeder, hits = random.Random(seed), Feeder(state, n, learner), 0
    while hits < n_kills:
        early = dice.random() < 0.1  # some are killed before they have read anything
        wait = dice.uniform(0.0, 3.0) if early else dice.uniform(0.0, 0.4)
        hits += feeder.run(dice.randint(1, 2 * n // n_kills), wait, since_answer=not early)
        check(state, feeder.answered)
    feeder.run(None, None, since_answer=False)
    check(state, feeder.answered)
    return feeder.answered


def check(state: Path, answered: list[str]) -> None:
    """Assert that answered samples are in the state, once each and in order."""
    if not answered:
        return
    held = [row[1] for row in fingerprint(state)["samples"]]
    assert len(held) == len(set(held)) and held == [f"s{i}" for i in range(len(held))]
    assert set(answered) <= set(held)


def check_same_result(tmp_path: Path, n_kills: int, n: int, learner: str) -> None:
    feeder = Feeder(tmp_path / "whole", n, learner)
    feeder.run(None, None, since_answer=False)
    assert feeder.answered == [f"s{i}" for i in range(n)]
    answered = kill(tmp_path / "killed", n_kills, n, learner, seed=1)
    whole, killed = fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "killed")
    assert set(answered) == {row[1] for row in killed["samples"]} and len(killed["samples"]) == n
    assert killed == whole  # samples, decisions, the purified buffer, and the digest of the networks
    if learner == "full-memory":
        assert len(whole["revisions"]) > 3 and n - 5 < len(whole["decisions"]) <= n
    else:
        assert len(whole["decisions"]) == n // 20 * 20


@pytest.mark.long
@pytest.mark.parametrize(
    "learner", [pytest.param(name, marks=[pytest.mark.slow] * (name != "full-memory")) for name in ALL_LEARNERS]
)
def test_killed_three_times(tmp_path, learner):
    check_same_result(tmp_path, n_kills=3, n=90, learner=learner)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ALL_LEARNERS)
def test_killed_a_hundred_times(tmp_path, learner):
    check_same_result(tmp_path, n_kills=100, n=3010, learner=learner)
