"""The server of the review page: order, leases, decisions, undo, export and statistics."""

import sqlite3

import numpy as np
import pytest
import torch
from review_page import Page, serving, wait_until
from tiny_state import items, picture, png, tiny

from purereplay.live.decisions import DecisionLog, InEffect
from purereplay.live.reviewed import absorbed, log_path
from purereplay.live.store import Store


def in_effect(state) -> dict[str, tuple[str, str | None]]:
    with DecisionLog.reading(log_path(state)) as log:
        return {e.sample: (e.kind, e.label) for e in InEffect(log.entries()).all()}


def test_samples_come_by_doubt_and_each_only_once(page, state):
    with sqlite3.connect(state / "state.sqlite") as database:
        rows = database.execute("SELECT position FROM decisions ORDER BY probability, position").fetchall()
    first = page.next(5)
    assert [one["sample"] for one in first] == [position for (position,) in rows[:5]]
    more = page.post("next", n=60, held=[one["sample"] for one in first]).json()["items"]
    assert [one["sample"] for one in more] == [position for (position,) in rows[5:]]


def test_a_decision_is_on_the_disk_when_the_server_answers(page, state):
    [one] = page.next(1)
    assert page.decide(one["sample"], "label", "brand new").status_code == 200
    assert in_effect(state) == {one["name"]: ("label", "brand new")}
    assert one["sample"] not in [other["sample"] for other in page.next(60)]
    assert [other["sample"] for other in page.next(60, decision="decided")] == [one["sample"]]
    assert page.next(60, decision="drop") == []


def test_every_kind_of_decision_and_undo_without_limit(page, state):
    some = page.next(4)
    for one, (kind, label) in zip(
        some, [("keep", None), ("label", "x"), ("unsure", None), ("drop", None)], strict=True
    ):
        page.decide(one["sample"], kind, label)
    kept, changed, unsure, dropped = (one["name"] for one in some)
    expected = {kept: ("keep", some[0]["given"]), changed: ("label", "x"), unsure: ("unsure", None)}
    assert in_effect(state) == expected | {dropped: ("drop", None)}
    for one in reversed(some):
        assert [other["name"] for other in page.post("undo").json()["items"]] == [one["name"]]
    assert in_effect(state) == {} and page.post("undo").json()["items"] == []


def test_a_label_that_equals_the_given_one_is_kept(page, state):
    [one] = page.next(1)
    page.decide(one["sample"], "label", f" {one['given']} ")
    assert in_effect(state) == {one["name"]: ("keep", one["given"])}


def test_the_same_action_twice_is_one_decision(page, state):
    [one] = page.next(1)
    decisions = [{"sample": one["sample"], "kind": "drop"}]
    for _ in range(2):
        assert page.post("decide", action="same", decisions=decisions).status_code == 200
    with DecisionLog.reading(log_path(state)) as log:
        assert len(log.entries()) == 1


def test_two_reviewers_get_different_images_and_see_each_others_decisions(client):
    one, two = Page(client, "one"), Page(client, "two")
    first, second = one.next(5), two.next(5)
    assert not {a["sample"] for a in first} & {b["sample"] for b in second}
    one.decide(first[0]["sample"], "drop")
    status = two.post("status").json()
    assert status["pages"] == 2 and status["statistics"]["dropped"] == 1
    assert two.post("undo").json()["items"] == []  # only one's own decisions are undone


def test_many_are_decided_and_undone_at_once(page, state):
    some = page.next(30)
    decisions = [{"sample": one["sample"], "kind": "label", "label": "y"} for one in some]
    assert page.post("decide", decisions=decisions).status_code == 200
    assert len(in_effect(state)) == 30
    assert len(page.post("undo").json()["items"]) == 30 and in_effect(state) == {}


def test_filters(page):
    everything = page.next(60)
    label = everything[0]["given"]
    assert {one["given"] for one in page.next(60, label=label)} == {label}
    assert {one["buffer"] for one in page.next(60, buffer=1)} == {1}
    assert {one["accepted"] for one in page.next(60, verdict="accepted")} == {True}
    assert {one["accepted"] for one in page.next(60, verdict="rejected")} == {False}
    assert page.next(60, verdict="unjudged") == []
    assert page.next(60, label="nobody") == []


def test_new_scores_come_later_and_the_order_of_what_was_given_stays(page, state):
    first = page.next(5)
    with tiny(state) as session:
        session.take(items(40, 60))
        session.work()
    held = [one["sample"] for one in first]
    wait_until(lambda: len(page.post("next", n=60, held=held).json()["items"]) == 55, 20)
    rest = page.post("next", n=60, held=held).json()["items"]
    assert not {one["sample"] for one in rest} & set(held)


def test_the_export_is_what_correct_takes(page, state, tmp_path):
    some = page.next(3)
    page.decide(some[0]["sample"], "label", "=1+1")
    page.decide(some[1]["sample"], "keep")
    page.decide(some[2]["sample"], "drop")
    text = page.client.get("/api/export.csv").text
    assert text == f"id,label\n{some[0]['name']},'=1+1\n{some[1]['name']},{some[1]['given']}\n"
    with tiny(tmp_path / "other") as session:
        session.take(items(0, 40))
        session.work()
        from purereplay.live.corrections import correct

        (tmp_path / "fixes.csv").write_text(text)
        assert [o.error for o in correct(session, tmp_path / "fixes.csv")] == [None, None]


def test_decisions_teach_while_the_page_is_open(page, state):
    """The state absorbs them, and new suggestions come."""
    assert page.post("status").json()["teaches"]
    wait_until(lambda: page.post("status").json()["opinion"] >= 1)
    for one in page.next(3):
        page.decide(one["sample"], "label", "label 2")

    def is_learned() -> bool:
        with Store.reading(state) as store:
            return absorbed(store).number == 3

    wait_until(is_learned)
    wait_until(lambda: page.post("status").json()["opinion"] >= 2)
    [again] = page.next(1)
    assert again["chance"] is not None and len(again["near"]["given"]) > 0


def test_an_error_does_not_end_learning(page, state, monkeypatch):
    from purereplay.web import teaching

    def full(*values):
        raise RuntimeError("CUDA out of memory.")

    wait_until(lambda: page.post("status").json()["opinion"] >= 1)
    with monkeypatch.context() as broken:
        broken.setattr(teaching.Reviewed, "absorb", full)
        [one] = page.next(1)
        page.decide(one["sample"], "drop")
        told = "The decisions cannot be learned: CUDA out of memory."
        wait_until(lambda: page.post("status").json()["activity"] == told)
    wait_until(lambda: page.post("status").json()["absorbed"] == 1)


def test_an_image_is_shown_with_one_opinion(state):
    """The thread that learns may replace the opinion at any time."""
    from purereplay.web.desk import Desk
    from purereplay.web.opinions import unknown
    from purereplay.web.samples import StateSamples

    used = []

    class Replaced(Desk):
        @property
        def opinion(self):
            used.append(unknown(40))
            return used[-1]

        @opinion.setter
        def opinion(self, value):
            pass

    with Store.reading(state) as store, DecisionLog.writing(log_path(state)) as log:
        desk = Replaced(StateSamples(store), log, unknown(40))
        assert desk.item(0)["name"] == "s0" and len(used) == 1


def test_decisions_are_absorbed_at_the_end(state):
    with serving(state=state) as client:
        page = Page(client)
        [one] = page.next(1)
        page.decide(one["sample"], "drop")
    with Store.reading(state) as store:
        assert absorbed(store).dropped == {one["sample"]}


def test_images(page, state):
    [one] = page.next(1)
    answer = page.client.get(f"/image/{one['sample']}")
    assert answer.headers["content-type"] == "image/png"
    import io

    from PIL import Image

    assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.content))), expected_pixels(one["sample"]))


def expected_pixels(number: int) -> np.ndarray:
    return picture(number, number % 3)


def test_an_audit_with_a_folder(tmp_path, cli_audit):
    audit, images = cli_audit
    with serving(audit=audit, images=images) as client:
        page = Page(client)
        some = page.next(60)
        assert [one["clean"] for one in some] == sorted(one["clean"] for one in some) and len(some) == 40
        assert some[0]["name"].startswith("label ") and some[0]["given"] == some[0]["name"].partition("/")[0]
        assert client.get(f"/image/{some[0]['sample']}").status_code == 200
        page.decide(some[0]["sample"], "label", "new")
        assert client.get("/api/export.csv").text == f"id,label\n{some[0]['name']},new\n"
        assert not page.post("status").json()["teaches"]
    with serving(audit=audit, images=images) as client:  # decisions are kept beside the audit
        assert len(Page(client).next(60)) == 39


def test_statistics():
    from purereplay.live.decisions import Entry
    from purereplay.purify.noise_rate import NoiseRate
    from purereplay.web.statistics import statistics

    def entry(number: int, kind: str, label: str | None) -> Entry:
        return Entry(number, f"s{number}", kind, label, None, "r", f"a{number}", 1000.0 + 2 * number)

    given = {f"s{i}": "a" for i in range(200)}
    entries = [entry(i, "label", "b") for i in range(30)] + [entry(i, "keep", "a") for i in range(30, 60)]
    entries += [entry(60, "unsure", None), entry(61, "drop", None)]
    found = statistics(entries, given, 1000, NoiseRate(0.1, 0.08, 0.13, 500))
    assert (found["decided"], found["judged"], found["wrong"], found["unsure"], found["dropped"]) == (62, 60, 30, 1, 1)
    assert found["wrong_share"]["rate"] == 0.5 and found["left"] == {"rate": 70, "low": 50, "high": 100}
    assert abs(found["per_minute"] - 30) < 1e-9 and found["hint"] is None  # 20 of the last 50 were wrong
    entries += [entry(i, "keep", "a") for i in range(62, 112)]
    assert "0 were wrong" in statistics(entries, given, 1000, None)["hint"]
    assert statistics([], {}, 10, None)["wrong_share"] is None


def test_statistics_leave_out_samples_without_a_score_and_the_speed_of_files():
    from purereplay.live.decisions import Entry
    from purereplay.live.reviewed import IMPORTED
    from purereplay.web.statistics import statistics

    def entry(number: int, kind: str, label: str | None, reviewer: str = "r", time: float = 0.0) -> Entry:
        return Entry(number, f"s{number}", kind, label, None, reviewer, f"a{number}", time or 1000.0 + 2 * number)

    given = {f"s{i}": "a" for i in range(100)}
    read = [entry(i, "label", "a", IMPORTED, 1000.0) for i in range(60)]
    found = statistics([*read, *(entry(i, "keep", "a") for i in range(60, 65))], given, 100, None)
    assert (found["decided"], found["judged"], found["hint"]) == (65, 65, None)
    assert abs(found["per_minute"] - 30) < 1e-9
    others = [entry(i, kind, None) for i, kind in ((100, "drop"), (101, "unsure"))]
    found = statistics([*read, *others], given, 62, None)
    assert (found["decided"], found["unsure"], found["dropped"], found["hint"]) == (60, 0, 0, None)
    assert found["per_minute"] is None


def test_wrong_labels_left_do_not_count_corrections_twice(tmp_path):
    """`full-memory` estimates the noise of labels that nobody has decided; the page subtracts what was found."""
    from purereplay.live.items import Item
    from purereplay.live.verdicts import ALL, read_noise

    state = tmp_path / "state"
    made = [Item(f"s{i}", f"label {(i + (i % 5 == 0)) % 3}", png(picture(i, i % 3))) for i in range(150)]
    with tiny(state, learner="full-memory") as session:
        session.take(made)
        session.work()
    with serving(state=state) as client:
        page = Page(client)
        for number in range(0, 100, 5):
            page.decide(number, "label", f"label {number % 3}")
        wait_until(
            lambda: (now := page.post("status").json())["absorbed"] == now["last"] and now["activity"] == "ready"
        )
        found = page.post("status").json()["statistics"]
    with Store.reading(state) as store:
        rest = read_noise(store)[ALL, ALL]
    assert found["wrong"] == 20 and rest.n == 130
    assert found["left"] == pytest.approx({name: getattr(rest, name) * 130 for name in ("rate", "low", "high")}, abs=1)


def test_labels_that_were_corrected_before_are_not_left(tmp_path):
    """`correct` writes no log unless a review runs, so the page knows of such corrections by the state alone."""
    from purereplay.live.corrections import Correction, apply
    from purereplay.live.items import Item
    from purereplay.live.verdicts import ALL, read_noise

    state = tmp_path / "state"
    made = [Item(f"s{i}", f"label {(i + (i % 5 == 0)) % 3}", png(picture(i, i % 3))) for i in range(150)]
    with tiny(state, learner="full-memory") as session:
        session.take(made)
        session.work()
        apply(session, [Correction(f"s{i}", f"label {i % 3}") for i in range(0, 100, 5)])
        session.settle()
    with Store.reading(state) as store:
        rest = read_noise(store)[ALL, ALL]
    with serving(state=state) as client:
        page = Page(client)
        wait_until(lambda: page.post("status").json()["statistics"]["left"] is not None)
        found = page.post("status").json()["statistics"]
    assert found["wrong"] == 0 and rest.n == 130
    assert found["left"] == pytest.approx({name: getattr(rest, name) * 130 for name in ("rate", "low", "high")}, abs=1)


def test_a_page_of_another_state_changes_nothing(page, state):
    """A page stays open while its server ends and that of another state takes its port and its cookie."""
    [one] = page.next(1)
    own = page.client.get("/api/begin").json()["subject"]
    decisions = [{"sample": one["sample"], "kind": "drop", "label": None}]
    for path in ("decide", "undo", "next", "status", "release"):
        answer = page.post(path, subject="another", decisions=decisions)
        assert answer.status_code == 409 and "another state" in answer.json()["error"], path
    assert in_effect(state) == {}
    renamed = [decisions[0] | {"name": "another"}]  # a state or an audit that was made again
    assert page.post("decide", subject=own, decisions=renamed).status_code == 400 and in_effect(state) == {}
    decisions[0]["name"] = one["name"]
    assert page.post("decide", subject=own, decisions=decisions).status_code == 200
    with serving(state=state) as again:  # a new start of the same state is the same subject
        assert Page(again).client.get("/api/begin").json()["subject"] == own


def test_a_clock_that_was_set_back_does_not_stop_learning(monkeypatch):
    from purereplay.live.decisions import Entry
    from purereplay.web import teaching

    made = [Entry(1, "s1", "keep", "a", None, "r", "a1", 5000.0)]
    assert not teaching.is_due(made, now=5001.0) and teaching.is_due(made, now=5004.0)
    assert teaching.is_due(made, now=1400.0)  # an hour earlier
    assert teaching.is_due(made * 25, now=5000.1) and not teaching.is_due([], now=5000.1)


@pytest.mark.parametrize("path", ["/image/" + "9" * 5000, "/image/0?size=" + "9" * 5000, "/image/-1", "/image/x"])
def test_numbers_of_images_that_are_none(page, path):
    assert page.client.get(path).status_code in (200, 404)


def test_a_label_with_too_few_samples_is_not_certain(tmp_path):
    """It comes last, without a probability and without the agreement of a classifier that has learned it."""
    from purereplay.live.audit import audit
    from purereplay.live.items import Item
    from purereplay.nets.engine import Engine

    engine = Engine(torch.device("cpu"))
    state, folder = tmp_path / "state", tmp_path / "images"
    made = [*items(0, 40), *(Item(f"r{i}", "rare", png(picture(500 + i, 4))) for i in range(2))]
    with tiny(state, learner="full-memory") as session:
        session.take(made)
        session.work(rest=True)
    with Store.reading(state) as store:
        audit(store, engine, tmp_path / "audit.csv")
    folder.mkdir()
    for subject in ({"state": state}, {"audit": tmp_path / "audit.csv", "images": folder}):
        with serving(**subject) as client:
            page = Page(client)
            if "state" in subject:
                wait_until(lambda page=page: page.post("status").json()["activity"] == "ready", 30)
            some = page.next(60)
            assert [one["name"] for one in some[-2:]] == ["r0", "r1"] and len(some) == 42
            for one in some[-2:]:
                assert one["clean"] is None and not one["accepted"] and not one["agrees"]
                assert one["suggested"] != "rare" and one["near"]["given"] == []
            assert all(one["buffer"] is None for one in some)  # this learner has no buffers
            assert [one["name"] for one in page.next(60, verdict="unjudged")] == ["r0", "r1"]
            assert len(page.next(60, verdict="accepted")) + len(page.next(60, verdict="rejected")) == 40
            found = page.post("status").json()["statistics"]
            assert found["unjudged"] == 2 and client.get("/api/begin").json()["buffers"] == 0


def test_wrong_labels_left_are_counted_among_those_that_were_judged():
    from purereplay.purify.noise_rate import NoiseRate
    from purereplay.web.statistics import statistics

    found = statistics([], {}, 1000, NoiseRate(0.1, 0.1, 0.1, 500), n_unjudged=400)
    assert found["left"]["rate"] == 60 and found["unjudged"] == 400


def test_the_large_image_is_the_original(tmp_path):
    import io

    from PIL import Image

    from purereplay.live.learn import learn
    from purereplay.live.settings import Wanted

    for i in range(24):
        path = tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(np.random.default_rng(i).integers(0, 255, (4, 4, 3), np.uint8))
        small.resize((300, 300)).save(path)
    learn(str(tmp_path / "photos"), tmp_path / "state", Wanted(overrides={"first": "20"}), device="cpu")
    with serving(state=tmp_path / "state") as client:
        page = Page(client)

        def size(number: int, wanted: int) -> tuple[int, int]:
            answer = client.get(f"/image/{number}?size={wanted}")
            assert answer.headers["content-type"] == "image/png"
            return Image.open(io.BytesIO(answer.content)).size

        one, other = (one["sample"] for one in page.next(2))
        assert size(one, 1024) == (300, 300) and size(one, 200) == (200, 200) and size(one, 128) == (64, 64)
        note = page.post("source", samples=[one]).json()
        assert note == {"sample": one, "note": "file, 300 × 300 pixels"}
        for path in (tmp_path / "photos").rglob("*.png"):
            path.unlink()
        assert "copy in the state, 64 × 64 pixels" in page.post("source", samples=[other]).json()["note"]
        assert size(other, 1024) == (64, 64)
        for samples in ([], [999], [-1], "x", [None]):
            assert page.post("source", samples=samples).status_code == 400
