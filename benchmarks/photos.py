"""JPEG files of mixed sizes, learned by the line of the README: time, memory and what `learn` says.

    python benchmarks/photos.py --out results/live/photos.json
    python benchmarks/photos.py --n 3000 --encoder onnx:lite0.onnx --out results/encoders/photos.json

The pictures are drawn: a disc, a rectangle or a triangle on a coarse background, 0.08 to 8 megapixels, upright or
turned by EXIF. A fifth of them lies in the folder of another label. With an encoder they have 0.3 to 12 megapixels, and
are learned three times: a sixth of them, all of them, and all of them again into another state with the features of
the cache.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

LABELS = ("disc", "rectangle", "triangle")
SIZES = ((320, 240), (640, 480), (480, 640), (1024, 768), (800, 800), (1920, 1080), (3000, 2000), (2448, 3264))
LARGE = ((640, 480), (480, 640), (1024, 768), (1600, 1200), (1920, 1080), (2448, 3264), (3000, 2000), (4000, 3000))
ORIENTATION = 0x0112  # EXIF


def make_photos(folder: Path, n: int = 300, sizes: tuple[tuple[int, int], ...] = SIZES) -> dict[str, str]:
    """Write n files label/number.jpg; returns the true label by file name."""
    dice, truth = np.random.default_rng(0), {}
    for number in range(n):
        kind, size = number % len(LABELS), sizes[int(dice.integers(len(sizes)))]
        name = f"{number:03}.jpg"
        truth[name] = LABELS[kind]
        label = LABELS[kind] if dice.random() > 0.2 else LABELS[(kind + int(dice.integers(1, 3))) % 3]
        exif = Image.Exif()
        exif[ORIENTATION] = int(dice.choice([1, 1, 6]))
        path = folder / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _draw(kind, size, dice).save(path, quality=90, exif=exif)
    return truth


def _draw(kind: int, size: tuple[int, int], dice: np.random.Generator) -> Image.Image:
    background = Image.fromarray(dice.integers(90, 150, (6, 8, 3)).astype(np.uint8))
    picture = background.resize(size, Image.Resampling.BICUBIC)
    x, y = size[0] * dice.uniform(0.4, 0.6), size[1] * dice.uniform(0.4, 0.6)
    r = min(size) * dice.uniform(0.25, 0.35)
    colour = tuple(int(v) for v in dice.choice([30, 220], 3))
    draw = ImageDraw.Draw(picture)
    if kind == 0:
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif kind == 1:
        draw.rectangle((x - r, y - r / 2, x + r, y + r / 2), fill=colour)
    else:
        draw.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=colour)
    return picture


def measure(folder: Path, data: str, state: str, *options: str, cache: str = "cache") -> dict[str, Any]:
    """Learn `data` by the README's line, with the cache folder `cache`."""
    call = [sys.executable, "-m", "purereplay.cli", "learn", data, "--state", state, *options]
    began = time.perf_counter()
    with (folder / "output").open("w+") as output:
        environment = os.environ | {"XDG_CACHE_HOME": str(folder / cache)}
        process = subprocess.Popen(call, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        lines = output.read().strip().splitlines()
    if process.returncode:
        raise SystemExit("\n".join(lines))
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), "memory_mib": round(used.ru_maxrss / 1024, 1), "output": lines}


def measure_encoder(folder: Path, encoder: str, truth: dict[str, str]) -> dict[str, Any]:
    """Learn a part of the photos, all of them, and all of them again with the features of the cache."""
    files = sorted((folder / "photos").glob("*/*.jpg"))
    part = files[:: len(files) // 500 or 1] if len(files) > 500 else files
    rows = [f"{path.relative_to(folder / 'photos').as_posix()},{path.parent.name}\n" for path in part]
    (folder / "part.csv").write_text("path,label\n" + "".join(rows))
    more = ("--encoder", encoder)
    found = {"photos": len(files), "megapixels": round(sum(_pixels(path) for path in files) / 1e6), "part": len(part)}
    found["first part"] = measure(folder, "part.csv", "one", "--root", "photos", *more, cache="cache-1")
    found["all"] = measure(folder, "photos", "two", *more, cache="cache-2")
    found["again, another state"] = measure(folder, "photos", "three", *more, cache="cache-2")
    found["photos per second"] = round(len(files) / found["all"]["seconds"], 1)
    audit = [sys.executable, "-m", "purereplay.cli", "audit", "--state", "two", "--out", "audit.csv"]
    subprocess.run(audit, cwd=folder, check=True, capture_output=True)
    with (folder / "audit.csv").open(newline="") as file:
        judged = list(csv.DictReader(file))
    wrong = [truth[Path(row["id"]).name] != row["given_label"] for row in judged]
    rejected = [row["decision"] == "rejected" for row in judged]
    found |= {"wrong": sum(wrong), "rejected": sum(rejected)}
    return found | {"wrong and rejected": sum(a and b for a, b in zip(wrong, rejected, strict=True))}


def _pixels(path: Path) -> int:
    with Image.open(path) as picture:
        return picture.width * picture.height


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="photos")
    parser.add_argument("--encoder", help="encoder, as for `purereplay learn`")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    encoder = arguments.encoder
    if encoder and ":" in encoder and Path(encoder.partition(":")[2]).exists():  # the commands run elsewhere
        encoder = f"{encoder.partition(':')[0]}:{Path(encoder.partition(':')[2]).resolve()}"
    with tempfile.TemporaryDirectory() as name:
        truth = make_photos(Path(name) / "photos", arguments.n, LARGE if encoder else SIZES)
        found = measure_encoder(Path(name), encoder, truth) if encoder else measure(Path(name), "photos", "state")
    print(json.dumps(found, indent=2))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
