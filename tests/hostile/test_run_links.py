"""Run folders that somebody else prepared: links in them are refused by name, and nothing is written outside.

Also: finished runs on a read-only disk, and results whose values changed.
"""

import json
import os
import random
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from purereplay.cli import main
from purereplay.data.own_folder import OwnFolder
from purereplay.errors import UserError
from purereplay.evaluate import running
from purereplay.evaluate.checkpoint import write_checkpoint
from purereplay.evaluate.experiment import prepare
from purereplay.evaluate.results import RunDirectory, check_result, result_digest
from purereplay.evaluate.settings import RunSettings, resolve
from purereplay.report.pictures import draw_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows needs a privilege to make links")
SMALL = {"expert_epochs": "2", "base_epochs": "2", "finetune_epochs": "2", "hidden": "8"}
OPTIONS = ["--dataset", "digits", "--preset", "demo", "--device", "cpu"]
OPTIONS += [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
KEPT = Path(__file__).parent.parent / "kept" / "0.1.0" / "finished" / "spr"


def tiny() -> RunSettings:
    return resolve(dataset="digits", preset_name="demo", device="cpu", overrides=SMALL)


def called(*arguments: str | Path) -> int:
    with patch.object(sys, "argv", ["purereplay", *map(str, arguments)]), pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Call a command that is refused, and return its sentence."""
    assert called(*arguments) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    return " ".join(text.split())


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    running.run(tiny(), path)
    draw_run(path)
    return path


@pytest.fixture
def finished(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def stopped(tmp_path) -> Path:
    """A run with a checkpoint and without a result."""
    path = tmp_path / "run"
    experiment = prepare(tiny(), path)
    for text in (KEPT / "metrics.jsonl").read_text().splitlines()[:1]:
        experiment.run.record(json.loads(text))
    experiment._save()
    return path


def outside(run: Path, name: str, *, exists: bool = True) -> Path:
    """Move a file or folder of a run out of it, and leave a link; returns the folder outside."""
    other = run.parent / "outside"
    other.mkdir(exist_ok=True)
    if exists:
        (run / name).rename(other / Path(name).name)
    (run / name).symlink_to(other / Path(name).name)
    return other


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "settings.json", ".lock"])
def test_resume_does_not_write_through_a_link(stopped, capsys, name):
    (stopped / ".lock").touch()
    other = outside(stopped, name)
    before = contents(other)
    assert f"{stopped / name} is a link, which is not followed" in refusal(capsys, "resume", stopped)
    assert contents(other) == before and (stopped / name).is_symlink() and not (stopped / "result.json").exists()


def test_resume_does_not_read_or_write_a_checkpoint_that_is_a_link(stopped, capsys):
    [newest] = (stopped / "checkpoints").iterdir()
    other = outside(stopped, f"checkpoints/{newest.name}")
    assert f"{newest} is a link" in refusal(capsys, "resume", stopped)
    assert len(contents(other)) == 1


@pytest.mark.parametrize("name", ["run.png", "result.json", "metrics.jsonl", "settings.json"])
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("verb", ["plot", "resume", "compare"])
def test_no_command_follows_a_link_in_a_finished_run(finished, capsys, verb, name, exists):
    if not exists:
        (finished / name).unlink()
    other = outside(finished, name, exists=exists)
    before = contents(other)
    assert f"{finished / name} is a link, which is not followed" in refusal(capsys, verb, finished)
    assert contents(other) == before


def test_a_picture_that_the_user_names_may_be_a_link(finished, tmp_path):
    (tmp_path / "mine.png").symlink_to(tmp_path / "there.png")
    assert called("plot", finished, "--out", tmp_path / "mine.png") == 0
    assert (tmp_path / "there.png").read_bytes()[:4] == b"\x89PNG" and (tmp_path / "mine.png").is_symlink()


def test_a_run_folder_that_the_user_names_may_be_a_link(finished, tmp_path):
    (tmp_path / "link").symlink_to(finished)
    assert called("plot", tmp_path / "link") == 0 and called("resume", tmp_path / "link") == 0


def test_a_new_run_does_not_use_a_folder_of_checkpoints_that_is_a_link(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "outside")
    said = refusal(capsys, "run", *OPTIONS, "--out", tmp_path / "run")
    assert f"{tmp_path / 'run' / 'checkpoints'} is a link" in said and not any((tmp_path / "outside").iterdir())


def test_a_run_folder_of_a_sweep_is_not_a_link(tmp_path, capsys):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "sweep" / "run").symlink_to(tmp_path / "outside")
    said = refusal(capsys, "sweep", *OPTIONS, "--out", tmp_path / "sweep")
    assert f"{tmp_path / 'sweep' / 'run'} is a link" in said and not any((tmp_path / "outside").iterdir())


@pytest.mark.parametrize("name", ["crs", "compared.png"])
def test_the_demo_does_not_write_through_a_link(tmp_path, capsys, name):
    (tmp_path / "demo").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "demo" / name).symlink_to(tmp_path / "outside")
    assert f"{tmp_path / 'demo' / name} is a link" in refusal(capsys, "demo", "--out", tmp_path / "demo")
    assert not any((tmp_path / "outside").iterdir())


class Swapped(OwnFolder):
    """A folder in which the subfolder becomes a link between the check and the use."""

    def __init__(self, path: Path, other: Path) -> None:
        super().__init__(path)
        self.other = other

    def swap(self, *_: object) -> None:
        if not (self.path / "sub").is_symlink():
            (self.path / "sub").rename(self.path / "before")
            (self.path / "sub").symlink_to(self.other)


@pytest.mark.parametrize("verb", ["write", "append", "remove"])
def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(tmp_path, monkeypatch, verb):
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(b"precious")
    own = Swapped(tmp_path / "run", tmp_path / "outside")
    monkeypatch.setattr("purereplay.data.own_folder.refuse_links", lambda paths: (list(paths), own.swap()))
    arguments = ("sub/a",) if verb == "remove" else ("sub/a", b"new")
    with pytest.raises(UserError, match=r"sub/a cannot be written: (Not a directory|Too many levels)"):
        getattr(own, verb)(*arguments)
    assert contents(tmp_path / "outside") == {"a": b"precious"}


def test_a_file_that_becomes_a_link_meanwhile_is_replaced_or_refused(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "run" / "a").symlink_to(victim)
    monkeypatch.setattr("purereplay.data.own_folder._check_regular", lambda *_: None)  # it was a file then
    own = OwnFolder(tmp_path / "run")
    with pytest.raises(UserError, match="Too many levels"):
        own.append("a", b"new")
    own.write("a", b"new")
    assert victim.read_bytes() == b"precious" and not (tmp_path / "run" / "a").is_symlink()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_refused(tmp_path, kind):
    os.mkfifo(tmp_path / "a") if kind == "pipe" else (tmp_path / "a").mkdir()
    for verb in ("write", "append"):
        with pytest.raises(UserError, match=r"a is not a regular file"):
            getattr(OwnFolder(tmp_path), verb)("a", b"new")


def test_checkpoints_are_not_written_or_deleted_through_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    for i in range(4):
        (tmp_path / "outside" / f"checkpoint-{i:08d}.safetensors").write_bytes(b"precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "outside")
    before = contents(tmp_path / "outside")
    with pytest.raises(UserError, match="checkpoints is a link"):
        write_checkpoint(tmp_path / "run" / "checkpoints", {"a": torch.zeros(1)}, {})
    assert contents(tmp_path / "outside") == before


# ---------------------------------------------------------------- read-only disks


@pytest.fixture
def read_only(monkeypatch):
    """As if every folder were on a read-only disk; root may write into folders without permission."""
    plain = os.open

    def refuses(path, flags, *others, **named):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(path))
        return plain(path, flags, *others, **named)

    monkeypatch.setattr(os, "open", refuses)


def test_resume_shows_a_finished_run_on_a_read_only_disk(finished, read_only, capsys):
    before = contents(finished)
    assert called("resume", finished) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "accuracy at the end" in said and "no picture was drawn" in said and "Read-only file system" in said
    assert contents(finished) == before


def test_sweep_shows_finished_runs_on_a_read_only_disk(made, tmp_path, capsys, monkeypatch, request):
    shutil.copytree(made, tmp_path / "sweep" / "run")
    request.getfixturevalue("read_only")
    assert called("sweep", *OPTIONS, "--out", tmp_path / "sweep") == 0
    assert "no picture was drawn" in " ".join(capsys.readouterr().out.split())


def test_plot_on_a_read_only_disk_is_a_sentence(finished, read_only, capsys):
    assert "run.png cannot be written: Read-only file system" in refusal(capsys, "plot", finished)


# ---------------------------------------------------------------- results that changed


def test_a_result_has_a_digest_of_all_its_values(made):
    values = json.loads((made / "result.json").read_text())
    assert values["digest"] == result_digest(values) and "digest" not in (RunDirectory(made).result() or {})
    check_result(json.loads(json.dumps(values, sort_keys=True)), made)  # whatever the layout


@pytest.mark.parametrize("verb", ["compare", "paper", "resume"])
def test_a_changed_digit_of_a_result_is_named(finished, capsys, verb):
    path = finished / "result.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"accuracy": values["accuracy"] / 2}))
    assert f"{path} is damaged: a result in it does not match its digest." in refusal(capsys, verb, finished)


def test_a_changed_result_in_a_file_of_results_is_named(made, tmp_path, capsys):
    values = json.loads((made / "result.json").read_text())
    lines = [values, values | {"seed": 7}]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "all.jsonl is damaged" in refusal(capsys, "paper", tmp_path / "all.jsonl")


def test_a_result_of_an_earlier_version_has_no_digest(finished, capsys):
    path = finished / "result.json"
    values = json.loads(path.read_text())
    del values["digest"]
    path.write_text(json.dumps(values))
    assert called("compare", finished) == 0


def test_a_flipped_bit_in_a_result_is_harmless_or_named(made):
    content, expected = (made / "result.json").read_bytes(), RunDirectory(made).result()
    rng, counts = random.Random(0), {"right": 0, "named": 0, "without its digest": 0}
    folder = shutil.copytree(made, made.parent / "flipped")
    for _ in range(300):
        at, bit = rng.randrange(len(content)), rng.randrange(8)
        (folder / "result.json").write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        try:
            found = RunDirectory(folder).result()
            values = {name: value for name, value in (found or {}).items() if name in (expected or {})}
            assert values == expected, (at, bit)
            counts["right" if found == expected else "without its digest"] += 1
        except UserError as error:
            assert str(folder / "result.json") in str(error)
            counts["named"] += 1
    assert counts["named"] > 200, counts
    shutil.rmtree(folder)
