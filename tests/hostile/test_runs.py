"""Run folders: leftovers, two processes in one folder, changed data, settings edited by hand, kills."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from purereplay.cli import main
from purereplay.cli.app import overrides
from purereplay.data.datasets import load
from purereplay.data.own_folder import OwnFolder
from purereplay.errors import UserError
from purereplay.evaluate import experiment as experiments
from purereplay.evaluate import preparation, running
from purereplay.evaluate.checkpoint import read_checkpoint, write_checkpoint
from purereplay.evaluate.experiment import prepare
from purereplay.evaluate.results import RunDirectory
from purereplay.evaluate.settings import RunSettings, resolve, to_json
from purereplay.learners import registry

SMALL = {"expert_epochs": "2", "base_epochs": "2", "finetune_epochs": "2", "hidden": "8"}


def small_options(**more: int) -> list[str]:
    """Return options of the command line with small settings, some of which are changed."""
    settings = [part for name, value in (SMALL | more).items() for part in ("--set", f"{name}={value}")]
    return ["--dataset", "digits", "--preset", "demo", "--device", "cpu", *settings]


OPTIONS = small_options()
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
KEPT = Path(__file__).parent.parent / "kept" / "0.1.0"


def tiny(**more) -> RunSettings:
    return resolve(**{"dataset": "digits", "preset_name": "demo", "device": "cpu", "overrides": SMALL} | more)


def measured(path: Path) -> dict:
    result = json.loads((path / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "digest")}


def files(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, with its contents."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def called(*arguments: str | Path) -> int:
    """Call the command in this process and return its exit code."""
    with patch.object(sys, "argv", ["purereplay", *map(str, arguments)]), pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Call a command that is refused, and return its only line on standard error."""
    assert called(*arguments) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in line
    return line


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "purereplay.cli", *map(str, arguments)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    running.run(tiny(), path)
    return path


# --- leftovers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["metrics.jsonl", "result.json", "run.png", "checkpoints", "settings.json"])
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_folder_with_any_trace_of_a_run_is_not_free(finished, tmp_path, capsys, trace, verb):
    out = tmp_path / "run"
    out.mkdir()
    if trace == "checkpoints":
        shutil.copytree(finished / trace, out / trace)
    elif trace == "run.png":
        (out / trace).write_bytes(b"a picture")
    else:
        shutil.copy(finished / trace, out / trace)
    before = files(out)
    said = refusal(capsys, verb, *OPTIONS, "--seed", "2", "--out", out if verb == "run" else tmp_path)
    assert str(out) in said and "choose another --out" in said
    assert trace in said or trace == "settings.json"
    assert files(out) == before


def test_a_link_to_nothing_is_a_trace_too(tmp_path):
    (tmp_path / "result.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"result\.json of an earlier run"):
        running.run(tiny(), tmp_path)


def test_other_files_and_an_empty_folder_are_no_trace(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".lock").touch()
    running.run(tiny(), tmp_path)
    assert measured(tmp_path)["seed"] == 1 and (tmp_path / "notes.txt").read_text() == "mine"


def test_a_demo_that_was_killed_while_it_removed_an_earlier_one_can_be_removed_again(finished, tmp_path, monkeypatch):
    path = tmp_path / "demo"
    for n_removed in range(1, 5):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(finished, path)
        (path / "run.png").touch()
        remove, n = OwnFolder.remove, 0

        def dies(self: OwnFolder, name: str, remove=remove, n_removed=n_removed) -> None:
            nonlocal n
            n += 1
            if n > n_removed:
                raise KeyboardInterrupt
            remove(self, name)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(OwnFolder, "remove", dies)
            running.clear_demo([path])
        running.clear_demo([path])
        RunDirectory.check_free(path)


# --- two processes ---------------------------------------------------------------------------------------------------


def test_a_folder_that_another_process_works_on_is_refused_before_anything_is_written(tmp_path):
    with RunDirectory(tmp_path / "run").locked(), pytest.raises(UserError, match="Another process is working on"):
        running.run(tiny(), tmp_path / "run")
    assert files(tmp_path / "run") == {}


def test_a_run_that_another_process_made_meanwhile_is_neither_resumed_nor_returned(finished, tmp_path):
    class Slow(running.Observer):
        def started(self, path: Path, settings: RunSettings, *, resumed: bool) -> None:
            shutil.copytree(finished, path)  # the other was faster

    for run in (
        lambda path: running.run(tiny(seed=2), path, Slow()),
        lambda path: running.run_together({path: tiny(seed=2)}, Slow()),
    ):
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        with pytest.raises(UserError, match="already holds a run"):
            run(path)
        assert files(path) == files(finished)


@pytest.mark.slow
def test_of_two_processes_started_at_once_into_one_new_folder_one_is_refused(tmp_path):
    out = tmp_path / "run"
    both = [
        subprocess.Popen(
            command("run", *small_options(expert_epochs=40), "--seed", str(seed), "--out", out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for seed in (1, 2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2], errors
    [refused] = errors[codes.index(2)].strip().splitlines()
    assert "Another process is working on" in refused or "already holds a run" in refused
    seed = codes.index(0) + 1
    alone = tmp_path / "alone"
    running.run(tiny(seed=seed, overrides=SMALL | {"expert_epochs": "40"}), alone)
    assert measured(out) == measured(alone)
    assert json.loads((out / "settings.json").read_text())["seed"] == seed
    assert (out / "metrics.jsonl").read_text() == (alone / "metrics.jsonl").read_text()


# --- changed data ----------------------------------------------------------------------------------------------------


def changed(values: np.ndarray) -> np.ndarray:
    """The same with one value changed by one."""
    values = values.copy()
    values.flat[-1] = values.flat[-1] - 1 if values.flat[-1] else 1
    return values


@pytest.fixture
def stopped(tmp_path) -> Path:
    """A run that was stopped after its first task, with a line in metrics.jsonl that its checkpoint does not have."""
    path = tmp_path / "run"
    experiment = prepare(tiny(), path)
    for line in (json.loads(text) for text in (KEPT / "finished" / "spr" / "metrics.jsonl").open()):
        experiment.run.record(line)
        experiment._save() if line["event"] == "task" and line["task"] == 0 else None
        if line["event"] == "task":
            break
    experiment.run.record(experiment.run.lines[0] | {"buffer": 2})
    return path


@pytest.mark.parametrize("part", ["images", "test_images", "test_labels", "true_labels"])
def test_resume_notices_changed_data(stopped, part):
    digits, before = load("digits"), files(stopped)
    other = replace(digits, **{part: changed(getattr(digits, part))})
    name = {"images": "training images"}.get(part, part.replace("_", " "))
    with pytest.raises(UserError, match=f"The {name} of digits changed since {stopped} began"):
        prepare(tiny(), stopped, resume=True, dataset=other)
    assert files(stopped) == before
    prepare(tiny(), stopped, resume=True, dataset=replace(digits))


def test_resume_notices_labels_that_came_noisy_and_changed(tmp_path):
    digits = load("digits")
    settings = tiny(noise="none")
    human = replace(digits, given_labels=digits.true_labels[::-1].copy())
    prepare(settings, tmp_path, dataset=human)._save()
    with pytest.raises(UserError, match="The given labels of digits changed"):
        prepare(settings, tmp_path, resume=True, dataset=replace(human, given_labels=changed(human.given_labels)))


def test_the_data_of_runs_that_share_a_dataset_are_read_once(monkeypatch):
    digits, n = load("digits"), 0
    digest = preparation._digest

    def counted(values):
        nonlocal n
        n += 1
        return digest(values)

    monkeypatch.setattr(preparation, "_digest", counted)
    first = preparation.data_digests(digits, None)
    assert preparation.data_digests(digits, None) == first and n == 5


def test_a_checkpoint_with_the_former_short_fingerprint_still_resumes(stopped):
    tensors, facts = read_checkpoint(stopped / "checkpoints")
    former = {name: value for name, value in facts.items() if name not in ("data", "settings", "lines")}
    assert set(facts) - set(former) == {"data", "settings", "lines"}
    write_checkpoint(stopped / "checkpoints", tensors, former)
    assert prepare(tiny(), stopped, resume=True).run.lines
    write_checkpoint(stopped / "checkpoints", tensors, former | {"stream": "0" * 16})
    with pytest.raises(UserError, match="stream differs"):
        prepare(tiny(), stopped, resume=True)


@pytest.mark.parametrize("name", ["spr", "gdumb-sl"])
def test_a_run_of_the_former_version_resumes_from_its_last_checkpoint(tmp_path, name):
    path = tmp_path / "run"
    shutil.copytree(KEPT / "finished" / name, path)
    kept = measured(path)
    (path / "result.json").unlink()
    _, settings = RunDirectory.open(path)
    assert running.run(settings, path, resume=True)["accuracy_after_task"] == kept["accuracy_after_task"]
    assert measured(path)["class_accuracies"] == kept["class_accuracies"]


@pytest.mark.parametrize(("name", "value"), [("seed", 2), ("episode", "B"), ("hidden", 9), ("lr", 0.5)])
def test_settings_that_changed_since_the_checkpoint_are_named(stopped, name, value):
    settings = json.loads((stopped / "settings.json").read_text())
    (settings if name in settings else settings["options"])[name] = value
    (stopped / "settings.json").write_text(json.dumps(settings))
    before = files(stopped)
    _, edited = RunDirectory.open(stopped)
    with pytest.raises(UserError, match=f"stream differs|{name} was "):
        prepare(edited, stopped, resume=True)
    assert files(stopped) == before


def test_a_moved_or_slower_run_still_resumes(stopped):
    prepare(replace(tiny(), lookahead=2), stopped, resume=True)


def test_a_line_that_changed_since_the_checkpoint_is_noticed(stopped):
    metrics = stopped / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"accuracy": 0.1,', '"accuracy": 0.2,'))
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
        prepare(tiny(), stopped, resume=True)


@pytest.mark.parametrize(
    "fact",
    [{"position": 10**6}, {"position": -1}, {"position": "x"}, {"finished": 1}, {"seconds": []}, {"n_lines": "x"}],
)
def test_a_checkpoint_with_impossible_facts_is_one_sentence(stopped, fact):
    tensors, facts = read_checkpoint(stopped / "checkpoints")
    write_checkpoint(stopped / "checkpoints", tensors, facts | fact)
    with pytest.raises(UserError, match=r"The checkpoint in .* cannot be used"):
        prepare(tiny(), stopped, resume=True)


def test_files_that_a_kill_left_half_written_are_removed_and_others_stay(stopped):
    parts = [
        "settings.json.part",
        "metrics.jsonl.0123456789abcdef.part",
        "checkpoints/checkpoint-00000009.safetensors.part",
    ]
    others = ["mine.part", "settings.json.backup.part", "checkpoints/mine.part"]
    for name in parts + others:
        (stopped / name).write_text("half")
    prepare(tiny(), stopped, resume=True)
    assert [name for name in parts + others if (stopped / name).exists()] == others


# --- settings edited by hand -----------------------------------------------------------------------------------------

WRONG = [  # field, value, part of the sentence
    ("dataset", "nonsense", "nonsense"),
    ("dataset", ["digits"], "dataset must be text"),
    ("noise", "loud", "loud"),
    ("noise", None, "noise must be text"),
    ("noise", "superclass", "superclasses"),
    ("noise", "none", "noise rate must be 0"),
    ("noise_rate", 1.5, "noise_rate must be a number in"),
    ("noise_rate", -0.1, "noise_rate must be a number in"),
    ("noise_rate", "0.4", "noise_rate must be a number in"),
    ("noise_rate", True, "noise_rate must be a number in"),
    ("episode", "Z", "'Z'"),
    ("episode", {"A": 1}, "episode must be text"),
    ("learner", "nobody", "nobody"),
    ("learner", [], "learner must be text"),
    ("learner", "crs", "do not fit this version"),
    ("preset", "typo", "preset 'typo' is unknown"),
    ("preset", 3, "preset must be text"),
    ("budget", 0, "budget must be a number above 0"),
    ("budget", "1", "budget must be a number above 0"),
    ("budget", 10**400, "budget must be a number above 0"),
    ("seed", "abc", "seed must be a whole number"),
    ("seed", 1.5, "seed must be a whole number"),
    ("seed", True, "seed must be a whole number"),
    ("seed", None, "seed must be a whole number"),
    ("device", "abacus", "device must be one of cpu, cuda"),
    ("device", 0, "device must be one of cpu, cuda"),
    ("precision", "x", "precision must be one of float32"),
    ("precision", "auto", "precision must be one of float32"),
    ("precision", "bf16", "bf16 is for CUDA"),
    ("validation", "yes", "validation must be true or false"),
    ("validation", 1, "validation must be true or false"),
    ("features_file", 7, "features_file must be text or null"),
    ("features_file", "a.npz", "features=file"),
    ("lookahead", 0, "lookahead must be a whole number of at least 1"),
    ("lookahead", -1, "lookahead must be a whole number of at least 1"),
    ("lookahead", 2.0, "lookahead must be a whole number of at least 1"),
    ("lookahead", 10**30, "lookahead must be a whole number of at least 1"),
    ("options", [], "options must be a JSON object"),
    ("options", None, "options must be a JSON object"),
    ("options.hidden", "x", "hidden must be a whole number"),
    ("options.hidden", 10**400, "hidden must be at most"),
    ("options.hidden", 0, "hidden must be more than 0"),
    ("options.graphs", [], "graphs must be a whole number"),
    ("options.features", "file", "features=file"),
    ("options.unknown", 1, "do not fit this version: unknown"),
    ("unknown", 1, "do not fit: unknown"),
    ("format", 99, "format 99"),
    ("format", [], "format []"),
]


@pytest.mark.parametrize(("field", "value", "sentence"), WRONG, ids=lambda part: str(part)[:20])
def test_settings_edited_by_hand_are_refused_at_the_beginning(tmp_path, capsys, monkeypatch, field, value, sentence):
    monkeypatch.setattr(running, "load", lambda *_: pytest.fail("the data were loaded"))
    values = to_json(tiny())
    part, _, name = field.rpartition(".")
    (values[part] if part else values)[name] = value
    (tmp_path / "settings.json").write_text(json.dumps(values))
    said = refusal(capsys, "resume", tmp_path)
    assert sentence in said and str(tmp_path / "settings.json") in said
    assert "settings.json" in refusal(capsys, "plot", tmp_path)


@pytest.mark.parametrize("name", ["learner", "preset", "options", "dataset", "seed", "lookahead"])
@pytest.mark.parametrize("form", [3, 4, 5])
def test_settings_that_lack_a_field_are_one_sentence(tmp_path, name, form):
    values = json.loads((KEPT / "finished" / "spr" / "settings.json").read_text()) if form < 5 else to_json(tiny())
    del values[name]
    (tmp_path / "settings.json").write_text(json.dumps(values | {"format": form}))
    with pytest.raises(UserError, match=name):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(("learner", "option", "value"), [("self-replay", "filter", "aum"), ("mir", "candidates", 5)])
def test_options_that_the_command_line_refuses_are_refused_in_a_file(tmp_path, learner, option, value):
    values = to_json(resolve(dataset="digits", learner=learner, device="cpu"))
    values["options"][option] = value
    (tmp_path / "settings.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=option):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("learner", registry.names())
@pytest.mark.parametrize("preset", ["default", "demo", "paper"])
def test_settings_as_they_were_written_are_read(tmp_path, learner, preset):
    for more in ({"noise": "none"}, {"noise_rate": 0.0}, {"episode": "C", "seed": -(10**20), "budget": 0.1}):
        settings = resolve(dataset="digits", learner=learner, preset_name=preset, device="cpu", **more)
        (tmp_path / "settings.json").write_text(json.dumps(to_json(settings)))
        assert RunDirectory.open(tmp_path)[1] == settings


def test_a_run_of_a_gpu_is_read_without_one(tmp_path):
    settings = replace(tiny(), device="cuda", precision="bf16", lookahead=64)
    (tmp_path / "settings.json").write_text(json.dumps(to_json(settings)))
    assert RunDirectory.open(tmp_path)[1] == settings
    assert experiments.changed_options(settings) == {name: int(value) for name, value in SMALL.items()}


@pytest.mark.parametrize(
    "options", [["--noise", "loud"], ["--noise-rate", "1.5"], ["--episode", "Z"], ["--noise", "superclass"]]
)
def test_the_command_line_refuses_them_before_it_loads_data(tmp_path, capsys, monkeypatch, options):
    monkeypatch.setattr(running, "load", lambda *_: pytest.fail("the data were loaded"))
    refusal(capsys, "run", "--dataset", "digits", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_setting_is_not_given_two_values(tmp_path, capsys):
    """Before: the last one was used without a word."""
    twice = ["--set", "delayed_size=7", "--set", "delayed_size = 600"]
    said = refusal(capsys, "run", "--dataset", "digits", *twice, "--out", tmp_path / "run")
    assert "--set delayed_size is given as 7 and as 600: leave one of them out." in said
    said = refusal(capsys, "learn", tmp_path, *twice, "--state", tmp_path / "state")
    assert "--set delayed_size is given as 7 and as 600" in said
    assert overrides(["hidden=8", "hidden = 8", "crs.hidden=9"]) == {"hidden": "8", "crs.hidden": "9"}


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_can_be_used_after_a_kill_at_any_moment(tmp_path):
    """SIGKILL at random moments of the first seconds: the folder is free or holds a run, and ends the same."""
    long = small_options(expert_epochs=100)
    whole = tmp_path / "whole"
    assert subprocess.run(command("run", *long, "--out", whole), env=ENVIRONMENT, check=False).returncode == 0
    moments, hits = random.Random(0), 0
    for i in range(5):
        path = tmp_path / f"killed-{i}"
        for _ in range(6):
            call = (
                command("resume", path) if (path / "settings.json").exists() else command("run", *long, "--out", path)
            )
            process = subprocess.Popen(
                call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
            )
            if moments.random() < 0.5:  # right after a file appears
                deadline = time.monotonic() + 30
                while process.poll() is None and not (path / "settings.json").exists() and time.monotonic() < deadline:
                    time.sleep(0.001)
            try:
                _, error = process.communicate(timeout=moments.uniform(0.0, 4.0))
                assert process.returncode == 0, error
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                hits += 1
        call = command("resume", path) if (path / "settings.json").exists() else command("run", *long, "--out", path)
        done = subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert done.returncode == 0, done.stderr
        assert measured(path) == measured(whole)
        assert (path / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
        assert not list(path.rglob("*.part"))
    assert hits >= 15


@pytest.mark.slow
def test_many_processes_started_at_once_leave_one_run(tmp_path):
    for i in range(4):
        out = tmp_path / str(i)
        many = [
            subprocess.Popen(
                command("run", *OPTIONS, "--seed", str(seed), "--out", out),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=ENVIRONMENT,
            )
            for seed in range(4)
        ]
        errors = [process.communicate(timeout=300)[1] for process in many]
        codes = [process.returncode for process in many]
        assert sorted(codes) == [0, 2, 2, 2], errors
        assert all(len(e.strip().splitlines()) == 1 for e, code in zip(errors, codes, strict=True) if code)
        seed = codes.index(0)
        assert measured(out)["seed"] == seed == json.loads((out / "settings.json").read_text())["seed"]
        running.run(tiny(seed=seed), tmp_path / f"alone-{i}")
        assert measured(out) == measured(tmp_path / f"alone-{i}")
