import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from purereplay.cli.app import app
from purereplay.errors import UserError
from purereplay.evaluate.records import read_results
from purereplay.evaluate.settings import resolve
from purereplay.paper.beside import beside, cells_of
from purereplay.paper.numbers import Column, paper_table


def result(learner: str, accuracy: float = 0.5, **more) -> dict:
    usual = {"dataset": "mnist", "noise": "symmetric", "noise_rate": 0.4, "seed": 1, "filtered_noise": 0.9}
    filtering = {} if learner not in ("spr", "self-centered-filter") else {"filter": "self-centered", "graphs": 5}
    return usual | filtering | {"learner": learner, "accuracy": accuracy} | more


def test_every_table_of_the_paper_is_there():
    table = paper_table("overall_accuracy", "mnist")
    assert len(table.methods) == 27 and table.values["SPR", Column("symmetric", 0.4)] == 86.7
    assert [str(c) for c in table.columns][:2] == ["clean", "symmetric 20"]
    assert paper_table("cifar100_accuracy", "cifar100").columns[-1] == Column("superclass", 0.6)
    with pytest.raises(UserError, match=r"no table nonsense of mnist: it has .*overall_accuracy of mnist"):
        paper_table("nonsense", "mnist")


def run_with_pencil(learner: str, **own) -> dict:
    """A result of this version, whose single pass over the stream does not end PENCIL's first stage."""
    options = asdict(resolve(dataset="mnist", learner=learner, overrides={"robust": "pencil"} | own).options)
    return result(learner, options=options)


def rows(run: dict, table: str, dataset: str = "mnist") -> list[str]:
    """Names of the rows that a run fills."""
    return [method for method, _ in cells_of(paper_table(table, dataset), [run])]


@pytest.mark.parametrize(
    ("run", "names"),
    [
        # in a single pass PENCIL's first stage does not end, so plain replay is its number too
        (result("crs", robust="none"), ["CRS", "CRS + Pencil"]),
        (result("crs", robust="pencil"), []),  # of version 0.1.0, whose labels moved
        *((run_with_pencil(name), [name.upper(), f"{name.upper()} + Pencil"]) for name in ("crs", "prs", "mir")),
        (run_with_pencil("prs", pencil_epoch="memory"), []),
        (result("crs", robust="jocor"), ["CRS + JoCoR"]),
        (result("gdumb", robust="pencil"), ["GDumb + Pencil"]),
        (
            result("multitask", robust="none", noise="none", noise_rate=0.0, changed={"multitask_rate": 0.002}),
            ["Multitask (clean)"],
        ),
        (result("multitask", robust="none", noise="none", noise_rate=0.0), []),  # at the default rate
        (result("self-centered-filter"), ["Self-Centered filter"]),
        (result("spr", graphs=20), []),  # not the paper's SPR
        (result("spr", filter="aum"), []),
        (
            result("crs", robust="none", changed={"rate": 2e-5}),
            ["CRS", "CRS + Pencil"],
        ),  # the default, under a former name
        (result("crs", robust="none", options={"a setting of later": 1}), []),
        (result("no-such-learner"), []),
    ],
)
def test_runs_are_known_by_the_papers_names(run, names):
    assert rows(run, "overall_accuracy") == names


@pytest.mark.parametrize(
    ("run", "e5", "e20"),
    [
        (result("self-centered-filter", filter="aum"), ["AUM"], ["AUM"]),
        (result("spr", filter="incv"), ["INCV"], ["INCV"]),
        (result("self-centered-filter", graphs=0), ["Non-stochastic"], ["Non-stochastic"]),
        (result("spr"), ["SPR"], []),
        (result("self-centered-filter", graphs=20), [], ["SPR"]),
        (result("crs", robust="none"), [], []),
    ],
)
def test_filters_are_known_by_the_papers_names(run, e5, e20):
    assert rows(run, "filtering_e5") == e5
    assert rows(run, "filtering_e20") == e20


def buffers(size: int) -> dict:
    return {"delayed_size": size, "purified_size": size, "expert_batch": size, "base_batch": size}


@pytest.mark.parametrize(
    ("run", "table", "names"),
    [
        (result("gdumb", robust="l2r"), "half_buffer", []),  # a memory of 300
        (result("gdumb", robust="l2r", changed={"memory_size": 150}), "half_buffer", ["GDumb + L2R"]),
        (result("gdumb", robust="l2r", changed={"memory_size": 600}), "double_buffer", ["GDumb + L2R"]),
        (result("spr", changed=buffers(150)), "half_buffer", ["SPR"]),
        (result("spr"), "half_buffer", []),
        (result("spr"), "double_buffer", ["SPR"]),  # the paper doubles the memory of the others only
        (result("spr", noise="none", noise_rate=0, changed=buffers(500)), "noise_free", ["SPR"]),
        (result("spr", noise="none", noise_rate=0), "noise_free", []),
        (result("spr"), "self_replay_delayed_buffer", ["SR with DB"]),
        (result("spr", changed={"replay": "purified"}), "self_replay_delayed_buffer", ["SR without DB"]),
        (
            result("multitask", robust="none", changed={"lr": 0.002}),
            "episode_b",
            ["Multitask"],
        ),  # the order of tasks is of no importance
        (result("spr"), "episode_b", []),
        (result("spr", episode="B"), "episode_b", ["SPR"]),
    ],
)
def test_tables_with_other_sizes_and_rows(run, table, names):
    assert rows(run, table) == names


def test_tables_of_other_datasets():
    real = {"dataset": "webvision14", "noise": "none", "noise_rate": 0.0}
    assert rows(result("multitask", robust="none", **real), "overall_accuracy", "webvision14") == ["Multitask"]
    assert paper_table("overall_accuracy", "webvision").columns == [Column("none", 0.0, "real noise")]
    by_class = [0.0] * 14
    by_class[1], by_class[6] = 0.5, 0.25  # cash machine, cinema
    cells = cells_of(
        paper_table("webvision_classes", "webvision14"), [result("spr", class_accuracies=by_class, **real)]
    )
    assert {column.name: cell.mean for (_, column), cell in cells.items()} == {
        "Cinema": 25.0,
        "Spiral": 0.0,
        "ATM": 50.0,
        "Frog": 0.0,
    }
    aum = result("spr", dataset="cifar100", noise="superclass", filter="aum")
    assert rows(aum, "cifar100_filtering", "cifar100") == ["AUM"]


def test_a_stream_that_changed_does_not_count_any_more():
    run = result("spr", episode="B", noise="asymmetric")
    assert rows(run, "episode_b") == []  # of version 0.1.0, whose tasks split the pairs
    assert rows(run | {"numbers_version": 2}, "episode_b") == ["SPR"]


def test_only_runs_of_the_tables_kind_are_beside_the_paper():
    table = paper_table("overall_accuracy", "mnist")
    usual = {"judged_on": "test", "episode": "A", "preset": "default", "changed": {}, "budget": 1.0}
    assert cells_of(table, [result("spr") | usual])
    for other in (
        {"judged_on": "validation"},
        {"episode": "B"},
        {"preset": "quick"},
        {"changed": {"stem": "small"}},
        {"budget": 0.1},
    ):
        assert not cells_of(table, [result("spr") | usual | other])
    assert cells_of(table, [result("spr") | usual | {"budget": 0.1}], budget=0.1)
    assert cells_of(table, [result("crs", robust="none") | usual | {"budget": 0.1}])  # its training does not change
    assert cells_of(paper_table("episode_b", "mnist"), [result("spr") | usual | {"episode": "B"}])


def test_cells_are_means_over_seeds_with_a_verdict():
    table = paper_table("overall_accuracy", "mnist")
    results = [result("spr", 0.85, seed=1), result("spr", 0.87, seed=2), result("crs", 0.2, robust="none")]
    results += [result("gdumb", 0.6, robust="none", seed=s) for s in (1, 1)]  # one seed twice is one run
    results.append(result("spr", 0.1, dataset="cifar10"))
    head, *lines = beside(table, cells_of(table, results))
    assert head[0] == "accuracy, %"
    at = head.index("symmetric 40")
    shown = {line[0]: line[at] for line in lines}
    assert shown == {
        "CRS": "20.0 (41.8, worse)",
        "CRS + Pencil": "20.0 (46.0, worse)",
        "GDumb": "60.0 (51.5, better)",
        "SPR": "86.0 ± 1.4 (86.7)",
    }
    assert lines[0][head.index("symmetric 20")] == "– (58.6)"


@pytest.mark.parametrize("form", [[], ["--markdown"]])
def test_the_table_of_some_runs_says_what_it_shows(tmp_path, form):
    results = [result("spr", 0.85, seed=seed, budget=0.1, versions={"purereplay": "0.1.0"}) for seed in (1, 2, 4)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in results))
    shown = CliRunner().invoke(app, ["paper", str(path), "--budget", "0.1", *form]).output
    assert "overall_accuracy of mnist" in shown and "85.0 ± 0.0 (86.7)" in shown
    assert "seeds 1 to 2, 4; 0.1 times SPR's self-supervised epochs; " in shown and "purereplay 0.1.0" in shown


def test_results_are_read_from_files(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(result("spr")))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(result("crs", seed=s)) + "\n" for s in (1, 2)))
    (tmp_path / "other.json").write_text("{}")
    for name, text in (("list", "[]\n"), ("metrics", '{"event": "task"}\n{"event": '), ("log", '{"a": 1}\n{\n')):
        (tmp_path / f"{name}.jsonl").write_text(text)  # of another kind
    (tmp_path / "empty").mkdir()
    assert len(read_results([tmp_path / "a.json", tmp_path / "b.jsonl"])) == len(read_results([tmp_path])) == 3
    with pytest.raises(UserError, match=r"None of these holds a finished run\."):
        read_results([tmp_path / "empty"])
    with pytest.raises(UserError, match=r"other\.json holds no result of a run: learner is missing\."):
        read_results([tmp_path / "other.json"])
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(UserError, match=r"c\.json holds no results"):
        read_results([tmp_path / "c.json"])
