"""The server under load: latency while it trains, swaps of the classifier, and kills.

    python benchmarks/serve.py load --out results/serve/load.json      # 50 clients predict, 2 teach, 60 s
    python benchmarks/serve.py load --samples 5000 --growth 0.02  # a state that grows less meanwhile
    python benchmarks/serve.py swaps --out results/serve/swaps.json    # 100 swaps while clients predict
    python benchmarks/serve.py kills --out results/serve/kills.json    # 20 × kill -9 while a client teaches
    python benchmarks/serve.py export --out results/serve/export.json  # ONNX and the state's own predictions

Every client keeps one connection and sends a request, waits for the answer and pauses, so that the rate is the same
with and without training. Clients and server share the machine. The images are the digits of scikit-learn, with 30 % of
the labels wrong; `export` uses MNIST and CIFAR-10 as well, where they are on the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from purereplay.live.items import Item
from purereplay.live.session import Session, make_engine
from purereplay.live.settings import Wanted
from purereplay.live.store import Store

N_PREDICTING, N_TEACHING = 50, 2


# ---------------------------------------------------------------- samples and the server


class Digits:
    """Digits as image files in base64, with 30 % wrong labels; each pass over them changes some pixels."""

    def __init__(self) -> None:
        data, dice = load_digits(), np.random.default_rng(0)
        self.images = (data.images * 15.9).astype(np.uint8)
        wrong = dice.random(len(data.target)) < 0.3
        self.labels = np.where(wrong, (data.target + dice.integers(1, 10, len(wrong))) % 10, data.target)
        self.n = 0

    def png(self, number: int) -> bytes:
        i, turn = number % len(self.images), number // len(self.images)
        pixels = self.images[i].copy()
        if turn:
            dice = np.random.default_rng(number)
            pixels = np.clip(pixels.astype(int) + dice.integers(-20, 20, pixels.shape), 0, 255).astype(np.uint8)
        file = BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    def sample(self) -> dict[str, str]:
        """Return a sample that was not returned before."""
        number, self.n = self.n, self.n + 1
        label = str(self.labels[number % len(self.labels)])
        return {"id": f"d{number}", "label": label, "image": base64.b64encode(self.png(number)).decode()}


def make_state(folder: Path, digits: Digits, n: int, **settings: str) -> None:
    """Make a state of n judged samples."""
    with Session.open(folder, Wanted(overrides=settings), make_engine("cpu")) as session:
        samples = [digits.sample() for _ in range(n)]
        session.take([Item(s["id"], s["label"], base64.b64decode(s["image"])) for s in samples])
        session.work(rest=True)


class Server:
    """`purereplay serve` as a process."""

    def __init__(self, state: Path) -> None:
        self.call = [sys.executable, "-m", "purereplay.cli", "serve", "--state", str(state), "--port", "0"]
        self.call += ["--device", "cpu"]
        self.start()

    def start(self) -> None:
        began = time.perf_counter()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(self.call, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"serving at: http://([^:]+):(\d+)", line):
                self.host, self.port = found[1], int(found[2])
                self.seconds = time.perf_counter() - began
                return
        raise SystemExit("the server did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> float:
        began = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        return time.perf_counter() - began


class Client:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, values: object = None) -> tuple[int, Any]:
        """Send a request; returns status and answer."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.server.host, self.server.port)
        reader, writer = self.streams
        body = b"" if values is None else json.dumps(values).encode()
        verb = "GET" if values is None else "POST"
        head = f"{verb} {path} HTTP/1.1\r\nHost: {self.server.host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        header = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", header)
        assert length is not None
        content = await reader.readexactly(int(length[1]))
        return int(header.split(b" ", 2)[1]), json.loads(content)

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


class Measured:
    """Times and errors of requests."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self.versions: set[str] = set()

    def summary(self) -> dict[str, Any]:
        times = np.array(self.seconds) * 1000
        shares = {f"p{q}_ms": round(float(np.percentile(times, q)), 2) for q in (50, 95, 99)}
        return {"requests": len(times), "errors": len(self.errors), **shares, "max_ms": round(float(times.max()), 1)}


async def predict(server: Server, measured: Measured, until: Callable[[], bool], image: str, pause: float) -> None:
    """Predict one image again and again."""
    client = Client(server)
    await asyncio.sleep(np.random.default_rng().random() * pause)
    while not until():
        began = time.perf_counter()
        try:
            status, answer = await client.ask("/predict", {"images": [image]})
            measured.seconds.append(time.perf_counter() - began)
            if status != 200:
                measured.errors.append(f"{status} {answer}")
            else:
                measured.versions.add(answer["model"]["version"])
        except Exception as error:
            measured.errors.append(repr(error))
            client = Client(server)
        await asyncio.sleep(max(0.0, pause - (time.perf_counter() - began)))
    client.close()


async def teach(server: Server, measured: Measured, until: Callable[[], bool], digits: Digits, n: int) -> int:
    """Send n samples again and again; returns how many were acknowledged."""
    client, total = Client(server), 0
    while not until():
        began = time.perf_counter()
        try:
            status, answer = await client.ask("/learn", {"samples": [digits.sample() for _ in range(n)]})
            measured.seconds.append(time.perf_counter() - began)
            if status != 202 or answer["refused"]:
                measured.errors.append(f"{status} {answer}")
            total += answer.get("acknowledged", 0)
        except Exception as error:
            measured.errors.append(repr(error))
            client = Client(server)
        await asyncio.sleep(0.5)
    client.close()
    return total


def until(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


# ---------------------------------------------------------------- measurements


def load(seconds: float, rate: float, n_samples: int, growth: float) -> dict[str, Any]:
    """Measure /predict without and with training, on a state of n samples at the start."""
    digits = Digits()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        # all are judged again after 5 % more: 30 of 600, so training never rests; a larger state needs a smaller share
        make_state(state, digits, n_samples, growth=f"{growth:g}")
        server = Server(state)
        image = base64.b64encode(digits.png(1700)).decode()
        parts = []
        for part, trains in enumerate((False, False, True, False)):  # the first one warms up
            done = asyncio.run(_load(server, digits, image, seconds if part else 10, rate, trains))
            parts.append(done | {"load_average": os.getloadavg()[0]})
            print(json.dumps(parts[-1]), flush=True)
            asyncio.run(_quiet(server))
        stopped = server.stop()
        with Store.reading(state) as store:
            n = store.n_samples
    idle = [parts[1]["predict"]["p99_ms"], parts[3]["predict"]["p99_ms"]]
    ratio = parts[2]["predict"]["p99_ms"] / float(np.mean(idle))
    return {
        "clients": {"predicting": N_PREDICTING, "teaching": N_TEACHING, "requests_per_second_each": rate},
        "warm_up": parts[0],
        "idle_before": parts[1],
        "training": parts[2],
        "idle_after": parts[3],
        "p99_ratio": round(ratio, 2),
        "samples_at_the_start": n_samples,
        "growth": growth,
        "samples_at_the_end": n,
        "samples_expected": n_samples + parts[2]["acknowledged"],
        "seconds_to_start": round(server.seconds, 1),
        "seconds_to_stop": round(stopped, 1),
    }


async def _load(
    server: Server, digits: Digits, image: str, seconds: float, rate: float, trains: bool
) -> dict[str, Any]:
    predicted, taught, ended = Measured(), Measured(), until(seconds)
    before = (await Client(server).ask("/status"))[1]["server"]
    work = [predict(server, predicted, ended, image, 1 / rate) for _ in range(N_PREDICTING)]
    work += [teach(server, taught, ended, digits, 5) for _ in range(N_TEACHING if trains else 0)]
    found = await asyncio.gather(*work)
    after = (await Client(server).ask("/status"))[1]["server"]
    summary: dict[str, Any] = {"seconds": seconds, "predict": predicted.summary()}
    summary |= {"swaps": after["swaps"] - before["swaps"], "acknowledged": sum(n for n in found if n)}
    if trains:
        summary["learn"] = taught.summary()
    return summary | {"first_errors": (predicted.errors + taught.errors)[:3]}


async def _quiet(server: Server) -> None:
    """Wait until everything is judged."""
    client = Client(server)
    while True:
        found = (await client.ask("/status"))[1]
        if found["server"]["inbox"]["waiting"] == 0 and found["state"]["waiting"] == 0:
            return
        await asyncio.sleep(0.5)


def swaps(n: int) -> dict[str, Any]:
    """Measure /predict over n swaps: every new sample makes a new classifier."""
    digits = Digits()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        make_state(state, digits, 60, first="20", growth="0.001", piece="1000")
        server = Server(state)
        done = asyncio.run(_swaps(server, digits, n))
        server.stop()
    return done


async def _swaps(server: Server, digits: Digits, n: int) -> dict[str, Any]:
    measured, done = Measured(), asyncio.Event()
    image = base64.b64encode(digits.png(1700)).decode()
    began = time.perf_counter()
    work = [asyncio.create_task(predict(server, measured, done.is_set, image, 0.02)) for _ in range(10)]
    client = Client(server)
    first = (await client.ask("/status"))[1]["server"]["swaps"]
    n_swaps = 0
    while n_swaps < n:
        await client.ask("/learn", {"samples": [digits.sample()]})
        while (now := (await client.ask("/status"))[1]["server"]["swaps"] - first) == n_swaps:
            await asyncio.sleep(0.05)
        n_swaps = now
    done.set()
    await asyncio.gather(*work)
    seconds = round(time.perf_counter() - began, 1)
    summary = measured.summary() | {"versions_seen": len(measured.versions), "first_errors": measured.errors[:3]}
    return {"swaps": n_swaps, "seconds": seconds, "predict": summary}


def kills(n: int) -> dict[str, Any]:
    """Kill the server n times while it is taught; every acknowledged sample must be there at the end."""
    digits, dice = Digits(), np.random.default_rng(0)
    acknowledged: list[str] = []
    unanswered = 0
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        make_state(state, digits, 100, growth="0.05")
        first = [f"d{i}" for i in range(100)]
        server = Server(state)
        for _ in range(n):
            ids, lost = asyncio.run(_teach_until_killed(server, digits, float(dice.uniform(0.2, 3.0))))
            acknowledged += ids
            unanswered += lost
            server.start()
        asyncio.run(_quiet(server))
        server.stop()
        with Store.reading(state) as store:
            stored = [name for (name,) in store.query("SELECT id FROM samples")]
    missing = set(first + acknowledged) - set(stored)
    return {
        "kills": n,
        "acknowledged": len(acknowledged),
        "stored": len(stored),
        "unanswered_requests": unanswered,
        "acknowledged_and_missing": len(missing),
        "stored_twice": len(stored) - len(set(stored)),
    }


async def _teach_until_killed(server: Server, digits: Digits, seconds: float) -> tuple[list[str], int]:
    """Send samples as fast as the server takes them, and kill it meanwhile."""
    asyncio.get_running_loop().call_later(seconds, server.process.kill)
    client, ids, lost = Client(server), list[str](), 0
    while True:
        samples = [digits.sample() for _ in range(3)]
        try:
            status, answer = await client.ask("/learn", {"samples": samples})
        except (OSError, asyncio.IncompleteReadError):
            lost += 1
            break
        if status == 202:
            ids += [s["id"] for s in answer["samples"] if "result" in s]
        await asyncio.sleep(0.02)
    client.close()
    server.process.wait()
    return ids, lost


def exports() -> dict[str, Any]:
    """Compare ONNX in onnxruntime with the state's own predictions on 1,000 images that the state has not seen."""
    import onnxruntime

    from purereplay.live.export.exporter import export
    from purereplay.live.predict import ready_classifier

    found = {}
    for name, (images, labels) in _datasets().items():
        for learner in ("full-memory", "spr", "pure-replay") if name == "digits" else ("full-memory",):
            with tempfile.TemporaryDirectory() as folder:
                state = Path(folder) / "state"
                n = len(images) - 1000
                with Session.open(state, Wanted(learner=learner), make_engine("cpu")) as session:
                    session.take([Item(f"s{i}", str(labels[i]), _file(images[i])) for i in range(n)])
                    session.work(rest=True)
                done = export(state, "onnx", Path(folder) / "model")
                with Store.reading(state) as store:
                    classifier, _ = ready_classifier(store, make_engine("cpu"))
                new = images[n:]
                own = classifier.probabilities(torch.from_numpy(new)).numpy()
                given = onnxruntime.InferenceSession(str(done.model)).run(None, {"images": new})[0]
                found[f"{name}, {learner}"] = {
                    "images": len(new),
                    "largest_difference": float(np.abs(own - given).max()),
                    "other_label": int((own.argmax(1) != given.argmax(1)).sum()),
                    "megabytes": round(done.model.stat().st_size / 1e6, 1),
                    "estimated_accuracy": done.accuracy and [round(x, 4) for x in done.accuracy[:3]],
                    "accuracy": round(float((own.argmax(1) == _codes(state, labels[n:], name)).mean()), 4),
                }
                print(name, learner, found[f"{name}, {learner}"], flush=True)
    return found


def _codes(state: Path, given: Any, name: str) -> Any:
    """Return the true labels of the last 1,000 images, as numbers of the state's labels."""
    with Store.reading(state) as store:
        codes = {label: code for code, label in enumerate(store.labels())}
    return np.array([codes[str(label)] for label in _TRUE[name]])


_TRUE: dict[str, Any] = {}


def _datasets() -> dict[str, tuple[Any, Any]]:
    """Return images and given labels, 30 % of them wrong; the last 1,000 images of each are new."""
    from purereplay.data.datasets import load as load_data
    from purereplay.errors import UserError

    digits, dice = load_digits(), np.random.default_rng(0)
    loaded = {"digits": ((digits.images * 15.9).astype(np.uint8)[:, None], digits.target)}
    for name in ("mnist", "cifar10"):
        try:
            data = load_data(name)
        except UserError:
            continue
        rows = dice.permutation(len(data.images))[:3000]
        assert data.true_labels is not None
        loaded[name] = (np.asarray(data.images)[rows], np.asarray(data.true_labels)[rows])
    found = {}
    for name, (images, labels) in loaded.items():
        wrong = dice.random(len(labels)) < 0.3
        _TRUE[name] = labels[-1000:]
        found[name] = (images, np.where(wrong, (labels + dice.integers(1, 10, len(labels))) % 10, labels))
    return found


def _file(image: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(np.moveaxis(image, 0, -1).squeeze()).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "swaps", "kills", "export"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part of `load`")
    parser.add_argument("--samples", type=int, default=600, help="of the state at the start of `load`")
    parser.add_argument("--growth", type=float, default=0.05, help="share of new samples after which `load` trains")
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second of each predicting client")
    parser.add_argument("--n", type=int, help="swaps (100) or kills (20)")
    options = parser.parse_args()
    began, load_before = time.time(), os.getloadavg()[0]
    done = {
        "load": lambda: load(options.seconds, options.rate, options.samples, options.growth),
        "swaps": lambda: swaps(options.n or 100),
        "kills": lambda: kills(options.n or 20),
        "export": exports,
    }[options.what]()
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load_average_before": load_before}
    facts = {"command": " ".join(["python", *sys.argv]), **machine, "seconds": round(time.time() - began, 1)}
    text = json.dumps({**facts, "result": done}, indent=1) + "\n"
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


if __name__ == "__main__":
    main()
