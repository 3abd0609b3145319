"""The state folder: samples are complete, stored once and in order, and damage is detected and reported."""

import json
import resource
import shutil
import sqlite3
from contextlib import closing, contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_state import fingerprint, items, picture, png, tiny

from purereplay.errors import UserError
from purereplay.live import digests, schema
from purereplay.live.items import Item
from purereplay.live.mark import Mark, read_mark
from purereplay.live.settings import Wanted, from_text, to_text
from purereplay.live.status import status
from purereplay.live.store import Store


class Crash(Exception):
    """The process ends here."""


def learned(folder, n=50):
    """A state with two scored buffers and some samples that wait."""
    with tiny(folder) as session:
        session.take(items(0, n))
        session.work()
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return learned(tmp_path_factory.mktemp("finished") / "state")


@pytest.fixture
def state(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "state")


SAMPLES = st.tuples(st.integers(0, 12), st.sampled_from(["cat", "dog", 'é,"']), st.integers(0, 1))
CHUNKS = st.lists(st.tuples(st.lists(SAMPLES, min_size=1, max_size=6), st.booleans()), max_size=5)


@pytest.mark.long
@given(chunks=CHUNKS)
@settings(deadline=None, max_examples=40)
def test_every_sample_is_stored_once_whatever_arrives_and_wherever_it_is_interrupted(chunks, tmp_path_factory):
    """Samples (number, label, image) in chunks; a chunk may be interrupted before its commit, and is sent again."""
    folder = tmp_path_factory.mktemp("property") / "state"
    model: dict[str, tuple[str, int]] = {}  # in order of arrival
    for chunk, is_interrupted in chunks:
        offers = [Item(f"s{number}", label, png(picture(image))) for number, label, image in chunk]
        if is_interrupted:
            with tiny(folder) as session, pytest.raises(Crash), session.store.transaction():
                for offer in offers:
                    session._take(offer, {})
                raise Crash
        with tiny(folder) as session:
            before = len(model)
            outcomes = session.take(offers)
            for (number, label, image), outcome in zip(chunk, outcomes, strict=True):
                known = model.setdefault(f"s{number}", (label, image))
                assert (outcome.error is None) == (known == (label, image))
            assert sum(outcome.new for outcome in outcomes) == len(model) - before
            rows = session.store.rows(list(range(session.store.n_samples)))
            assert [(row.id, row.label) for row in rows] == [(name, label) for name, (label, _) in model.items()]
            assert all(np.array_equal(r.pixels[0], picture(i)) for r, (_, i) in zip(rows, model.values(), strict=True))
            assert session.store.labels() == list(dict.fromkeys(label for label, _ in model.values()))


# ---------------------------------------------------------------- damage


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_damaged_learner_is_reported(state):
    [path] = state.glob("learner-*")
    flip(path, -1)
    with pytest.raises(UserError, match=f"{path.name} is damaged"), tiny(state):
        pass
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=f"{path.name} cannot be read"), tiny(state):
        pass
    path.unlink()
    with pytest.raises(UserError, match=f"{path.name} cannot be read"), tiny(state):
        pass


def test_a_learner_of_another_state_is_reported(state, tmp_path):
    [path] = state.glob("learner-*")
    [other] = learned(tmp_path / "other", n=25).glob("learner-*")
    shutil.copy(other, path)
    with pytest.raises(UserError, match=f"{path.name} is damaged: it is not the file"), tiny(state):
        pass


def test_a_damaged_sample_is_reported(state):
    path = state / "state.sqlite"
    flip(path, path.read_bytes().index(picture(45, 0)[0].tobytes()))
    with tiny(state) as session:
        assert session.store.rows([44])[0].id == "s44"
        with pytest.raises(UserError, match=r"state\.sqlite is damaged: sample s45 does not match its digest"):
            session.store.rows([45])
        session.take(items(50, 60))
        with pytest.raises(UserError, match="sample s45"):
            session.work()


@pytest.mark.parametrize("damage", ["cut", "header", "page", "rows"])
def test_a_damaged_database_is_reported(state, damage):
    path = state / "state.sqlite"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "header":
        content[:16] = bytes(16)
    elif damage == "page":
        content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)
    if damage == "rows":
        with sqlite3.connect(path) as database:
            database.execute("UPDATE facts SET value = 'no settings'")
    with pytest.raises(UserError, match=r"state\.sqlite is damaged"), tiny(state):
        pass


def test_a_missing_database_is_not_created_again_beside_its_learner(state):
    (state / "state.sqlite").unlink()
    with pytest.raises(UserError, match=r"state\.sqlite is missing"), tiny(state):
        pass
    with pytest.raises(UserError, match="holds no state"), Store.reading(state):
        pass


def test_a_database_of_another_program_is_not_touched(tmp_path):
    with sqlite3.connect(tmp_path / "state.sqlite") as database:
        database.execute("CREATE TABLE mine (x)")
    with pytest.raises(UserError, match="is not the database of a state"), tiny(tmp_path):
        pass


# ---------------------------------------------------------------- full disks


@contextmanager
def full_disk(n_bytes):
    """No file can grow beyond n_bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_adds_nothing_and_loses_nothing(state):
    before = fingerprint(state)
    sentence = r"state\.sqlite cannot be written"
    with tiny(state) as session, full_disk(2000), pytest.raises(UserError, match=sentence):
        session.take(items(50, 60))
    assert fingerprint(state) == before
    with tiny(state) as session:
        assert sum(outcome.new for outcome in session.take(items(50, 60))) == 10


def test_a_disk_that_is_full_when_the_learner_is_written(state, tmp_path):
    whole = shutil.copytree(state, tmp_path / "whole")
    with tiny(state) as session:
        session.take(items(50, 60))
        before = fingerprint(state)
        room = max(path.stat().st_size for path in state.glob("learner-*")) - 1000
        with full_disk(room), pytest.raises(UserError, match=r"learner-.* cannot be written"):
            session.work()
    assert fingerprint(state) == before and not list(state.glob("*.part"))
    for folder in (state, whole):
        with tiny(folder) as session:
            session.take(items(50, 60))
            session.work()
    assert fingerprint(state) == fingerprint(whole)


# ---------------------------------------------------------------- versions, locks, settings


def test_a_commit_is_on_the_disk_and_others_may_read(state):
    with tiny(state) as session:
        assert session.store.one("PRAGMA journal_mode") == ("wal",)
        assert session.store.one("PRAGMA synchronous") == (2,)  # FULL


def test_a_reader_finds_what_a_killed_process_left_in_the_journal(tmp_path):
    """Committed, but not yet moved into the database, and the shared memory is lost."""
    with tiny(tmp_path / "whole") as session:
        session.take(items(0, 5))
        killed = shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    assert (killed / "state.sqlite-wal").stat().st_size > 0
    (killed / "state.sqlite-shm").unlink()
    with Store.reading(killed) as store:
        assert store.n_samples == 5


NEW_TABLES = ("moves", "revisions", "verdicts", "likely", "noise", "features")


def as_version_1(folder):
    (folder / "state.mark").unlink()
    with sqlite3.connect(folder / "state.sqlite") as database:
        for table in ("corrections", "digests", *NEW_TABLES):
            database.execute(f"DROP TABLE {table}")
        database.execute("PRAGMA user_version = 1")


@pytest.mark.parametrize("by", ["writer", "reader"])
def test_an_older_schema_is_upgraded(state, by):
    before = fingerprint(state)
    as_version_1(state)
    with tiny(state) if by == "writer" else Store.reading(state):
        pass
    assert fingerprint(state) == before
    with sqlite3.connect(state / "state.sqlite") as database:
        assert database.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


def as_version_4(folder):
    """As the version before full-memory left it: with the count of commits and its mark."""
    with sqlite3.connect(folder / "state.sqlite", isolation_level=None) as database:
        for table in NEW_TABLES:
            database.execute(f"DROP TABLE {table}")
            database.execute("DELETE FROM digests WHERE name = ?", [table])
        digests.record_commit(database)
        database.execute("PRAGMA user_version = 4")
        newest = digests.newest_commit(database)
    database.close()
    (folder / "state.mark").unlink()
    with Mark.writing(folder / "state.mark", newest):
        return newest


@pytest.mark.parametrize("by", ["writer", "reader"])
def test_a_schema_that_counts_commits_is_upgraded_and_goes_on_counting(state, by):
    before = fingerprint(state)
    newest = as_version_4(state)
    with tiny(state) if by == "writer" else Store.reading(state):
        pass
    assert fingerprint(state) == before
    with tiny(state) as session:
        session.take(items(50, 51))
    assert read_mark(state / "state.mark").number == newest.number + 3
    with Store.reading(state) as store:
        assert store.n_samples == 51


def test_an_interrupted_migration_is_repeated(state, monkeypatch):
    as_version_1(state)
    first, second, *others = schema.SCRIPTS
    monkeypatch.setattr(schema, "SCRIPTS", (first, second + "CREATE TABLE classes (x);", *others))  # fails half-way
    with pytest.raises(UserError, match="already exists"), tiny(state):
        pass
    monkeypatch.undo()
    with tiny(state) as session:
        assert session.store.n_samples == 50


def test_a_newer_schema_is_refused(state):
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    for opened in (tiny(state), Store.reading(state)):
        with pytest.raises(UserError, match="written by a newer purereplay"), opened:
            pass


def test_one_process_writes_and_others_read(state):
    with tiny(state) as session:
        with pytest.raises(UserError, match="Another process is working on"), tiny(state):
            pass
        with session.store.transaction(), Store.reading(state) as reader:
            session.store.add("new", "label 0", picture(99)[None])
            assert reader.n_samples == 50  # not committed yet
        with Store.reading(state) as reader:
            assert reader.n_samples == 51


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (Wanted(preset="demo"), "created with preset live, not demo"),
        (Wanted(learner="pure-replay"), "created with learner spr, not pure-replay"),
        (Wanted(seed=7), "created with seed 1, not 7"),
        (Wanted(size=8), "created without size, not with 8"),
        (Wanted(channels=3), "created without channels, not with 3"),
        (Wanted(overrides={"graphs": "7"}), "created with graphs 5, not 7"),
        (Wanted(overrides={"colour": "7"}), "'colour' is unknown"),
        (Wanted(overrides={"sharpening": "0.5"}), "'sharpening' is unknown"),
    ],
)
def test_the_settings_of_a_state_cannot_change(state, wanted, sentence):
    with pytest.raises(UserError, match=sentence), Store.writing(state, wanted):
        pass
    with Store.writing(state, Wanted(seed=1, overrides={"hidden": "16"})) as store:  # the same values are accepted
        assert store.settings.options.hidden == 16 and store.settings.shape == (1, 6, 6)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (Wanted(preset="nonsense"), "'nonsense' is unknown"),
        (Wanted(learner="nonsense"), "learner 'nonsense' is unknown"),
        (Wanted(learner="crs"), "learner 'crs' does not score samples: choose one of full-memory, spr, pure-replay"),
        (Wanted(learner="self-replay"), "learner 'self-replay' does not score samples"),
        (Wanted(learner="self-centered-filter", overrides={"self_replay": "every-buffer"}), "has self_replay=never"),
        (Wanted(learner="pure-replay", overrides={"sharpening": "2"}), "sharpening must be at least 0 and at most 1"),
        (Wanted(learner="pure-replay", overrides={"replay": "union"}), "trains on halves of D and P"),
        (Wanted(learner="spr", overrides={"filter": "none"}), "a state needs a filter"),
        (Wanted(learner="spr", overrides={"self_replay": "task-end"}), "a state has no tasks"),
        (Wanted(learner="spr", overrides={"features": "file"}), "features=file is for `purereplay run`"),
        (Wanted(learner="spr", overrides={"delayed_size": "1"}), "delayed_size must be at least 2"),
        (Wanted(size=0), "size must be between 1 and"),
        (Wanted(channels=2), "channels must be 1"),
    ],
)
def test_a_state_with_impossible_settings_is_not_created(tmp_path, wanted, sentence):
    with pytest.raises(UserError, match=sentence), Store.writing(tmp_path / "state", wanted):
        pass
    assert not (tmp_path / "state").exists()


def test_settings_before_the_first_image(tmp_path):
    """They are compared as far as they do not depend on the images; reading samples says that there are none."""
    wanted = Wanted(learner="spr", preset="default", overrides={"graphs": "7"})
    with Store.writing(tmp_path / "state", wanted) as store:
        assert store.settings == from_text(to_text(store.settings)) and store.settings.chosen == {"graphs": 7}
        assert status(store)["delayed_size"] == 500 and status(store)["image_shape"] is None
        with pytest.raises(UserError, match="state holds no images yet: add some with"):
            store.rows([0])
    with Store.writing(tmp_path / "state", Wanted(learner="spr", overrides={"base_batch": "500"})) as store:
        assert store.n_samples == 0
    for name, value, fixed in (("graphs", "5", "7"), ("network", "mlp", "undecided"), ("finetune_clip", "none", "0.5")):
        other = Wanted(overrides={name: value})
        with (
            pytest.raises(UserError, match=f"created with {name} {fixed}, not"),
            Store.writing(tmp_path / "state", other),
        ):
            pass


def test_a_state_keeps_its_learner(tmp_path):
    """`learn` need not name it again, and settings are those of the state's learner."""
    with tiny(tmp_path / "state", "pure-replay", sharpening="0.5") as session:
        assert session.store.settings.learner == "pure-replay" and status(session.store)["learner"] == "pure-replay"
        session.take(items(0, 20))
        session.work()
    with tiny(tmp_path / "state", sharpening="0.5") as session:
        assert type(session.learning.learner).__name__ == "PureReplay"
        assert session.store.image_settings.options.sharpening == 0.5
    with (
        pytest.raises(UserError, match=r"created with sharpening 0\.5, not 0\.8"),
        tiny(tmp_path / "state", sharpening="0.8"),
    ):
        pass


def test_a_state_that_names_no_learner_continues_as_one_of_self_purified_replay(state):
    named = shutil.copytree(state, state.parent / "named")
    with tiny(state) as session, session.store.transaction():
        values = json.loads(to_text(session.store.settings))
        assert values.pop("learner") == "spr"
        session.store.replace("facts", [("settings", json.dumps(values))])
    for folder in (state, named):
        with tiny(folder) as session:
            assert session.store.settings.learner == "spr"
            session.take(items(50, 75))
            session.work()
    ours, theirs = fingerprint(state), fingerprint(named)
    assert all(ours[table] == theirs[table] for table in ours.keys() - {"facts"}) and len(ours["decisions"]) == 60


@pytest.mark.parametrize("facts", ['{"format": 3}', "[]", '{"format": 2, "preset": "live"}', '{"chosen": {}}'])
def test_settings_of_another_version_are_reported(state, facts):
    with tiny(state) as session, session.store.transaction():
        session.store.replace("facts", [("settings", facts)])
    with pytest.raises(UserError, match="is damaged or of another version: its settings cannot be read"), tiny(state):
        pass


def test_partly_written_files_of_a_killed_process_are_removed(state):
    one = "0123456789abcdef"
    for name in (f"learner-{one}.safetensors", f"learner-{one}.safetensors.part", f"classifier-{one}.safetensors"):
        (state / name).write_bytes(b"half")
    (state / f"state.mark.{one}.part").write_bytes(b"half")
    (state / "mine.txt").write_text("keep me")
    with tiny(state):
        pass
    left = {path.name.split("-")[0] for path in state.iterdir()}
    assert left == {".lock", "state.sqlite", "state.mark", "learner", "mine.txt"}
    assert len(list(state.glob("learner-*"))) == 1


def test_tensors_are_restored_exactly(state):
    with tiny(state) as session:
        current = session.store.current()
        tensors, again = session.learning.learner.state(), session.store.packed(current).tensors
    assert tensors.keys() == again.keys() and all(torch.equal(tensors[n], again[n]) for n in tensors)


def test_a_commit_between_two_statements_of_a_reader_is_no_damage(tmp_path):
    """The number of a commit and that of its samples are read at one moment: another process may commit after it."""
    state = tmp_path / "state"

    class Slow:
        """Reads a database, and another process commits after each statement."""

        def __init__(self, database, commit) -> None:
            self.database, self.commit = database, commit

        def execute(self, *statement):
            rows = self.database.execute(*statement).fetchall()
            self.commit()
            return SimpleNamespace(fetchone=lambda: rows[0] if rows else None, fetchall=lambda: rows)

    with tiny(state, "full-memory") as session, closing(schema.connect(state / "state.sqlite", write=False)) as reader:
        session.take(items(0, 5))
        before, more = digests.newest_commit(reader), iter(range(5, 100))
        found = digests.newest_commit(Slow(reader, lambda: session.take([items(i := next(more), i + 1)[0]])))
    assert found == before and found.n_samples == 5


def test_an_error_of_the_caller_is_not_one_of_the_mark(tmp_path):
    with pytest.raises(BrokenPipeError), tiny(tmp_path / "state"):
        raise BrokenPipeError
