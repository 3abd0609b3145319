import json

import pytest

from purereplay.errors import UserError
from purereplay.paper.beside import beside, cells_of, method_of, read_results
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


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (result("crs", robust="none"), "CRS"),
        (result("crs", robust="jocor"), "CRS + JoCoR"),
        (result("gdumb", robust="pencil"), "GDumb + Pencil"),
        (result("multitask", robust="none", noise="none", noise_rate=0.0), "Multitask (clean)"),
        (result("self-centered-filter"), "Self-Centered filter"),
        (result("spr", graphs=20), None),  # not the paper's SPR
        (result("spr", filter="aum"), None),
    ],
)
def test_runs_are_known_by_the_papers_names(run, name):
    assert method_of(run, paper_table("overall_accuracy", "mnist")) == name


@pytest.mark.parametrize(
    ("run", "e5", "e20"),
    [
        (result("self-centered-filter", filter="aum"), "AUM", "AUM"),
        (result("spr", filter="incv"), "INCV", "INCV"),
        (result("self-centered-filter", graphs=0), "Non-stochastic", "Non-stochastic"),
        (result("spr"), "SPR", None),
        (result("self-centered-filter", graphs=20), None, "SPR"),
        (result("crs", robust="none"), None, None),
    ],
)
def test_filters_are_known_by_the_papers_names(run, e5, e20):
    assert method_of(run, paper_table("filtering_e5", "mnist")) == e5
    assert method_of(run, paper_table("filtering_e20", "mnist")) == e20


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
        "GDumb": "60.0 (51.5, better)",
        "SPR": "86.0 ± 1.4 (86.7)",
    }
    assert lines[0][head.index("symmetric 20")] == "– (58.6)"


def test_results_are_read_from_files(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(result("spr")))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(result("crs", seed=s)) + "\n" for s in (1, 2)))
    assert len(read_results([tmp_path / "a.json", tmp_path / "b.jsonl", tmp_path])) == 3
    with pytest.raises(UserError, match=r"None of these holds a finished run\."):
        read_results([tmp_path])
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(UserError, match=r"c\.json holds no results"):
        read_results([tmp_path / "c.json"])
