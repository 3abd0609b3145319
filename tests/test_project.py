"""The files around the code: continuous integration, hooks, citation and the Makefile's help agree with each other."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import purereplay

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = dict(re.findall(r"^([a-z][a-z-]*):(?!=)([^#\n]*)", MAKEFILE, re.MULTILINE))  # name -> what it depends on


def parsed(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text())


def target_of(command: str) -> str:
    """`make lint VENV=...` → lint; any other command is an error."""
    make, target, *_ = command.split()
    assert make == "make" and target in TARGETS, f"{command!r} calls no target of the Makefile"
    return target


def test_workflow_runs_the_commands_of_ci_run_on_the_oldest_supported_python_and_a_newer_one():
    workflow = parsed(".github/workflows/ci.yml")
    assert {"push", "pull_request"} <= set(workflow[True])  # YAML 1.1 reads the key `on` as true
    job = workflow["jobs"]["check"]
    [docs] = [target_of(step["run"]) for step in workflow["jobs"]["docs"]["steps"] if "run" in step]
    assert docs == "docs" and len(workflow["jobs"]) == 2
    steps = [target_of(step["run"]) for step in job["steps"] if "run" in step]
    local = [target_of(line) for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make")]
    assert steps == local == ["lint", "test"]
    versions = job["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.13"]  # text: as a number, 3.10 would be 3.1
    assert PROJECT["requires-python"] == f">={versions[0]}"
    [python] = [step["with"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert python["python-version"] == "${{ matrix.python }}"


def test_hooks_are_the_steps_of_make_lint_and_need_no_download():
    [repository] = parsed(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    assert [target_of(hook["entry"]) for hook in repository["hooks"]] == TARGETS["lint"].split()
    assert not any(hook["pass_filenames"] for hook in repository["hooks"])  # make would take them for targets


def test_citation_names_this_version_and_the_paper():
    citation = parsed("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]
    assert (citation["type"], citation["version"]) == ("software", purereplay.__version__)
    assert citation["license"] == PROJECT["license"] and citation["keywords"] == PROJECT["keywords"]
    paper = citation["preferred-citation"]
    assert paper["title"] == "Continual Learning on Noisy Data Streams via Self-Purified Replay"
    assert (paper["type"], paper["year"]) == ("conference-paper", 2021)
    names = ["Chris Dongjoo Kim", "Jinseo Jeong", "Sangwoo Moon", "Gunhee Kim"]
    assert [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]] == names


def test_security_policy_names_no_invented_address():
    text = (ROOT / "SECURITY.md").read_text()
    assert "private vulnerability reporting" in text and not re.search(r"\w@\w", text)


def test_help_lists_every_target_with_a_description():
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert set(described) == set(TARGETS)
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE)
    assert phony and set(phony.group(1).replace("\\", "").split()) == set(TARGETS)


TOOLS = [*PROJECT["optional-dependencies"]["dev"], *PROJECT["optional-dependencies"]["docs"]]


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_every_development_tool_has_an_exact_version(name):
    bare = re.split(r"[<>=;\[]", name)[0].lower()
    if bare == "triton":  # PyTorch's CUDA builds bring their own
        return
    pins = [line.lower() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert any(pin.startswith(f"{bare}==") for pin in pins)
