"""The command `purereplay filter`, mostly in processes of its own."""

import csv
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from purereplay import FeatureMap, SelfCenteredFilter, judge_labels
from purereplay.cli import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def run(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "purereplay.cli", "filter", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, **options)


def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=300)
    labels[:2] = 9
    return (rng.normal(size=(300, 8)) + rng.normal(size=(10, 8))[labels]).astype(np.float32), labels


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The same in this process, which is faster: the exit code."""
    monkeypatch.setattr(sys, "argv", ["purereplay", "filter", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "option", [("--threads", "0"), ("--graphs", "-1"), ("--block-size", "3"), ("--prepare", "odd"), ("--method", "odd")]
)
def test_an_error_names_the_option(tmp_path: Path, monkeypatch, capsys, option):
    features, labels = samples()
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    assert called(monkeypatch, tmp_path / "features.npz", "--out", tmp_path / "scores.csv", *option) == 2
    shown = "'odd'" if option[1] == "odd" else option[1]
    assert f"purereplay: {option[0]} is {shown}, but must be" in capsys.readouterr().err


@pytest.mark.long
def test_features_in_probabilities_out(tmp_path: Path):
    features, labels = samples()
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    done = run(tmp_path / "features.npz", "--out", tmp_path / "scores.csv", "--seed", "3", "--block-size", "40")
    assert done.returncode == 0, done.stderr
    assert "300 samples with 8 features each" in done.stdout and "scores.csv" in done.stdout
    assert "It is not calibrated" in done.stdout
    assert "5, 1 of them with fewer than 4 samples (drop)" in done.stdout and "scored in blocks" in done.stdout
    expected = SelfCenteredFilter(seed=3, block_size=40).fit(features, labels)
    rows = rows_of(tmp_path / "scores.csv")
    assert list(rows[0]) == ["row", "label", "clean_probability", "centrality", "selected", "preparation"]
    assert [int(row["row"]) for row in rows] == list(range(300))
    assert [int(row["label"]) for row in rows] == labels.tolist()
    assert [float(row["clean_probability"]) for row in rows] == expected.clean_probability_.tolist()
    assert [float(row["centrality"]) for row in rows] == expected.centrality_.tolist()
    assert [row["selected"] == "true" for row in rows] == expected.select().tolist()
    assert f"selected                {expected.select().sum()}" in done.stdout


def test_a_table_with_names_gets_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    features, labels = samples()
    with (tmp_path / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "kind", *(f"f{i}" for i in range(8)), "note"])
        for i, (label, own) in enumerate(zip(labels, features.tolist(), strict=True)):
            table.writerow([f"{i}.png", label, *own, "-"])
    (tmp_path / "scores.csv").write_text("an earlier file")
    options = ["--columns", "f*", "--labels", "kind", "--ids", "path", "--threads", "2"]
    assert called(monkeypatch, tmp_path / "table.csv", "--out", tmp_path / "scores.csv", *options) == 0
    rows = rows_of(tmp_path / "scores.csv")
    assert [row["id"] for row in rows] == [f"{i}.png" for i in range(300)]
    expected = SelfCenteredFilter().fit(features, labels).clean_probability_
    assert [float(row["clean_probability"]) for row in rows] == expected.tolist()


def test_labels_are_judged_across_classes_as_by_the_function(tmp_path: Path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    true = np.arange(200) % 4
    given = np.where(rng.random(200) < 0.2, (true + 1) % 4, true)
    features = (rng.normal(size=(200, 6)) + 4 * rng.normal(size=(4, 6))[true]).astype(np.float32)
    np.savez(tmp_path / "features.npz", features=features, labels=np.array(["a", "b", "c", "d"])[given])
    options = ["--out", tmp_path / "scores.csv", "--method", "judge"]
    assert called(monkeypatch, tmp_path / "features.npz", *options) == 0
    rows = rows_of(tmp_path / "scores.csv")
    assert list(rows[0]) == ["row", "label", "clean_probability", "likely_label", "accepted"]
    codes = {label: code for code, label in enumerate(dict.fromkeys(row["label"] for row in rows))}
    own = FeatureMap.fit(features).transform(features)
    found = judge_labels(own, np.array([codes[row["label"]] for row in rows]), 4)
    assert [float(row["clean_probability"]) for row in rows] == found.clean_probability.tolist()
    assert [row["accepted"] == "true" for row in rows] == found.accepted.tolist()
    right = [row["likely_label"] == "abcd"[label] for row, label in zip(rows, true, strict=True)]
    assert np.mean(right) > 0.95 and roc_auc_score(given == true, found.clean_probability) > 0.95
    assert "wrong labels, estimated" in capsys.readouterr().out
    for option in (("--graphs", "0"), ("--keep-small",), ("--threads", "1")):
        assert called(monkeypatch, tmp_path / "features.npz", *options, *option) == 2
        assert f"purereplay: {option[0]} belongs to --method self-centered" in capsys.readouterr().err


def test_judging_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch, capsys):
    features, labels = samples()
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    monkeypatch.setattr("purereplay.report.filtering.machine_memory", lambda: 100_000)
    options = ["--out", tmp_path / "scores.csv", "--method", "judge"]
    assert called(monkeypatch, tmp_path / "features.npz", *options) == 2
    assert "use --method self-centered" in capsys.readouterr().err


def test_small_classes_can_be_kept_and_graphs_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    features, labels = samples()
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    options = ["--out", tmp_path / "kept.csv", "--keep-small", "--graphs", "0", "--prepare", "none"]
    assert called(monkeypatch, tmp_path / "features.npz", *options) == 0
    found = [float(row["clean_probability"]) for row in rows_of(tmp_path / "kept.csv")]
    assert {row["preparation"] for row in rows_of(tmp_path / "kept.csv")} == {"none"}
    expected = SelfCenteredFilter(n_graphs=0, small_class="keep", prepare="none").fit(features, labels)
    assert found == expected.clean_probability_.tolist() and found[:2] == [0.5, 0.5]


def test_parquet_in_and_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    features, labels = samples()
    columns = {"embedding": features.tolist(), "label": labels, "id": [f"n{i}" for i in range(300)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "features.parquet")
    assert called(monkeypatch, tmp_path / "features.parquet", "--out", tmp_path / "scores.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "scores.parquet").to_pydict()
    assert list(table) == ["id", "label", "clean_probability", "centrality", "selected", "preparation"]
    assert table["clean_probability"] == SelfCenteredFilter().fit(features, labels).clean_probability_.tolist()
    assert set(table["preparation"]) == {"directions"}
    assert table["id"] == columns["id"] and table["label"] == labels.tolist()


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # stands for a full disk


@pytest.mark.long
def test_errors_are_one_sentence_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    features, labels = samples()
    np.savez(tmp_path / "good.npz", features=features, labels=labels)
    features[17, 2] = np.nan
    np.savez(tmp_path / "nan.npz", features=features, labels=labels)
    before = sorted(tmp_path.iterdir())
    for source, out, options, words in (
        ("nan.npz", "s.csv", [], "row 17 of"),
        ("none.npz", "s.csv", [], "none.npz cannot be read"),
        ("good.npz", "s.csv", ["--columns", "x"], "no array 'x'"),
        ("good.npz", "no/s.csv", [], "does not exist"),
        ("good.npz", "s.csv", ["--block-size", "3"], "--block-size is 3"),
        ("good.npz", "s.csv", ["--graphs", "-2"], "--graphs is -2"),
    ):
        assert called(monkeypatch, tmp_path / source, "--out", tmp_path / out, *options) == 2
        message = capsys.readouterr().err
        assert words in message and len(message.strip().splitlines()) == 1 and "Traceback" not in message
    (tmp_path / "s.csv").write_text("old")
    full = run(tmp_path / "good.npz", "--out", tmp_path / "s.csv", preexec_fn=limit_files)
    assert full.returncode == 2 and "s.csv cannot be written: File too large." in full.stderr
    assert (tmp_path / "s.csv").read_text() == "old"
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "s.csv"])


def test_help_has_examples():
    done = run("--help")
    assert done.returncode == 0 and "Examples" in done.stdout and "high = clean" in done.stdout
    assert "not calibrated" in " ".join(done.stdout.split())
    assert "--columns" in done.stdout and "--features" not in done.stdout


# prints the modules of the package that were loaded by what is put before
LOADED = "\nimport sys; print(*sorted(name for name in sys.modules if name.startswith('purereplay.')))"
HELP = """
import sys
from purereplay.cli import main
sys.argv = ["purereplay", "filter", "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""


RUN = HELP.replace('"--help"', '"features.npz", "--out", "scores.csv"')


@pytest.mark.long
@pytest.mark.parametrize(
    "code", ["from purereplay import SelfCenteredFilter", HELP, RUN], ids=["import", "help", "run"]
)
def test_the_filter_loads_no_learner_and_no_experiment(code: str, tmp_path):
    np.savez(tmp_path / "features.npz", features=np.random.default_rng(0).normal(size=(40, 3)), labels=[0, 1] * 20)
    call = [sys.executable, "-c", code + LOADED]
    done = subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert any(name.startswith(("purereplay.purify", "purereplay.cli")) for name in loaded)
    names_only = {"purereplay.learners", "purereplay.learners.registry"}  # no learner
    others = [name for name in loaded if name not in names_only]
    assert not [name for name in others if name.startswith(("purereplay.learners", "purereplay.evaluate"))]
