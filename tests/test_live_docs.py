"""docs/live.md: its Python makes the folder, its commands run, and its numbers are those of the result files."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from purereplay.cli import main

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "live.md").read_text()
RESULTS = ROOT / "results" / "live"
# for the fast test: little training; only `learn` takes these options
LITTLE = "--device cpu --set base_epochs=2 --set finetune_epochs=2"
CAMERA = """
import base64, json, pathlib
for path in sorted(pathlib.Path("digits").rglob("*.png"))[:600]:
    image = base64.b64encode(path.read_bytes()).decode()
    print(json.dumps({"id": str(path), "label": path.parent.name, "image": image}))
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def fixes() -> str:
    [text] = re.findall(r"```\n(   id,label\n.*?)   ```", TEXT, re.DOTALL)
    return re.sub("^   ", "", text, flags=re.MULTILINE)


@pytest.fixture
def truth(tmp_path, monkeypatch):
    """The files that the commands of the document need, in the working directory; true labels by file name."""
    monkeypatch.chdir(tmp_path)
    [block] = blocks("python")
    exec(block, {})
    Path("fixes.csv").write_text(fixes())
    Path("camera.py").write_text(CAMERA)
    return {f"{i:04}.png": str(label) for i, label in enumerate(load_digits().target)}


def call(commands: str, monkeypatch, capsys) -> str:
    """Run the lines of a block in this process, each `purereplay … [> file]`; returns their output."""
    printed = ""
    for line in commands.splitlines():
        text, _, file = line.partition(" > ")
        monkeypatch.setattr(sys, "argv", shlex.split(text))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert not end.value.code, f"{line}: {err}"
        if file:
            Path(file).write_text(out)
        printed += out
    return printed


def rows(name: str) -> list[dict[str, str]]:
    with Path(name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_every_command_runs(truth, monkeypatch, capsys):
    five, pipe = blocks("sh")
    assert [line.split()[1] for line in five.splitlines()] == ["learn", "status", "audit", "correct", "predict"]
    out = call(re.sub(r"^(purereplay learn .*)$", rf"\1 {LITTLE}", five, flags=re.MULTILINE), monkeypatch, capsys)
    assert "added: 1,500, already known: 0, scored: 1,500" in out and "labels corrected: 2" in out
    audit = rows("audit.csv")
    assert len(audit) == 1500 and list(audit[0]) == re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert len(rows("predicted.csv")) == 297
    assert all(truth[Path(row["id"]).name] == row["label"] for row in rows("fixes.csv"))
    shell = 'purereplay() { "$PYTHON" -m purereplay.cli "$@"; }; python() { "$PYTHON" "$@"; }; set -euo pipefail\n'
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    subprocess.run(["bash", "-c", shell + pipe.replace(" - ", f" - {LITTLE} ")], env=env, check=True, timeout=300)
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(answers) == 600 and all(answer["ok"] for answer in answers)


@pytest.mark.slow
def test_the_audit_finds_wrong_labels_and_the_classifier_beats_plain_replay(truth, monkeypatch, capsys):
    call(blocks("sh")[0], monkeypatch, capsys)
    audit = rows("audit.csv")
    wrong = np.array([truth[Path(row["id"]).name] != row["given_label"] for row in audit])
    rejected = np.array([row["decision"] == "rejected" for row in audit])
    assert wrong[rejected].mean() >= 3 * wrong[~rejected].mean()
    assert wrong[:100].mean() > 0.9
    right = [truth[Path(row["image"]).name] == row["label"] for row in rows("predicted.csv")]
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from live import plain_replay

    assert np.mean(right) > plain_replay(Path.cwd(), truth, 1, shuffled=False) + 0.05


MEASURES = {
    "wrong labels in the folder": "wrong",
    "wrong labels among the rejected": "wrong_among_rejected",
    "wrong labels among the accepted": "wrong_among_accepted",
    "wrong labels among the first hundred of the audit": "wrong_among_first_100",
    "true label named, of the wrong ones rejected": "true_label_found",
    "accuracy on `new`": "accuracy",
    "accuracy of plain replay": "plain_replay",
    "accuracy of plain replay, random order": "plain_replay_shuffled",
}


def test_the_numbers_are_those_of_the_result_files():
    results = [json.loads((RESULTS / f"digits-seed-{seed}.json").read_text()) for seed in (1, 2, 3)]
    for name, measure in MEASURES.items():
        values = 100 * np.array([result[measure] for result in results])
        assert f"| {name} | {values.mean():.1f} ± {values.std(ddof=1):.1f} % |" in TEXT, name
    assert np.mean([r["accuracy"] - r["plain_replay"] for r in results]) > 0.2


def test_the_comparison_of_features_is_that_of_the_result_files():
    said = re.findall(r"^\| (\S+), [\d×]+ \| (patches|experts|combined) \| (.+) \|$", TEXT, re.MULTILINE)
    assert len(said) == 9
    for data, features, cells in said:
        folder = RESULTS if features == "patches" else RESULTS / features
        name = data.lower().replace("-", "")
        results = [json.loads((folder / f"{name}-seed-{seed}.json").read_text()) for seed in (1, 2, 3)]
        expected = []
        for measure in ("auc", "wrong_among_accepted", "rejected", "accuracy"):
            values = 100 * np.array([result[measure] for result in results])
            expected.append(f"{values.mean():.1f} ± {values.std(ddof=1):.1f}")
        expected.append(f"{np.median([result['seconds']['learn'] for result in results]):.0f}")
        assert cells.split(" | ") == expected, (data, features)
    wrong = {(data, features): float(cells.split(" | ")[1].split()[0]) for data, features, cells in said}
    assert all(wrong[key] >= wrong[key[0], "combined"] for key in wrong)  # "accepts somewhat fewer wrong labels"
