"""Labels with too few samples: nothing is known of them, and nothing says that they are certain."""

import csv
import json

import pytest
import torch
from tiny_state import TINY, TINY_MEMORY, items, picture, png, tiny

from purereplay.live.audit import audit
from purereplay.live.corrections import Correction, apply
from purereplay.live.export.card import Facts, _data, _settings
from purereplay.live.items import Item
from purereplay.live.judgements import judgements
from purereplay.live.learn import learn
from purereplay.live.settings import Wanted
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.nets.engine import Engine
from purereplay.report.live import show_audit, show_status
from purereplay.report.page import Extent
from purereplay.report.state_report import write_state_report
from purereplay.report.watching import _state
from purereplay.web.samples import read_scores

ENGINE = Engine(torch.device("cpu"))


def rare(start: int, stop: int) -> list[Item]:
    return [Item(f"r{i}", "rare", png(picture(500 + i, 4))) for i in range(start, stop)]


@pytest.fixture
def state(tmp_path, small_features):
    """Forty samples of three labels, and two of a fourth."""
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take([*items(0, 40), *rare(0, 2)])
        session.work(rest=True)
    return tmp_path / "state"


def audited(state, name: str = "audit.csv") -> list[dict[str, str]]:
    with Store.reading(state) as store:
        done = audit(store, ENGINE, state.parent / name)
    with (state.parent / name).open(newline="") as file:
        rows = list(csv.DictReader(file)) if name.endswith("csv") else [json.loads(line) for line in file]
    assert done.unjudged == sum(row["decision"] == "unjudged" for row in rows)
    return rows


def test_they_are_neither_accepted_nor_rejected(state):
    with Store.reading(state) as store:
        found = status(store)
        assert found["unjudged"] == 2 and found["accepted"] + found["rejected"] == 40
        assert {row["label"]: row["unjudged"] for row in found["classes"]}["rare"] == 2
        told = {j.id: (j.decision, j.clean_probability) for j in judgements(store, 0, 100)}
        assert told["r0"] == ("unjudged", None) and told["s0"][1] is not None
        facts = Facts("onnx", "", [], found, store.image_settings, None, None, None, "")  # type: ignore[arg-type]
        card = _data(facts)
    assert "Judged: 40." in card and "Not judged: 2, since too few samples have the label." in card
    assert ("could not be judged", "2") in _state(state).rows
    assert "Samples whose label is believed: " in card and "preset" not in _settings(facts)


def test_the_audit_says_so_and_lists_them_after_all_others(state):
    rows = audited(state)
    assert [row["decision"] for row in rows[-2:]] == ["unjudged", "unjudged"]
    assert {row["id"] for row in rows[-2:]} == {"r0", "r1"}
    for row in rows[-2:]:
        assert row["clean_probability"] == "" and row["likely_other_label"] == "" and "too few" in row["reason"]
    assert audited(state, "audit.jsonl")[-1]["clean_probability"] is None


def test_they_are_judged_once_there_are_more(state):
    with tiny(state) as session:
        session.take(rare(2, 10))
        session.work(rest=True)
    rows = {row["id"]: row for row in audited(state)}
    assert all(rows[f"r{i}"]["decision"] in ("accepted", "rejected") for i in range(10))
    assert rows["r0"]["reason"] == "8 more samples" and float(rows["r0"]["clean_probability"]) <= 1


def test_a_new_label_is_unjudged_until_all_are_judged_again(state):
    """A sample that arrives between two times that all are judged; the classifier does not know its label."""
    new = [Item(f"n{i}", "new", png(picture(700 + i, 5))) for i in range(3)]
    with tiny(state) as session:
        session.take(new[:1])
        session.work()
        assert session.learning.judge_waiting().n_new == 1 and session.learning.judge_waiting() is None
        found = status(session.store)
        assert (found["waiting"], found["unjudged"], found["rejected"] + found["accepted"]) == (0, 3, 40)
        [verdict] = [j for j in judgements(session.store, 0, 100) if j.id == "n0"]
        assert (verdict.decision, verdict.clean_probability) == ("unjudged", None)
        assert "too few samples had this label" in verdict.reason
        assert read_scores(session.store).table.number[-1] == 42  # on the review page it comes last
        session.store.check()
    [row] = [row for row in audited(state) if row["id"] == "n0"]
    assert (row["decision"], row["clean_probability"], row["likely_other_label"]) == ("unjudged", "", "")
    write_state_report(state, ENGINE, state.parent / "report.html", Extent(100, 0), lambda *values: None)
    with tiny(state) as session:
        session.take(new[1:])
        session.take(items(42, 60))
        session.work(rest=True)
        assert status(session.store)["unjudged"] == 2  # `rare`
        last = [j for j in judgements(session.store, 0, 200) if j.id == "n0"][-1]
        assert last.decision in ("accepted", "rejected") and "more samples" in last.reason


def test_one_more_sample_of_a_label_with_few_is_judged_by_the_classifier(state):
    with tiny(state) as session:
        session.take(rare(2, 3))
        session.work()
        session.learning.judge_waiting()
        assert status(session.store)["waiting"] == 0


def test_a_person_judges_them(state):
    with tiny(state) as session:
        apply(session, [Correction("r0", "rare"), Correction("r1", "label 0")])
        session.settle()
        assert status(session.store)["unjudged"] == 0
    rows = {row["id"]: row for row in audited(state)}
    assert rows["r0"]["decision"] == "confirmed" and rows["r1"]["decision"] == "corrected"


def test_a_correction_may_leave_too_few(state):
    """A label that was judged loses its samples to others."""
    with tiny(state) as session:
        session.take(rare(2, 3))
        session.take(items(42, 50))
        session.work(rest=True)
        assert status(session.store)["unjudged"] == 0
        apply(session, [Correction("r0", "label 0")])
        session.settle()
        assert status(session.store)["unjudged"] == 2
        session.store.check()  # the digest of every table
    assert {row["id"] for row in audited(state) if row["decision"] == "unjudged"} == {"r1", "r2"}


def test_the_report_shows_them_apart(state):
    out = state.parent / "report.html"
    write_state_report(state, ENGINE, out, Extent(100, 0), lambda *values: None)
    text = out.read_text()
    assert "could not be judged" in text and "Not judged, since too few samples" in text
    assert text.count("rare, not judged") >= 2 and "rare, clean with" not in text
    assert "among the scored samples" not in text and "Purified buffer" not in text  # full-memory has none


@pytest.mark.parametrize("learner", ["spr", "full-memory"])
def test_learn_does_not_count_them_as_rejected(tmp_path, small_features, learner):
    lines = [(item.id, item.label, item.image) for item in [*items(0, 38), *rare(0, 2)]]
    for name, label, image in lines:
        path = tmp_path / "photos" / label / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    wanted = Wanted(learner=learner, overrides=TINY if learner == "spr" else TINY_MEMORY)
    done = learn(str(tmp_path / "photos"), tmp_path / "state", wanted, device="cpu")
    with Store.reading(tmp_path / "state") as store:
        found = status(store)
        assert found["unjudged"] >= 2 and done.n_rejected == found["rejected"]


def test_the_reason_is_named_if_all_samples_have_the_same_label(tmp_path, small_features, capsys):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 30, n_labels=1))
        session.work(rest=True)
        found = status(session.store)
        assert found["unjudged"] == 30
        show_status(found, "table")  # all samples teach, so there is no row about it
        reasons = {verdict.reason for verdict in judgements(session.store, 0, 100)}
    said = "all samples have the same label: add samples of another label"
    shown = capsys.readouterr().out
    assert said in shown and "teaching" not in shown
    assert reasons == {"not judged: all samples had the same label when all were judged"}
    with Store.reading(tmp_path / "state") as store:
        show_audit(tmp_path / "audit.csv", audit(store, ENGINE, tmp_path / "audit.csv"))
    assert f"could not be judged: 30, since {said}" in " ".join(capsys.readouterr().out.split())
    write_state_report(tmp_path / "state", ENGINE, tmp_path / "report.html", Extent(9, 0), lambda *values: None)
    assert (tmp_path / "report.html").read_text().count(said) == 2
    with tiny(tmp_path / "state") as session:
        session.take(rare(0, 2))
        session.work(rest=True)
        found = status(session.store)
    assert found["unjudged"] == 2 and found["unjudged_reason"] == "too few samples have the label"


def test_a_misspelt_label_is_hidden_once_no_sample_has_it_and_rows_of_people_name_no_other(state):
    def labels() -> list[str]:
        with Store.reading(state) as store:
            return [row["label"] for row in status(store)["classes"]]

    for label, shown in (("lable 0", True), ("label 0", False)):
        with tiny(state) as session:
            apply(session, [Correction("s1", label), Correction("s2", "label 2")])
            session.settle()
        assert ("lable 0" in labels()) is shown
    rows = {row["id"]: row for row in audited(state)}
    assert (rows["s1"]["reason"], rows["s2"]["reason"]) == ("corrected by a person", "confirmed by a person")
    for name in ("s1", "s2"):
        assert (rows[name]["likely_other_label"], rows[name]["likely_other_probability"]) == ("", "")


def test_a_label_with_few_samples_in_a_buffer(tmp_path):
    with tiny(tmp_path / "state") as session:
        session.take([*items(0, 18), *rare(0, 2), *items(20, 40)])
        session.work()
        found = status(session.store)
        assert found["unjudged"] == 2 and found["accepted"] + found["rejected"] == 38
    assert [row["decision"] for row in audited(tmp_path / "state")][-2:] == ["unjudged"] * 2
