"""The built wheel is complete: every file of the package is inside, and it runs away from the source tree."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import purereplay

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "purereplay"
TINY = ["--preset", "demo", "--device", "cpu"]
for setting in ("expert_epochs=1", "base_epochs=1", "finetune_epochs=1", "hidden=8"):
    TINY += ["--set", setting]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel as `make wheel` builds it; no download."""
    folder = tmp_path_factory.mktemp("dist")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *map(str, options), str(ROOT)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    return path


def without_source(**more: str) -> dict[str, str]:
    """The environment without anything that could lead to the source tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"} | more


def test_wheel_holds_every_file_of_the_package(wheel):
    ours = {p.relative_to(ROOT / "src").as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in inside if name.startswith("purereplay/")} == ours
    [metadata] = {name.partition("/")[0] for name in inside if not name.startswith("purereplay/")}
    assert metadata == f"purereplay-{purereplay.__version__}.dist-info"
    assert f"{metadata}/licenses/LICENSE" in inside
    assert b"purereplay = purereplay.cli:main" in zipfile.ZipFile(wheel).read(f"{metadata}/entry_points.txt")


@pytest.mark.long
def test_unpacked_wheel_runs_without_the_source_tree(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(site)
    elsewhere.mkdir()

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=elsewhere,
            env=without_source(PYTHONPATH=str(site)),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(python("-c", "import purereplay; print(purereplay.__file__)").strip()).is_relative_to(site)
    cli = ("-m", "purereplay.cli")
    assert python(*cli, "--version").strip() == f"purereplay {purereplay.__version__}"
    assert "accuracy at the end" in python(*cli, "run", "--dataset", "digits", *TINY, "--out", "run")
    run = {"dataset": "mnist", "noise": "symmetric", "noise_rate": 0.4, "seed": 1, "learner": "crs", "robust": "none"}
    usual = {"accuracy": 0.5, "judged_on": "test", "episode": "A", "preset": "default", "changed": {}, "budget": 1.0}
    (elsewhere / "runs.jsonl").write_text(json.dumps(run | usual) + "\n")
    assert "symmetric 40" in python(*cli, "paper", "runs.jsonl", "--markdown")  # reads paper/numbers.csv


@pytest.mark.slow
def test_demo_runs_from_the_wheel_in_a_new_environment(wheel, tmp_path):
    """Only the wheel and its dependencies, none of the development tools."""
    clean = without_source()
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, env=clean)
    bin = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([str(bin / "python"), *install, str(wheel)], check=True, env=clean)
    done = subprocess.run([str(bin / "purereplay"), "demo"], cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / "demo" / "result.json").read_text())
    assert result["accuracy"] > 0.8 and result["purity"] > 0.9
    assert (tmp_path / "runs" / "demo" / "compared.png").stat().st_size > 0
