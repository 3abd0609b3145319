"""The page about encoders: its numbers are those of the result files, and its code runs."""

import importlib.util
import json
import re
import warnings
from pathlib import Path

import numpy as np

from purereplay.data.datasets import load
from purereplay.data.encoders import open_encoder
from purereplay.data.encoders.options import KINDS, parse_name
from purereplay.data.features import read_rows
from small_onnx import write_onnx

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "encoders.md").read_text()
RESULTS = ROOT / "results" / "encoders"


def block(name: str) -> str:
    return TEXT.split(f"<!-- {name} -->\n")[1].split("\n<!-- end -->")[0]


def load_benchmark(name: str = "encoders"):
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", ROOT / "benchmarks" / f"{name}.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    return benchmark


def test_the_features_of_a_dataset_are_those_that_a_run_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_benchmark().write_features(tmp_path / "f.npz", "digits", f"onnx:{write_onnx(tmp_path / 'm.onnx')}")
    images = load("digits").images
    found = read_rows(tmp_path / "f.npz")
    assert found.shape == (len(images), 3)
    assert np.allclose(found[:, 0], images.mean((1, 2, 3)), rtol=1e-4)  # of 8 × 8 pixels, which stay as they are


def test_the_table_of_cifar_is_that_of_the_result_files():
    benchmark = load_benchmark()
    assert block("cifar") == benchmark.table(RESULTS)
    kept = [json.loads(path.read_text()) for path in RESULTS.glob("cifar10*-seed-*.json")]
    assert len(kept) == 6
    for own in kept:  # what was asked for
        least = 0.96 if own["data"] == "cifar10" else 0.92
        assert own["purereplay"]["auroc"] >= least
        assert own["data"] == "cifar10n" or own["purereplay"]["accuracy"] >= 0.8
    for data in ("cifar10", "cifar10n"):
        rows = [np.mean([own[row]["auroc"] for own in kept if own["data"] == data]) for row in benchmark.ROWS]
        assert rows[0] > rows[1]
    spent = sorted(own["encoding_seconds"] for own in kept if own["data"] == "cifar10")
    assert f"encoding 5,000 images took {spent[0]:.0f} to {spent[-1]:.0f} s" in TEXT.replace("\n", " ")


def test_the_numbers_of_photos_are_those_of_the_result_file():
    found = json.loads((RESULTS / "photos.json").read_text())
    runs = [found[name] for name in ("first part", "all", "again, another state")]
    numbers = [(n, run) for n, run in zip((found["part"], found["photos"], found["photos"]), runs, strict=True)]
    rows = re.findall(r"\| [^|]+ \| (\d+) \| ([\d.]+) \| (\d+) \|", block("photos"))
    assert rows == [(f"{r['seconds']:.0f}", f"{n / r['seconds']:.1f}", f"{r['memory_mib']:.0f}") for n, r in numbers]
    assert runs[1]["memory_mib"] < 1.25 * runs[0]["memory_mib"]  # bounded: six times as many photos
    assert runs[2]["seconds"] < runs[1]["seconds"] and any("left" in line for line in runs[1]["output"])
    text = TEXT.replace("\n", " ")
    assert f"{found['wrong']} of the labels were wrong; {found['rejected']} were rejected, all of them wrong" in text
    assert found["wrong and rejected"] == found["rejected"]


def test_the_table_of_main_directions_is_that_of_the_result_file():
    kept = [json.loads(line) for line in (RESULTS / "main-directions.jsonl").read_text().splitlines()]
    for n in (150, 500, 2000):
        for labels in ("symmetric 40 %", "worst labels of CIFAR-10N"):
            own = [row for row in kept if (row["samples"], row["labels"]) == (n, labels)]
            assert len(own) == 3
            values = [[100 * row[name] for row in own] for name in ("auroc_all_features", "auroc_main_directions")]
            cells = " | ".join(f"{np.mean(v):.1f} ± {np.std(v, ddof=1):.1f}" for v in values)
            assert f"| {n:,} | {labels} | {cells} |" in TEXT


def test_the_function_runs_and_every_kind_is_listed():
    own = next(code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "def embed" in code)
    names: dict = {}
    exec(own, names)
    assert names["embed"](np.zeros((4, 3, 64, 64), np.uint8)).shape == (4, 3) and names["embed"].size == 64
    assert all(f"`{kind}:" in TEXT for kind in KINDS)
    for text in re.findall(r"--encoder (\S+)", TEXT):
        parse_name(text.rstrip("`"))


def test_an_encoder_is_trained_without_labels_and_written_as_onnx(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images, told = np.random.default_rng(0).integers(0, 256, (16, 3, 32, 32), dtype=np.uint8), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        load_benchmark("own_encoder").train(tmp_path / "own.onnx", images, epochs=1, device="cpu", report=told.append)
    encoder = open_encoder(f"onnx:{tmp_path / 'own.onnx'}")
    assert (encoder.dim, encoder.size) == (128, 32) and "16 images, 1 epochs" in told[-1]
    assert np.ptp(encoder.embed(images).features, axis=0).max() > 0


def test_scores_are_those_of_the_audit_and_the_predictions(tmp_path):
    (tmp_path / "truth.json").write_text(json.dumps({"a/1.png": "a", "a/2.png": "b", "b/3.png": "b", "9.png": "b"}))
    rows = "id,given_label,clean_probability\na/1.png,a,0.9\na/2.png,a,0.5\nb/3.png,b,0.4\n"
    (tmp_path / "audit.csv").write_text(rows)
    (tmp_path / "predicted.csv").write_text("image,label\nnew/9.png,b\n")
    found = load_benchmark("own_encoder").score(tmp_path, tmp_path / "audit.csv", tmp_path / "predicted.csv")
    assert (found["auroc"], found["accuracy"], found["n_learned"], found["n_new"]) == (0.5, 1.0, 3, 1)


def test_the_table_of_the_own_encoder_is_that_of_the_result_files():
    assert block("own") == load_benchmark("own_encoder").table(RESULTS)
    assert block("own-mnist") == load_benchmark("own_encoder").table(RESULTS, "mnist")


def test_the_table_of_imagenet_features_is_that_of_the_result_file_and_the_paper():
    found = [json.loads(line) for line in (RESULTS / "imagenet-filter.jsonl").read_text().splitlines()]
    lines = (ROOT / "src/purereplay/paper/numbers.csv").read_text().splitlines()
    paper = [line.split(",") for line in lines if line.startswith("filtering_imagenet_features,")]
    rows = block("imagenet").splitlines()[2:]
    assert len(rows) == 3
    for row, rate in zip(rows, (0.2, 0.4, 0.6), strict=True):
        own = [100 * run["filtered_noise"] for run in found if run["noise_rate"] == rate]
        beside = [float(line[6]) for line in paper if float(line[4]) == rate]  # ImageNet, self-supervised
        cells = [f"{100 * rate:.0f} %", f"{np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}", *map(str, beside)]
        assert len(own) == 3 and row == f"| {' | '.join(cells)} |"


def test_the_table_of_runs_on_features_is_that_of_the_result_file():
    found = [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text().splitlines()]
    for row in block("runs").splitlines()[2:]:
        learner = row.split("|")[1].strip()
        own = [run for run in found if run["learner"] == learner]
        assert {run["encoder"]["text"] for run in own} == {"onnx:lite96.onnx"} and {run["budget"] for run in own} == {
            0.02
        }
        values = [[100 * run[name] for run in own] for name in ("accuracy", "filtered_noise", "auroc")]
        cells = [f"{np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}" for own in values]
        assert row == f"| {' | '.join([learner, *cells, str(len(own))])} |"
