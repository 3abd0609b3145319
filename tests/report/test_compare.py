import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from purereplay.cli.app import app
from purereplay.errors import UserError
from purereplay.evaluate.compare import collect, describe_learner, finished_runs
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import resolve
from purereplay.report.compare import draw_curves, show_comparison


def finished_run(path: Path, accuracy: float, result: dict | None = None, **options) -> Path:
    """A run folder with nothing but settings and a result."""
    settings = resolve(dataset="digits", device="cpu", **options)
    RunDirectory(path).create(settings)
    names = ("dataset", "noise", "noise_rate", "episode", "learner", "preset", "budget", "seed")
    own = {name: getattr(settings, name) for name in names} | {"options": asdict(settings.options)}
    (path / "result.json").write_text(json.dumps(own | {"accuracy": accuracy, "purity": None} | (result or {})))
    return path


def test_a_run_that_was_evaluated_once_has_no_average_over_tasks(tmp_path):
    both = {"task_accuracies": [0.5, 0.7], "average_incremental_accuracy": 0.6}  # as version 0.1.0 wrote it
    runs = [
        finished_run(tmp_path / "end", 0.6, both | {"accuracy_after_task": [0.6]}),
        finished_run(tmp_path / "tasks", 0.6, both | {"accuracy_after_task": [0.6, 0.6]}, seed=2),
    ]
    [cell] = collect(runs, "average_incremental_accuracy").values()
    assert cell.values == [60]
    with pytest.raises(UserError, match="None of these runs has measured its average incremental accuracy"):
        collect(runs[:1], "average_incremental_accuracy")


def test_runs_that_differ_by_their_seed_share_a_cell(tmp_path, capsys):
    runs = [finished_run(tmp_path / f"a{seed}", 0.5 + seed / 100, seed=seed) for seed in (1, 2, 3)]
    runs += [finished_run(tmp_path / "b", 0.4, learner="gdumb")]
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


def test_runs_with_other_features_of_the_user_are_rows_of_their_own(tmp_path):
    named = {"name": "onnx:a.onnx", "digest": "1" * 32}
    made = {"a": ("a" * 16, None), "b": ("b" * 16, None), "c": ("c" * 16, named), "d": ("d" * 16, named)}
    runs = [
        finished_run(
            tmp_path / f"{name}{seed}",
            0.5,
            {"features_digest": digest, "features_encoder": encoder, "accuracy_after_task": [0.4, 0.5]},
            features_file="f.npz",
            seed=seed,
        )
        for name, (digest, encoder) in made.items()
        for seed in (1, 2)
    ]
    rows = ["spr, features=file aaaaaaaa", "spr, features=file bbbbbbbb"]
    rows += ["spr, features=onnx:a.onnx cccccccc", "spr, features=onnx:a.onnx dddddddd"]
    for order in (runs, runs[::-1]):
        cells = collect(order, "accuracy")
        assert sorted(row for row, _ in cells) == rows and all(len(cell.values) == 2 for cell in cells.values())
    draw_curves(finished_runs(runs), tmp_path / "curves.svg")
    assert all(f"<!-- {row} -->" in (tmp_path / "curves.svg").read_text() for row in rows)


def test_runs_on_tasks_of_an_earlier_version_are_in_a_column_of_their_own(tmp_path):
    usual = {"dataset": "mnist", "noise": "asymmetric", "noise_rate": 0.4, "episode": "B", "learner": "crs", "seed": 1}
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(usual | {"accuracy": 0.5, "numbers_version": v}) + "\n" for v in (1, 2)))
    columns = ["mnist, asymmetric 40 %, episode B, tasks of an earlier version", "mnist, asymmetric 40 %, episode B"]
    assert [column for _, column in collect([file], "accuracy")] == columns


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
