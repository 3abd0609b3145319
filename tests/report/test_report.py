"""Reports: one self-contained file, with the numbers of the runs or of the state."""

import io
import json
import re
import sys
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "live"))
from tiny_state import items, tiny

from purereplay.cli import main
from purereplay.evaluate.executors import SweepOutcome
from purereplay.evaluate.inspection import rescore
from purereplay.evaluate.settings import resolve
from purereplay.nets.lockstep import Account
from purereplay.paper.beside import paper_accuracy
from purereplay.report import runs as terminal_runs
from purereplay.report.histograms import histogram
from purereplay.report.page import Tile, gallery, histograms, page, paragraph, table
from purereplay.report.run_report import Run, _curves, _grouped
from purereplay.report.sinks import Sinks
from purereplay.report.terminal import seconds_left

SMALL = ["--dataset", "digits", "--preset", "demo", "--device", "cpu", "--set", "hidden=8", "--set", "base_epochs=1"]
SMALL += ["--set", "expert_epochs=1", "--set", "finetune_epochs=1"]
EVIL = "<script>alert('x')</script>"


def call(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


class Scripts(HTMLParser):
    """Collects the scripts and the addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href") and value]
        self.scripts += [""] if tag == "script" else []

    def handle_data(self, data):
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data


def check_alone(text: str) -> None:
    """Assert that a file needs nothing else."""
    found = Scripts(text)
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    assert "default-src 'none'" in text and "@import" not in text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for seed in (1, 2):  # two seeds of one learner
            assert call(patch, "run", *SMALL, "--seed", seed, "--out", folder / f"spr-{seed}") == 0
    return folder


@pytest.mark.long
def test_runs_side_by_side(runs, monkeypatch, tmp_path):
    out = tmp_path / "report.html"
    assert (
        call(monkeypatch, "report", *sorted(runs.iterdir()), "--fixed-graphs", 3, "--device", "auto", "--out", out) == 0
    )
    text = out.read_text()
    check_alone(text)
    results = [json.loads((runs / name / "result.json").read_text()) for name in ("spr-1", "spr-2")]
    values = 100 * np.array([result["accuracy"] for result in results])
    assert f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" in text
    # the confusion is computed from the checkpoint, and gives the same accuracy
    assert set(re.findall(r"([\d.]+) % right", text)) == {f"{values[0]:.1f}"}
    # three buffers are scored again, with experts trained again, and accept what the run accepted
    [data] = [json.loads(script) for script in Scripts(text).scripts if script.startswith("{")]
    lines = [json.loads(line) for line in (runs / "spr-1" / "metrics.jsonl").read_text().splitlines()]
    passed = {line["buffer"]: line["n_passed"] for line in lines if line["event"] == "buffer"}
    found = {b["number"]: sum(cell["accepted"] for cell in b["labels"].values()) for b in data["buffers"]}
    assert list(found) == [12, 13, 14] and found == {number: passed[number] for number in found}
    assert "The filter accepts as many samples as in the run." in text
    assert text.count("<figure>") >= 5 and "not in the paper" in text and "purity" in text


@pytest.mark.long
def test_a_state(tmp_path, monkeypatch, capsys):
    state, out = tmp_path / "state", tmp_path / "state.html"
    with tiny(state, features="patches") as session:
        samples = [s._replace(label=EVIL) if i % 3 == 1 else s for i, s in enumerate(items(0, 60))]
        session.take(samples)
        session.work()
    assert call(monkeypatch, "report", "--state", state, "--out", out, "--images", 30) == 0
    text = out.read_text()
    check_alone(text)
    assert EVIL not in text and "&lt;script&gt;alert" in text
    found = Scripts(text)
    [data] = [json.loads(script) for script in found.scripts if script.startswith("{")]
    assert [b["number"] for b in data["buffers"]] == [0, 1, 2] and data["names"][1] == EVIL
    cells = [cell for b in data["buffers"] for cell in b["labels"].values()]
    assert sum(cell["n"] for cell in cells) == 60
    assert all(sum(cell["sampled"]["counts"]) == cell["n"] for cell in cells if cell["sampled"])
    assert any(cell["fixed"] for cell in cells)
    assert call(monkeypatch, "report", "--state", state, "--out", state / "state.sqlite") == 2
    assert "belongs to the state" in capsys.readouterr().err


def finished(folder: Path, *, seed: int, after_task: list[float], device: str = "cpu") -> Run:
    settings = resolve(dataset="digits", device="cpu", seed=seed)
    result = {"accuracy": after_task[-1], "accuracy_after_task": after_task, "task_accuracies": [0.5] * 3}
    return Run(folder / f"{seed}-{device}", settings, result | {"device": device, "seconds": {}}, [])


def test_a_seed_counts_once_and_only_runs_with_every_task_are_curves(tmp_path):
    tasks, end = [0.2, 0.3, 0.4], [0.4]
    runs = [finished(tmp_path, seed=1, after_task=tasks), finished(tmp_path, seed=1, after_task=tasks, device="H200")]
    runs += [finished(tmp_path, seed=2, after_task=end)]
    [members] = _grouped(runs).values()
    assert [(run.settings.seed, run.result["device"]) for run in members] == [(1, "H200"), (2, "cpu")]
    assert "(n = 1)" in _curves({"a": members}) and "<svg" not in _curves({"a": members[1:]})


@pytest.mark.long
def test_a_buffer_that_was_dropped_is_not_scored_again(tmp_path, monkeypatch):
    assert call(monkeypatch, "run", *SMALL, "--set", "tail=drop", "--out", tmp_path / "run") == 0
    assert [found.number for found in rescore(tmp_path / "run", 2, "cpu", lambda i, n: None)] == [12, 13]


def test_bad_requests(tmp_path, monkeypatch, capsys):
    assert call(monkeypatch, "report", "--out", tmp_path / "x.html") == 2
    assert "either folders of runs, or --state" in capsys.readouterr().err
    assert call(monkeypatch, "report", tmp_path, "--out", tmp_path / "x.html") == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_all_text_is_escaped():
    pixels = np.zeros((1, 4, 4), np.uint8)
    parts = [paragraph(EVIL), table((EVIL,), [(EVIL,)]), gallery([Tile(pixels, EVIL, 0.5, EVIL)])]
    text = page(EVIL, [*parts, histograms({"names": [EVIL + "</script>"], "buffers": []})])
    assert EVIL not in text and text.count("</script>") == 2


def test_a_histogram_counts_every_sample_and_its_curves_are_the_mixture():
    dice = np.random.default_rng(0)
    scores = np.concatenate([dice.normal(0.3, 0.05, 300), dice.normal(1.0, 0.05, 700)])
    found = histogram(scores)
    assert sum(found["counts"]) == 1000
    noisy, clean = (sum(v or 0 for v in curve) / 2 for curve in found["curves"])  # two points per bin
    assert 200 < noisy < 400 and 550 < clean < 800  # the outer 5 % on each side are not fitted
    assert histogram(np.ones(10)) is None and histogram(np.arange(3.0)) is None


def test_the_papers_accuracy():
    run = {"dataset": "mnist", "noise": "symmetric", "noise_rate": 0.4, "seed": 1, "learner": "spr", "robust": "none"}
    usual = {"accuracy": 0.5, "judged_on": "test", "episode": "A", "preset": "default", "changed": {}, "budget": 1.0}
    assert paper_accuracy(run | usual) == 86.7
    assert paper_accuracy(run | usual | {"preset": "demo"}) is None
    assert paper_accuracy(run | usual | {"dataset": "digits"}) is None


def test_a_phase_that_is_not_measured_yet_takes_as_long_per_image_as_the_others():
    account = Account({"base": 10.0}, {"base": 100})  # 0.1 s a step of 300 images
    total, images = {"base": 200, "finetune": 600}, {"base": 300, "finetune": 15}
    assert seconds_left(total, [account], None, images) == pytest.approx(100 * 0.1 + 600 * 0.1 * 15 / 300)
    assert seconds_left(total, [account], None) == pytest.approx(100 * 0.1 + 600 * 0.1)


def test_nothing_is_left_of_what_is_done():
    from rich.console import Console
    from rich.progress import Progress

    from purereplay.live.learn import LearnProgress
    from purereplay.report.live import LearnBars, _JudgingText
    from purereplay.report.terminal import time_left

    assert time_left(3.25, 1, 2) == time_left(3.25, 1, None) == ", 3.2 s left"
    assert time_left(0.0, 2, 2) == time_left(None, 1, 2) == ""
    bars, told = LearnBars(Progress(console=Console(quiet=True)), [], lambda values, step: None), []
    bars.lines = told.append
    for n in (250, 500):
        bars.took(LearnProgress(total=500, n_seen=n), [None] * 250)
    assert told[-1] == "added: 500 of 500"
    judging = _JudgingText()
    assert judging("writing", 0, None) == ("writing", 0, None) and judging("judging", 9, 9)[0] == "judging 9 of 9"
    assert judging("features", 5, 10)[0].startswith("judging 10 samples: 12 %, about ")
    assert judging("classifier", 3, 3)[0] == "judging 10 samples: 100 %"


def test_the_time_left_of_judging_falls_over_all_its_stages(monkeypatch):
    from purereplay.report import live

    now, judging, shares = [0.0], live._JudgingText(), []
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    work = [("features", k, 4) for k in range(4)]
    work += [(f"opinions: {kind}", 3 * k + i, 6) for k in (0, 1) for i, kind in enumerate(("kernel", "linear", "near"))]
    work += [("classifier: kernel", 0, 3), ("classifier: linear", 2, 3), ("classifier", 3, 3)]
    for name, done, total in work:
        share = judging(name, done, total)[1]
        shares.append(share)
        now[0] = 100 * share + 1e-9  # the stages cost what is expected
        if share:
            left = re.search(r"about (.*) left", judging(name, done, total)[0])
            assert share == 1 or left[1] == live.duration(100 * (1 - share))
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == pytest.approx(1)


def test_the_table_of_pairs_has_the_numbers_it_is_sorted_by(capsys):
    from purereplay.report.live import _pair_table, out

    pairs = [("cat", "dog", 40, 0.25), ("dog", "cat", 10, 0.5)]
    out.print(
        _pair_table([{"given": g, "likely": k, "n": n, "rate": r, "low": 0.0, "high": 1.0} for g, k, n, r in pairs])
    )
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[4] == "samples" and [row[:3] for row in rows] == [["cat", "dog", "10"], ["dog", "cat", "5"]]


def test_the_estimate_names_the_labels_that_it_counts():
    from purereplay.report.live import _told_of

    noise = {"given": None, "likely": None, "n": 1287, "rate": 0.136, "low": 0.1, "high": 0.2}
    assert _told_of(noise, 0) == "13.6 % (10.0 % to 20.0 %)"
    assert _told_of(noise, 13) == "13.6 % of the 1,287 labels that no person has checked (10.0 % to 20.0 %)"


def test_durations_carry():
    from purereplay.report.terminal import duration

    assert [duration(s) for s in (9.96, 59.6, 119.7, 3599.9)] == ["10 s", "1 min 0 s", "2 min 0 s", "1 h 0 min"]
    assert [duration(s) for s in (3.25, 12.3, 61, 3600, 7260)] == [
        "3.2 s",
        "12 s",
        "1 min 1 s",
        "1 h 0 min",
        "2 h 1 min",
    ]


def test_unknown_noise_is_said_to_be_unknown():
    from purereplay.purify.noise_rate import NoiseRate
    from purereplay.report.state_report import _noise_section

    unknown = NoiseRate(float("nan"), 0.0, 1.0, 0)
    text = _noise_section(["a", "b"], unknown, [unknown, unknown], full=True)
    assert "nan" not in text and "unknown" in text and "<svg" not in text


def test_a_learner_that_trains_once_at_the_end_shows_the_remaining_time(monkeypatch):
    from types import SimpleNamespace

    from rich.progress import Progress

    from purereplay.nets.engine import TrainingProgress
    from purereplay.report import progress, terminal

    clock = SimpleNamespace(now=0.0)
    for module in (progress, terminal):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    stored = SimpleNamespace(
        workload=SimpleNamespace(n_buffers=5, steps={"scratch": 200}),
        learner=SimpleNamespace(n_done=5),
        account=SimpleNamespace(seconds={}, steps={}),
        settings=SimpleNamespace(options=None),
    )
    lines: list[str] = []
    with Progress() as bars, ExitStack() as stack:
        monkeypatch.setattr(bars, "print", lambda text, **more: lines.append(text))
        shown = progress.RunBars(bars, stack, announce=lambda *a, **o: None, sinks=Sinks(None))
        shown.experiments = [stored]
        for step in (10, 60, 110, 200, 20, 60):  # two trainings, of one step per second
            clock.now += 40
            shown.training(TrainingProgress("scratch", 1, step, 200))
    assert lines == [
        "training scratch: step 10 of 200",
        "training scratch: step 60 of 200, 1 min 52 s left",
        "training scratch: step 110 of 200, 1 min 12 s left",
        "training scratch: step 200 of 200",
        "training scratch: step 20 of 200",
        "training scratch: step 60 of 200, 2 min 20 s left",
    ]


def test_the_table_of_a_sweep_shows_whole_names(monkeypatch):
    names = [
        f"noise-symmetric-0.4_learner-self-centered-filter_filter-{f}_seed-{s}" for f in ("aum", "incv") for s in "12"
    ]
    result = {"accuracy": 0.5, "accuracy_after_task": [0.5], "forgetting": 0.1, "stream_noise": 0.4, "n_passed": 3}
    result |= {"passed_noise": 0.1, "purity": 0.9, "filtered_noise": 0.3, "seconds": {"total": 12.0}, "budget": 1}
    result |= {"learner": "spr", "dataset": "digits", "noise": "symmetric", "noise_rate": 0.4, "seed": 1}
    monkeypatch.setattr(terminal_runs, "_draw", lambda path: None)
    for is_terminal in (False, True):
        text = io.StringIO()
        monkeypatch.setattr(
            terminal_runs, "out", Console(file=text, width=80, force_terminal=is_terminal, color_system=None)
        )
        terminal_runs.show_sweep(SweepOutcome(dict.fromkeys(map(Path, names), result), None))
        shown = [line.split(" ")[0] for line in text.getvalue().splitlines()[1:]]
        assert (shown == names) == (not is_terminal) and "".join(shown) == "".join(names)
