"""A small state behind the server: in this process without training, on a port, or as `purereplay serve`."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import uvicorn
from review_page import wait_until
from starlette.testclient import TestClient
from tiny_state import items, picture, png, tiny

from purereplay.nets.engine import Engine
from purereplay.web.service import Options, Service
from purereplay.web.serving import Timed

PORT = 8491
ADDRESS = f"http://127.0.0.1:{PORT}"


class NoTraining:
    """Stands for the process that trains, where a test does not need it."""

    activity, error, n_starts, responds = "ready", None, 1, True

    def __init__(self, snapshots) -> None:
        self.snapshots = snapshots
        self.n_looks = 0

    def start(self) -> None:
        self.snapshots.refresh()

    def wait_until_ready(self) -> None:
        pass

    def look(self) -> None:
        self.n_looks += 1

    def stop(self) -> None:
        pass


def judged(folder: Path) -> Path:
    """Create a state of forty judged samples of three labels, s0 to s39; returns its folder."""
    with tiny(folder, "full-memory") as session:
        session.take(items(0, 40))
        session.work(rest=True)
    return folder


def service(state: Path, port: int = PORT, **options) -> Service:
    known = {"state": state, "host": "127.0.0.1", "max_bytes": 2**20}
    made = Service(Options(**known | options), Engine(torch.device("cpu")), page_token="the-token", port=port)
    made.interface.trainer = NoTraining(made.interface.snapshots)
    return made


@contextmanager
def asking(state: Path, **options) -> Iterator[tuple[TestClient, Service]]:
    """The application in this process."""
    made = service(state, **options)
    with TestClient(made, base_url=ADDRESS) as client:
        yield client, made


@contextmanager
def on_a_port(state: Path) -> Iterator[int]:
    """The application on a real port, in a thread of this process."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = uvicorn.Config(service(state, port), http=Timed, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()


def encoded(number: int, label: int = 0) -> str:
    """An image as base64 text."""
    return base64.b64encode(png(picture(number, label))).decode()


def sample(number: int) -> dict[str, str]:
    """A new sample of the stream of `tiny_state.items`."""
    return {"id": f"s{number}", "label": f"label {number % 3}", "image": encoded(number, number % 3)}


class Serve:
    """`purereplay serve` as a process of its own."""

    def __init__(self, state: Path, *options: str) -> None:
        self.call = [sys.executable, "-m", "purereplay.cli", "serve", "--state", str(state), "--port", "0"]
        self.call += ["--device", "cpu", *options]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            self.call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        text = ""
        for line in self.process.stdout:
            text += line
            if found := re.search(r"review page: (http://\S+/)(\S+)", line):
                self.address, self.page = found[1].rstrip("/"), found[1] + found[2]
                return
        raise AssertionError(text)

    def ask(self, path: str, values: object = None, **headers: str) -> tuple[int, dict]:
        data = None if values is None else json.dumps(values).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def status(self) -> dict:
        return self.ask("/status")[1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self, how: int = signal.SIGINT) -> str:
        self.process.send_signal(how)
        return self.process.communicate(timeout=60)[0]
