"""The notebooks run from the first cell to the last, and show what they promise."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
from notebooks import FOLDER, execute  # noqa: E402

NOTEBOOKS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.ipynb"))}


def outputs(notebook, kind):
    return [o for cell in notebook["cells"] for o in cell.get("outputs", ()) if o["output_type"] == kind]


def test_there_are_two():
    assert set(NOTEBOOKS) == {"clean-my-labels", "classes-that-come-later"}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stored(name):
    assert outputs(NOTEBOOKS[name], "stream")
    assert outputs(NOTEBOOKS[name], "display_data")
    lines = [line for cell in NOTEBOOKS[name]["cells"] for line in cell["source"]]
    assert max(map(len, lines)) <= 121  # with its end


@pytest.mark.long
def test_clean_my_labels():
    done, names = execute(NOTEBOOKS["clean-my-labels"])
    assert len(outputs(done, "display_data")) == 1
    first = names["doubtful"][:200]
    assert (names["labels"][first] != names["truth"][first]).mean() > 0.95
    assert names["before"] > 0.94
    assert names["after"] >= names["before"] - 0.01  # the standard error of an accuracy on 597 images
    assert names["clean"] > names["noisy"]


@pytest.mark.long
def test_classes_that_come_later():
    done, names = execute(NOTEBOOKS["classes-that-come-later"])
    assert len(outputs(done, "display_data")) == 1
    assert names["ours_so_far"][-1] > 0.9
    assert names["ours_so_far"][-1] > names["other_so_far"][-1] + 0.3
