"""`purereplay reproduce`: what is measured, the plan of what is missing, and the tables and figures of a store."""

import csv
import io
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from purereplay import __version__
from purereplay.cli.app import app
from purereplay.data.encoders import EncoderFacts
from purereplay.data.features import read_encoder_name, read_rows, write_rows
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate.identity import run_key, settings_of
from purereplay.evaluate.rates import Rates
from purereplay.evaluate.records import by_key
from purereplay.evaluate.settings import resolve
from purereplay.evaluate.store import Store
from purereplay.paper import cells, figures, reproduce
from purereplay.paper.beside import beside
from purereplay.paper.cells import Choice, encoder_name, our_cells, our_results, table_cells
from purereplay.paper.figures import FIGURES, figure_runs, top_three
from purereplay.paper.numbers import Column, PaperTable, paper_table, paper_tables
from purereplay.paper.output import draw_figure, note
from purereplay.paper.reproduce import coverage, missing_runs, ordered_plan, wanted
from purereplay.report.table_text import table_text
from small_onnx import write_onnx

ROOT = Path(__file__).parent.parent.parent
SYMMETRIC = Column("symmetric", 0.4)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Store:
    """All results of the project."""
    return Store(tmp_path_factory.mktemp("store"), [ROOT / "results"])


def ask(*names: str, cells: str = "", seeds: tuple[int, ...] = (1, 2, 3), **choice):
    return wanted(names, [cells] if cells else [], seeds, Choice(**choice))


def test_every_number_of_the_paper_is_a_cell_with_runs():
    found = [cell for table in paper_tables() for cell in table_cells(table)]
    assert len(found) == 782
    assert all(cell.runs for cell in found)
    assert {cell.dataset for cell in found} == {"mnist", "cifar10", "cifar100", "webvision14"}
    assert sum("--encoder or --features-file" in cell.why_not for cell in found) == 3


def test_features_of_the_user_fill_their_table():
    choice = Choice(features_file="f.npz", features_digest="abc")
    table = paper_table("filtering_imagenet_features", "cifar10")
    [cell] = [c for c in table_cells(table, choice) if c.method == "ImageNet pretrained" and c.column == SYMMETRIC]
    assert cell.runs[0].features_file == "f.npz" and cell.runs[0].options.features == "file"
    result = {
        "dataset": "cifar10", "noise": "symmetric", "noise_rate": 0.4, "learner": "self-centered-filter", "seed": 1,
        "options": asdict(cell.runs[0].options), "features_digest": "abc", "filtered_noise": 0.5,
    }  # fmt: skip
    named = result | {"features_digest": "def", "features_encoder": {"name": "onnx:n.onnx", "digest": "123"}}
    finished = by_key([result, named])
    assert len(finished) == 2  # of other features: another run

    def found(**own):
        return our_results([cell], finished, Choice(**own))[0][1]

    assert found(features_file="f.npz", features_digest="abc") == {1: result}
    assert found() == {1: named}  # the encoder is known
    assert found(encoder=EncoderFacts("onnx:/a/n.onnx", "123", 4, 8)) == {1: named}
    assert found(encoder=EncoderFacts("onnx:/a/n.onnx", "456", 4, 8)) == {}
    assert encoder_name([cell], finished) == "onnx:n.onnx" and encoder_name([cell], finished, choice) == "f.npz"
    [_, line] = beside(table, our_cells([cell], finished), encoder_name([cell], finished))
    assert line == ["ImageNet pretrained: onnx:n.onnx", "– (-9.0)", "50.0 (-7.0, better)", "– (3.0)"]


def test_an_encoder_fills_the_table_of_imagenet_features_by_one_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    table = paper_table("filtering_imagenet_features", "cifar10")._replace(dataset="digits")
    monkeypatch.setattr(reproduce, "paper_tables", lambda: [table])
    monkeypatch.setattr(cells, "resolve", lambda **given: _small(resolve(**given)))
    encoder = f"onnx:{write_onnx(tmp_path / 'm.onnx')}"
    options = ["--store", str(tmp_path / "s"), "--sources", "", "--device", "cpu", "--seeds", "1,2"]
    asked = ["filtering_imagenet_features", *options, "--cells", "*/ImageNet*"]
    assert "needs --encoder or --features-file" in call(*asked, "--list")
    assert "6 runs" in call(*asked, "--encoder", encoder, "--dry-run") and not (tmp_path / "s").exists()
    out = call(*asked, "--encoder", encoder)
    assert "6 missing runs" in out and "3 of 3 cells measured; seeds 1 to 2" in out
    assert "ImageNet pretrained: onnx:m.onnx" in out
    for more in ([], ["--encoder", encoder]):  # the results count, whoever asks
        assert "0 missing runs" in (again := call(*asked, *more)) and "ImageNet pretrained: onnx:m.onnx" in again
    lines = [json.loads(line) for line in (tmp_path / "s" / "results.jsonl").read_text().splitlines()]
    assert {line["features_encoder"]["name"] for line in lines} == {"onnx:m.onnx"} and len(lines) == 6
    with pytest.raises(UserError, match=r"both give features: leave one of them out\."):
        call(*asked, "--encoder", encoder, "--features-file", str(next((tmp_path / "s").glob("features-*.npz"))))


def test_a_file_of_features_says_what_made_it(tmp_path):
    path = tmp_path / "f.npz"
    write_rows(path, np.ones((2, 3), np.float32), "onnx:a.onnx", "123")
    assert read_encoder_name(path) == ("onnx:a.onnx", "123") and read_rows(path).shape == (2, 3)
    np.savez(path, features=np.ones((2, 3)))
    assert read_encoder_name(path) is None
    np.savez(path, features=np.ones((2, 3)), encoder=np.ones(2))
    with pytest.raises(UserError, match=r"arrays encoder and encoder_digest in .* must each hold one text\."):
        read_encoder_name(path)


def test_the_list_counts_every_cell_once(kept):
    rows = {(r.table, r.dataset): r.counts for r in coverage(ask(), kept)}
    assert sum(counts[0] for counts in rows.values()) == 782
    assert rows["overall_accuracy", "mnist"][:2] == (131, 131)
    assert rows["episode_b", "mnist"][1] >= 6  # Multitask, which does not depend on the order of tasks
    for n, *states in rows.values():
        assert n == sum(states)


def test_nothing_that_is_finished_is_planned(kept):
    assert missing_runs(ask("table1", cells="mnist"), kept) == {}
    assert missing_runs(ask("half_buffer", cells="cifar10/GDumb*", seeds=(1,)), kept) == {}
    left = missing_runs(ask("half_buffer", cells="cifar10/*", seeds=(1, 9)), kept)
    assert len(left) == 5 + 25 and all(key not in kept.finished for key in left)
    assert {m.settings.options.memory_size for m in left.values() if m.settings.learner == "gdumb"} == {250}
    shared = missing_runs(ask("filtering_e5", "overall_accuracy", cells="cifar10/SPR", seeds=(2,)), kept)
    assert {m.settings.learner for m in shared.values()} == {"spr"}  # one run fills both tables
    assert all(m.fills == 2 for m in shared.values())


def test_the_plan_is_cheapest_first_and_always_the_same(kept):
    rates = Rates(kept.finished.values(), gpu=True)
    plan = ordered_plan(ask("episode_b", "half_buffer", cells="cifar10"), kept, rates)
    prices = [p.seconds / p.fills for p in plan]
    assert prices == sorted(prices) and len(plan) > 5
    assert plan == ordered_plan(ask("episode_b", "half_buffer", cells="cifar10"), kept, rates)
    assert all(len(p.group.runs) <= 15 for p in plan)
    for planned in plan:  # networks of one shape
        assert len({(s.learner, s.options.network) for s in planned.group.runs.values()}) == 1


def test_estimates_are_close_to_what_was_measured(kept):
    rates = Rates(kept.finished.values(), gpu=True)
    run = resolve(dataset="mnist", learner="crs", device="cpu")
    measured = [r["seconds"]["total"] for k, r in kept.finished.items() if k.cell == run_key(run).cell]
    assert rates.seconds(run) == pytest.approx(sum(measured) / len(measured), rel=0.3)
    tenth = rates.seconds(resolve(dataset="mnist", budget=0.1, device="cpu"))
    assert rates.seconds(resolve(dataset="mnist", device="cpu")) > 4 * tenth
    gdumb = [resolve(dataset="cifar100", learner="gdumb", device="cpu", evaluate=e) for e in ("tasks", "end")]
    assert rates.seconds(gdumb[0]) > 15 * rates.seconds(gdumb[1])  # twenty classifiers, or one
    assert Rates([], gpu=True).seconds(run) is None
    # steps of CNLL, whose number of images is not known, tell nothing of other learners
    cnll = [read for read in kept.finished.values() if read["learner"] == "cnll"]
    aum = resolve(dataset="mnist", learner="self-centered-filter", device="cpu", overrides={"filter": "aum"})
    assert cnll and all(Rates(cnll, gpu=gpu).seconds(aum) is None for gpu in (True, False))


def test_experts_that_runs_share_are_estimated_once(kept):
    rates = Rates(kept.finished.values(), gpu=True)

    def scf(graphs, seed=1):
        learner = {"learner": "self-centered-filter", "overrides": {"graphs": graphs}}
        return resolve(dataset="cifar10", seed=seed, device="cpu", **learner)

    one, two = rates.seconds(scf("5")), rates.seconds_together([scf("5"), scf("0")])
    assert one is not None and two is not None and one < two < 1.5 * one  # the experts take most of the time
    assert rates.seconds_together([scf("5"), scf("5", seed=2)]) == pytest.approx(2 * one)
    shared = next(r for r in kept.finished.values() if "expert" in r.get("steps", ()) and "H200" in r["device"])
    alone = Rates([shared], gpu=True).seconds(settings_of(shared))
    halves = shared["seconds"] | {"expert": shared["seconds"]["expert"] / 2}
    both = [shared | {"seconds": halves, "graphs": n} for n in (5, 20)]
    assert Rates(both, gpu=True).seconds(settings_of(shared)) == pytest.approx(alone)  # as measured in lockstep
    table = ask("filtering_e5", "filtering_e20", cells="cifar10", seeds=(1,))
    [group] = [
        p for p in ordered_plan(table, kept, rates) if "0" in {str(s.options.graphs) for s in p.group.runs.values()}
    ]
    assert {s.options.graphs for s in group.group.runs.values()} == {0, 5, 20}


def test_figures_have_the_runs_that_the_paper_compares(kept):
    for figure in FIGURES.values():
        assert figure_runs(figure.panels(Choice()))
    assert top_three("mnist", SYMMETRIC) == ["SPR", "CRS + L2R", "MIR + L2R"]
    learners = {run.learner for _, run in figure_runs(FIGURES["supervised_base"].panels(Choice()))}
    assert learners == {"spr", "supervised-base"}
    robustness = figure_runs(FIGURES["noise_robustness"].panels(Choice()))
    memories = {getattr(run.options, "memory", "") for _, run in robustness}
    assert memories == {"", "reservoir"}
    panel = FIGURES["variance"].panels(Choice())[0]
    points = panel.series[0].points(kept.finished)
    assert sorted(points) == [1, 2, 3, 4, 5] and len(points[5].values) == 5
    assert points[5].mean == pytest.approx(86.9, abs=0.1) and panel.series[0].paper == {5: 86.7}


def test_a_figure_shows_the_datasets_that_are_asked_for(kept, tmp_path):
    *_, points = draw_figure(ask("forgetting", cells="cifar10/CRS"), "forgetting", kept, tmp_path)
    assert {point["panel"] for point in csv.DictReader(points.open())} == {"CIFAR-10"}


def test_a_curve_needs_an_evaluation_after_each_task():
    result = {"accuracy_after_task": [0.5], "task_accuracies": [0.5, 0.5], "accuracy_matrix": [[0.5, 0.5]]}
    assert figures.after_each_task(result) is None and figures.on_the_first_task(result) is None
    full = {"accuracy_after_task": [0.5, 0.6], "task_accuracies": [0.4, 0.5], "accuracy_matrix": [[0.9, 0], [0.4, 0.8]]}
    assert figures.after_each_task(full) == [0.5, 0.6] and figures.on_the_first_task(full) == [0.9, 0.4]
    assert figures.on_the_first_task({"accuracy_after_task": [0.5]}) is None  # of version 0.1.0


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match=r"no table or figure 'table9': choose from overall_accuracy, .*, all\."):
        ask("table9")


def test_patterns_and_sources_that_name_nothing_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for options, error in (
        (["--cells", "nosuch/*"], "'nosuch/*' matches no cell"),
        (["--cells", "mnist/Finetune/symm*20,mnist/SPRR/*"], "'mnist/SPRR/*' matches no cell"),
        (["forgetting", "--cells", "mnist/SPRR/*"], "'mnist/SPRR/*' matches no cell"),
        (
            ["--sources", str(tmp_path / "empty")],
            "empty, which holds no finished run: leave it out; '' stands for none.",
        ),
        (["--sources", str(tmp_path / "typo")], "typo, which does not exist"),
    ):
        done = CliRunner().invoke(app, ["reproduce", "table1", "--dry-run", "--store", str(tmp_path / "s"), *options])
        assert isinstance(done.exception, UserError) and error in str(done.exception)


def test_the_list_has_the_figures_that_are_asked_for_and_that_the_plan_has(tmp_path):
    few = ["--store", str(tmp_path / "s"), "--sources", ""]
    assert call("forgetting", "--list", *few).splitlines()[1].split()[:4] == ["forgetting", "8", "0", "0"]
    listed = call("forgetting", "table1", "--list", *few, "--cells", "mnist/SPR*")
    assert "forgetting  4 " in listed and "cifar10" not in listed
    others = ["galleries", "densities", *few, "--cells", "mnist/*"]
    assert "galleries: 0 of 1 dataset measured\ndensities: 0 of 1 dataset measured" in call(*others, "--list")
    assert "mnist" in call(*others, "--dry-run")


def test_the_plan_says_episode_number_and_what_is_unknown(tmp_path):
    few = ["--dry-run", "--store", str(tmp_path / "s"), "--sources", "", "--seeds", "1"]
    planned = call("table1", "episode_b", "episode_c", *few, "--cells", "mnist/SPR/symmetric 20")
    assert "mnist    spr, episodes A, B, C  3 " in planned
    assert "3 runs in 1 group fill 3 cells and curves in an unknown time" in planned and "0.0 s" not in planned
    planned = call("episode_b", *few, "--cells", "mnist/SPR/symmetric 20")
    assert "spr, episode B " in planned and "1 run in 1 group fills 1 cell or curve in an unknown time" in planned


def test_a_note_names_one_version_where_there_is_one():
    own = {"seed": 1, "versions": {"purereplay": __version__}}
    assert note([own], Choice(), "more") == f"more; seed 1; the paper's epochs; purereplay {__version__}."
    older = own | {"seed": 2, "versions": {"purereplay": "0.0.1"}}
    said = f"runs of purereplay 0.0.1, {__version__}, put together by purereplay {__version__}."
    assert note([own, older], Choice(), "more").endswith(f"seeds 1 to 2; the paper's epochs; {said}")


# ---------------------------------------------------------------- tables as text


def test_tables_are_written_for_other_programs():
    lines = [["accuracy, %", "a & b"], ["SPR", "1.0 ± 0.5 (2.0)"]]
    assert list(csv.reader(io.StringIO(table_text(lines, "csv")))) == lines
    assert table_text(lines, "markdown").splitlines()[1] == "| --- | --- |"
    latex = table_text(lines, "latex", "title", "note_1")
    assert r"a \& b" in latex and r"1.0 $\pm$ 0.5" in latex and r"% title note\_1" in latex
    assert latex.count(r"\\") == 2 and r"\begin{tabular}{lr}" in latex
    head, row = table_text(lines, "text").splitlines()
    assert head.index("a & b") == row.index("1.0")
    with pytest.raises(UserError, match="format 'xml' is unknown"):
        table_text(lines, "xml")


# ---------------------------------------------------------------- computing


@pytest.fixture
def digits(monkeypatch):
    """A paper about digits, with one table and one figure."""
    values = {("SPR", SYMMETRIC): 80.0, ("CRS", SYMMETRIC): 40.0, ("CRS", Column("symmetric", 0.2)): 50.0}
    table = PaperTable(
        "overall_accuracy", "digits", "accuracy", ["CRS", "SPR"], [Column("symmetric", 0.2), SYMMETRIC], values
    )

    def panels(choice):
        run = figures._run(choice, "digits", "crs", SYMMETRIC)
        return [figures.Panel("digits", (figures.Series("CRS", (run,), curve=figures.on_the_first_task),), "tasks")]

    monkeypatch.setattr(reproduce, "paper_tables", lambda: [table])
    monkeypatch.setattr(reproduce, "FIGURES", {"forgetting": figures.PaperFigure("forgetting", "T1", panels)})
    monkeypatch.setitem(FIGURES, "forgetting", figures.PaperFigure("forgetting", "T1", panels))
    monkeypatch.setattr(cells, "resolve", lambda **given: _small(resolve(**given)))
    monkeypatch.setattr(figures, "resolve", lambda **given: _small(resolve(**given)))


def _small(run):
    options = {"hidden": 8} | ({"finetune_epochs": 1} if "finetune_epochs" in asdict(run.options) else {})
    return replace(run, options=replace(run.options, **options))


def call(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=True)
    if code == 0 and found.exception is not None:
        raise found.exception
    return found.output


def test_missing_runs_are_computed_once_and_shown(digits, tmp_path):
    store = ["--store", str(tmp_path / "s"), "--sources", "", "--device", "cpu"]
    small = [*store, "--budget", "0.0005", "--seeds", "1,2"]
    assert "all" in call("--list", *store)
    planned = call("all", "--dry-run", *small)
    assert "6 runs in 2 groups" in planned and "unknown" in planned
    with pytest.raises(Interrupted):
        call("all", *small, "--minutes", "0.000001")
    assert (tmp_path / "s" / "plan.json").exists()
    out = call("all", *small, "--format", "markdown", "--out", str(tmp_path / "out"))
    assert "3 of 3 cells measured; seeds 1 to 2; 0.0005 times SPR's self-supervised epochs" in out
    assert "6 missing runs" in out and "(80.0, worse)" in out
    lines = (tmp_path / "s" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 6
    table = (tmp_path / "out" / "tables" / "overall_accuracy-digits.md").read_text()
    assert table.startswith("**overall_accuracy of digits**") and "| CRS |" in table
    assert imread(tmp_path / "out" / "figures" / "forgetting.png").std() > 0.05
    assert "<svg" in (tmp_path / "out" / "figures" / "forgetting.svg").read_text()
    points = list(csv.DictReader((tmp_path / "out" / "figures" / "forgetting.csv").open()))
    assert [p["x"] for p in points] == ["1", "2", "3", "4", "5"] and {p["seeds"] for p in points} == {"2"}
    began = time.monotonic()
    again = call("all", *small, "--format", "csv")
    assert "0 missing runs" in again and time.monotonic() - began < 5
    assert (tmp_path / "s" / "results.jsonl").read_text().splitlines() == lines
    assert "nothing is missing" in call("all", "--dry-run", *small)
    for precision in ("auto", "bf16"):  # a plan for a GPU, on a machine that may have none
        planned = call("all", "--dry-run", *small[:4], "--device", "cuda", "--precision", precision)
        assert "one NVIDIA H200" in planned and "memory of a run" in planned
    assert "0 missing runs" not in call("all", *small[:-1], "3", "--show")
