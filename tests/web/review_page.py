"""The application over a small state, pages of it, and `purereplay review` as a process."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import uvicorn
from starlette.testclient import TestClient

sys.path.append(str(Path(__file__).parent.parent / "live"))


from purereplay.nets.engine import Engine
from purereplay.web.app import Subject, make_app

PORT = 8490
TOKEN = "the-token"
ADDRESS = f"http://127.0.0.1:{PORT}"
CHROMIUM = next((path for path in ("/usr/bin/chromium", "/usr/bin/google-chrome") if Path(path).exists()), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Page:
    """A page as the server sees it."""

    def __init__(self, client: TestClient, name: str = "page") -> None:
        self.client = client
        self.name = name
        self.start = secrets.token_hex(4)
        self.n = 0
        client.get("/", params={"token": TOKEN})

    def post(self, path: str, **values: object):
        known = {"page": self.name, "reviewer": self.name, "action": f"{self.start}-{self.n}"}
        self.n += 1
        headers = {"Origin": ADDRESS, "Content-Type": "application/json"}
        return self.client.post(f"/api/{path}", content=json.dumps(known | values), headers=headers)

    def next(self, n: int = 5, **filters: object) -> list[dict]:
        answer = self.post("next", n=n, held=[], filter=filters or None)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    def decide(self, sample: int, kind: str, label: str | None = None):
        return self.post("decide", decisions=[{"sample": sample, "kind": kind, "label": label}])


@contextmanager
def serving(**subject: Path) -> Iterator[TestClient]:
    """The application in this process, without a token yet."""
    engine = Engine(torch.device("cpu"))
    app = make_app(Subject(**subject), engine, token=TOKEN, host="127.0.0.1", port=PORT)
    with TestClient(app, base_url=ADDRESS) as client:
        yield client


class Served:
    """The application on a real port, in a thread of this process."""

    def __init__(self, **subject: Path) -> None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = make_app(Subject(**subject), Engine(torch.device("cpu")), token=TOKEN, host="127.0.0.1", port=port)
        self.address = f"http://127.0.0.1:{port}/?token={TOKEN}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        wait_until(lambda: self.server.started)

    def end(self) -> None:
        self.server.should_exit = True
        self.thread.join()


class Review:
    """`purereplay review` as a process of its own."""

    def __init__(self, *options: object) -> None:
        self.call = [sys.executable, "-m", "purereplay.cli", "review", "--no-browser", "--device", "cpu"]
        self.call += [str(option) for option in options]
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            self.call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        line = ""
        for line in self.process.stdout:
            if found := re.search(r"http://\S+", line):
                self.address = found[0]
                return
        raise AssertionError(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=60)[0]


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
