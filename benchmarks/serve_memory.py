"""Memory of the server while twenty clients send large requests at once, one kind after the other.

    python benchmarks/serve_memory.py --out results/serve/memory.json
    python benchmarks/serve_memory.py --only numbers    # one kind

The peak is the largest resident size of the process that answers, in MiB. That of the process that trains is separate.
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from serve import Digits, Server, make_state

N_CLIENTS = 20
MIB = 2**20
_SIZE = 31 * MIB  # of a request, less than the 32 MiB that are allowed
_SIDE = 7000  # 49 million pixels, less than the 50 that are allowed


def _png(mode: str) -> bytes:
    file = BytesIO()
    Image.new(mode, (_SIDE, _SIDE)).save(file, "PNG")
    return file.getvalue()


def _photos() -> bytes:
    """As many photos of 12 megapixels as a request takes; noise, so that they compress badly."""
    file = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (3000, 4000, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=75)
    photo = base64.b64encode(file.getvalue()).decode()
    return json.dumps({"images": [photo] * (_SIZE // len(photo))}).encode()


def _learned() -> bytes:
    sample = {"id": f"large {time.time_ns()}", "label": "0", "image": base64.b64encode(_png("I;16")).decode()}
    return json.dumps({"samples": [sample]}).encode()


def _tensor(value: bytes) -> bytes:
    start = b'{"inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": ['
    return start + value * (_SIZE // len(value)) + b"0]}]}"


INFER = "/v2/models/purereplay/infer"
KINDS: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "photos": ("photos of 12 megapixels as JSON", "/predict", _photos),
    "transparent": ("transparent PNG of 49 megapixels", "/predict", lambda: _png("RGBA")),
    "deep": ("grey PNG of 49 megapixels, 16 bits", "/predict", lambda: _png("I;16")),
    "learned": ("the same as samples to learn", "/learn", _learned),
    "text": ("base64 text that is no image", "/predict", lambda: b'{"images": ["' + b"A" * _SIZE + b'"]}'),
    "numbers": ("a tensor of 8 million numbers as JSON", INFER, lambda: _tensor(b"0.1,")),
    "objects": ("JSON of 4.6 million objects", INFER, lambda: _tensor(b'{"":0},')),
}


def memory(pid: int, field: str) -> float:
    """Return a size of a process in MiB: VmRSS now, VmHWM the largest since `forget`."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024


def forget(pid: int) -> None:
    """Let the largest size begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def trainer_of(pid: int) -> int:
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return int(next(number for numbers in found for number in numbers))


async def send(server: Server, path: str, body: bytes) -> str:
    """Send one request; returns the status."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    try:
        writer.write(head.encode() + body)
        answer = await asyncio.wait_for(reader.read(), 180)
        return answer[:12].decode().removeprefix("HTTP/1.1 ")
    except (OSError, TimeoutError) as error:
        return type(error).__name__
    finally:
        writer.close()


def measure(server: Server, path: str, body: Callable[[], bytes]) -> dict[str, Any]:
    pid = server.process.pid
    trainer = trainer_of(pid)
    bodies = [body()] * N_CLIENTS if path != "/learn" else [body() for _ in range(N_CLIENTS)]
    before = memory(pid, "VmRSS")
    for each in (pid, trainer):
        forget(each)
    began = time.perf_counter()

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*(send(server, path, each) for each in bodies))

    statuses = Counter(asyncio.run(all_at_once()))
    seconds = time.perf_counter() - began
    time.sleep(2)
    return {
        "bytes_of_a_request": len(bodies[0]),
        "before_mib": round(before),
        "peak_mib": round(memory(pid, "VmHWM")),
        "after_mib": round(memory(pid, "VmRSS")),
        "trainer_peak_mib": round(memory(trainer, "VmHWM")),
        "statuses": dict(statuses),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    done = {}
    with tempfile.TemporaryDirectory() as folder:
        make_state(Path(folder) / "state", Digits(), 200)
        server = Server(Path(folder) / "state")
        try:
            for name, (text, path, body) in KINDS.items():
                if options.only in (None, name):
                    done[text] = measure(server, path, body)
                    print(text, done[text], flush=True)
        finally:
            server.stop()
    facts = {"command": " ".join(["python", *sys.argv]), "machine": platform.machine(), "cores": os.cpu_count()}
    if options.out:
        text = json.dumps({**facts, "clients": N_CLIENTS, "result": done}, indent=1)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
