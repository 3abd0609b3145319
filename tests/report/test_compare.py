import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from purereplay.cli.app import app
from purereplay.errors import UserError
from purereplay.evaluate.compare import collect, describe_learner, finished_runs
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import resolve
from purereplay.report.compare import draw_curves, show_comparison


def finished_run(path: Path, accuracy: float | None, **options) -> Path:
    """A run folder with nothing but settings and a result."""
    settings = resolve(dataset="digits", device="cpu", **options)
    RunDirectory(path).create(settings)
    (path / "result.json").write_text(json.dumps({"accuracy": accuracy, "purity": None}))
    return path


def test_runs_that_differ_by_their_seed_share_a_cell(tmp_path, capsys):
    runs = [finished_run(tmp_path / f"a{seed}", 0.5 + seed / 100, seed=seed) for seed in (1, 2, 3)]
    runs += [finished_run(tmp_path / "b", 0.4, learner="gdumb"), tmp_path / "nothing"]
    runs += [
        finished_run(tmp_path / "c", 0.6, overrides={"graphs": "0"}),
        finished_run(tmp_path / "d", 0.1, budget=0.1),
    ]
    cells = collect(runs, "accuracy")
    column = "digits, symmetric 40 %"
    assert sorted(cells["spr", column].values) == pytest.approx([51, 52, 53])
    assert cells["spr", column].text() == "52.0 ± 1.0" and cells["gdumb", column].text() == "40.0"
    assert cells["spr, graphs=0", column].mean == pytest.approx(60) and ("spr, budget 0.1", column) in cells
    show_comparison(cells, "accuracy", tmp_path / "bars.svg")
    shown = capsys.readouterr().out
    assert "52.0 ± 1.0" in shown and "1 to 3 seeds" in shown and (tmp_path / "bars.svg").stat().st_size > 1000


def test_nothing_to_compare_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="finished run"):
        collect([tmp_path], "accuracy")
    with pytest.raises(UserError, match="measured its purity"):
        collect([finished_run(tmp_path / "a", 0.5)], "purity")
    with pytest.raises(UserError, match="unknown"):
        collect([tmp_path], "speed")


def test_every_learner_has_a_name_of_its_own():
    names = [
        describe_learner(resolve(dataset="digits", device="cpu", learner=n))
        for n in ("spr", "self-replay", "crs", "multitask")
    ]
    assert names == ["spr", "self-replay", "crs", "multitask"]


def test_curves_of_results_are_drawn_with_bands(tmp_path):
    usual = {"dataset": "digits", "noise": "symmetric", "noise_rate": 0.4, "learner": "crs", "preset": "demo"}
    results = [
        usual | {"seed": seed, "accuracy": 0.5, "accuracy_after_task": [0.1 * seed, 0.2, 0.5]} for seed in (1, 2)
    ]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(json.dumps(result) + "\n" for result in results))
    draw_curves(finished_runs([file]), tmp_path / "curves.svg")
    assert "<!-- crs, demo -->" in (tmp_path / "curves.svg").read_text()  # the name of the curve
    with pytest.raises(UserError, match="evaluated after each task"):
        draw_curves([], tmp_path / "none.svg")
    command = CliRunner().invoke(app, ["plot", str(file)])
    assert isinstance(command.exception, UserError) and "--out is missing" in str(command.exception)
    assert CliRunner().invoke(app, ["plot", str(file), "--out", str(tmp_path / "again.png")]).exit_code == 0
    assert (tmp_path / "again.png").stat().st_size > 5000
