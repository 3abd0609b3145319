"""The benchmarks run: rows of each part, on small work."""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")


def loaded(name, monkeypatch):
    """A module of benchmarks/."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def speed(monkeypatch):
    return loaded("speed", monkeypatch)


@pytest.fixture
def your_data(monkeypatch):
    return loaded("your_data", monkeypatch)


def test_rare_labels_are_beside_usual_ones(monkeypatch):
    found = loaded("rare_labels", monkeypatch).measure(60, 2, 3, seed=0)
    assert found["wrong"] > 0 and 0 <= found["wrong_rejected"] <= found["wrong"] and len(found["noise"]) == 3


@pytest.mark.long
def test_the_demo_is_timed_by_phase(speed, monkeypatch):
    resolve = speed.resolve
    monkeypatch.setattr(speed, "resolve", lambda **chosen: resolve(**chosen, budget=0.005))
    [row] = list(speed.demo(CPU, "auto"))
    assert row["case"] == "demo" and row["seconds"] >= row["expert"] > 0 and {"base", "finetune", "other"} <= set(row)


def test_the_filter_is_compared_with_plain_code(speed):
    row = speed.filter_row(60, CPU)
    assert row["buffer"] == 60 and row["ms_a_call"] > 0 and row["ratio"] > 0


def module(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, found)
    spec.loader.exec_module(found)
    return found


@pytest.mark.slow
def test_three_hundred_photos_of_mixed_sizes_are_learned_in_little_time_and_memory(tmp_path, monkeypatch):
    photos = module("photos", monkeypatch)
    photos.make_photos(tmp_path / "photos")
    found = photos.measure(tmp_path, "photos", "state")
    assert found["seconds"] < 120 and found["memory_mib"] < 2048
    text = " ".join(found["output"])
    assert "resized to 64 × 64, colour; the aspect is kept" in text and "samples added: 300" in text


@pytest.mark.slow
def test_a_long_pipe_takes_the_same_time_and_memory_per_sample_at_its_end(tmp_path, monkeypatch):
    pipe = module("pipe", monkeypatch)
    blocks = pipe.measure(9000, tmp_path / "state")
    found = pipe.summary(blocks, tmp_path / "state")
    assert found["status"]["samples"] == 9000 and found["status"]["revisions"] > 10
    early, *_, late = found["parts"]
    assert late["ms_per_sample"] < 2 * early["ms_per_sample"] and late["memory_mib"] < early["memory_mib"] + 200
    assert abs(found["noise"]["rate"] - pipe.WRONG) < 0.05


def test_rows_of_a_cell_are_kept_and_not_computed_again(your_data, tmp_path, monkeypatch, capsys):
    call = ["your_data.py", "--data", "wine", "--seeds", "1", "--rows", "purereplay,forest", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", call)
    your_data.main()
    [path] = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert path.name == "wine-symmetric-shuffled-seed-1.json" and set(kept["rows"]) == {"purereplay", "forest"}
    ours = kept["rows"]["purereplay"]
    assert ours["auroc"] > 0.9 and ours["accuracy"] > 0.8 and ours["noise_low"] <= ours["noise_high"]
    assert kept["rows"]["forest"]["auroc"] is None and sum(n for *_, n in ours["reliability"]) == kept["samples"]
    capsys.readouterr()
    your_data.main()
    assert "nothing to do" in capsys.readouterr().out and json.loads(path.read_text()) == kept
    assert "| wine | symmetric | shuffled | purereplay |" in your_data.table(tmp_path)


def test_cells_and_their_orders(your_data):
    every = list(your_data.cells(["digits", "cifar10n", "wine"], list(your_data.NOISES), list(your_data.ORDERS), [1]))
    assert len(every) == 9 + 3 + 1 and {cell.noise for cell in every if cell.data == "cifar10n"} == {"human"}
    options = argparse.Namespace(n=100, develop=False)
    shuffled, folder, classes = (
        your_data.samples_of(your_data.Cell("digits", "asymmetric", order, 1), options) for order in your_data.ORDERS
    )
    assert (np.diff(folder.given) >= 0).all() and (np.diff(classes.truth) >= 0).all()
    assert len(shuffled.given) == 1500 and len(shuffled.test_truth) == 297
    assert sorted(shuffled.given) == sorted(folder.given) and (shuffled.given != shuffled.truth).mean() > 0.05


def test_the_calibration_error_is_that_of_its_definition(your_data):
    p = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    right = np.array([False, True, True, True, False])
    assert your_data.calibration_error(p, right) == pytest.approx(0.4 * 0.45 + 0.6 * abs(2.9 / 3 - 2 / 3))


def test_a_joint_step_is_compared_with_plain_code(speed, monkeypatch):
    monkeypatch.setattr(speed, "TURN_SECONDS", 0.02)
    monkeypatch.setattr(speed, "N_NETWORKS", (1, 2))
    [case, *_] = speed.JOINT_CASES
    job = case.jobs(1, 1, CPU)[0]
    assert isinstance(job, speed.JointJob) and job.n_steps == 2 and job.recipe.replay_size == 50
    rows = list(speed.training([case], CPU, "auto", limit=20))
    assert [row["networks"] for row in rows] == [1, 2] and all(row["ratio"] > 0 for row in rows)
