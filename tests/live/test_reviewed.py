"""Decisions of reviewers: recorded by any process, absorbed by the learning one, and never lost."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from tiny_state import TINY_OPTIONS, fingerprint, items, picture, png, tiny

from purereplay.errors import BusyError, UserError
from purereplay.live.decisions import Decision, DecisionLog, InEffect
from purereplay.live.items import Refused
from purereplay.live.reviewed import Reviewed, absorbed, check_log, export_decisions, log_path, warn_of_new_log
from purereplay.live.store import Store

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def state(tmp_path):
    """Forty scored samples, s0 to s39."""
    folder = tmp_path / "state"
    with tiny(folder) as session:
        session.take(items(0, 40))
        session.work()
    return folder


def record(state, *decisions, reviewer="anna", action=None):
    with DecisionLog.writing(log_path(state)) as log:
        return log.record(decisions, reviewer, action or f"{random.random()}")


def absorb(state) -> int:
    with tiny(state) as session:
        return Reviewed(session).absorb()


def corrections(state) -> dict[str, str]:
    """Labels in effect by id."""
    with sqlite3.connect(state / "state.sqlite") as database:
        rows = database.execute(
            "SELECT s.id, c.label FROM corrections k JOIN samples s USING (position) JOIN classes c ON c.code = k.label"
            " ORDER BY number"
        )
        return dict(rows.fetchall())


def in_purified(state) -> set[str]:
    with sqlite3.connect(state / "state.sqlite") as database:
        return {name for (name,) in database.execute("SELECT id FROM purified JOIN samples USING (position)")}


def test_labels_go_into_p_and_dropped_samples_out_of_it(state):
    held = sorted(in_purified(state))[0]
    other = sorted({f"s{i}" for i in range(40)} - in_purified(state))[0]
    record(state, Decision(other, "label", "brand new"), Decision(held, "drop"), Decision("s7", "unsure"))
    assert absorb(state) == 3
    assert corrections(state) == {other: "brand new"}
    assert other in in_purified(state) and held not in in_purified(state)
    with Store.reading(state) as store:
        [position] = store.one("SELECT position FROM samples WHERE id = ?", [held])
        assert absorbed(store).number == 3 and absorbed(store).dropped == {position}
    before = fingerprint(state)
    assert absorb(state) == 0 and fingerprint(state) == before


def test_an_undone_decision_is_taken_back_also_after_it_was_absorbed(state):
    record(state, Decision("s1", "label", "label 2"), action="first")
    record(state, Decision("s1", "label", "label 0"), Decision("s2", "drop"), action="second")
    absorb(state)
    assert corrections(state) == {"s1": "label 0"}
    with DecisionLog.writing(log_path(state)) as log:
        assert [e.sample for e in log.undo("anna", "u1")] == ["s1", "s2"]  # the whole action
        assert [e.sample for e in log.undo("anna", "u1")] == ["s1", "s2"]  # the same request, sent again
        assert log.undo("bert", "u2") == []  # somebody else's decisions stay
    absorb(state)
    assert corrections(state) == {"s1": "label 2"}
    with Store.reading(state) as store:
        assert not absorbed(store).dropped
    with DecisionLog.writing(log_path(state)) as log:
        assert [e.label for e in log.undo("anna", "u3")] == ["label 2"]
        assert log.undo("anna", "u4") == []
    absorb(state)
    assert corrections(state) == {} and "s1" not in in_purified(state)


def test_the_same_action_is_recorded_once(state):
    for _ in range(2):
        record(state, Decision("s1", "keep", "label 1"), action="a")
    with pytest.raises(Refused, match="reuses the name of an earlier action"):
        record(state, Decision("s2", "keep", "label 1"), action="a")
    with DecisionLog.reading(log_path(state)) as log:
        assert [e.number for e in log.entries()] == [1]


def test_two_pages_never_hold_the_same_sample(state):
    with DecisionLog.writing(log_path(state)) as one, DecisionLog.writing(log_path(state)) as two:
        names = [f"s{i}" for i in range(10)]
        first = one.lease(names, "page 1", 3, seconds=60)
        assert first == ["s0", "s1", "s2"] and two.lease(names, "page 2", 3, seconds=60) == ["s3", "s4", "s5"]
        assert one.lease(names, "page 1", 3, seconds=60) == first and one.n_pages() == 2
        assert two.lease(names, "page 2", 2, seconds=60, now=time.time() + 61) == ["s0", "s1"]  # the page was closed


def test_a_changed_or_missing_entry_is_noticed(state):
    record(state, *(Decision(f"s{i}", "drop") for i in range(5)))
    path = log_path(state)
    for statement in ("UPDATE entries SET label = 'x' WHERE number = 2", "DELETE FROM entries WHERE number = 3"):
        copy = path.read_bytes()
        with sqlite3.connect(path) as database:
            database.execute(statement)
        database.close()
        with pytest.raises(UserError, match=r"damaged: entry \d does not match"), DecisionLog.reading(path):
            pass
        path.write_bytes(copy)


def test_a_log_with_other_tables_is_refused(state):
    with sqlite3.connect(log_path(state)) as database:
        database.execute("CREATE TABLE entries (number)")
    with pytest.raises(UserError, match="tables are not those of a log"):
        record(state, Decision("s1", "drop"))


def test_a_log_that_lost_absorbed_entries_is_refused_and_a_deleted_one_begins_anew(state):
    record(state, Decision("s1", "drop"), Decision("s2", "drop"))
    absorb(state)
    copy = fingerprint(state)
    log_path(state).unlink()
    record(state, Decision("s3", "drop"))  # by a process that does not know what was absorbed
    with pytest.raises(UserError, match="has lost decisions"):
        absorb(state)
    assert fingerprint(state) == copy
    log_path(state).unlink()
    with DecisionLog.writing(log_path(state), floor=2) as log:
        assert log.record([Decision("s3", "drop")], "anna", "b")[0].number == 3
    assert absorb(state) == 1


@pytest.mark.parametrize("how", ["no bytes", "no entries"])
def test_an_emptied_log_is_refused(state, how, tmp_path):
    record(state, Decision("s1", "drop"), Decision("s2", "keep", "label 2"))
    absorb(state)
    path = log_path(state)
    if how == "no bytes":
        path.write_bytes(b"")
    else:
        with sqlite3.connect(path) as database:
            database.execute("DELETE FROM entries")
        database.close()
    with Store.reading(state) as store:
        known = absorbed(store)
    with pytest.raises(UserError, match="has lost decisions"), DecisionLog.writing(path, known.number) as log:
        check_log(log, known)
    with pytest.raises(UserError, match="has lost decisions"):
        export_decisions(state, None, tmp_path / "fixes.csv")


def test_a_deleted_log_begins_anew_with_a_warning(state, caplog):
    record(state, Decision("s1", "drop"))
    absorb(state)
    path = log_path(state)
    path.unlink()
    with Store.reading(state) as store:
        known = absorbed(store)
    warn_of_new_log(path, known)
    assert "decisions.sqlite is missing: a new log begins" in caplog.text
    for _ in range(2):  # still empty when it is opened again
        with DecisionLog.writing(path, known.number) as log:
            check_log(log, known)
    with DecisionLog.writing(path, known.number) as log:
        assert log.record([Decision("s3", "drop")], "anna", "b")[0].number == 2
    assert absorb(state) == 1


def test_correct_records_for_a_process_that_holds_the_state(state, tmp_path, cli):
    (tmp_path / "fixes.csv").write_text("id,label\ns3,label 1\ns4,lable 1\nnobody,label 1\n")
    with tiny(state) as session:
        done = cli("correct", "--state", state, tmp_path / "fixes.csv", "--device", "cpu")
        assert done.code == 2 and "labels recorded: 2; the process" in done.out
        assert "new labels (check the spelling): lable 1\n" in done.out
        assert "1 of 3 corrections were refused" in done.err and corrections(state) == {}
        assert Reviewed(session).absorb() == 2
    assert corrections(state) == {"s3": "label 1", "s4": "lable 1"}


@pytest.mark.long
def test_learn_absorbs_decisions_while_it_follows_a_folder(tmp_path, state):
    photos = tmp_path / "photos"
    for i in range(40):
        path = photos / f"label {i % 3}" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 3)))
    own = tmp_path / "own"
    call = [sys.executable, "-m", "purereplay.cli", "learn", str(photos), "--state", str(own), "--follow"]
    with subprocess.Popen([*call, *TINY_OPTIONS], env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: (own / "state.sqlite").exists() and len(fingerprint(own)["decisions"]) == 40)
        with pytest.raises(BusyError), tiny(own):
            pass
        record(own, Decision("label 0/00.png", "label", "label 2"))
        wait_until(lambda: corrections(own) == {"label 0/00.png": "label 2"})
        process.send_signal(signal.SIGINT)
    assert "label 0/00.png" in in_purified(own)


def wait_until(is_so, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except sqlite3.OperationalError:
            pass  # no tables yet
        assert time.monotonic() < end
        time.sleep(0.1)


REVIEWER = """
import sys
from pathlib import Path
from purereplay.live.decisions import Decision, DecisionLog
name, start, stop = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with DecisionLog.writing(Path(sys.argv[1])) as log:
    for i in range(start, stop):
        log.record([Decision(f"s{i}", "label", f"label {i % 2}")], name, f"{name}-{i}")
        print(i, flush=True)
"""


@pytest.mark.long
def test_killed_reviewers_lose_no_decision_that_was_answered(state):
    """Two reviewers write at once and are killed; what they were told is saved is there, and absorbed once."""
    answered: set[int] = set()

    def review(name: str, start: int) -> None:
        dice = random.Random(name)
        while start < stop[name]:
            call = [sys.executable, "-c", REVIEWER, str(log_path(state)), name, str(start), str(stop[name])]
            process = subprocess.Popen(call, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
            last = start + dice.randint(1, 6)
            for line in process.stdout:
                answered.add(int(line))
                if int(line) >= last:
                    process.kill()
            process.wait()
            start = max((i for i in answered if i < stop[name]), default=start) + 1 if answered else start

    stop = {"anna": 20, "bert": 40}
    threads = [threading.Thread(target=review, args=pair) for pair in (("anna", 0), ("bert", 20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with DecisionLog.reading(log_path(state)) as log:
        entries = log.entries()
    assert {int(e.sample[1:]) for e in entries} >= answered == set(range(40))
    assert [e.number for e in entries] == list(range(1, len(entries) + 1))
    absorb(state)
    assert corrections(state) == {f"s{i}": f"label {i % 2}" for i in range(40)}


@pytest.mark.parametrize("step", ["apply", "_withdraw"])
def test_a_kill_within_absorbing_changes_nothing_in_the_end(state, tmp_path, monkeypatch, step):
    """The two steps of `absorb` are two transactions; after a kill before or between them the result is the same."""
    import shutil

    from purereplay.live import reviewed

    record(state, Decision("s1", "label", "label 2"), Decision("s2", "drop"), Decision("s3", "keep", "label 0"))
    shutil.copytree(state, tmp_path / "whole")
    absorb(tmp_path / "whole")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(reviewed, step, killed)
        with pytest.raises(KeyboardInterrupt):
            absorb(state)
    absorb(state)
    assert fingerprint(state) == fingerprint(tmp_path / "whole")


def test_decisions_in_effect(state):
    entries = record(state, Decision("s1", "keep", "a"), Decision("s2", "drop"))
    with DecisionLog.writing(log_path(state)) as log:
        log.undo("anna", "u")
        found = InEffect(log.entries())
    assert len(entries) == 2 and "s1" not in found and found.all() == [] and found.last == 4
