"""The commands of docs/live.md from folder to audit, compared with the true labels and with plain replay.

    python benchmarks/live.py --out results/live/learners/full-memory     # digits, seeds 1 to 3
    python benchmarks/live.py --data mnist                                # 2,000 images of 28×28
    python benchmarks/live.py --learner spr --set features=projection     # other settings of `learn`
    python benchmarks/live.py --learner spr,pure-replay --out results/live/learners    # two learners, by turns

The learner sees the folder only, not the true labels. With the learner full-memory, the first 200 and 1,000 samples of
the audit and then all of them get their true labels by `correct`, and the accuracy after each step is measured too.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from purereplay.data.batch import Batch
from purereplay.data.datasets import load
from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.crs import CrsSettings, build
from purereplay.learners.settings import DataFacts, resolve
from purereplay.learners.spr.settings import PRESETS
from purereplay.nets.engine import Engine

DOCUMENT = Path(__file__).parent.parent / "docs" / "live.md"
Truth = dict[str, str]  # true label by file name


def make_digits(folder: Path) -> Truth:
    """Make the folders of the document with its own Python code."""
    [block] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-c", block], cwd=folder, check=True)
    return {f"{i:04}.png": str(label) for i, label in enumerate(load_digits().target)}


def make_folders(data: str, folder: Path) -> Truth:
    """Make a folder of 2,000 training images, 30 % with a wrong label, and one of 2,000 other training images."""
    loaded, dice = load(data), np.random.default_rng(0)
    assert loaded.true_labels is not None
    truth = {}
    for n, i in enumerate(dice.permutation(len(loaded.images))[:4000].tolist()):
        label, name = int(loaded.true_labels[i]), f"{i:05}.png"
        truth[name] = str(label)
        if n < 2000 and dice.random() < 0.3:
            label = (label + int(dice.integers(1, 10))) % 10
        path = folder / "digits" / str(label) / name if n < 2000 else folder / "new" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.moveaxis(loaded.images[i], 0, -1).squeeze()).save(path)
    return truth


def measure(folder: Path, truth: Truth, seed: int, learner: str, options: list[str]) -> dict[str, Any]:
    """Run the commands of the document, `learn` with further options, and return the measurements."""
    state = folder / f"state-{learner}-{seed}"
    seconds = {}

    def run(name: str, *arguments: str) -> str:
        began = time.perf_counter()
        call = [sys.executable, "-m", "purereplay.cli", name, "--state", str(state), *arguments]
        done = subprocess.run(call, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
        seconds[name] = round(time.perf_counter() - began, 1)
        return done.stdout

    def accuracy() -> float:
        predicted = csv.DictReader(run("predict", "new", "--format", "csv", "--device", "cpu").splitlines())
        return float(np.mean([truth[Path(row["image"]).name] == row["label"] for row in predicted]))

    run("learn", "digits", "--seed", str(seed), "--device", "cpu", "--learner", learner, *options)
    told = json.loads(run("status", "--format", "json"))["noise"]
    run("audit", "--out", "audit.csv", "--device", "cpu")
    first_accuracy = accuracy()
    with (folder / "audit.csv").open(newline="") as file:
        audit = list(csv.DictReader(file))
    corrected = {}
    for n in (200, 1000, len(audit)) if learner == "full-memory" else ():
        rows = "".join(f"{row['id']},{truth[Path(row['id']).name]}\n" for row in audit[:n])
        (folder / "fixes.csv").write_text("id,label\n" + rows)
        run("correct", "fixes.csv", "--device", "cpu")
        corrected[str(n)] = accuracy()
    wrong = np.array([truth[Path(row["id"]).name] != row["given_label"] for row in audit])
    rejected = np.array([row["decision"] == "rejected" for row in audit])
    named = np.array([truth[Path(row["id"]).name] == row["likely_other_label"] for row in audit])
    clean_probability = [float(row["clean_probability"]) for row in audit]
    first = np.arange(len(audit)) < 100
    return {
        "learner": learner,
        "seed": seed,
        "samples": len(audit),
        "wrong": float(wrong.mean()),
        "rejected": float(rejected.mean()),
        "auc": float(roc_auc_score(~wrong, clean_probability)),
        "wrong_among_rejected": float(wrong[rejected].mean()),
        "wrong_among_accepted": float(wrong[~rejected].mean()),
        "wrong_among_first_100": float(wrong[first].mean()),
        "true_label_found": float(named[wrong & rejected].mean()),
        "noise_told": told[0]["rate"] if told else None,
        "noise_interval": [told[0]["low"], told[0]["high"]] if told else None,
        "accuracy": first_accuracy,
        "accuracy_after_corrections": corrected,
        "seconds": seconds,
    }


def plain_replay(folder: Path, truth: Truth, seed: int, *, shuffled: bool) -> float:
    """Return the accuracy of `crs` on the same samples, in the same order or in a random one."""
    paths = sorted((folder / "digits").rglob("*.png"))
    images, labels = _pixels(paths), torch.tensor([int(path.parent.name) for path in paths])
    order = torch.arange(len(paths))
    if shuffled:
        order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    live = PRESETS["live"]
    chosen = {"hidden": live["hidden"], "network": live["network"], "memory_size": live["purified_size"]}
    settings = resolve(CrsSettings, chosen, DataFacts(shape), preset="demo")
    data = DataSpec(image_shape=shape, n_classes=10, n_samples=len(paths))
    learner = build(settings, data, engine=Engine(torch.device("cpu")), seed=seed)
    learner.observe(Batch(images[order], labels[order], order))
    learner.flush()
    new = sorted((folder / "new").glob("*.png"))
    true: NDArray[np.int64] = np.array([int(truth[path.name]) for path in new])
    return float((learner.classifier().predict(_pixels(new)).numpy() == true).mean())


def _pixels(paths: list[Path]) -> torch.Tensor:
    pixels = [np.atleast_3d(np.array(Image.open(path))) for path in paths]
    return torch.from_numpy(np.moveaxis(np.stack(pixels), -1, 1).copy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for one JSON file per seed; a folder per learner if several")
    parser.add_argument("--data", choices=("digits", "mnist", "cifar10"), default="digits")
    parser.add_argument(
        "--learner", default="full-memory", help="comma-separated learners of `learn`; several run by turns"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of `learn`")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated seeds of the state")
    arguments = parser.parse_args()
    options = [text for value in arguments.set for text in ("--set", value)]
    with tempfile.TemporaryDirectory() as name:
        folder, data = Path(name), arguments.data
        truth = make_digits(folder) if data == "digits" else make_folders(data, folder)
        learners = arguments.learner.split(",")
        for seed in map(int, arguments.seeds.split(",")):
            plain = {
                "plain_replay": plain_replay(folder, truth, seed, shuffled=False),
                "plain_replay_shuffled": plain_replay(folder, truth, seed, shuffled=True),
            }
            for learner in learners:
                found = measure(folder, truth, seed, learner, options) | plain
                print(json.dumps(found, indent=2), flush=True)
                if arguments.out:
                    out = arguments.out / learner if len(learners) > 1 else arguments.out
                    out.mkdir(parents=True, exist_ok=True)
                    (out / f"{data}-seed-{seed}.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
