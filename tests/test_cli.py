"""The real command line: in this process where that detects as much, in a process of its own otherwise."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

import purereplay
from purereplay.cli import main

TINY = ["--preset", "demo", "--device", "cpu"]
for setting in ("expert_epochs=3", "base_epochs=2", "finetune_epochs=2", "hidden=16"):
    TINY += ["--set", setting]
DAILY = ("learn", "predict", "audit", "correct", "status")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "purereplay.cli", *map(str, arguments)]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the entry point in this process: a process of its own first imports PyTorch for two seconds."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["purereplay", *map(str, arguments)]
    with (
        patch.dict(os.environ, ENVIRONMENT | environment),
        patch.object(sys, "argv", argv),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return subprocess.CompletedProcess(argv, int(end.value.code or 0), out.getvalue(), err.getvalue())


def run_apart(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the command in a process of its own."""
    env = ENVIRONMENT | environment
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=env, timeout=300)


def measured(path: Path) -> dict:
    result = json.loads((path / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "digest")}


def test_version_is_the_packages_own():
    assert run_apart("--version").stdout.strip() == f"purereplay {purereplay.__version__}"


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "resume",
        "sweep",
        "demo",
        "plot",
        "compare",
        "paper",
        "estimate",
        "datasets",
        "settings",
        "learn",
        "predict",
        "audit",
        "correct",
        "status",
        "review",
        "report",
        "watch",
    ],
)
def test_every_command_has_help(name):
    done = run(name, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout
    assert name in ("datasets",) or "Example" in done.stdout


@pytest.mark.long
def test_run_resume_and_plot(tmp_path):
    out = tmp_path / "run"
    done = run_apart("run", "--dataset", "digits", *TINY, "--seed", "4", "--budget", "0.5", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "accuracy at the end" in done.stdout and "budget 0.5" in done.stdout and "purity of P" in done.stdout
    assert "0.5 times the preset's self-supervised epochs" in done.stdout
    for name in ("settings.json", "metrics.jsonl", "result.json", "run.png"):
        assert (out / name).stat().st_size > 0
    again = run("resume", out)  # a finished run shows its result and is left alone
    assert again.returncode == 0 and "accuracy at the end" in again.stdout
    assert run("plot", out, "--out", tmp_path / "a.svg").returncode == 0
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    twice = run("run", "--dataset", "digits", *TINY, "--out", out)
    assert twice.returncode == 2 and "already holds a run" in twice.stderr


@pytest.mark.long
def test_demo_replaces_an_earlier_demo_and_nothing_else(tmp_path, monkeypatch):
    out = tmp_path / "demo"
    assert run("run", "--dataset", "digits", *TINY, "--out", out).returncode == 0  # stands for an earlier demo
    (out / "mine.txt").write_text("keep me")
    process = subprocess.Popen(
        command("demo", "--out", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    deadline = time.time() + 60
    while (out / "result.json").exists() and time.time() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert not (out / "result.json").exists() and (out / "mine.txt").read_text() == "keep me"
    other = tmp_path / "other"
    assert run("run", "--dataset", "digits", *TINY, "--preset", "quick", "--out", other).returncode == 0
    refused = run("demo", "--out", other)
    assert refused.returncode == 2 and "not a demo" in refused.stderr and (other / "result.json").exists()


@pytest.mark.long
def test_in_a_sweep_a_run_that_diverges_fails_alone(tmp_path):
    done = run("sweep", "--dataset", "digits", *TINY, "--set", "finetune_lr=0.002,1e15", "--out", tmp_path)
    assert done.returncode == 2 and "1 of 2 runs failed: The training of the finetune network diverged" in done.stderr
    assert (tmp_path / "finetune_lr-0.002" / "result.json").exists() and "failed" in done.stdout
    assert not (tmp_path / "finetune_lr-1e15" / "result.json").exists()


@pytest.mark.long
def test_baselines_losses_and_filters_by_their_options(tmp_path):
    few = ("--set", "hidden=8", "--set", "gdumb.epochs=2")
    baselines = ["--learner", "crs,gdumb", "--robust", "none,sl,l2r", "--preset", "demo", "--out", tmp_path / "a"]
    done = run("sweep", "--dataset", "digits", *few, *baselines)
    assert done.returncode == 0, done.stderr
    compared = run("compare", *sorted((tmp_path / "a").iterdir()))
    assert all(name in compared.stdout for name in ("crs + sl", "gdumb + l2r", "crs, demo")), compared.stdout
    short = ("--set", "aum_epochs=2", "--set", "incv_epochs=2")
    filters = ["--learner", "self-centered-filter", "--filter", "aum,incv", "--out", tmp_path / "b"]
    assert run("sweep", "--dataset", "digits", *TINY, *short, *filters).returncode == 0
    graphs = run("sweep", "--dataset", "digits", *TINY, "--graphs", "none,2", "--out", tmp_path / "c")
    assert graphs.returncode == 0 and {p.name for p in (tmp_path / "c").iterdir()} == {"graphs-0", "graphs-2"}
    wrong = run("run", "--dataset", "digits", "--robust", "sl", "--out", tmp_path / "d")
    assert wrong.returncode == 2 and "spr takes no loss against wrong labels: choose one of crs," in wrong.stderr
    twice = run("run", "--dataset", "digits", "--graphs", "3", "--set", "graphs=4", "--out", tmp_path / "d")
    assert twice.returncode == 2 and "--graphs and --set graphs set the same value" in twice.stderr


@pytest.mark.long
def test_sweep_makes_a_folder_per_combination_and_goes_on(tmp_path):
    arguments = ["sweep", "--dataset", "digits", *TINY, "--noise-rate", "0.2,0.4", "--seed", "1,2", "--out", tmp_path]
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    folders = sorted(p.name for p in tmp_path.iterdir())
    assert folders == [f"noise_rate-{rate}_seed-{seed}" for rate in ("0.2", "0.4") for seed in (1, 2)]
    assert all((tmp_path / name / "result.json").exists() for name in folders)
    (tmp_path / folders[0] / "result.json").unlink()
    again = run(*arguments)
    assert again.returncode == 0 and "3 of them already finished" in again.stdout
    assert (tmp_path / folders[0] / "result.json").exists()
    other = run(*arguments, "--set", "graphs=1")
    assert other.returncode == 2 and "other settings" in other.stderr


def test_lists():
    listed = run("datasets").stdout
    assert all(name in listed for name in ("digits", "mnist", "cifar10", "cifar100", "webvision14", "cifar10n"))
    assert "weight_decay" in run("settings", "gdumb").stdout
    assert "penultimate" in run("settings", "spr", "--preset", "paper").stdout
    shown = run("settings").stdout
    assert all(name in shown for name in ("paper", "reference", "admission", "expert_epochs"))
    assert "values: process, drop" in shown and "presets: reference drop" in shown and "…" not in shown
    assert "always none with this learner" in run("settings", "self-replay").stdout


def test_estimate():
    done = run("estimate", "--dataset", "digits", *TINY)
    assert done.returncode == 0 and "delayed buffers" in done.stdout and "MiB" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--dataset", "nonsense", "--out", "x"), "nonsense"),
        (("run", "--set", "graphs", "--out", "x"), "NAME=VALUE"),
        (("run", "--learner", "crs", "--preset", "typo", "--out", "x"), "preset 'typo' is unknown"),
        (
            ("run", "--learner", "crs", "--set", "gdumb_rate=3", "--out", "x"),
            "'gdumb_rate' is unknown to the learner crs",
        ),
        (("settings", "nobody"), "learner 'nobody' is unknown"),
        (("run", "--noise", "loud", "--out", "x"), "loud"),
        (("run", "--noise-rate", "1.5", "--out", "x"), "1.5"),
        (("run", "--episode", "Z", "--out", "x"), "'Z'"),
        (("resume", "nowhere"), "holds no run"),
        (("plot", "nowhere"), "nowhere holds no results: No such file or directory."),
    ],
)
def test_errors_are_one_sentence_and_exit_code_2(arguments, sentence, tmp_path):
    with chdir(tmp_path):
        done = run(*arguments)
    assert done.returncode == 2 and sentence in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()  # nothing is left behind


@pytest.mark.long
def test_debug_shows_the_traceback():
    done = run_apart("resume", "nowhere", "--debug")
    assert done.returncode != 0 and "Traceback" in done.stderr


@pytest.mark.long
def test_data_that_is_not_there_says_which_file_to_put_where(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PUREREPLAY_DATA": str(tmp_path), "HOME": str(tmp_path)}
    done = run_apart("run", "--dataset", "webvision14", "--out", tmp_path / "run", **environment)
    assert done.returncode == 2 and "info" in done.stderr and len(done.stderr.strip().splitlines()) == 1


SOME_SECONDS = ["--dataset", "digits", *("expert_epochs=150" if own == "expert_epochs=3" else own for own in TINY)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing interrupts."""
    path = tmp_path_factory.mktemp("uninterrupted") / "whole"
    assert run_apart("run", *SOME_SECONDS, "--out", path).returncode == 0
    return path


@pytest.mark.long
def test_ctrl_c_ends_with_a_checkpoint_and_says_how_to_go_on(whole, tmp_path):
    stopped = tmp_path / "stopped"
    process = subprocess.Popen(
        command("run", *SOME_SECONDS, "--out", stopped),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    deadline = time.time() + 60
    while not (stopped / "metrics.jsonl").exists() and time.time() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2 and f"purereplay resume {stopped}" in error and "Traceback" not in error
    assert list((stopped / "checkpoints").glob("*.safetensors"))
    assert not (stopped / "result.json").exists()
    done = run_apart("resume", stopped)
    assert done.returncode == 0 and measured(stopped) == measured(whole)


def kill_and_resume(path: Path, arguments: list[str], n_kills: int, longest: float, seed: int) -> int:
    """Start, SIGKILL after a random time, resume, SIGKILL again …; returns how many kills hit a running process."""
    moments, hits = random.Random(seed), 0
    first = command("run", *arguments, "--out", path)
    for _ in range(n_kills):
        call = command("resume", path) if (path / "settings.json").exists() else first
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        try:
            _, error = process.communicate(timeout=moments.uniform(0.5, longest))
            assert process.returncode == 0, error
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            hits += 1
    call = command("resume", path) if (path / "settings.json").exists() else first
    done = subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return hits


@pytest.mark.long
def test_killed_and_resumed_it_ends_the_same(whole, tmp_path):
    killed = tmp_path / "killed"
    assert kill_and_resume(killed, SOME_SECONDS, n_kills=3, longest=6.0, seed=0) >= 1
    assert measured(killed) == measured(whole)
    assert (killed / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


@pytest.mark.gpu
def test_killed_and_resumed_on_the_gpu_it_ends_the_same(tmp_path):
    arguments = ["--dataset", "digits", "--preset", "demo", "--device", "cuda"]
    assert run_apart("run", *arguments, "--out", tmp_path / "whole").returncode == 0
    killed, moments = tmp_path / "killed", random.Random(0)
    for kill in range(3):  # each in the middle of a buffer; by the clock a warm machine is done before
        call = command("resume", killed) if kill else command("run", *arguments, "--out", killed)
        process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        metrics, deadline = killed / "metrics.jsonl", time.monotonic() + 120
        before = metrics.read_text().count("\n") if metrics.exists() else 0
        while not metrics.exists() or metrics.read_text().count("\n") <= before:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        assert process.poll() is None
        process.kill()
        process.wait()
    assert run_apart("resume", killed).returncode == 0 and measured(killed) == measured(tmp_path / "whole")


@pytest.mark.slow
def test_twenty_kills_of_a_demo_run(tmp_path):
    """Twenty SIGKILLs at random moments, each resumed, spread over runs of the demo: every end equals the first."""
    demo = ["--dataset", "digits", "--preset", "demo", "--device", "cpu"]
    assert run_apart("run", *demo, "--out", tmp_path / "whole").returncode == 0
    total = json.loads((tmp_path / "whole" / "result.json").read_text())["seconds"]["total"]
    hits = 0
    for i in range(10):
        if hits >= 20:
            break
        path = tmp_path / f"killed-{i}"
        hits += kill_and_resume(path, demo, n_kills=4, longest=4 + total / 2, seed=i)
        assert measured(path) == measured(tmp_path / "whole")
    assert hits >= 20


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--dataset", "digits", "--learner", "finetune", "--preset", "demo", "--device", "cpu", "--out", "run"],
        ["predict", "picture.png", "--state", "state", "--device", "cpu"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_tiny_numbers_count_as_nothing_in_every_thread(arguments, tmp_path):
    code = f"""
import sys, torch
from purereplay.cli import main
sys.argv = ["purereplay", *{arguments}]
try:
    main()
except SystemExit:
    pass
tiny = torch.full((1_000_000,), 1e-30).mul(1e-10)  # on all threads
torch.set_flush_denormal(False)  # reading them would flush as well
assert torch.get_num_threads() == 2 and not tiny.mul(1e20).any()
"""
    environment = ENVIRONMENT | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_does_not_wait_for_pytorch():
    code = "import sys, purereplay.cli; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


def test_help_texts_have_no_brackets_that_the_terminal_would_take_as_markup():
    import re

    from typer.main import get_command

    from purereplay.cli.app import app

    for name, command in get_command(app).commands.items():
        texts = [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
        for text in texts:
            assert not re.search(r"\[/?[a-z][^\]]*\]", text), (name, text)


def test_no_line_of_a_help_text_is_wrapped_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["purereplay", "learn", "--help"])
    with pytest.raises(SystemExit):
        main()
    lines = [line.strip() for line in capsys.readouterr().out.split("Options")[0].splitlines()]
    text = lines[next(i for i, line in enumerate(lines) if line.startswith("Images may")) :]
    paragraph = text[: text.index("")]
    assert len(paragraph) > 3 and all(len(line) > 60 for line in paragraph[:-1])  # no stub between full lines
    assert (
        "purereplay learn photos --state state --dry-run" in lines and "purereplay learn photos --state state" in lines
    )
