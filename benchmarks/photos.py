"""300 JPEG files of mixed sizes, learned by the line of the README: time, memory and what `learn` says.

    python benchmarks/photos.py --out results/live/photos.json

The pictures are drawn: a disc, a rectangle or a triangle on a coarse background, 0.08 to 8 megapixels, upright or
turned by EXIF. A fifth of them lies in the folder of another label.
"""

from __future__ import annotations

import argparse
import json
import resource
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
ORIENTATION = 0x0112  # EXIF


def make_photos(folder: Path, n: int = 300) -> dict[str, str]:
    """Write n files label/number.jpg; returns the true label by file name."""
    dice, truth = np.random.default_rng(0), {}
    for number in range(n):
        kind, size = number % len(LABELS), SIZES[int(dice.integers(len(SIZES)))]
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


def measure(folder: Path) -> dict[str, Any]:
    """Learn the folder `photos` by the README's line."""
    call = [sys.executable, "-m", "purereplay.cli", "learn", "photos", "--state", "state"]
    began = time.perf_counter()
    done = subprocess.run(call, cwd=folder, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": round(seconds, 1), "memory_mib": round(most, 1), "output": done.stdout.strip().splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make_photos(Path(name) / "photos")
        found = measure(Path(name))
    print(json.dumps(found, indent=2))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
