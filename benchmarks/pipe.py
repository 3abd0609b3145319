"""A long pipe into `learn`: time per sample and memory, with every revision of the verdicts included.

    python benchmarks/pipe.py --out results/live/pipe.json          # 100,000 samples of 8×8 pixels
    python benchmarks/pipe.py --n 5000

The samples are scikit-learn's digits, each with a brightness and noise of its own, a fifth of them with a wrong label.
The time of a block is that until its last line is answered. A pipe waits while all samples are judged again, so
single blocks take long, and their mean from one such time to the next is what counts.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from purereplay.live.items import CHUNK
from purereplay.live.memory_settings import FullMemorySettings

BLOCK = 500  # lines
WRONG = 0.2


def line(i: int, images: np.ndarray, targets: np.ndarray) -> bytes:
    """Return sample i as a line of the pipe."""
    dice = np.random.default_rng(i)
    which = int(dice.integers(len(images)))
    pixels = np.clip(images[which] * 15.9 * dice.uniform(0.7, 1.0) + dice.normal(0, 12, images[which].shape), 0, 255)
    label = int(targets[which])
    if dice.random() < WRONG:
        label = (label + int(dice.integers(1, 10))) % 10
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    text = {"id": f"s{i}", "label": str(label), "image": base64.b64encode(file.getvalue()).decode()}
    return json.dumps(text).encode() + b"\n"


def memory(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def measure(n: int, state: Path) -> list[dict[str, float]]:
    """Send n samples through a pipe; returns time and memory of every block."""
    command = [sys.executable, "-m", "purereplay.cli", "learn", "-", "--state", str(state), "--device", "cpu"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    digits = load_digits()
    pipe = process.stdin

    def send() -> None:
        for i in range(n):
            pipe.write(line(i, digits.images, digits.target))
        pipe.flush()

    sender = threading.Thread(target=send)
    sender.start()
    blocks, began, most = [], time.perf_counter(), 0.0
    for i in range(1, n + 1):
        assert json.loads(process.stdout.readline()).get("ok"), i
        if i % BLOCK == 0:
            now, used = time.perf_counter(), memory(process)
            most = max(most, used)
            blocks.append({"samples": i, "seconds": round(now - began, 3), "memory_mib": round(used, 1)})
            print(blocks[-1], flush=True)
            began = now
    sender.join()
    pipe.close()
    process.wait()
    return blocks


def parts(blocks: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return milliseconds per sample and the most memory between revisions; each part ends with one."""
    settings, n = FullMemorySettings(), 0
    found, own, ends = [], [], list[int]()
    while n < blocks[-1]["samples"]:
        n = settings.next_revision(n)
        ends.append(BLOCK * -(-(n + CHUNK) // BLOCK))  # the pipe waits after a chunk is answered
    for block in blocks:
        own.append(block)
        rest = blocks[-1]["samples"] - block["samples"]
        if (block["samples"] in ends[:-1] and rest >= block["samples"] / 4) or not rest:
            first = own[0]["samples"] - BLOCK
            found.append(
                {
                    "from": int(first),
                    "to": int(own[-1]["samples"]),
                    "ms_per_sample": round(1000 * sum(b["seconds"] for b in own) / (own[-1]["samples"] - first), 2),
                    "memory_mib": max(b["memory_mib"] for b in own),
                }
            )
            own = []
    return found


def summary(blocks: list[dict[str, float]], state: Path) -> dict[str, Any]:
    """Return the parts of the pipe, and the counts of `status`."""
    call = [sys.executable, "-m", "purereplay.cli", "status", "--state", str(state), "--format", "json"]
    found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    kept = ("samples", "scored", "rejected", "revisions", "bytes")
    noise = [row for row in found["noise"] if row["given"] is None]
    return {
        "parts": parts(blocks),
        "status": {name: found[name] for name in kept},
        "noise": noise[0] if noise else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        blocks = measure(arguments.n, state)
        found = summary(blocks, state)
    found |= {"n": arguments.n, "wrong": WRONG, "seconds": round(sum(b["seconds"] for b in blocks), 1)}
    found |= {"machine": platform.machine(), "blocks": blocks}
    print(json.dumps({name: value for name, value in found.items() if name != "blocks"}, indent=2))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
