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
