"""The loop of `learn`: counts and training steps for an observer, the rest at the end, stopping, answers."""

import io
import json

import pytest
from tiny_state import TINY, TINY_MEMORY, fingerprint, picture, png

from purereplay.errors import Interrupted, UserError
from purereplay.live import learn as loop
from purereplay.live.learn import LearnObserver, learn
from purereplay.live.settings import Wanted
from purereplay.nets.engine import Engine

N = 50  # two buffers of 20, and a rest of 10
WANTED = Wanted(learner="spr", overrides=TINY)


@pytest.fixture
def photos(tmp_path):
    for i in range(N):
        path = tmp_path / "photos" / str(i % 2) / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 2)))
    return tmp_path / "photos"


@pytest.fixture
def every_step(monkeypatch):
    """The engine reports progress at every job, and not only a few times a second."""
    train = Engine.train

    def reporting(self, jobs):
        self._reported_at = -1e9
        return train(self, jobs)

    monkeypatch.setattr(Engine, "train", reporting)


class Recorder(LearnObserver):
    def __init__(self, stop_after=None):
        self.calls, self.stop_after = [], stop_after

    def should_stop(self):
        return self.stop_after is not None and len(self.calls) >= self.stop_after

    def took(self, progress, outcomes):
        self.calls.append(("took", progress.n_seen, len(outcomes)))

    def training(self, progress, now):
        assert 0 <= now.done <= now.total and now.phase in progress.steps
        self.calls.append(("training", now.phase))

    def scored(self, progress, report):
        assert progress.account.steps and len(report.index) <= 20
        self.calls.append(("scored", progress.n_scored, progress.n_to_score))


def run(photos, **options):
    return learn(str(photos), photos.parent / "state", WANTED, device="cpu", **options)


def test_an_observer_hears_of_every_step(photos, every_step):
    (photos / "0" / "bad.png").write_bytes(b"")
    observer = Recorder()
    done = run(photos, observer=observer)
    calls = [call for call in observer.calls if call[0] != "training"]
    assert calls == [("took", 51, 51), ("scored", 20, 50), ("scored", 40, 50), ("scored", 50, 50)]
    assert {call[1] for call in observer.calls if call[0] == "training"} == {"expert", "base"}
    assert (done.total, done.n_seen, done.n_new, done.n_refused, done.n_known) == (51, 51, 50, 1, 0)
    assert done.n_scored == done.n_to_score == 50 and 0 < done.n_rejected < 50
    assert done.steps == {"expert": 9, "base": 12}  # as if P were full; nothing is finetuned
    assert done.account.steps["expert"] == 9 and 0 < done.account.steps["base"] <= 12
    again = run(photos)
    assert (again.n_new, again.n_known, again.n_refused, again.n_scored, again.n_to_score) == (0, 50, 1, 0, 0)


def test_the_rest_of_a_folder_is_scored_unless_it_is_held(photos):
    done = run(photos, rest=False)
    assert done.n_scored == 40 and run(photos).n_scored == 10


@pytest.mark.parametrize("stop_after", [0, 1, 2, 5])
def test_it_stops_between_two_steps_and_continues(photos, every_step, stop_after):
    with pytest.raises(Interrupted, match="the same command continues from here"):
        run(photos, observer=Recorder(stop_after))
    run(photos)
    stopped = fingerprint(photos.parent / "state")
    whole = photos.parent / "whole"
    learn(str(photos), whole, WANTED, device="cpu")
    assert stopped == fingerprint(whole)


def test_every_item_of_a_pipe_is_answered(photos, monkeypatch):
    lines = [{"path": f"{i % 2}/{i:02}.png", "label": str(i % 2)} for i in range(N)] + [{"path": "0/00.png"}]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    monkeypatch.setattr("purereplay.live.intake.open", lambda *_, **__: io.BytesIO(text), raising=False)
    answers = io.StringIO()
    done = learn("-", photos.parent / "state", WANTED, device="cpu", root=photos, answers=answers)
    found = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert len(found) == 51 and all(answer["ok"] for answer in found[:50])
    assert found[50] == {"id": "0/00.png", "line": 51, "error": "0/00.png has no label"}
    assert (done.total, done.n_new, done.n_refused, done.n_scored) == (None, 50, 1, 40)  # the rest is held


def test_a_reader_of_the_answers_that_is_gone(photos, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with pytest.raises(UserError, match="has closed the pipe; all answered samples are stored"):
        run(photos, answers=Closed())


def test_nothing_is_created_for_data_that_is_missing(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        loop.learn(str(tmp_path / "nowhere"), tmp_path / "state", WANTED)
    assert not (tmp_path / "state").exists()


# ---------------------------------------------------------------- full-memory

MEMORY = Wanted(learner="full-memory", overrides=TINY_MEMORY)


class Judge(LearnObserver):
    """Records judgements; may stop while samples are judged."""

    def __init__(self, stop_at=None):
        self.works, self.judged, self.stop_at = [], [], stop_at

    def should_stop(self):
        return self.stop_at is not None and len(self.works) >= self.stop_at

    def judging(self, progress, work, done, total):
        self.works.append(work)

    def scored(self, progress, report):
        self.judged.append((report.n_samples, report.is_revision))


def test_a_folder_is_judged_once_at_its_end(photos, small_features):
    observer = Judge()
    done = learn(str(photos), photos.parent / "state", MEMORY, device="cpu", observer=observer)
    assert observer.judged == [(N, True)] and done.n_scored == N and done.judged.n_samples == N
    assert {"features", "opinions", "classifier"} <= {work.partition(":")[0] for work in observer.works}
    again = learn(str(photos), photos.parent / "state", MEMORY, device="cpu", observer=observer)
    assert len(observer.judged) == 1 and (again.n_known, again.n_scored, again.judged) == (N, 0, None)


def test_a_folder_whose_rest_is_held_is_judged_as_a_pipe_is(photos, small_features):
    observer = Judge()
    learn(str(photos), photos.parent / "state", MEMORY, device="cpu", observer=observer, rest=False)
    assert [n for n, is_revision in observer.judged if is_revision] == [20, 30, 45]


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_judging_is_stopped_and_repeated(photos, small_features, stop_at):
    with pytest.raises(Interrupted):
        learn(str(photos), photos.parent / "state", MEMORY, device="cpu", observer=Judge(stop_at))
    learn(str(photos), photos.parent / "state", MEMORY, device="cpu")
    learn(str(photos), photos.parent / "whole", MEMORY, device="cpu")
    assert fingerprint(photos.parent / "state") == fingerprint(photos.parent / "whole")


def test_moved_files_are_learned_with_their_new_labels(photos, small_features):
    learn(str(photos), photos.parent / "state", MEMORY, device="cpu")
    (photos / "0" / "00.png").rename(photos / "1" / "00.png")
    observer = Judge()
    done = learn(str(photos), photos.parent / "state", MEMORY, device="cpu", observer=observer)
    assert (done.n_corrected, done.n_new, done.n_known) == (1, 0, N) and observer.judged == [(N, True)]
