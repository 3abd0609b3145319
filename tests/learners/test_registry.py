"""The registry of learners: a new learner needs one file and one call, and then works everywhere."""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_contract
import toy_learner
from typer.testing import CliRunner

from purereplay.cli import app
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate import running
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry

FAST = ["--learner", "toy", "--preset", "demo", "--device", "cpu", "--set", "hidden=16", "--set", "echo=3"]


@pytest.fixture
def toy() -> Iterator[registry.Entry]:
    with registry.registered(toy_learner.ENTRY) as entry:
        yield entry


def call(*arguments: str | Path) -> str:
    """Run a command in this process and return its output."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def measured(path: Path) -> dict:
    result = json.loads((path / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "digest")}


def test_a_new_learner_runs_through_every_command(toy, tmp_path):
    assert "accuracy at the end" in call("run", *FAST, "--out", tmp_path / "run")
    result = measured(tmp_path / "run")
    assert (
        result["learner"] == "toy" and result["changed"] == {"hidden": 16, "echo": 3} and 0 <= result["accuracy"] <= 1
    )
    shown = call("sweep", *FAST, "--seed", "1,2", "--out", tmp_path / "sweep")
    assert "seed-1" in shown and "seed-2" in shown and "failed" not in shown
    compared = call("compare", *sorted((tmp_path / "sweep").iterdir()))
    assert "toy, demo, hidden=16, echo=3" in compared and "±" in compared
    assert "online" in call("estimate", *FAST)
    listed = call("settings", "toy")
    assert "echo" in listed and "times that each sample counts" in listed and "this test" in listed


def test_a_new_learner_is_resumed_to_the_same_result(toy, tmp_path):
    settings = resolve(dataset="digits", learner="toy", preset_name="demo", device="cpu", overrides={"hidden": "16"})
    running.run(settings, tmp_path / "whole")

    class Impatient(running.Observer):
        n = 0

        def measured(self, experiment, line) -> None:
            Impatient.n += 1
            if Impatient.n == 3:
                raise Interrupted("Stopped.")

    with pytest.raises(Interrupted):
        running.run(settings, tmp_path / "stopped", Impatient())
    assert not (tmp_path / "stopped" / "result.json").exists()
    call("resume", tmp_path / "stopped")
    assert measured(tmp_path / "stopped") == measured(tmp_path / "whole")


CHECKS = {
    name: check
    for name, check in vars(test_contract).items()
    if name.startswith("test_") and list(inspect.signature(check).parameters) == ["name"]
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_new_learner_passes_the_contract_suite(toy, check):
    if check == "test_what_trains_for_a_test_is_kept_until_something_changes":
        pytest.skip("an online learner trains nothing for a test")
    CHECKS[check]("toy")


def test_names_are_unique_and_unknown_ones_are_listed(toy):
    with pytest.raises(UserError, match="already a learner named 'toy'"):
        registry.register(toy_learner.ENTRY)
    with pytest.raises(UserError, match=r"'nobody' is unknown: choose one of spr, .*, toy\."):
        registry.entry("nobody")


@pytest.mark.parametrize("name", registry.names())
def test_entries_agree_with_their_settings(name):
    entry = registry.entry(name)
    assert entry.name == name
    assert entry.takes_robust_loss == ("robust" in entry.settings.__dataclass_fields__)
    assert set(entry.fixed) <= set(entry.settings.__dataclass_fields__)
    for values in entry.settings.presets.values():
        assert set(values) <= set(entry.settings.__dataclass_fields__)


def test_names_are_listed_without_loading_a_learner():
    code = """
import sys
from purereplay.learners.registry import names
assert len(names()) >= 10
loaded = [m for m in sys.modules if m.startswith("purereplay.learners.") and m != "purereplay.learners.registry"]
assert not loaded and "torch" not in sys.modules, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
