"""The measurements of the review page: those of the documents are those of the result files."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from review_page import CHROMIUM

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "results" / "review"
TEXT = (ROOT / "docs" / "review.md").read_text()


def read(name: str):
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_reviewing_digits():
    runs = read("digits")
    assert [run["seed"] for run in runs] == [1, 2, 3]
    for run in runs:
        assert run["decisions"] == run["labels_right"] == 100 and run["state_holds_exactly_these"]
        assert run["decided_after_undo"] == "40 of 1,500 scored" and run["console_errors_and_other_hosts"] == []
    before, after = (100 * np.array([run[f"accuracy_{when}"] for run in runs]) for when in ("before", "after"))
    assert after.mean() > before.mean()
    for name, values in {"before reviewing": before, "after 100 decisions": after}.items():
        assert f"| accuracy on `new`, {name} | {values.mean():.1f} ± {values.std(ddof=1):.1f} % |" in TEXT
    assert f"| wrong labels among the 100 | {np.mean([run['were_wrong'] for run in runs]):.0f} |" in TEXT


def test_reviewing_digits_with_the_default_learner():
    runs = read("digits-full-memory")
    assert [run["seed"] for run in runs] == [1, 2, 3] and all(run["labels_right"] == 100 for run in runs)
    before, after = (100 * np.array([run[f"accuracy_{when}"] for run in runs]) for when in ("before", "after"))
    told = [f"{values.mean():.1f} ± {values.std(ddof=1):.1f} %" for values in (before, after)]
    assert f"{told[0]} before and {told[1]} after" in " ".join(TEXT.split())


def test_reviewing_a_few_digits_with_the_default_learner():
    runs = read("digits-full-memory-300")
    assert [run["seed"] for run in runs] == [1, 2, 3] and all(run["samples"] == 300 for run in runs)
    for run in runs:
        assert run["decisions"] == run["labels_right"] == 100 and run["state_holds_exactly_these"]
        assert run["accuracy_after"] > run["accuracy_before"] and run["console_errors_and_other_hosts"] == []
    before, after = (100 * np.array([run[f"accuracy_{when}"] for run in runs]) for when in ("before", "after"))
    told = [f"{values.mean():.1f} ± {values.std(ddof=1):.1f} %" for values in (before, after)]
    assert f"{told[0]} before and {told[1]} after" in " ".join(TEXT.split())
    assert f"{runs[0]['were_wrong']} of them with a wrong label" in " ".join(TEXT.split())


def test_what_a_reviewer_buys():
    for row in read("gain"):
        values = 100 * np.array(list(row["accuracy"].values()))
        assert values.shape == (8, 4)
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(values.mean(0), values.std(0, ddof=1), strict=True)]
        assert f"| {row['samples']:,} | {100 * row['wrong']:.0f} % | {' | '.join(cells)} |" in TEXT


def test_the_first_corrected_label():
    found = read("first")
    assert found["was_wrong"] and found["corrected_to_the_true_label"] and not found["console_errors_and_other_hosts"]
    assert f"{found['samples']:,} digits" in TEXT
    assert f"| `learn` has ended | {found['seconds_to_learn']:.0f} s |" in TEXT
    shown, saved = found["seconds_to_the_first_suggestion"], found["seconds_to_the_first_corrected_label"]
    assert f"| the first image is shown with its suggestion | {shown:.0f} s |" in TEXT
    assert f"| the first corrected label is saved | {saved / 60:.1f} minutes |" in TEXT


def test_a_large_state():
    found = read("large")
    assert found["samples"] == 100_000 and found["console_errors_and_other_hosts"] == []
    first, later = found["seconds_to_the_first_image"][0], found["ms_to_the_next_image"]
    memory = found["server_memory_mib"]
    assert max(memory[2:]) - min(memory[2:]) < 0.1 * memory[2]  # flat, once the classifier is there
    assert f"| first image of the first visit | {first:.1f} s |" in TEXT
    times = f"{later['median']:.0f} ms, {later['largest']:.0f} ms"
    assert f"| next image, median and largest of {found['decisions']} | {times} |" in TEXT
    assert f"| memory of the server | {memory[2]:,} to {memory[-1]:,} MiB |" in TEXT


def test_a_large_report():
    found = read("report")
    assert found["buffers"] == 200 and found["gallery_images"] == 1000
    assert (
        found["megabytes"] < 8 and max(found["seconds_to_open"]) < 2 and found["console_errors_and_other_hosts"] == []
    )
    opened = sorted(found["seconds_to_open"])
    text = (ROOT / "docs" / "report.md").read_text()
    assert f"it has {found['megabytes']:.1f} MB and opens in {opened[0]:.1f} to {opened[-1]:.1f} s" in text


def test_accessibility():
    for view, found in read("looks").items():
        assert not found["critical"] and not found["serious"] and not found["scrolls_sideways"], view


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_hundred_suspects_by_keys_alone(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    sys.modules.pop("review", None)
    from review import digits

    found = digits(tmp_path, 1, 1500)
    assert found["decisions"] == found["labels_right"] == 100 and found["state_holds_exactly_these"]
    assert found["console_errors_and_other_hosts"] == [] and found["accuracy_after"] >= found["accuracy_before"] - 0.01
