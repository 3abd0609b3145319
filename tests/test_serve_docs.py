"""docs/serve.md and docs/export.md: their commands run, and their numbers are those of the result files."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).parent.parent
SERVE, EXPORT = ((ROOT / "docs" / name).read_text() for name in ("serve.md", "export.md"))


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def photos(tmp_path) -> Path:
    """A folder of 150 digits, two more of them, and a command `purereplay` that runs this code."""
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)
    for folder, rows in (("photos", range(150)), ("checked", range(150, 180))):
        for i in rows:
            path = tmp_path / folder / str(digits.target[i]) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i]).save(path)
    Image.fromarray(images[200]).save(tmp_path / "photo.png")
    Image.fromarray(images[201]).save(tmp_path / "other.png")
    program = tmp_path / "bin" / "purereplay"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m purereplay.cli "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def run(commands: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None or os.name == "nt", reason="needs curl")
def test_every_command_from_photos_to_a_served_model_runs(photos):
    install, learn, serve, predict, teach, look, export = blocks(SERVE, "sh")
    assert "purereplay[web,export]" in install
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert "labels rejected" in run(learn, photos)
    call = ["bash", "-c", f"exec {serve.strip()} --port {port}"]
    server = subprocess.Popen(call, cwd=photos, env=environment(photos))
    try:
        health = f"curl -fs http://127.0.0.1:{port}/health"
        run(f"for i in $(seq 300); do {health} && exit 0; sleep 0.2; done; exit 1", photos)
        answer = json.loads(run(predict.replace("8491", port), photos))
        assert answer["predictions"][0]["label"] == str(load_digits().target[200])
        told = run(teach.replace("8491", port), photos)
        results = [json.loads(line)["samples"][0]["result"] for line in _objects(told)]
        assert results == ["stored", "waits for a label", "labelled"]
        assert "new_label" not in told  # the labels are those of the folder
        looked = run(look.replace("8491", port), photos)
        status, verdicts = (json.loads(text) for text in _objects(looked))
        assert status["server"]["inbox"]["unlabelled"] == 0 and status["state"]["samples"] >= 150
        assert len(verdicts["judgements"]) == 10
        assert "purereplay_requests_total" in looked
        if _has_onnx():
            assert "largest difference" in run(export, photos)
            assert (photos / "model" / "README.md").read_text().startswith("---\nlibrary_name: purereplay")
            code = blocks(EXPORT, "python")[0]
            run(f"{sys.executable} - <<'END'\n{code}\nprint(label)\nEND", photos)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def _objects(text: str) -> list[str]:
    """Return the JSON objects that follow each other in a text."""
    found, decoder = [], json.JSONDecoder()
    while text.startswith("{"):
        _, end = decoder.raw_decode(text)
        found.append(text[:end])
        text = text[end:].lstrip()
    return found


def _has_onnx() -> bool:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.slow
def test_the_commands_of_the_export_page_run(photos):
    run("purereplay learn photos --state state", photos)
    [commands] = blocks(EXPORT, "sh")
    lines = [line for line in commands.splitlines() if "onnx" not in line]  # the other page has it
    assert len(lines) == 2
    out = run("\n".join(lines), photos)
    assert out.count("model card:") == 2 and "measured" in out
    assert {path.name for path in (photos / "model-torch").iterdir()} == {"README.md", "model.pt2"}
    assert {path.name for path in (photos / "model-tensors").iterdir()} == {"README.md", "model.safetensors"}
    code = blocks(EXPORT, "python")[1]
    assert run(f"{sys.executable} - <<'END'\n{code}\nprint(label)\nEND", photos).strip() in map(str, range(10))


PARTS = ("idle_before", "training", "idle_after")  # of a result of `load`


def facts(name: str) -> dict:
    return json.loads((ROOT / "results" / "serve" / f"{name}.json").read_text())


def result(name: str) -> dict:
    return facts(name)["result"]


def test_the_numbers_of_the_server_are_those_of_the_result_files():
    assert result("kills")["acknowledged_and_missing"] == result("kills")["stored_twice"] == 0
    assert f"{result('kills')['acknowledged']:,} samples acknowledged, none missing, none twice" in SERVE
    swaps = result("swaps")
    assert swaps["predict"]["errors"] == 0 and swaps["swaps"] == 100
    assert f"{swaps['predict']['requests']:,} predictions, no error" in SERVE
    for run_ in ("load-1", "load-2", "load-3"):
        found = result(run_)
        assert found["samples_at_the_end"] == found["samples_expected"]
        training, parts = found["training"], (found["idle_before"], found["training"], found["idle_after"])
        assert training["predict"]["errors"] == training["learn"]["errors"] == 0
        times = " | ".join(f"{part['predict']['p50_ms']:.0f} / {part['predict']['p99_ms']:.0f}" for part in parts)
        assert f"| {times} | {training['predict']['requests']:,} | {training['learn']['requests']:,} |" in SERVE


def test_the_load_and_the_cost_of_training_are_those_of_the_result_files():
    text = " ".join(SERVE.split())
    before = {name: facts(name)["load_average_before"] for name in ("kills", "swaps", "load-1", "load-2", "load-3")}
    assert f"the kills (load average {before['kills']:.1f} before) and the swaps ({before['swaps']:.1f})" in text
    loads = [before[f"load-{i}"] for i in (1, 2, 3)]
    assert f"(load average {min(loads):.1f} to {max(loads):.1f} before)" in text
    rows = [[result(f"load-{i}")[part]["predict"]["p99_ms"] for part in PARTS] for i in (1, 2, 3)]
    assert f"is {_listed(f'{now / idle:.1f}' for idle, now, _ in rows)} times that before" in text
    assert max(now / idle for idle, now, _ in rows) < 1.5
    ends = [(result(f"load-{i}")["samples_at_the_start"], result(f"load-{i}")["samples_at_the_end"]) for i in (1, 2, 3)]
    assert set(ends) == {(5000, 6180)} and "has 5,000 samples before and 6,180 after" in text


def _listed(values: Iterable[str]) -> str:
    *first, last = values
    return f"{', '.join(first)} and {last}"


def test_the_numbers_of_the_memory_are_those_of_the_result_files():
    for name, found in result("memory").items():
        answers = ", ".join(f"{n} × {status}" for status, n in found["statuses"].items())
        assert f"| {name} | {found['peak_mib']:,} | {answers} |" in SERVE
        assert found["peak_mib"] < 2000 and set(found["statuses"]) <= {"200", "202", "400", "503"}
    [before] = result("memory-before").values()
    assert f"took {before['peak_mib']:,} MiB" in SERVE


def test_the_numbers_of_the_export_are_those_of_the_result_file():
    for name, found in result("export").items():
        assert found["largest_difference"] <= 1e-4 and found["other_label"] == 0
        estimated = found["estimated_accuracy"]
        shown = "–" if estimated is None else "{:.0f} ({:.0f} to {:.0f})".format(*(100 * x for x in estimated))
        assert f"| {name} | {found['largest_difference']:.1e} | {100 * found['accuracy']:.0f} | {shown} |" in EXPORT
