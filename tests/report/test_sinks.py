"""`--log` sends the numbers of metrics.jsonl to other tools; `watch` shows them in the terminal."""

import json
import sys
import types
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "live"))
from tiny_state import TINY_OPTIONS, items, picture, png, tiny

from purereplay.cli import main
from purereplay.errors import UserError
from purereplay.report.sinks import Sinks

SMALL = ["--dataset", "digits", "--preset", "demo", "--device", "cpu", "--set", "hidden=8", "--set", "base_epochs=1"]
SMALL += ["--set", "expert_epochs=1", "--set", "finetune_epochs=1"]


def call(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


class Board:
    """Stands for TensorBoard's writer."""

    def __init__(self, folder: str) -> None:
        self.folder, self.scalars, self.closed = folder, [], False
        Board.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def board(monkeypatch):
    Board.made = []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Board))
    return Board


@pytest.mark.long
def test_a_run_sends_what_it_records(board, monkeypatch, tmp_path, capsys):
    assert call(monkeypatch, "run", *SMALL, "--log", "tensorboard", "--out", tmp_path / "run") == 0
    [made] = board.made
    assert made.closed and made.folder == str(tmp_path / "run.tensorboard")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    expected = [
        (f"{line['event']}/{name}", float(value), line[line["event"]])
        for line in lines
        for name, value in line.items()
        if isinstance(value, int | float) and name != line["event"]
    ]
    assert made.scalars == expected and len([name for name, *_ in expected if name == "task/accuracy"]) == 5
    tasks = [line for line in lines if line["event"] == "task"]
    capsys.readouterr()
    assert call(monkeypatch, "watch", tmp_path / "run") == 0
    shown = capsys.readouterr().out
    assert "finished" in shown and "15 of 15" in shown and f"{100 * tasks[-1]['accuracy']:.1f} %" in shown


def test_learn_sends_the_numbers_of_every_buffer(board, monkeypatch, tmp_path, capsys):
    for i in range(40):
        path = tmp_path / "photos" / f"label {i % 3}" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 3)))
    learn = ["learn", tmp_path / "photos", "--state", tmp_path / "state", "--log", "tensorboard", *TINY_OPTIONS]
    assert call(monkeypatch, *learn) == 0
    [made] = board.made
    assert [(value, step) for name, value, step in made.scalars if name == "buffer/n_scored"] == [(20, 0), (40, 1)]
    assert made.closed and (tmp_path / "state" / "state.sqlite").exists()
    capsys.readouterr()
    assert call(monkeypatch, "watch", tmp_path / "state", "--once") == 0
    assert "40 of 40" in capsys.readouterr().out


def test_wandb_gets_a_run_with_its_own_steps(monkeypatch, tmp_path):
    logged: list[dict] = []
    ended: list[bool] = []
    run = types.SimpleNamespace(log=logged.append, finish=lambda: ended.append(True))
    asked: list[dict] = []

    def init(**options):
        asked.append(options)
        return run

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    sinks = Sinks("wandb")
    sinks.line(tmp_path / "a", {"event": "task", "task": 2, "accuracy": 0.5, "classes": [1], "task_accuracies": [0.5]})
    sinks.line(tmp_path / "a", {"event": "buffer", "buffer": 7, "purity": None, "n": 20})
    sinks.close()
    assert logged == [{"task/accuracy": 0.5, "task/step": 2}, {"buffer/n": 20.0, "buffer/step": 7}]
    assert asked == [{"project": "purereplay", "name": "a", "dir": str(tmp_path), "reinit": "create_new"}]
    assert ended == [True]


def test_an_unknown_or_missing_tool_is_one_sentence(monkeypatch, tmp_path, capsys):
    with pytest.raises(UserError, match="choose tensorboard or wandb"):
        Sinks("mlflow")
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    with tiny(tmp_path / "state") as session:
        session.take(items(0, 5))
    assert call(monkeypatch, "run", *SMALL, "--log", "wandb", "--out", tmp_path / "run") == 2
    assert "pip install 'purereplay[wandb]'" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert call(monkeypatch, "watch", tmp_path) == 2
    assert "neither the folder of a run nor a state" in capsys.readouterr().err
