"""Learning into a state: the result depends neither on the pieces of the stream nor on where a process ended."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_state import ALL_LEARNERS, LEARNERS, TINY, fingerprint, items, picture, png, tiny

from purereplay.errors import UserError
from purereplay.live import store as stores
from purereplay.live.buffers import make_learner
from purereplay.live.items import Item
from purereplay.live.session import Session
from purereplay.live.settings import NewSettings, Wanted, from_text, to_text
from purereplay.nets.engine import Engine

N = 67  # three buffers of 20, and a rest of 7


def learn(folder: Path, cuts: list[int], learner: str) -> None:
    """Add the samples in pieces, each in a session of its own, then score the rest."""
    for start, stop in zip([0, *cuts], [*cuts, N], strict=True):
        with tiny(folder, learner) as session:
            session.take(items(start, stop))
            session.work()
    with tiny(folder) as session:
        session.work(rest=True)


@pytest.fixture(scope="module", autouse=True)
def few_features():
    """As `small_features`, for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("purereplay.purify.patches._N_FILTERS", 8)
        yield


@pytest.fixture(scope="module", params=ALL_LEARNERS)
def learner(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(tmp_path_factory, learner) -> dict:
    folder = tmp_path_factory.mktemp("whole") / "state"
    learn(folder, [], learner)
    return fingerprint(folder)


def test_a_state_learns_what_the_learner_itself_learns(whole, learner, tmp_path):
    """The same samples through `observe`, in one go."""
    if learner not in LEARNERS:
        pytest.skip("it is none of the registry")
    with tiny(tmp_path / "state", learner) as session:
        session.take(items(0, N))
        plain = make_learner(session.store.image_settings, Engine(torch.device("cpu")))
        plain.grow(3)
        reports = plain.observe(session.store.batch(0, N)) + plain.flush()
        session.work(rest=True)
        ours, theirs = session.learning.learner.state(), plain.state()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
    decided = [
        (int(i), r.buffer, float(p), float(c), int(s))
        for r in reports
        for i, p, c, s in zip(r.index, r.clean_probability, r.centrality, r.selected_mask, strict=True)
    ]
    assert decided == whole["decisions"] and len(decided) == N
    assert sorted(plain.purified.index.tolist()) == [position for (position,) in whole["purified"]]


@pytest.mark.parametrize(
    "cuts",
    [
        [1],
        [7, 19, 21, 66],
        pytest.param([20, 40, 60], marks=pytest.mark.slow),
        pytest.param([5] * 3 + [50], marks=pytest.mark.slow),
    ],
)
def test_how_the_samples_are_cut_into_pieces_does_not_matter(whole, learner, tmp_path, cuts):
    learn(tmp_path / "state", cuts, learner)
    assert fingerprint(tmp_path / "state") == whole


class Kill(BaseException):
    """The process ends here, without any cleanup."""


@pytest.mark.parametrize("where", ["write_whole", "tidy", "commit", "half-written"])
@pytest.mark.parametrize("when", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_interrupted_at_any_step_the_result_is_the_same(whole, learner, tmp_path, monkeypatch, where, when):
    """Before, within and after the n-th writing of the learner."""
    folder = tmp_path / "state"
    calls = 0
    real_write, real_tidy = stores.write_whole, stores.Store.tidy

    def strike(here: str) -> None:
        nonlocal calls
        if here == where:
            calls += 1
            if calls == when:
                raise Kill

    def write(path: Path, content: bytes, *, private: bool) -> None:
        strike("write_whole")
        if where == "half-written" and calls + 1 == when:
            path.with_name(path.name + ".part").write_bytes(content[:100])
        strike("half-written")
        real_write(path, content, private=private)
        strike("commit")  # the file is written, and the database does not name it yet

    def tidy(self, current) -> None:
        strike("tidy")
        real_tidy(self, current)

    monkeypatch.setattr(stores, "write_whole", write)
    monkeypatch.setattr(stores.Store, "tidy", tidy)
    with pytest.raises(Kill):
        learn(folder, [], learner)
    monkeypatch.undo()
    learn(folder, [], learner)  # everything is sent again
    assert fingerprint(folder) == whole
    assert len(list(folder.glob("learner-*"))) == 1


def test_finished_work_is_not_repeated(tmp_path, monkeypatch):
    """A buffer whose process was killed between expert and base continues with the base."""
    folder = tmp_path / "state"
    trained = []
    real = Engine.train

    def train(self, jobs):
        trained.extend(job.phase for job in jobs)
        if trained.count("base") == 1 and trained[-1] == "base":
            raise Kill
        return real(self, jobs)

    monkeypatch.setattr(Engine, "train", train)
    with pytest.raises(Kill), tiny(folder) as session:
        session.take(items(0, 20))
        session.work()
    with tiny(folder) as session:
        session.work()
    assert trained == ["expert", "base", "base"]


def test_the_rest_is_held_or_scored(tmp_path):
    with tiny(tmp_path / "state") as session:
        session.take(items(0, 30))
        session.work()
        assert session.taken == 20 and session.store.n_samples == 30
        session.work(rest=True)
        assert session.taken == 30
        session.take(items(30, 60))
        session.work()
        assert session.taken == 50  # a new buffer starts after a rest
        buffers = session.store.query("SELECT buffer, count(*) FROM decisions GROUP BY buffer")
    assert buffers == [(0, 20), (1, 10), (2, 20)]
    with tiny(tmp_path / "other", tail="drop") as session:
        session.take(items(0, 30))
        session.work(rest=True)
        assert session.taken == 20  # its settings never score a rest


def test_labels_may_appear_at_any_time(tmp_path, learner):
    def n_classes(session) -> int:
        return (getattr(session.learning, "learner", None) or session.learning.opinion).n_classes

    with tiny(tmp_path / "state", learner) as session:
        session.take(items(0, 20, n_labels=1))
        session.work()
        assert n_classes(session) == 1
        # the learner does not know the label of a sample that waits
        session.take([*items(20, 40, n_labels=4), Item("late", "late", png(picture(99)))])
        session.work()
        assert n_classes(session) == 4
        assert session.store.labels() == ["label 0", "label 1", "label 2", "label 3", "late"]
    with tiny(tmp_path / "state") as session:
        assert n_classes(session) == 4


def test_a_repeated_sample_is_known_and_a_changed_one_is_refused(tmp_path):
    with tiny(tmp_path / "state") as session:
        assert all(outcome.new for outcome in session.take(items(0, 5)))
        again = session.take(
            [*items(0, 6), Item("s1", "label 2", png(picture(1, 1))), Item("s1", "label 1", png(picture(9)))]
        )
        assert [outcome.new for outcome in again] == [False] * 5 + [True, False, False]
        assert [outcome.error is None for outcome in again] == [True] * 6 + [False] * 2
        assert again[6].sentence == "s1 was added before with the label 'label 1': change it with `purereplay correct`"
        assert "s1 was added before with another image: use a new id" in again[7].sentence
        twice = session.take([Item("x", "a", png(picture(1))), Item("x", "b", png(picture(1)))])
        assert [outcome.error is None for outcome in twice] == [True, False]
        assert session.store.n_samples == 7


def test_the_first_image_fixes_the_shape(tmp_path):
    with tiny(tmp_path / "state") as session:
        colour = Item("d", "x", png(np.zeros((9, 9, 3), np.uint8)))
        outcomes = session.take(
            [
                Item("a", "x", b"no image"),
                Item("b", "x", png(picture(0, size=5))),
                Item("c", "x", png(picture(0))),
                colour,
            ]
        )
        assert [outcome.error is None for outcome in outcomes] == [False, True, True, True]
    with tiny(tmp_path / "state") as session:
        assert session.store.settings.shape == (1, 5, 5)
        assert [row.pixels.shape for row in session.store.rows([0, 1, 2])] == [(1, 5, 5)] * 3


def test_a_former_state_refuses_other_shapes(tmp_path):
    """Its settings do not say that images are resized."""
    with tiny(tmp_path / "state") as session:
        session.take([Item("b", "x", png(picture(0, size=5)))])
        saved = json.loads(to_text(session.store.settings))
        del saved["fit"]
        former = from_text(json.dumps(saved))
        assert former.fit == "exact"
        with session.store.transaction():
            session.store.write_settings(former)
        [outcome] = session.take([Item("c", "x", png(picture(0)))])
        assert "c is a grey image of 6×6, but the images here are a grey image of 5×5" in outcome.sentence


def test_an_image_that_the_network_cannot_take_does_not_fix_the_shape(tmp_path):
    state, wide = tmp_path / "state", png(torch.zeros(4, 6, 3, dtype=torch.uint8).numpy())
    with (
        pytest.raises(UserError, match=r"a cannot be the first image of a state.* square images.* Use --size"),
        tiny(state, network="resnet18") as session,
    ):
        session.take([Item("a", "x", wide)])
    with tiny(state) as session:
        assert session.store.n_samples == 0 and isinstance(session.store.settings, NewSettings)
    sized = Wanted(learner="spr", overrides=TINY | {"network": "resnet18"}, size=8)
    with Session.open(tmp_path / "sized", sized, Engine(torch.device("cpu"))) as session:
        assert session.take([Item("a", "x", wide)])[0].new and session.store.settings.shape == (3, 8, 8)


def test_a_state_moves_with_its_folder(tmp_path):
    with tiny(tmp_path / "here") as session:
        session.take(items(0, 20))
        session.work()
    shutil.move(tmp_path / "here", tmp_path / "there")
    with tiny(tmp_path / "there") as session:
        assert session.taken == 20
