"""docs/live.md: its Python makes the folder, its commands run, and its numbers are those of the result files."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from purereplay.cli import main
from purereplay.live.memory_settings import FullMemorySettings

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "live.md").read_text()
RESULTS = ROOT / "results" / "live"
LEARNERS = RESULTS / "learners"
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
    five, pipe, packed = blocks("sh")
    assert all(line.startswith("purereplay learn '") for line in packed.splitlines())  # see live/test_tables.py
    assert [line.split()[1] for line in five.splitlines()] == ["learn", "status", "audit", "correct", "predict"]
    out = call(five, monkeypatch, capsys)
    assert "added: 1,500, already known: 0, judged: 1,500" in out and "labels corrected: 2" in out
    audit = rows("audit.csv")
    section = TEXT.partition("## The audit")[2].partition("\n## ")[0]
    assert len(audit) == 1500 and list(audit[0]) == re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert len(rows("predicted.csv")) == 297
    assert all(truth[Path(row["id"]).name] == row["label"] for row in rows("fixes.csv"))
    shell = 'purereplay() { "$PYTHON" -m purereplay.cli "$@"; }; python() { "$PYTHON" "$@"; }; set -euo pipefail\n'
    env = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    subprocess.run(["bash", "-c", shell + pipe], env=env, check=True, timeout=300)
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(answers) == 600 and all(answer["ok"] for answer in answers)


@pytest.mark.slow
def test_the_audit_finds_wrong_labels_and_the_classifier_beats_plain_replay(truth, monkeypatch, capsys):
    call(blocks("sh")[0], monkeypatch, capsys)
    audit = rows("audit.csv")
    wrong = np.array([truth[Path(row["id"]).name] != row["given_label"] for row in audit])
    rejected = np.array([row["decision"] == "rejected" for row in audit])
    assert wrong[rejected].mean() > 0.9 and wrong[~rejected].mean() < 0.05
    assert wrong[:100].mean() > 0.9
    right = [truth[Path(row["image"]).name] == row["label"] for row in rows("predicted.csv")]
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from live import plain_replay

    assert np.mean(right) > plain_replay(Path.cwd(), truth, 1, shuffled=False) + 0.05


MEASURES = {
    "wrong labels in the folder": "wrong",
    "estimated share of wrong labels": "noise_told",
    "rejected": "rejected",
    "wrong labels among the rejected": "wrong_among_rejected",
    "wrong labels among the accepted": "wrong_among_accepted",
    "wrong labels among the first hundred of the audit": "wrong_among_first_100",
    "true label named, of the wrong ones rejected": "true_label_found",
    "accuracy on `new`": "accuracy",
    "accuracy of plain replay": "plain_replay",
    "accuracy of plain replay, random order": "plain_replay_shuffled",
}
NAMES = {"digits": "digits", "MNIST": "mnist", "CIFAR-10": "cifar10"}


def results(learner: str, data: str) -> list[dict]:
    return [json.loads((LEARNERS / learner / f"{data}-seed-{seed}.json").read_text()) for seed in (1, 2, 3)]


def cell(values: list[float]) -> str:
    percents = 100 * np.array(values)
    return f"{percents.mean():.1f} ± {percents.std(ddof=1):.1f}"


def test_the_numbers_are_those_of_the_result_files():
    found = results("full-memory", "digits")
    for name, measure in MEASURES.items():
        assert f"| {name} | {cell([result[measure] for result in found])} % |" in TEXT, name
    assert np.mean([r["accuracy"] - r["plain_replay"] for r in found]) > 0.2


def test_the_comparison_of_learners_is_that_of_the_result_files():
    said = re.findall(r"^\| (\S+), [\d×]+ \| (full-memory|pure-replay|spr) \| (.+) \|$", TEXT, re.MULTILINE)
    assert len(said) == 9
    for data, learner, cells in said:
        found = results(learner, NAMES[data])
        expected = [cell([r[m] for r in found]) for m in ("auc", "wrong_among_accepted", "rejected", "accuracy")]
        expected.append(f"{np.median([r['seconds']['learn'] for r in found]):.0f}")
        assert cells.split(" | ") == expected, (data, learner)


def test_the_accuracies_after_corrections_are_those_of_the_result_files():
    for name, data in NAMES.items():
        found = results("full-memory", data)
        steps = [[r["accuracy"], *r["accuracy_after_corrections"].values()] for r in found]
        cells = " | ".join(cell(list(values)) for values in zip(*steps, strict=True))
        assert f"| {name} | {cells} |" in TEXT, name


def test_the_accuracies_for_other_draws_of_wrong_labels_are_those_of_the_result_file():
    found = json.loads((RESULTS / "corrections.json").read_text())["accuracy"]
    for name, text in (("last digits", "the last 297, by other writers"), ("random digits", "random ones")):
        cells = " | ".join(cell(list(values)) for values in zip(*found[name].values(), strict=True))
        assert f"| {text} | {cells} |" in TEXT


def test_the_numbers_of_photos_and_of_the_pipe_are_those_of_the_result_files():
    photos, pipe = (json.loads((RESULTS / name).read_text()) for name in ("photos.json", "pipe.json"))
    assert photos["seconds"] < 120 and photos["memory_mib"] < 2048  # what was asked for
    assert f"learned in {photos['seconds']:.0f} s\nwith {photos['memory_mib']:.0f} MiB of memory" in TEXT
    assert pipe["n"] == 100_000
    for part in pipe["parts"]:
        row = f"| {part['from']:,} to {part['to']:,} | {part['ms_per_sample']:.1f} | {part['memory_mib']:.0f} |"
        assert row in TEXT


def test_the_settings_are_those_of_the_code():
    for f in fields(FullMemorySettings):
        assert f"| `{f.name}` | {f.default} | {f.metadata['meaning']} |" in TEXT
