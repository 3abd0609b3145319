"""The learner full-memory: verdicts are revised at fixed numbers of samples, with history, noise and corrections."""

import csv
import io
import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from tiny_state import fingerprint, items, picture, png, tiny

from purereplay.errors import UserError
from purereplay.live import opinion
from purereplay.live.audit import audit
from purereplay.live.corrections import Correction, apply
from purereplay.live.items import Item
from purereplay.live.judgements import judgements
from purereplay.live.memory_settings import FullMemorySettings
from purereplay.live.predict import ready_classifier
from purereplay.live.session import Session
from purereplay.live.settings import Wanted
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

ENGINE = Engine(torch.device("cpu"))
N_DIGITS, N_NEW = 500, 500
IMAGES, TRUTH = (load_digits().images * 15.9).astype(np.uint8), load_digits().target


def given(rate: float = 0.3, seed: int = 0) -> np.ndarray:
    """Labels of the first digits, some of them wrong."""
    dice = np.random.default_rng(seed)
    wrong = dice.random(N_DIGITS) < rate
    return np.where(wrong, (TRUTH[:N_DIGITS] + dice.integers(1, 10, N_DIGITS)) % 10, TRUTH[:N_DIGITS])


LABELS = given()


def png_of(i: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(IMAGES[i]).save(file, "PNG")
    return file.getvalue()


def digits(order: np.ndarray, labels: np.ndarray = LABELS) -> list[Item]:
    return [Item(str(i), str(labels[i]), png_of(i)) for i in order.tolist()]


def open_state(folder: Path, **overrides: str):
    return Session.open(folder, Wanted(overrides=overrides), ENGINE)


def audited(folder: Path) -> dict[int, dict[str, str]]:
    """Rows of the audit by number of the digit, in their order."""
    with Store.reading(folder) as store:
        audit(store, ENGINE, folder.parent / "audit.csv")
    with (folder.parent / "audit.csv").open(newline="") as file:
        return {int(row["id"]): row for row in csv.DictReader(file)}


def accuracy(folder: Path) -> float:
    """Share of right predictions on digits that were not learned."""
    with Store.reading(folder) as store:
        classifier, labels = ready_classifier(store, ENGINE)
    new = slice(N_DIGITS, N_DIGITS + N_NEW)
    best = classifier.probabilities(torch.from_numpy(IMAGES[new, None])).argmax(1)
    return float(np.mean([labels[code] == str(true) for code, true in zip(best.tolist(), TRUTH[new], strict=True)]))


def auroc(rows: dict[int, dict[str, str]]) -> float:
    right = [LABELS[i] == TRUTH[i] for i in rows]
    return float(roc_auc_score(right, [float(row["clean_probability"]) for row in rows.values()]))


ORDERS = {
    "folder": np.lexsort([np.arange(N_DIGITS), LABELS]),  # by given label, as a folder is read
    "shuffled": np.random.default_rng(5).permutation(N_DIGITS),
    "by class": np.lexsort([np.arange(N_DIGITS), TRUTH[:N_DIGITS]]),
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> dict[str, Path]:
    """States of the same digits in three orders: all at once, and through a schedule of revisions."""
    root = tmp_path_factory.mktemp("orders")
    for name, order in ORDERS.items():
        with open_state(root / name / "state") as session:
            session.take(digits(order))
            session.work(rest=True)
    with open_state(root / "pipe" / "state", first="150", growth="1") as session:
        for start in range(0, N_DIGITS, 50):
            session.take(digits(ORDERS["by class"][start : start + 50]))
            session.work()
        session.work(rest=True)
    return {name: root / name / "state" for name in (*ORDERS, "pipe")}


@pytest.mark.long
def test_the_order_hardly_matters(learned):
    found = {name: (auroc(audited(state)), accuracy(state)) for name, state in learned.items()}
    areas, accuracies = zip(*found.values(), strict=True)
    assert min(areas) > 0.97 and max(areas) - min(areas) < 0.01, found
    assert min(accuracies) > 0.9 and max(accuracies) - min(accuracies) < 0.05, found


@pytest.mark.long
def test_the_noise_is_estimated_overall_by_label_and_by_pair(learned):
    with Store.reading(learned["shuffled"]) as store:
        found = status(store)
    overall, *others = found["noise"]
    true = float(np.mean(TRUTH[:N_DIGITS] != LABELS))
    assert overall["given"] is None and overall["n"] == N_DIGITS and abs(overall["rate"] - true) < 0.06
    assert overall["low"] <= overall["rate"] <= overall["high"]
    by_label = {row["given"]: row["rate"] for row in others if row["likely"] is None}
    assert set(by_label) == {str(c) for c in range(10)}
    pairs = [row for row in others if row["likely"] is not None]
    assert pairs and all(row["given"] != row["likely"] for row in pairs)
    json.dumps(found, allow_nan=False)


@pytest.mark.long
def test_the_audit_names_the_likely_label_and_why_a_verdict_changed(learned):
    rows = audited(learned["pipe"])
    wrong = [i for i in rows if LABELS[i] != TRUTH[i] and rows[i]["decision"] == "rejected"]
    assert np.mean([rows[i]["likely_other_label"] == str(TRUTH[i]) for i in wrong]) > 0.85
    reasons = {row["reason"] for row in rows.values()}
    assert "first judged" in reasons and any("more samples" in reason for reason in reasons), reasons
    with Store.reading(learned["pipe"]) as store:
        history = store.query("SELECT position, n_samples, selected FROM verdicts ORDER BY position, number")
        now = dict(store.query("SELECT position, selected FROM decisions"))
    last: dict[int, tuple[int, int]] = {}
    for position, n, selected in history:
        assert position not in last or (last[position][1] != selected and last[position][0] <= n)
        last[position] = (n, selected)
    assert {position: selected for position, (_, selected) in last.items()} == now
    assert all(int(row["changed_at"]) > 0 for row in rows.values())


@pytest.mark.long
def auroc_of_given(folder: Path) -> float:
    """Area under the curve of the clean probability of the given labels, also of corrected samples."""
    with Store.reading(folder) as store:
        rows = store.query("SELECT s.id, d.probability FROM decisions d JOIN samples s USING (position)")
    return float(roc_auc_score([LABELS[int(i)] == TRUTH[int(i)] for i, _ in rows], [p for _, p in rows]))


def decided(i: int) -> str:
    return "confirmed" if LABELS[i] == TRUTH[i] else "corrected"


def test_more_corrections_never_make_it_worse(learned, tmp_path):
    """The first suspects, then more, then all of them, with their true labels."""
    state = Path(shutil.copytree(learned["folder"].parent, tmp_path / "copy")) / "state"
    suspects = [i for i, row in audited(state).items() if row["decision"] == "rejected"]
    found, areas = [accuracy(state)], [auroc_of_given(state)]
    for n in (40, 100, len(suspects)):
        with open_state(state) as session:
            outcomes = apply(session, [Correction(str(i), str(TRUTH[i])) for i in suspects[:n]])
            assert not any(outcome.error for outcome in outcomes)
            assert session.settle() is not None and session.settle() is None
        found.append(accuracy(state))
        rows = audited(state)
        areas.append(auroc_of_given(state))
        assert {*list(rows)[-n:]} == {*suspects[:n]}  # they left the top of the list
        assert all(rows[i]["in_purified"] == "1" for i in suspects[:n])
        assert {rows[i]["clean_probability"] for i in suspects[:n]} == {"1.000000"}
        assert all(rows[i]["decision"] == decided(i) for i in suspects[:n])
    assert all(b >= a - 0.004 for a, b in pairwise(found)), found  # two of 500 images
    assert found[-1] > found[0] and areas[-1] >= areas[0], (found, areas)


@pytest.mark.long
def test_clean_data_stays_whole(tmp_path):
    with open_state(tmp_path / "state") as session:
        session.take(digits(ORDERS["shuffled"], TRUTH))
        session.work(rest=True)
        found = status(session.store)
    assert found["rejected"] <= 0.1 * N_DIGITS and found["noise"][0]["rate"] <= 0.05


# ---------------------------------------------------------------- tiny samples


def test_the_schedule_is_geometric():
    settings, points, n = FullMemorySettings(), [], 0
    while n < 1_000_000:
        n = settings.next_revision(n)
        points.append(n)
    assert points[0] == 100 and all(b <= 1.5 * a + 1 for a, b in pairwise(points))
    assert sum(points) < 4 * points[-1]  # every sample is judged about three times in all
    assert FullMemorySettings(growth=1e-9).next_revision(5) == 6


def test_new_samples_are_judged_in_pieces_and_revised(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        judged = []
        for start in range(0, 48, 4):
            session.take(items(start, start + 4))
            session.work(on_report=judged.append)
        assert [(j.n_samples, j.is_revision) for j in judged] == [
            (20, True), (25, False), (30, True), (35, False), (40, False), (45, True)
        ]  # fmt: skip
        assert [j.n_new for j in judged] == [20, 5, 5, 5, 5, 5]
        assert session.taken == 45 and status(session.store)["waiting"] == 3
        session.work(rest=True, on_report=judged.append)
        assert (judged[-1].n_samples, judged[-1].is_revision) == (48, True)
        reasons = session.store.query("SELECT DISTINCT reason FROM verdicts WHERE position IN (21, 46)")
        assert {reason for (reason,) in reasons} >= {"judged by the classifier when it arrived", "first judged"}


def test_a_few_more_samples_at_the_end_of_a_source_are_judged_by_the_classifier(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 60))
        session.work(rest=True)
        session.take(items(60, 62))
        session.work(rest=True)
        assert session.taken == 62 and session.learning.revised == 60
        session.take(items(62, 70))
        session.work(rest=True)
        assert session.learning.revised == 70
        before = fingerprint(tmp_path / "state")
        session.work(rest=True)
    assert fingerprint(tmp_path / "state") == before


def test_samples_of_a_label_that_the_classifier_does_not_know_are_unjudged(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 20))
        session.work()
        session.take([Item(f"n{i}", "brand new", png(picture(100 + i, 4))) for i in range(5)])
        session.work()
        found = status(session.store)
        assert session.taken == 25 and (found["waiting"], found["unjudged"], found["scored"]) == (0, 5, 25)
        session.take(items(25, 30))
        session.work()
        found = status(session.store)
        assert (found["waiting"], found["unjudged"], found["accepted"] + found["rejected"]) == (0, 0, 30)
        session.store.check()  # the digest of every table


def test_one_label_alone_cannot_be_judged(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 20, n_labels=1))
        session.work()
        found = status(session.store)
        assert (found["accepted"], found["unjudged"], found["purified"], found["noise"]) == (0, 20, 20, [])
        assert ready_classifier(session.store, ENGINE)[1] == ["label 0"]


def test_no_more_samples_than_the_capacity_are_compared(tmp_path, small_features, monkeypatch):
    compared, judge = [], opinion.judge_labels

    def counted(features, *arguments, **options):
        compared.append(len(features))
        return judge(features, *arguments, **options)

    monkeypatch.setattr(opinion, "judge_labels", counted)
    with tiny(tmp_path / "state", "full-memory", capacity="30") as session:
        session.take(items(0, 90))
        apply(session, [Correction("s0", "label 1"), Correction("s89", "rare")])
        session.work(rest=True)
        rows = session.learning._memory(session.learning.known(0, 90), seed=1)
        assert compared == [30] and len(rows) == 30 and {0, 89} <= {*rows.tolist()}
        assert status(session.store)["scored"] == 90


def test_corrections_are_noted_at_once_and_learned_later(tmp_path, small_features):
    state = tmp_path / "state"
    with tiny(state, "full-memory") as session:
        session.take(items(0, 25))
        session.work(rest=True)
        assert session.settle() is None
        apply(session, [Correction("s0", "label 1"), Correction("s1", "label 1"), Correction("s24", "new")])
        decided = dict(session.store.query("SELECT position, probability FROM decisions"))
        assert (decided[0], decided[1], decided[24]) == (0.0, 1.0, 0.0)
        last = "SELECT reason, selected FROM verdicts WHERE position = ? ORDER BY number DESC"
        assert [session.store.one(last, [p]) for p in (0, 1)] == [("corrected by a person", s) for s in (0, 1)]
    with tiny(state) as session:  # the process ended before they were learned
        judged = session.settle()
        assert judged is not None and session.learning.opinion.n_classes == 4
        session.store.check()
        [[_, n, m, _]] = session.store.query("SELECT * FROM revisions WHERE number = 2")
        assert (n, m) == (25, 3)
        [[taught]] = session.store.query("SELECT count(*) FROM purified WHERE position IN (0, 1, 24)")
        assert taught == 3
        apply(session, [Correction("s0", "label 1")])  # the same again
        assert session.settle() is None


def test_what_a_person_said_is_a_judgement_too(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 25))
        session.work(rest=True)
        before = judgements(session.store, 0, 100)
        apply(session, [Correction("s0", "label 1"), Correction("s1", "label 1"), Correction("s24", "new")])
        said = judgements(session.store, before[-1].number, 100)
        assert {j.corrected_label for j in before} == {None}
        assert [(j.id, j.decision, j.corrected_label, j.reason) for j in said] == [
            ("s0", "corrected", "label 1", "corrected by a person"),
            ("s1", "confirmed", "label 1", "confirmed by a person"),
            ("s24", "corrected", "new", "corrected by a person"),
        ]
        apply(session, [Correction("s0", "label 0")])
        first, *_, last = judgements(session.store, before[-1].number, 100)
        assert first.id == last.id == "s0"  # both say what is in effect now
        assert {(j.clean_probability, j.decision, j.corrected_label) for j in (first, last)} == {
            (1.0, "confirmed", "label 0")
        }


def test_a_sample_may_be_corrected_before_it_is_judged(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 10))
        assert [o.new for o in apply(session, [Correction("s3", "label 2")])] == [True]
        session.work(rest=True)
        assert session.store.one("SELECT probability FROM decisions WHERE position = 3") == (0.0,)


def test_nothing_is_learned_from_dropped_samples(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 30))
        with session.store.transaction():
            session.store.write_fact("reviewed", json.dumps({"dropped": [3, 4]}))
        session.work(rest=True)
        taught = {position for (position,) in session.store.query("SELECT position FROM purified")}
        assert not taught & {3, 4} and status(session.store)["scored"] == 30
        assert session.learning.opinion.feature_map.n_fitted == 28
        with session.store.transaction():
            session.store.write_fact("reviewed", json.dumps({"dropped": []}))
        assert session.settle() is not None


def test_a_label_of_which_all_samples_are_dropped_is_unjudged(tmp_path, small_features):
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 30))
        session.work(rest=True)
        with session.store.transaction():
            session.store.write_fact("reviewed", json.dumps({"dropped": list(range(0, 30, 3))}))
        session.settle()
        found = status(session.store)
        assert (found["waiting"], found["unjudged"], found["accepted"] + found["rejected"]) == (0, 10, 20)
        assert not session.learning.teaching() & set(range(0, 30, 3))
        with session.store.snapshot():
            session.store.check()
        with session.store.transaction():
            session.store.write_fact("reviewed", json.dumps({"dropped": list(range(30))}))
        with pytest.raises(UserError, match="All samples of the state are dropped"):
            session.settle()


def test_a_stopped_revision_changes_nothing_and_is_repeated(tmp_path, small_features):
    class Stop(Exception):
        pass

    state = tmp_path / "state"
    with tiny(state, "full-memory") as session:
        session.take(items(0, 30))
        before = fingerprint(state)
        seen = []

        def watch(work, done, total):
            seen.append(work)
            if "classifier" in work:
                raise Stop

        session.learning.watch = watch
        with pytest.raises(Stop):
            session.work()
        assert fingerprint(state) == before and "features" in seen
        session.learning.watch = None
        session.work()
        assert session.learning.revised == 30


@pytest.mark.parametrize("change", ["revision", "noise", "map.filters", "model.sizes", "extra"])
def test_a_saved_opinion_that_does_not_fit_is_formed_anew(tmp_path, small_features, change):
    state = tmp_path / "state"
    with tiny(state, "full-memory") as session:
        session.take(items(0, 20))
        session.work()
        tensors = session.learning.opinion.tensors()
        if change == "extra":
            tensors["other"] = torch.zeros(1)
        else:
            tensors[change] = tensors[change].to(torch.float16)
        with session.store.transaction():
            session.store.write_tensors(tensors, 20, session.learning.opinion.facts())
    with Store.reading(state) as store, pytest.raises(UserError, match=r"does not fit its state.*recomputes it"):
        ready_classifier(store, ENGINE)
    with tiny(state) as session:
        assert session.learning.opinion is None
        session.work()
    with Store.reading(state) as store:
        ready_classifier(store, ENGINE)


@pytest.mark.parametrize("how", ["work", "rest", "settle"])
@pytest.mark.parametrize("n", [20, 28])  # all judged together; some of them when they arrived
def test_a_lost_opinion_is_formed_anew_from_the_samples(tmp_path, small_features, caplog, how, n):
    state, right = tmp_path / "state", tmp_path / "right"
    with tiny(state, "full-memory") as session:
        session.take(items(0, n))
        session.work()
        before = session.store.query("SELECT position, selected FROM decisions")
    shutil.copytree(state, right)
    [path] = state.glob("learner-*")
    path.unlink()
    with tiny(state) as session:
        assert "recomputed from the samples" in caplog.text
        session.settle() if how == "settle" else session.work(rest=how == "rest")
        session.store.check()
        after = session.store.query("SELECT position, selected FROM decisions")
        if n == 20:
            assert after == before
            pixels = torch.from_numpy(np.stack([picture(i)[None] for i in range(5)]))
            with tiny(right) as undamaged:
                expected = undamaged.learning.opinion.probabilities(pixels)
            assert torch.equal(session.learning.opinion.probabilities(pixels), expected)
        else:
            assert len(after) >= len(before)
    with tiny(state) as session:
        assert session.learning.opinion is not None and session.settle() is None


BLANK = png(np.zeros((8, 8), np.uint8))
EDGES = {
    "blank": [Item(str(i), str(i % 2), BLANK) for i in range(30)],
    "one": items(0, 1),
    "two": items(0, 2),
    "nine": items(0, 9),
    "one pixel": [Item(str(i), str(i % 2), png(np.full((1, 1), i, np.uint8))) for i in range(30)],
    "all labels different": [Item(str(i), str(i), png(picture(i))) for i in range(40)],
    "copies": [Item(str(i), str(i % 3), png(picture(i % 3))) for i in range(60)],
}


@pytest.mark.parametrize("kind", EDGES)
def test_few_or_odd_samples_are_learned(tmp_path, small_features, kind):
    with tiny(tmp_path / "state", "full-memory") as session:
        assert all(outcome.new for outcome in session.take(EDGES[kind]))
        session.work(rest=True)
        assert status(session.store)["scored"] == len(EDGES[kind])
        classifier, labels = ready_classifier(session.store, ENGINE)
        chances = classifier.probabilities(torch.zeros(1, *session.store.image_settings.shape, dtype=torch.uint8))
    assert chances.shape == (1, len(labels)) and float(chances.sum()) == pytest.approx(1)
    assert len(audited_lines(tmp_path / "state")) == len(EDGES[kind])


def audited_lines(folder: Path) -> list[str]:
    with Store.reading(folder) as store:
        audit(store, ENGINE, folder.parent / "audit.jsonl")
    return (folder.parent / "audit.jsonl").read_text().splitlines()


def test_a_corrected_label_teaches_with_full_weight(tmp_path, small_features, monkeypatch):
    """The classifier gets the label of a person with weight 1, whatever the models think of it."""
    taught, judge, choose = [], opinion.judge_labels, opinion.choose_model

    def doubted(*arguments, **options):
        found = judge(*arguments, **options)
        return found._replace(clean_probability=0.3 * found.clean_probability)

    def counted(features, labels, weights, *arguments, **options):
        taught.append((labels.copy(), weights.copy()))
        return choose(features, labels, weights, *arguments, **options)

    monkeypatch.setattr(opinion, "judge_labels", doubted)
    monkeypatch.setattr(opinion, "choose_model", counted)
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 60))
        session.work(rest=True)
        assert (taught[-1][1] <= 0.3).all()
        session.correct({3: "label 1", 6: "brand new", 7: "label 1"})  # changed, new and confirmed
        session.settle()
    labels, weights = taught[-1]
    assert labels[[3, 6, 7]].tolist() == [1, 3, 1] and weights[[3, 6, 7]].tolist() == [1, 1, 1]
    assert (np.delete(weights, [3, 6, 7]) <= 0.3).all()
