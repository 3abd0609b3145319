"""The inbox: acknowledged samples enter the state once, also after a kill at any point; and the loop that trains."""

import threading
import time

import pytest
import torch
from tiny_state import LEARNERS, fingerprint, items, tiny

from purereplay.errors import UserError
from purereplay.live import inbox as inboxes
from purereplay.live.inbox import FullInbox, Inbox, Sample, absorb, absorb_left, inbox_path
from purereplay.live.judgements import judgements
from purereplay.live.learn import learn
from purereplay.live.settings import Wanted
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.live.training import Training
from purereplay.nets.engine import Engine


def samples(start: int, stop: int) -> list[Sample]:
    return [Sample(item.id, item.label, item.image) for item in items(start, stop)]


def nothing(sample: Sample) -> bool:
    return False


def test_samples_enter_the_state_as_those_of_a_pipe(tmp_path):
    with tiny(tmp_path / "one", "full-memory") as session:
        session.take(items(0, 30))
        session.work()
    with tiny(tmp_path / "two", "full-memory") as session, Inbox.opened(tmp_path / "two") as inbox:
        inbox.add(samples(0, 10), nothing)
        inbox.add(samples(10, 30), nothing)
        assert inbox.counts().waiting == 30
        assert absorb(session, inbox) == 30
        session.work()
        assert inbox.counts() == (0, 0, 0)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")


def test_a_kill_between_state_and_inbox_adds_nothing_twice(tmp_path, monkeypatch):
    with tiny(tmp_path / "state", "full-memory") as session, Inbox.opened(tmp_path / "state") as inbox:
        inbox.add(samples(0, 10), nothing)
        monkeypatch.setattr(Inbox, "settle", lambda *values: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            absorb(session, inbox)
    monkeypatch.undo()
    with tiny(tmp_path / "state") as session:
        assert session.store.n_samples == 10
        assert absorb_left(session) == 10
        assert session.store.n_samples == 10
        assert absorb_left(session) == 0


def test_a_label_that_comes_later_gives_its_sample_a_place_at_the_end(tmp_path):
    first, second = samples(0, 2)
    with tiny(tmp_path / "state", "full-memory"), Inbox.opened(tmp_path / "state") as inbox:
        inbox.add([first._replace(label=None), second], nothing)
        assert [item.id for _, item in inbox.next()] == ["s1"]
        inbox.add([Sample("s0", "label 0", None)], nothing)
        assert [item.id for _, item in inbox.next()] == ["s1", "s0"]


def test_what_the_state_refuses_stays_with_its_reason(tmp_path):
    with tiny(tmp_path / "state", "full-memory") as session, Inbox.opened(tmp_path / "state") as inbox:
        session.take(items(0, 5))
        good, bad = samples(5, 7)
        inbox.add([bad._replace(image=b"no image"), good], nothing)  # a server would not have acknowledged it
        absorb(session, inbox)
        assert session.store.n_samples == 6
        assert inbox.counts().refused == 1 and inbox.counts().waiting == 0
        [[reason]] = inbox.database.execute("SELECT refusal FROM samples").fetchall()
        assert "is not an image" in reason


def test_learn_takes_up_what_a_killed_server_left(tmp_path):
    with tiny(tmp_path / "state", "full-memory"), Inbox.opened(tmp_path / "state") as inbox:
        inbox.add(samples(0, 25), nothing)
    (tmp_path / "list.jsonl").write_text('{"id": "x", "label": "a", "image": "bm8="}\n')
    learn(str(tmp_path / "list.jsonl"), tmp_path / "state", Wanted(), device="cpu")
    with Store.reading(tmp_path / "state") as store:
        assert store.n_samples == 25
        assert len(judgements(store, 0, 100)) == 25


def test_a_full_inbox_and_a_damaged_one_are_reported(tmp_path, monkeypatch):
    with tiny(tmp_path / "state", "full-memory"), Inbox.opened(tmp_path / "state") as inbox:
        inbox.add(samples(0, 3), nothing)
        monkeypatch.setattr(inboxes, "_MAX_WAITING", 2)
        with pytest.raises(FullInbox):
            inbox.add(samples(3, 4), nothing)
        inbox.database.execute("UPDATE samples SET label = 'other' WHERE number = 1")
        with pytest.raises(UserError, match="sample s0 does not match its digest"):
            inbox.next()


def test_a_full_inbox_takes_the_labels_that_empty_it(tmp_path, monkeypatch):
    with tiny(tmp_path / "state", "full-memory") as session, Inbox.opened(tmp_path / "state") as inbox:
        inbox.add([sample._replace(label=None) for sample in samples(0, 3)], nothing)
        monkeypatch.setattr(inboxes, "_MAX_WAITING", 2)
        with pytest.raises(FullInbox):
            inbox.add([*samples(3, 4), Sample("s0", "label 0", None)], nothing)
        labels = [Sample(sample.id, sample.label, None) for sample in samples(0, 3)]
        assert [receipt.result for receipt in inbox.add(labels, nothing)] == ["labelled"] * 3
        assert absorb(session, inbox) == 3
        assert inbox.add(samples(3, 4), nothing)[0].result == "stored"


def test_adding_samples_does_not_read_all_that_wait(tmp_path, monkeypatch):
    with tiny(tmp_path / "state", "full-memory"), Inbox.opened(tmp_path / "state") as inbox:
        inbox.add(samples(0, 1), nothing)
        monkeypatch.setattr(inboxes, "_MAX_WAITING", 6)
        counted, count = [], Inbox._taken
        monkeypatch.setattr(Inbox, "_taken", lambda self: counted.append(count(self)) or counted[-1])
        for number in range(1, 7):
            inbox.add(samples(number, number + 1), nothing)
        assert counted == []
        inbox.settle([1, 2, 3], {})  # the process that trains has taken them
        inbox.add(samples(7, 8), nothing)
        assert [n for n, _ in counted] == [4]
        queries = []
        inbox.database.set_trace_callback(queries.append)
        assert inbox.counts() == (5, 0, 0)
        [plan] = inbox.database.execute(f"EXPLAIN QUERY PLAN {queries[0]}").fetchall()
        assert "COVERING INDEX samples_label" in plan[-1]


@pytest.mark.parametrize("content", [b"no database", None])
def test_a_file_that_is_no_inbox_is_refused(tmp_path, content):
    with tiny(tmp_path / "state", "full-memory"):
        pass
    if content is None:
        inbox_path(tmp_path / "state").symlink_to(tmp_path / "elsewhere")
    else:
        inbox_path(tmp_path / "state").write_bytes(content)
    with pytest.raises(UserError, match=r"inbox\.sqlite"), Inbox.opened(tmp_path / "state"):
        pass


@pytest.mark.parametrize("learner", ["full-memory", *LEARNERS])
def test_the_loop_learns_what_arrives_and_tells(tmp_path, learner):
    state = tmp_path / "state"
    with tiny(state, learner):
        pass
    events: list[tuple[str, str]] = []
    training = Training(state, Engine(torch.device("cpu")), lambda *event: events.append(event))
    thread = threading.Thread(target=training.run)
    thread.start()
    try:
        with Inbox.opened(state) as inbox:
            inbox.add(samples(0, 40), nothing)
            training.wake()
            _until(lambda: _n_judged(state) == 40)
            _until(lambda: events[-2:] == [("model", _digest(state)), ("activity", "ready")])  # the last one, not any
    finally:
        training.stop()
        thread.join()
    with Store.reading(state) as store:
        current = store.current()
        assert learner == "full-memory" or store.classifier_path(current).exists()
        found = judgements(store, 0, 100)
        assert [j.number for j in found] == list(range(1, 41)) and judgements(store, 39, 9) == found[39:]


def _digest(state) -> str:
    with Store.reading(state) as store:
        return store.current().digest


def _n_judged(state) -> int:
    with Store.reading(state) as store:
        return len(judgements(store, 0, 1000))


def _until(is_so) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_sample_that_the_state_refuses_is_refused_when_it_is_sent_again(tmp_path):
    [first, second] = samples(0, 2)
    with tiny(tmp_path / "state", "full-memory") as session, Inbox.opened(tmp_path / "state") as inbox:
        inbox.add([first._replace(image=second.image)], nothing)
        session.take(items(0, 1))  # meanwhile, by another way
        assert absorb(session, inbox) == 1
        assert inbox.counts().refused == 1
        [again] = inbox.add([first._replace(image=second.image)], nothing)
        assert again.error is not None and "another image" in again.error


def test_a_new_label_has_a_verdict_after_the_quiet_time(tmp_path, monkeypatch):
    state = tmp_path / "state"
    with tiny(state, "full-memory") as session:
        session.take(items(0, 30))
        session.work(rest=True)
    monkeypatch.setattr("purereplay.live.training._QUIET", 0.1)
    training = Training(state, Engine(torch.device("cpu")), lambda *event: None)
    thread = threading.Thread(target=training.run)
    thread.start()
    try:
        with Inbox.opened(state) as inbox:
            inbox.add([samples(30, 31)[0]._replace(label="new")], nothing)
        training.wake()
        _until(lambda: _n_judged(state) == 31)
    finally:
        training.stop()
        thread.join()
    with Store.reading(state) as store:
        assert judgements(store, 30, 9)[0].decision == "unjudged"
        assert (status(store)["waiting"], status(store)["unjudged"]) == (0, 1)


def test_the_activity_ends(tmp_path):
    events: list[tuple[str, str]] = []
    with tiny(tmp_path / "state", "full-memory") as session:
        session.take(items(0, 30))
        session.work(rest=True)
    with Inbox.opened(tmp_path / "state") as inbox:
        inbox.add(samples(30, 32), nothing)  # too few to judge all again
    training = Training(tmp_path / "state", Engine(torch.device("cpu")), lambda *event: events.append(event))
    thread = threading.Thread(target=training.run)
    thread.start()
    try:
        _until(lambda: ("activity", "learning") in events)
        _until(lambda: [text for kind, text in events if kind == "activity"][-1] == "ready")
    finally:
        training.stop()
        thread.join()


def test_refused_samples_take_no_room(tmp_path, monkeypatch):
    with tiny(tmp_path / "state", "full-memory"), Inbox.opened(tmp_path / "state") as inbox:
        monkeypatch.setattr(inboxes, "_MAX_BYTES", 10_000)
        for start in range(0, 40, 8):
            inbox.add([Sample(f"r{i}", "a", b"x" * 1000) for i in range(start, start + 8)], nothing)
            inbox.settle([], {number: "has a feature that is NaN" for number, _ in inbox.next()})
        assert inbox.counts() == (0, 0, 40)
        assert inbox.database.execute("SELECT sum(length(image)) FROM samples").fetchone() == (0,)
        [again] = inbox.add([Sample("r0", "a", b"x" * 1000)], nothing)
        assert again.error == "has a feature that is NaN"


def test_images_that_an_earlier_version_kept_of_refused_samples_take_no_room(tmp_path, monkeypatch):
    with tiny(tmp_path / "state", "full-memory"), Inbox.opened(tmp_path / "state") as inbox:
        monkeypatch.setattr(inboxes, "_MAX_BYTES", 10_000)
        inbox.add([Sample(f"r{i}", "a", b"x" * 1000) for i in range(10)], nothing)
        inbox.database.execute("UPDATE samples SET refusal = 'is not taken'")
        assert inbox.counts() == (0, 0, 10)
        [again, new] = inbox.add([Sample("r0", "a", b"x" * 1000), Sample("n", "a", b"x")], nothing)
        assert (again.error, new.result) == ("is not taken", "stored")


def test_the_state_is_asked_before_a_label_is_acknowledged(tmp_path):
    [first] = samples(0, 1)
    with tiny(tmp_path / "state", "full-memory") as session, Inbox.opened(tmp_path / "state") as inbox:

        def known(sample: Sample) -> bool:
            return session.store.knows(sample.id, sample.label, None)

        inbox.add([first._replace(label=None)], known)
        session.take(items(0, 1))  # meanwhile, by another way
        [other] = inbox.add([Sample("s0", "label 1", None)], known)
        assert other.error is not None and "was added before with the label 'label 0'" in other.error
        assert inbox.counts().unlabelled == 1 and inbox.counts().waiting == 0
        [same] = inbox.add([Sample("s0", "label 0", None)], known)
        assert same.result == "known"
        assert absorb(session, inbox) == 1
        assert inbox.counts() == (0, 0, 0) and session.store.n_samples == 1


def test_a_refusal_does_not_hide_the_sample_of_the_state(tmp_path):
    [first] = samples(0, 1)
    with tiny(tmp_path / "state", "full-memory") as session, Inbox.opened(tmp_path / "state") as inbox:

        def known(sample: Sample) -> bool:
            return session.store.knows(sample.id, sample.label, None)

        inbox.add([first._replace(label="label 2")], known)
        session.take(items(0, 1))  # meanwhile, by another way
        absorb(session, inbox)
        assert inbox.counts().refused == 1
        found = inbox.add([Sample("s0", "label 0", None), first, first._replace(label="label 2")], known)
        assert [receipt.result for receipt in found] == ["known", "known", "refused"]
