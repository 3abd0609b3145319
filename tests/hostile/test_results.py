"""Files that are no results, lack of memory, and standard output that is full, closed or of another encoding."""

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from purereplay import cli
from purereplay.cli import main
from purereplay.errors import UserError
from purereplay.evaluate import json_files
from purereplay.evaluate.records import read_results
from purereplay.evaluate.settings import resolve, to_json
from purereplay.report.plain import escaped, printable
from purereplay.report.terminal import out as console

KEPT = Path(__file__).parent.parent / "kept" / "0.1.0"
RESULT = json.loads((KEPT / "finished" / "spr" / "result.json").read_text())
LINES = [json.loads(line) for line in (KEPT / "finished" / "spr" / "metrics.jsonl").read_text().splitlines()]
PAPER = RESULT | {"dataset": "mnist", "preset": "default", "changed": {}}
# an empty PYTHONUNBUFFERED: what fails to be written stays buffered, as on most machines
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": ""}
TINY = ["--dataset", "digits", "--preset", "demo", "--device", "cpu", "--learner", "finetune", "--set", "hidden=4"]


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


@pytest.fixture(autouse=True)
def speaking_console():
    """A console that met a closed pipe stays silent until its process ends."""
    yield
    console.quiet = False


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished run."""
    shutil.copytree(KEPT / "finished" / "spr", tmp_path / "run")
    return tmp_path / "run"


def without(values: dict, name: str) -> dict:
    return {key: value for key, value in values.items() if key != name}


# --- files that are no results ---------------------------------------------------------------------------------------

NO_JSON_OBJECT = {
    "nothing": b"",
    "a space": b" ",
    "a list": b"[]",
    "a list of results": json.dumps([RESULT]).encode(),
    "a number": b"3",
    "a huge number": b"9" * 5000,
    "text": b'"accuracy"',
    "null": b"null",
    "true": b"true",
    "cut": json.dumps(RESULT).encode()[:-20],
    "NaN": b'{"accuracy": NaN}',
    "infinity": b'{"accuracy": Infinity}',
    "deep": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "bytes": bytes(range(256)),
    "zeros": bytes(1000),
    "UTF-16": json.dumps(RESULT).encode("utf-16"),
}
WRONG_VALUES = [
    ("learner", None),
    ("learner", []),
    ("learner", {}),
    ("noise", 3),
    ("noise_rate", "0.4"),
    ("noise_rate", [0.4]),
    ("noise_rate", 40),
    ("seed", "1"),
    ("seed", [1]),
    ("seed", 1.5),
    ("accuracy", "high"),
    ("accuracy", [0.5]),
    ("accuracy", 91.5),
    ("accuracy", -0.1),
    ("accuracy", True),
    ("accuracy", None),
    ("accuracy", 10**400),
    ("changed", []),
    ("changed", "nothing"),
    ("preset", []),
    ("preset", 7),
    ("robust", []),
    ("filter", {}),
    ("graphs", []),
    ("budget", "1"),
    ("budget", []),
    ("episode", []),
    ("dataset", {}),
    ("judged_on", 1),
]


@pytest.mark.parametrize("content", NO_JSON_OBJECT.values(), ids=NO_JSON_OBJECT)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "run/result.json"])
def test_paper_on_what_is_no_json_object_names_the_file(tmp_path, capsys, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    said = refusal(capsys, "paper", path.parent if path.name == "result.json" else path)
    assert str(path) in said or (name == "a.jsonl" and content == b"" and "finished run" in said)
    assert len(said) < 400


@pytest.mark.parametrize(("name", "value"), WRONG_VALUES, ids=str)
def test_paper_on_results_with_wrong_values_names_file_and_value(tmp_path, capsys, name, value):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(PAPER | {name: value}))
    said = refusal(capsys, "paper", path)
    assert f"{path} holds no result of a run: {name} must be" in said
    assert len(said) < 400


@pytest.mark.parametrize("name", ["learner", "noise", "noise_rate", "seed"])
def test_paper_on_results_that_lack_a_value_names_it(tmp_path, capsys, name):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(PAPER) + "\n" + json.dumps(without(PAPER, name)) + "\n")
    assert f"{path} holds no result of a run: {name} is missing" in refusal(capsys, "paper", path)


def test_paper_skips_learners_and_losses_that_the_paper_does_not_have(tmp_path):
    for other in ({"learner": "of-my-own"}, {"learner": "crs", "robust": "new"}, {"preset": "of-my-own"}):
        (tmp_path / "a.json").write_text(json.dumps(PAPER | other))
        assert called("paper", tmp_path / "a.json") == 2
    (tmp_path / "a.json").write_text(json.dumps(PAPER))
    assert called("paper", tmp_path / "a.json") == 0


@pytest.mark.parametrize("content", NO_JSON_OBJECT.values(), ids=NO_JSON_OBJECT)
def test_compare_resume_and_sweep_on_what_is_no_result_name_the_file(run, capsys, content):
    (run / "result.json").write_bytes(content)
    for verb in ("compare", "resume", "paper"):
        assert str(run / "result.json") in refusal(capsys, verb, run)


@pytest.mark.parametrize("value", ["high", [0.5], {}, True, 10**400, 91.5])
@pytest.mark.parametrize("measure", ["accuracy", "purity", "filtered_noise", "forgetting"])
def test_compare_on_wrong_values_names_them(run, capsys, measure, value):
    (run / "result.json").write_text(json.dumps(RESULT | {measure: value}))
    said = refusal(capsys, "compare", run, "--measure", measure)
    assert str(run / "result.json") in said and f"{measure} must be" in said


@pytest.mark.parametrize("name", RESULT)
def test_a_result_that_lacks_a_value_is_shown_or_refused_in_one_sentence(run, capsys, name):
    (run / "result.json").write_text(json.dumps(without(RESULT, name)))
    code = called("resume", run)
    said = capsys.readouterr()
    if name in ("changed", "preset"):  # without them it is the result of other settings
        assert "settings.json and result.json" in said.err
    else:
        assert code == 0 if "accuracy at the end" in said.out else f"{name} is missing" in said.err


@pytest.mark.parametrize("name", ["learner", "dataset", "noise", "noise_rate", "seed", "accuracy"])
def test_a_result_without_what_every_result_has_is_refused_everywhere(run, tmp_path, capsys, name):
    (run / "result.json").write_text(json.dumps(without(RESULT, name)))
    out = ("--out", tmp_path / "a.svg")
    said = f"holds no result of a run: {name} is missing."
    for call in (["compare", run], ["compare", run.parent], ["plot", run, run, *out], ["paper", run], ["resume", run]):
        assert f"{run / 'result.json'} {said}" in refusal(capsys, *call)
    (tmp_path / "a.json").write_text(json.dumps(without(RESULT, name)))
    for call in (["compare", tmp_path / "a.json"], ["plot", tmp_path / "a.json", *out], ["paper", tmp_path / "a.json"]):
        assert f"{tmp_path / 'a.json'} {said}" in refusal(capsys, *call)


def test_an_empty_result_is_no_finished_run(tmp_path, capsys):
    arguments = ["sweep", *TINY, "--seed", "1,2", "--out", tmp_path / "many"]
    assert called(*arguments) == 0
    path = tmp_path / "many" / "seed-1" / "result.json"
    path.write_text("{}")
    capsys.readouterr()
    for call in (arguments, ["compare", path.parent], ["compare", tmp_path / "many"], ["resume", path.parent]):
        assert f"{path} holds no result of a run: learner is missing." in refusal(capsys, *call)


def test_a_result_of_another_run_is_refused_everywhere(tmp_path, capsys):
    arguments = ["sweep", *TINY, "--seed", "1,2", "--out", tmp_path / "many"]
    assert called(*arguments) == 0
    one, two = tmp_path / "many" / "seed-1", tmp_path / "many" / "seed-2"
    shutil.copy(two / "result.json", one)
    capsys.readouterr()
    said = f"The files settings.json and result.json in {one} belong to different runs."
    out = ("--out", tmp_path / "a.svg")
    for call in (["compare", one], ["compare", one.parent], ["paper", one], ["plot", one.parent, *out]):
        assert said in refusal(capsys, *call)
    assert said in refusal(capsys, "resume", one) and said in refusal(capsys, *arguments)


@pytest.mark.parametrize("verb", ["compare", "plot", "paper"])
def test_a_path_that_does_not_exist_is_named(run, tmp_path, capsys, verb):
    more = ("--out", tmp_path / "a.svg") if verb == "plot" else ()
    said = f"{tmp_path / 'nothing'} holds no results: No such file or directory."
    for paths in ([run, tmp_path / "nothing"], [tmp_path / "nothing", run]):
        assert said in refusal(capsys, verb, *paths, *more)


@pytest.mark.parametrize("seconds", [{}, [], {"total": "x"}, {"total": None}, 3])
def test_times_of_the_wrong_kind_are_one_sentence(run, capsys, seconds):
    (run / "result.json").write_text(json.dumps(RESULT | {"seconds": seconds}))
    assert "seconds" in refusal(capsys, "resume", run)


@pytest.mark.parametrize(
    "content", [c for c in NO_JSON_OBJECT.values() if c], ids=[n for n in NO_JSON_OBJECT if n != "nothing"]
)
def test_plot_on_what_are_no_lines_names_the_file(run, capsys, content):
    (run / "metrics.jsonl").write_bytes(content)
    assert str(run / "metrics.jsonl") in refusal(capsys, "plot", run)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"event": "party"},
        {"event": []},
        {"event": "task"},
        {"event": "buffer"},
        *(LINES[-1] | {"accuracy": value} for value in ("x", None, [1], 7)),
        *(LINES[-1] | {"task_accuracies": value} for value in ("x", None, ["x"], [], [0.5], {})),
        *(LINES[-1] | {"classes": value} for value in ("x", None, [[]], 3)),
        *(LINES[0] | {"buffer": value} for value in ("x", None, -1, 10**300)),
        *(LINES[0] | {name: "x"} for name in ("noise", "passed_noise", "purity", "n_passed", "base_loss")),
    ],
    ids=lambda line: json.dumps(line)[:40],
)
def test_plot_and_resume_on_damaged_lines_are_one_sentence(run, capsys, line):
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*LINES[:-1], line]))
    assert f"{run / 'metrics.jsonl'} is damaged" in refusal(capsys, "plot", run)
    (run / "result.json").unlink()
    assert f"{run / 'metrics.jsonl'} is damaged" in refusal(capsys, "resume", run)


def test_a_damaged_line_of_metrics_is_named_by_its_number(run, capsys):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], lines[2][:-9], *lines[3:]]) + "\n")
    said = refusal(capsys, "plot", run)
    assert (
        "metrics.jsonl is damaged: line 3 cannot be read (" in said and "line 1" not in said and " at at " not in said
    )


@pytest.mark.parametrize("kept", ["-1 task", "-1 buffer", "other", "none"])
def test_plot_of_a_finished_run_compares_its_lines_with_the_result(run, capsys, kept):
    tasks = [i for i, line in enumerate(LINES) if line["event"] == "task"]
    lines = [line | ({"accuracy": 0.123} if kept == "other" and i == tasks[0] else {}) for i, line in enumerate(LINES)]
    if kept.startswith("-1"):
        del lines[tasks[-1] if kept == "-1 task" else 0]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines if kept != "none"))
    assert f"{run / 'metrics.jsonl'} and result.json belong to different runs" in refusal(capsys, "plot", run)
    (run / "result.json").unlink()
    assert called("plot", run) == (0 if kept != "none" else 2)  # what an unfinished run has is drawn


def test_an_unknown_learner_or_preset_is_refused_at_the_beginning(tmp_path, capsys):
    values = to_json(resolve(dataset="digits", device="cpu"))
    for name in ("learner", "preset"):
        (tmp_path / "settings.json").write_text(json.dumps(values | {name: "of-my-own"}))
        (tmp_path / "result.json").write_text(json.dumps(RESULT))
        for verb in ("resume", "compare", "plot"):
            said = refusal(capsys, verb, tmp_path)
            assert f"The {name} 'of-my-own' is unknown" in said and "settings.json" in said


@pytest.mark.parametrize("name", ["settings.json", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "huge", "link to nothing", "loop"])
def test_what_is_no_regular_file_or_too_large_is_one_sentence(run, capsys, monkeypatch, name, kind):
    path = run / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(json_files.MAX_LINES + 1)  # takes no space
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to(run / "nowhere")
    verb = "plot" if name == "metrics.jsonl" else "compare"
    said = refusal(capsys, verb, run)
    assert str(path) in said or "holds no run" in said or "no measurements" in said
    if kind == "huge":
        assert "MiB" in said


def test_huge_files_are_not_read_to_their_end(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"a\.jsonl holds no results: it is larger than 256 MiB"):
        read_results([path])
    with pytest.raises(ValueError, match="longer than 16 MiB"):
        json_files.parse_object(" " * (json_files.MAX_OBJECT + 1))


@pytest.mark.parametrize("verb", ["paper", "compare", "plot", "resume"])
def test_names_that_no_file_can_have_are_one_sentence(capsys, verb):
    refusal(capsys, verb, "x" * 5000)
    refusal(capsys, verb, "a/" * 3000)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        OverflowError("int too large to convert: overflow"),
        RuntimeError("value cannot be converted to type int without overflow"),
        RuntimeError("Overflow when unpacking long"),
        RuntimeError("the index exceeds the size of the memory"),
        ArithmeticError("overflow"),
    ],
)
def test_an_error_that_speaks_of_overflow_is_not_a_lack_of_memory(monkeypatch, error):
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    with patch.object(sys, "argv", ["purereplay", "settings"]), pytest.raises(type(error)) as caught:
        main()
    assert caught.value is error


def test_a_lack_of_memory_is_one_sentence(monkeypatch, capsys):
    def no_memory(*_: object) -> None:
        torch.empty(1 << 55, dtype=torch.uint8)

    def no_size(*_: object) -> None:
        torch.empty(1 << 40, 1 << 40)

    def python(*_: object) -> None:
        bytearray(1 << 62)

    for fails in (no_memory, no_size, python):
        monkeypatch.setattr(cli, "app", fails)
        assert "not enough memory" in refusal(capsys, "settings")


@pytest.mark.parametrize("size", [10**15 + 1, 10**20, 10**400])
def test_sizes_beyond_all_memory_are_named(tmp_path, capsys, size):
    said = refusal(capsys, "run", "--dataset", "digits", "--set", f"hidden={size}", "--out", tmp_path / "run")
    assert "The setting hidden must be at most 1e+15" in said


# --- standard output -------------------------------------------------------------------------------------------------

full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def commands(run: Path, tmp_path: Path) -> dict[str, list[str | Path]]:
    (tmp_path / "paper.json").write_text(json.dumps(PAPER))
    return {
        "settings": ["settings"],
        "datasets": ["datasets"],
        "compare": ["compare", run],
        "paper": ["paper", tmp_path / "paper.json"],
        "plot": ["plot", run, "--out", tmp_path / "a.svg"],
        "resume": ["resume", run],
        "run": ["run", *TINY, "--out", tmp_path / "new"],
        "sweep": ["sweep", *TINY, "--seed", "1,2", "--out", tmp_path / "many"],
        "version": ["--version"],
        "help": ["--help"],
    }


NAMES = ["settings", "datasets", "compare", "paper", "plot", "resume", "run", "sweep", "version", "help"]


@full_disk
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_behind_standard_output_is_one_sentence(run, tmp_path, capsys, name):
    with Path("/dev/full").open("w") as full, redirect_stdout(full):
        said = refusal(capsys, *commands(run, tmp_path)[name])
    assert said.startswith("purereplay: Standard output cannot be written (No space left on device)")


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_pipe_behind_standard_output_ends_without_a_word(run, tmp_path, capsys, name):
    reading, writing = os.pipe()
    os.close(reading)
    closed = os.fdopen(writing, "w")
    with redirect_stdout(closed):
        assert called(*commands(run, tmp_path)[name]) == 1
    with suppress(BrokenPipeError):
        closed.close()
    assert capsys.readouterr().err == ""


def test_a_run_whose_reader_left_can_be_resumed(tmp_path, capsys):
    class Leaves(io.TextIOWrapper):
        def write(self, text: str) -> int:
            if "task 2" in text:
                raise BrokenPipeError
            return super().write(text)

    out = tmp_path / "run"
    with redirect_stdout(Leaves((tmp_path / "log").open("wb"))):
        assert called("run", *TINY, "--out", out) == 1
    assert not (out / "result.json").exists()
    assert called("resume", out) == 0 and called("run", *TINY, "--out", tmp_path / "whole") == 0
    times = ("seconds", "versions", "digest")
    left, whole = (json.loads((path / "result.json").read_text()) for path in (out, tmp_path / "whole"))
    assert {k: v for k, v in left.items() if k not in times} == {k: v for k, v in whole.items() if k not in times}


@full_disk
@pytest.mark.long
def test_the_interpreters_end_adds_nothing(tmp_path):
    """In processes of their own: what is buffered is written once more when the interpreter ends."""
    python = f"{sys.executable} -m purereplay.cli"
    for line, code in (
        (f"{python} settings | head -1", 0),
        (f"{python} settings > /dev/full", 2),
        (f"{python} settings >&-", 0),
        (f"{python} settings nobody > /dev/full 2> /dev/full", 2),
    ):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert done.returncode == code, line
        assert len(done.stderr.splitlines()) == (1 if code == 2 and "2>" not in line else 0), done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_command_prints_in_an_encoding_that_lacks_its_characters(run, tmp_path, name):
    written = io.BytesIO()
    ascii_only = io.TextIOWrapper(written, encoding="ascii", errors="strict")
    with redirect_stdout(ascii_only):
        assert called(*commands(run, tmp_path)[name]) == 0
    assert len(written.getvalue()) > 10 and written.getvalue().isascii()


@pytest.mark.parametrize(
    ("encoding", "errors"), [("ascii", "strict"), ("utf-8", "strict"), ("utf-8", "surrogateescape")]
)
@pytest.mark.parametrize(
    "name", ["é×漢", os.fsdecode(b"\xff\xfe"), "[bold]", "[/x]", "a\nb", "\x1b[31mred", "\u202etxt"]
)
def test_folders_with_any_name_are_shown(run, name, encoding, errors):
    (run.parent / name).parent.mkdir(exist_ok=True)
    folder = run.rename(run.parent / name)
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, errors=errors)
    with redirect_stdout(stream):
        assert called("resume", folder) == 0
        assert called("plot", folder) == 0
        assert called("compare", folder, "--out", folder / "bars.png") == 0
    stream.flush()
    shown = written.getvalue()
    assert b"\x1b" not in shown and "\u202e".encode() not in shown
    if name == "[bold]":
        assert b"[bold]" in shown


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "\udcff", "[/x]"])
def test_errors_about_any_name_are_one_line(tmp_path, capsys, name):
    for verb in ("resume", "plot", "paper"):
        said = refusal(capsys, verb, tmp_path / name)
        assert "\x1b" not in said and printable(name) in said


@pytest.mark.slow
def test_the_c_locale_shows_names_and_signs(run):
    folder = run.rename(run.parent / "é±")
    for environment in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
        call = [sys.executable, "-m", "purereplay.cli", "compare", str(folder)]
        done = subprocess.run(call, capture_output=True, env=ENVIRONMENT | environment, check=False)
        assert done.returncode == 0 and not done.stderr and b"accuracy" in done.stdout


def test_text_for_the_terminal():
    assert printable("a b é漢") == "a b é漢"
    assert printable("a\nb\x1b[0m\udcff\u202e") == r"a\nb\x1b[0m\udcff\u202e"
    assert escaped("[bold]x") == r"\[bold]x"
