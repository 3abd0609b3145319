"""Runs made by version 0.1.0 still open: their settings are mapped, and they continue to their end."""

import json
import shutil
from pathlib import Path

import pytest

from purereplay.evaluate import running
from purereplay.evaluate.compare import collect
from purereplay.evaluate.records import read_results
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import changed_options
from purereplay.learners.renamed import upgrade_names

KEPT = Path(__file__).parent.parent / "kept" / "0.1.0"
EXPECTED = json.loads((KEPT / "expected.json").read_text())
ROOT = KEPT.parent.parent.parent


@pytest.mark.long
@pytest.mark.parametrize("name", EXPECTED)
def test_a_stopped_run_continues_to_the_kept_result(tmp_path, name):
    shutil.copytree(KEPT / "runs" / name, tmp_path / "run")
    _, settings = RunDirectory.open(tmp_path / "run")
    expected = EXPECTED[name]
    changed = changed_options(settings)
    named = {key: changed.pop(key) for key in ("robust", "filter", "graphs") if key in changed}
    assert all(expected[key] == value for key, value in named.items())
    known = settings.options.__dataclass_fields__.keys() - settings.options.ineffective()
    former = upgrade_names(settings.learner, expected["changed"])
    if name == "crs-pencil":
        former["pencil_epoch"] = "memory"  # it has another default since
    assert changed == {key: value for key, value in former.items() if key in known}
    result = running.run(settings, tmp_path / "run", resume=True)
    assert result["accuracy_after_task"][:1] == pytest.approx(expected["accuracy_after_task"][:1], abs=0.03)
    assert result["accuracy"] == pytest.approx(expected["accuracy"], abs=0.1)  # another processor rounds differently
    assert result["changed"].keys() == changed.keys()


def test_settings_have_their_values_under_the_new_names():
    def options(name: str):
        return RunDirectory.open(KEPT / "runs" / name)[1].options

    assert (options("spr").lr, options("spr").finetune_lr) == (0.0004, 0.003)
    pencil = options("crs-pencil")
    assert (pencil.lr, pencil.pencil_lr, pencil.optimizer) == (0.2, 20.0, "sgd")
    gdumb = options("gdumb-sl")
    assert (gdumb.epochs, gdumb.lr, gdumb.min_lr, gdumb.batch_size, gdumb.momentum) == (3, 0.04, 5e-4, 8, 0.9)
    multitask = options("multitask")
    assert (multitask.epochs, multitask.lr, multitask.batch_size) == (1, 0.04, 16)
    assert (options("ewc").strength, options("ewc").lr, options("ewc").memory_size) == (10.0, 0.3, 40)
    assert not hasattr(options("finetune"), "memory_size")  # it never used one


def test_finished_runs_are_compared_and_shown():
    cells = collect(sorted((KEPT / "finished").iterdir()), "accuracy")
    assert len(cells) == 2 and all("digits" in data for _, data in cells)
    assert any(learner.startswith("gdumb + sl, demo") for learner, _ in cells)


def test_result_files_are_read_under_the_new_names():
    results = read_results(sorted((ROOT / "results").glob("*.jsonl")))
    names = {name for result in results for name in result.get("changed", {})}
    assert "lr" in names and not names & {"rate", "learning_rate", "finetune_rate", "pencil_rate", "gdumb_rate"}
