"""An encoder made by this project itself: trained on CIFAR-10 without labels, used on CIFAR-100 and MNIST.

    python benchmarks/own_encoder.py --train own.onnx                 # a small ResNet, self-supervised, as an ONNX file
    python benchmarks/own_encoder.py --folder ten                     # CIFAR-100 as a folder, 40 % of the labels wrong
    purereplay learn ten/photos --state state --encoder onnx:own.onnx
    purereplay audit --state state --out audit.csv
    purereplay predict --state state ten/new --format csv > predicted.csv
    python benchmarks/own_encoder.py --score ten                      # reads audit.csv and predicted.csv

    python benchmarks/own_encoder.py --compare own.onnx lite96.onnx --out results/encoders   # all, beside pixels
    python benchmarks/own_encoder.py --compare own.onnx lite96.onnx --data mnist   # the same on grey images

The network is the base of SPR in small: a ResNet-18 of a quarter of the width with a 3×3 stem, trained with NT-Xent on
views of images. Its 128 penultimate features are the encoder's. No label of CIFAR-10 is read. The folder has 500
training images and 100 test images of each of ten classes of CIFAR-100, the first ten by name. CIFAR-10 has none of
these classes. With `--data mnist` the folder has the first 500 training images and 100 test images of each digit, grey
and of 28 × 28 pixels. Nothing was chosen by results on CIFAR-100 or MNIST.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_CLASSES, RATE = 10, 0.4
PER_CLASS = (500, 100)  # training and test images
WIDTH, BATCH, RATE_OF_ADAM = 16, 128, 1e-3
CLASSES = {
    "cifar100": ("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
    "mnist": tuple("0123456789"),
}
FILES = {"cifar100": "own-encoder-seed-", "mnist": "own-encoder-mnist-seed-"}  # of the results


def unlabelled(n_images: int) -> NDArray[np.uint8]:
    """Return images of CIFAR-10, (n, 3, 32, 32), without their labels."""
    from purereplay.data.datasets import load

    images = load("cifar10").images
    return images[np.sort(np.random.default_rng(0).permutation(len(images))[:n_images])]


def train(path: Path, images: NDArray[np.uint8], *, epochs: int, device: str, report: Callable[[str], None]) -> None:
    """Train the encoder on images (n, 3, 32, 32), and write it as an ONNX model of uint8 images."""
    import torch

    from purereplay.learners.spr.build import make_spr
    from purereplay.nets.engine import Engine, flush_denormals
    from purereplay.nets.jobs import ContrastiveJob
    from purereplay.nets.networks import network_input
    from purereplay.nets.resnet import ResNet18

    flush_denormals()
    learner = make_spr((3, 32, 32), 1)  # for the recipe of its base
    network = replace(learner.network, backbone=ResNet18(3, 32, "small", WIDTH))
    how = {"epochs": epochs, "batch_size": BATCH, "lr": RATE_OF_ADAM, "warm_epochs": 1}
    recipe = replace(learner.self_replay.recipe, **how)
    given = torch.from_numpy(images)
    engine, began = Engine(torch.device(device)), time.perf_counter()
    told = 0.0

    def watch(now: Any) -> None:
        nonlocal told
        if (spent := time.perf_counter() - began) > told + 10:
            told = spent
            left = spent / max(1, now.done) * (now.total - now.done)
            report(f"step {now.done} of {now.total}, {left:.0f} s left")

    engine.watch = watch
    job = ContrastiveJob(phase="base", network=network, state=network.init(0), recipe=recipe, images=given, seed=0)
    [trained] = engine.train([job])
    report(f"{len(images):,} images, {epochs} epochs, loss {trained.loss:.3f}, {time.perf_counter() - began:.0f} s")
    state = {name: t.detach().cpu().unsqueeze(0) for name, t in trained.state.items()}

    class Encoder(torch.nn.Module):
        def forward(self, batch: Any) -> Any:
            return network.features(state, network_input(batch).unsqueeze(0))[0]

    example = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)
    axes = {"images": {0: "n"}, "features": {0: "n"}}
    names = {"input_names": ["images"], "output_names": ["features"]}
    torch.onnx.export(Encoder().eval(), (example,), str(path), **names, dynamic_axes=axes, dynamo=False)


def write_folder(folder: Path, seed: int, data: str = "cifar100") -> None:
    """Write ten classes as images, with wrong labels, and test images in `new`; true labels in JSON."""
    from purereplay.data.datasets import load
    from purereplay.data.noise import corrupt
    from purereplay.data.seeds import derive_seed

    dataset, names = load(data), CLASSES[data]
    truth: dict[str, str] = {}
    assert dataset.true_labels is not None
    rows, new = map(_first_of_each, (dataset.true_labels, dataset.test_labels), PER_CLASS)
    dice = np.random.default_rng(derive_seed(seed, "noise"))
    given = corrupt("symmetric", dataset.true_labels[rows], RATE, dice, n_classes=N_CLASSES, mapping=None)
    for row, label in zip(rows.tolist(), given.tolist(), strict=True):
        path = folder / "photos" / names[label] / f"{row:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(dataset.images[row], path)
        truth[f"{names[label]}/{row:05}.png"] = names[int(dataset.true_labels[row])]
    (folder / "new").mkdir(parents=True, exist_ok=True)
    for row in new.tolist():
        _save(dataset.test_images[row], folder / "new" / f"{row:05}.png")
        truth[f"{row:05}.png"] = names[int(dataset.test_labels[row])]
    (folder / "truth.json").write_text(json.dumps(truth))


def _first_of_each(labels: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the rows of the first n images of each of the ten classes, in their order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:n] for label in range(N_CLASSES)]))


def _save(pixels: NDArray[np.uint8], path: Path) -> None:
    from PIL import Image

    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(path)


def score(folder: Path, audit: Path, predicted: Path) -> dict[str, float]:
    """Return the area under the ROC curve of the clean probability, and the accuracy on new images."""
    from sklearn.metrics import roc_auc_score

    truth = json.loads((folder / "truth.json").read_text())
    with audit.open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = [row["given_label"] == truth[row["id"]] for row in rows]
    auroc = roc_auc_score(right, [float(row["clean_probability"]) for row in rows])
    with predicted.open(newline="") as file:
        guesses = [truth[Path(row["image"]).name] == row["label"] for row in csv.DictReader(file)]
    return {"auroc": float(auroc), "accuracy": float(np.mean(guesses)), "n_learned": len(rows), "n_new": len(guesses)}


def measure(folder: Path, encoder: str, seed: int, place: Path) -> dict[str, Any]:
    """Learn a folder by the command line, and score it."""
    began, state = time.perf_counter(), place / "state"
    _call("learn", folder / "photos", "--state", state, "--encoder", encoder, "--seed", seed)
    seconds = time.perf_counter() - began
    _call("audit", "--state", state, "--out", place / "audit.csv")
    text = _call("predict", "--state", state, folder / "new", "--format", "csv")
    (place / "predicted.csv").write_text(text)
    return score(folder, place / "audit.csv", place / "predicted.csv") | {"seconds": round(seconds, 1)}


def compare(files: list[Path], seed: int, out: Path, data: str) -> None:
    """Measure pixels and the encoders of ONNX files, the first of them trained here; rows that are kept stay."""
    path = out / f"{FILES[data]}{seed}.json"
    found = json.loads(path.read_text()) if path.exists() else {"data": data, "seed": seed, "rate": RATE, "rows": {}}
    own, *others = files
    encoders = {"pixels": "none", "own encoder": f"onnx:{own}"} | {file.name: f"onnx:{file}" for file in others}
    for name in [name for name in encoders if name not in found["rows"]]:
        with tempfile.TemporaryDirectory() as place:
            write_folder(Path(place) / "images", seed, data)
            found["rows"][name] = measure(Path(place) / "images", encoders[name], seed, Path(place))
        print(seed, name, found["rows"][name], flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def _call(*arguments: object) -> str:
    command = [sys.executable, "-m", "purereplay", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(folder: Path, data: str = "cifar100") -> str:
    """Return the kept results as a Markdown table: means over seeds ± standard deviations."""
    kept = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{FILES[data]}*.json"))]
    lines = ["| compared | AUROC, % | accuracy, % | seconds to learn | seeds |", "|---|---|---|---|---|"]
    for name in kept[0]["rows"]:
        rows = [own["rows"][name] for own in kept]
        cells = [_mean([100 * row[key] for row in rows], 1) for key in ("auroc", "accuracy")]
        lines.append(f"| {name} | {' | '.join(cells)} | {_mean([row['seconds'] for row in rows], 0)} | {len(rows)} |")
    return "\n".join(lines)


def _mean(values: list[float], digits: int) -> str:
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, help="train the encoder and write this ONNX file")
    parser.add_argument("--images", type=int, default=5_000, help="images of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="write the images into this folder")
    parser.add_argument("--data", choices=CLASSES, default="cifar100", help="of --folder, --compare and --table")
    parser.add_argument("--seed", type=int, default=1, help="of the wrong labels")
    parser.add_argument("--score", type=Path, help="folder whose audit.csv and predicted.csv are scored")
    parser.add_argument("--compare", type=Path, nargs="+", help="ONNX files that are compared with pixels")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated, for --compare")
    parser.add_argument("--out", type=Path, default=Path("results/encoders"), help="folder of the results")
    parser.add_argument("--table", action="store_true", help="print the table of kept results")
    options = parser.parse_args()
    if options.train:
        images = unlabelled(options.images)
        train(options.train, images, epochs=options.epochs, device=options.device, report=print)
    elif options.folder:
        write_folder(options.folder, options.seed, options.data)
    elif options.score:
        print(json.dumps(score(options.score, Path("audit.csv"), Path("predicted.csv"))))
    elif options.table:
        print(table(options.out, options.data))
    elif options.compare:
        for seed in map(int, options.seeds.split(",")):
            compare(options.compare, seed, options.out, options.data)
    else:
        parser.error("name one of --train, --folder, --score, --compare and --table")


if __name__ == "__main__":
    main()
