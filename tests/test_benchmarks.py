"""The benchmarks run: rows of each part, on small work."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def speed(monkeypatch):
    """The module benchmarks/speed.py."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("speed", FOLDER / "speed.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "speed", module)
    spec.loader.exec_module(module)
    return module


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
    found = photos.measure(tmp_path)
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
