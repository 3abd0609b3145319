"""Audit, status, corrections and predictions of a state, also while another process writes."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_state import LEARNERS, fingerprint, items, picture, png, tiny

from purereplay.errors import UserError
from purereplay.live import predict as predicting
from purereplay.live.audit import COLUMNS, audit
from purereplay.live.corrections import correct
from purereplay.live.predict import ImageFile, image_files, predict, ready_classifier, with_current
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

ENGINE = Engine(torch.device("cpu"))


@pytest.fixture(scope="module", params=LEARNERS)
def finished(tmp_path_factory, request):
    """Two scored buffers of three labels, and five samples that wait."""
    folder = tmp_path_factory.mktemp("finished") / "state"
    with tiny(folder, request.param) as session:
        session.take(items(0, 45))
        session.work()
    return folder


@pytest.fixture
def state(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "state")


def audited(state: Path) -> list[dict[str, str]]:
    with Store.reading(state) as store:
        audit(store, ENGINE, state.parent / "audit.csv")
    with (state.parent / "audit.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fix(state: Path, text: str) -> list:
    (state.parent / "fixes.csv").write_text(text)
    with tiny(state) as session:
        return correct(session, state.parent / "fixes.csv")


def held(state: Path) -> dict[str, tuple[str, float]]:
    """Contents of P: label and clean probability by id."""
    with tiny(state) as session:
        batch, probability = session.learning.learner.purified.contents()
        labels, rows = session.store.labels(), session.store.rows(batch.index.tolist())
        found = zip(rows, batch.labels.tolist(), probability.tolist(), strict=True)
        return {row.id: (labels[code], p) for row, code, p in found}


def test_an_audit_lists_every_decision(state):
    rows = audited(state)
    assert tuple(rows[0]) == COLUMNS and {row["id"] for row in rows} == {f"s{i}" for i in range(40)}
    known = fingerprint(state)
    ids = {position: identity for position, identity, *_ in known["samples"]}
    decided = {ids[position]: rest for position, *rest in known["decisions"]}
    purified = {ids[position] for (position,) in known["purified"]}
    for row in rows:
        buffer, probability, centrality, selected = decided[row["id"]]
        assert row["given_label"] == f"label {int(row['id'][1:]) % 3}" and int(row["buffer"]) == buffer
        assert float(row["clean_probability"]) == pytest.approx(probability, abs=1e-6)
        assert float(row["centrality"]) == pytest.approx(centrality, abs=1e-6)
        assert row["decision"] == ("accepted" if selected else "rejected")
        assert row["in_purified"] == str(int(row["id"] in purified)) and row["corrected_label"] == ""
    believed = [float(row["clean_probability"]) for row in rows]
    assert believed == sorted(believed) and len({row["decision"] for row in rows}) == 2


def test_the_likely_other_label_is_the_classifier_s(state):
    fix(state, "id,label\n" + "".join(f"s{i},label 1\n" for i in range(0, 40, 3)))  # given: label 0
    with Store.reading(state) as store:
        classifier, labels = ready_classifier(store, ENGINE)
        pixels = np.stack([row.pixels for row in store.rows(list(range(40)))])
    chances = classifier.probabilities(torch.from_numpy(pixels))
    rows = {row["id"]: row for row in audited(state)}
    others = 0
    for i, chance in enumerate(chances):
        said, row = labels[int(chance.argmax())], rows[f"s{i}"]
        assert row["likely_other_label"] == ("" if said == row["given_label"] else said)
        if said != row["given_label"]:
            assert float(row["likely_other_probability"]) == pytest.approx(float(chance.max()), abs=1e-5)
            others += 1
    assert others > 0


def test_before_anything_is_scored(tmp_path):
    with tiny(tmp_path / "state") as session:
        session.take(items(0, 5))
    assert audited(tmp_path / "state") == []
    with Store.reading(tmp_path / "state") as store:
        with pytest.raises(UserError, match="has no classifier yet, since no sample has passed the filter"):
            ready_classifier(store, ENGINE)
        assert status(store)["waiting"] == 5
    with pytest.raises(UserError, match="holds no state"), Store.reading(tmp_path / "nowhere"):
        pass


def test_an_audit_is_written_whole_or_not_at_all(state, monkeypatch):
    out = state.parent / "audit.csv"
    out.write_text("the last one")
    with monkeypatch.context() as patch, Store.reading(state) as store:
        patch.setattr(Store, "span", lambda *_: (_ for _ in ()).throw(UserError("sample s3 is damaged")))
        with pytest.raises(UserError, match="s3"):
            audit(store, ENGINE, out)
    assert out.read_text() == "the last one" and not list(state.parent.glob("*.part"))
    with Store.reading(state) as store, pytest.raises(UserError, match="cannot be written"):
        audit(store, ENGINE, state.parent / "nowhere" / "audit.csv")


def test_a_label_that_a_person_has_checked_is_believed(state):
    rejected = [row["id"] for row in audited(state) if row["decision"] == "rejected"][:2]
    with Store.reading(state) as store:
        before = status(store)
    fix(state, f"id,label\n{rejected[0]},brand new\n{rejected[1]},label {int(rejected[1][1:]) % 3}\n")
    rows = audited(state)
    assert [(row["decision"], row["clean_probability"]) for row in rows if row["id"] == rejected[0]] == [
        ("corrected", "1.000000")
    ]
    assert [row["decision"] for row in rows if row["id"] == rejected[1]] == ["confirmed"]
    assert {row["id"] for row in rows[-2:]} == set(rejected)
    with Store.reading(state) as store:
        now = status(store)
    assert (now["accepted"], now["rejected"]) == (before["accepted"] + 2, before["rejected"] - 2)
    assert sum(c["rejected"] for c in now["classes"]) == now["rejected"]


def test_status_counts(state):
    fix(state, "id,label\ns1,label 2\n")
    with Store.reading(state) as store:
        facts = status(store)
    assert (facts["samples"], facts["scored"], facts["waiting"], facts["corrected"]) == (45, 40, 5, 1)
    assert facts["accepted"] + facts["rejected"] == 40 and facts["buffers"] == 2
    assert facts["purified"] == len(held(state)) and facts["image_shape"] == (1, 6, 6)
    assert [(c["label"], c["samples"]) for c in facts["classes"]] == [(f"label {i}", 15) for i in range(3)]
    assert sum(c["scored"] for c in facts["classes"]) == 40
    assert sum(c["rejected"] for c in facts["classes"]) == facts["rejected"]
    json.dumps(facts)


# ---------------------------------------------------------------- corrections


def test_corrected_labels_go_into_p_with_probability_1(state):
    rejected = [row["id"] for row in audited(state) if row["decision"] == "rejected"][:2]
    inside = next(name for name, (label, _) in held(state).items() if label == "label 0")
    text = f"id,label\n{rejected[0]},label 1\n{rejected[1]},brand new\n{inside},label 2\n"
    assert [outcome.new for outcome in fix(state, text)] == [True, True, True]
    now = held(state)
    assert now[rejected[0]] == ("label 1", 1.0) and now[rejected[1]] == ("brand new", 1.0)
    assert now[inside] == ("label 2", 1.0)
    rows = {row["id"]: row for row in audited(state)}
    assert rows[rejected[1]]["corrected_label"] == "brand new"
    assert rows[rejected[1]]["decision"] == "corrected" and rows[rejected[1]]["clean_probability"] == "1.000000"
    assert rows[inside]["given_label"] == "label 0" and rows[inside]["in_purified"] == "1"
    with Store.reading(state) as store:
        assert ready_classifier(store, ENGINE)[1] == ["label 0", "label 1", "label 2", "brand new"]


def test_the_last_correction_is_in_effect_and_repeating_it_changes_nothing(state):
    assert fix(state, "id,label\ns1,a\n")[0].new
    before = fingerprint(state)
    assert not fix(state, "id,label\ns1,a\n")[0].new and fingerprint(state) == before
    assert fix(state, "id,label\ns1,b\n")[0].new and held(state)["s1"] == ("b", 1.0)
    assert fix(state, "id,label\ns1,a\n")[0].new and held(state)["s1"] == ("a", 1.0)
    assert [row["corrected_label"] for row in audited(state) if row["id"] == "s1"] == ["a"]


def test_bad_corrections_are_refused_and_the_rest_is_applied(state):
    text = "id,label\nunknown,a\ns44,a\ns1,\n,a\ns2,a\ns2,b\ns3,c\n"
    outcomes = fix(state, text)
    reasons = [outcome.error or "" for outcome in outcomes]
    assert "is not the id of a sample" in reasons[0] and "is not scored yet" in reasons[1]
    assert reasons[2] == "has no label" and "has no id" in reasons[3] and "earlier line" in reasons[5]
    assert [outcome.new for outcome in outcomes] == [False, False, False, False, True, False, True]
    assert held(state)["s2"] == ("a", 1.0) and held(state)["s3"] == ("c", 1.0)
    with pytest.raises(UserError, match="needs a header"):
        fix(state, "name,label\ns1,a\n")


def test_the_audit_itself_with_labels_filled_in_is_a_file_of_corrections(state):
    rows = audited(state)
    for row, label in zip(rows, ["label 1", "=new", rows[2]["given_label"]], strict=False):
        row["corrected_label"] = label
    path = state.parent / "filled.csv"
    for delimiter in (",", ";", "\t"):  # as spreadsheets save it
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
        with tiny(state) as session:
            outcomes = correct(session, path)
        assert [outcome.name for outcome in outcomes] == [row["id"] for row in rows[:3]]
        assert [outcome.new for outcome in outcomes] == [delimiter == ","] * 3
    assert held(state)[rows[1]["id"]] == ("=new", 1.0)
    assert held(state)[rows[2]["id"]] == (rows[2]["given_label"], 1.0)  # confirmed
    again = audited(state)
    assert {row["id"] for row in again[-3:]} == {row["id"] for row in rows[:3]}  # they left the top
    assert [row["id"] for row in again[:37]] == [row["id"] for row in rows[3:]]


def test_a_file_of_corrections_with_two_columns_of_labels_is_refused(state):
    with pytest.raises(UserError, match="has the columns label and corrected_label: remove one"):
        fix(state, "id,label,corrected_label\ns1,a,b\n")
    with pytest.raises(UserError, match="columns id and label; it has: id, given_label"):
        fix(state, "id,given_label\ns1,a\n")
    assert fix(state, "id,corrected_label\ns1,\n") == []


def test_corrections_stay_while_learning_continues(state):
    fix(state, "id,label\ns1,label 2\ns2,brand new\n")
    with tiny(state) as session:
        session.take(items(45, 100))
        session.work(rest=True)
    assert held(state)["s1"] == ("label 2", 1.0) and held(state)["s2"] == ("brand new", 1.0)
    with tiny(state) as session:
        taught = getattr(session.learning.learner, "seen", None)  # pure-replay: classes that the base was trained on
        assert taught is None or taught.tolist() == [True] * 4


def test_an_interrupted_correction_changes_nothing(state, monkeypatch):
    before = fingerprint(state)
    monkeypatch.setattr("purereplay.live.store.write_whole", lambda *_, **__: (_ for _ in ()).throw(UserError("full")))
    with pytest.raises(UserError, match="full"):
        fix(state, "id,label\ns1,brand new\n")
    assert fingerprint(state) == before


# ---------------------------------------------------------------- the classifier


def test_the_classifier_is_kept_until_something_changes(state, monkeypatch):
    with Store.reading(state) as store:
        first, _ = ready_classifier(store, ENGINE)
        with monkeypatch.context() as patch:
            patch.setattr(predicting, "load_learner", lambda *_: pytest.fail("it was finetuned again"))
            second, labels = ready_classifier(store, ENGINE)
    assert first.state.keys() == second.state.keys() and len(labels) == 3
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    [kept] = state.glob("classifier-*")
    kept.write_bytes(b"damaged")  # it is finetuned again
    with Store.reading(state) as store:
        third, _ = ready_classifier(store, ENGINE)
    assert all(torch.equal(first.state[name], third.state[name]) for name in first.state)
    fix(state, "id,label\ns1,label 2\n")
    assert not kept.exists()


def test_predictions(state, tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(png(picture(i)))
    paths.insert(1, tmp_path / "bad.png")
    paths[1].write_bytes(png(picture(0, size=9))[:60])
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, ENGINE)
        answers = list(predict(store, classifier, [ImageFile(path) for path in paths]))
    assert [answer.path for answer in answers] == paths
    assert answers[1].probabilities is None and "is damaged" in answers[1].error
    images = torch.stack([torch.from_numpy(picture(i)[None]) for i in range(3)])
    expected = classifier.probabilities(images)
    assert torch.equal(torch.stack([a.probabilities for a in answers if a.probabilities is not None]), expected)


def test_folders_of_images_are_searched(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/.hidden.png", "single.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"")
    single, folder = tmp_path / "images" / "single.png", tmp_path / "images"
    names = ["single.png", "a/1.png", "b/2.png", "single.png"]
    assert [found.path for found in image_files([single, folder])] == [folder / name for name in names]
    assert image_files([tmp_path / "nowhere.png"]) == [ImageFile(tmp_path / "nowhere.png")]  # refused when it is read


def test_readers_continue_while_another_process_replaces_the_learner(state, tmp_path):
    """The learner file is gone when a reader opens it: it reads the new name and tries again."""
    with tiny(state) as session, Store.reading(state) as store:
        n_asked = 0

        def use(current):
            nonlocal n_asked
            n_asked += 1
            if n_asked == 1:
                session.take(items(45, 60))
                session.work()
            return store.packed(current).tensors["n_done"]

        assert int(with_current(store, use)) == 3 and n_asked == 2
        audit(store, ENGINE, tmp_path / "audit.csv")  # while the other process holds the lock
        assert status(store)["scored"] == 60
        [gone] = state.glob("learner-*")
        gone.unlink()
        with pytest.raises(UserError, match=gone.name):
            with_current(store, lambda current: store.packed(current))
