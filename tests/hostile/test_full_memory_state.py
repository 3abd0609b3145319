"""A state of the learner full-memory against damage, kills and read-only media, as test_state.py for the others."""

import shutil
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from tiny_state import fingerprint, items, tiny

from hostile.test_state import ENGINE, flips, read_from_medium, read_from_medium_copy, read_only
from hostile.test_state_files import (
    FORGERIES,
    audited,
    counts,
    damaged,
    forged,
    learned,
    little_memory,
    predicted,
    refused,
)
from purereplay.errors import UserError
from purereplay.live.audit import audit
from purereplay.live.corrections import Correction, apply
from purereplay.live.status import status
from purereplay.live.store import Store


@pytest.fixture(scope="module", autouse=True)
def few_features():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("purereplay.purify.patches._N_FILTERS", 8)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """50 samples, judged together three times, some judged when they arrived, and five corrections."""
    folder = tmp_path_factory.mktemp("finished") / "state"
    with tiny(folder, "full-memory") as session:
        for start in range(0, 50, 10):
            session.take(items(start, start + 10))
            session.work()
        apply(session, [Correction(f"s{i}", f"label {(i + 1) % 3}") for i in range(5)])
        session.settle()
        with session.store.transaction():
            session.moves.record(7, "label 2/moved")
    for suffix in ("-wal", "-shm"):
        (folder / f"state.sqlite{suffix}").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files of a process that was killed, most of its work in the journal only."""
    folder = tmp_path_factory.mktemp("killed")
    with tiny(folder / "whole", "full-memory") as session:
        for start in range(0, 50, 10):
            session.take(items(start, start + 10))
            session.work()
        shutil.copytree(folder / "whole", folder / "state")
    (folder / "state" / "state.sqlite-shm").unlink()
    return folder / "state"


@pytest.fixture
def state(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "state")


def test_the_state_is_as_described(finished):
    found = {name: len(rows) for name, rows in fingerprint(finished).items()}
    assert found["decisions"] == found["likely"] == found["samples"] == 50
    assert found["revisions"] == 4 and found["corrections"] == 5 and found["moves"] == 1
    assert found["verdicts"] > 50 and found["noise"] > 3 and 0 < found["purified"] <= 50


def test_a_flipped_bit_is_named_or_changes_nothing(finished, tmp_path):
    found, bad = flips(finished, tmp_path / "flips", 15, seed=3)
    assert not bad and found["right"] + found["named"] == 15


@pytest.mark.slow
def test_two_hundred_flipped_bits(finished, tmp_path):
    found, bad = flips(finished, tmp_path / "flips", 200, seed=4)
    assert not bad and found["right"] + found["named"] == 200


def test_a_damaged_journal_loses_nothing_silently(killed, tmp_path):
    content, dice, found = (killed / "state.sqlite-wal").read_bytes(), np.random.default_rng(1), Counter()
    for number in range(20):
        copy = shutil.copytree(killed, tmp_path / "copy")
        (copy / "state.sqlite-wal").write_bytes(damaged(content, number, dice))
        for ask, right in ((counts, (50, 50)), (learned, 51)):
            try:
                found["right" if ask(copy) == right else "different"] += 1
            except UserError as error:
                found["named" if "state.sqlite is damaged" in str(error) else str(error)] += 1
        shutil.rmtree(copy)
    assert found.keys() <= {"right", "named"}, found


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE decisions SET selected = 1 - selected WHERE position = 13",
        "UPDATE verdicts SET reason = 'x' WHERE number = 3",
        "DELETE FROM verdicts WHERE number = 3",
        "UPDATE likely SET label = (label + 1) % 3 WHERE position = 13",
        "UPDATE noise SET n = n + 1 WHERE given = -1",
        "UPDATE revisions SET n_samples = 7 WHERE number = 1",
        "UPDATE moves SET id = 'x'",
        "DELETE FROM moves",
    ],
)
def test_a_changed_row_is_named_by_every_command_that_reads_it(state, change):
    with sqlite3.connect(state / "state.sqlite") as database:
        assert database.execute(change).rowcount == 1
    with pytest.raises(UserError, match=r"the table \w+ does not match its digest"), tiny(state):
        pass
    with Store.reading(state) as store:
        for ask in (lambda: status(store), lambda: audit(store, ENGINE, state.parent / "audit.csv")):
            with pytest.raises(UserError, match="does not match its digest"):
                ask()


@pytest.mark.parametrize("kind", ["missing", "damaged", "link", *FORGERIES])
def test_a_learner_file_that_is_not_its_own_is_named_and_made_anew(state, tmp_path, kind):
    [path] = state.glob("learner-*")
    if kind == "missing":
        path.unlink()
    elif kind == "damaged":
        content = path.read_bytes()
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    elif kind == "link":
        path.rename(tmp_path / "outside")
        path.symlink_to(tmp_path / "outside")
    else:
        FORGERIES[kind](path)
    with little_memory(), pytest.raises(UserError, match=path.name):
        predicted(state)
    assert audited(state) == 50  # the database has all that it needs
    outside = (tmp_path / "outside").read_bytes() if kind == "link" else b""
    with little_memory():
        learned(state)
    with tiny(state) as session:
        session.work()
    predicted(state)
    assert kind != "link" or (tmp_path / "outside").read_bytes() == outside


@pytest.mark.parametrize(
    "sql", ["CREATE INDEX i ON verdicts (reason)", "DROP INDEX verdicts_position", "DROP TABLE noise"]
)
def test_a_database_with_other_tables_is_refused(state, sql):
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute(sql)
    refused(state, r"state\.sqlite is damaged: its tables are not a state's")


def test_a_position_that_the_learner_cannot_have_is_named(state):
    with forged(state) as database:
        database.execute("UPDATE learner SET taken = 51")
    for ask in (predicted, learned):
        with pytest.raises(UserError, match=r"state\.sqlite is damaged: its learner"):
            ask(state)


def test_it_is_read_from_a_read_only_medium(state):
    expected = read_from_medium_copy(state)
    for suffix in ("-wal", "-shm"):
        (state / f"state.sqlite{suffix}").unlink(missing_ok=True)
    with read_only(state) as medium:
        found = read_from_medium(medium)
        assert [found[0] | {"bytes": 0}, *found[1:]] == [expected[0] | {"bytes": 0}, *expected[1:]]
        with pytest.raises(UserError, match=r"cannot be (written|opened)"), tiny(medium):
            pass


@pytest.mark.slow
def test_learning_continues_the_same_after_a_kill_at_any_step(tmp_path, monkeypatch):
    """A process that ends before or after any of its commits."""
    from purereplay.live.mark import Mark

    class Kill(BaseException):
        pass

    def learn(folder: Path) -> dict:
        with tiny(folder, "full-memory") as session:
            for start in range(0, 46, 4):
                session.take(items(start, min(46, start + 4)))
                session.work()
            session.work(rest=True)
        return fingerprint(folder)

    whole, write = learn(tmp_path / "whole"), Mark.write
    for when in (1, 6, 7, 9, 11, 14, 18):
        calls = 0

        def strike(self, commit, when=when):
            nonlocal calls
            calls += 1
            if calls == when:
                raise Kill
            write(self, commit)

        folder = tmp_path / f"killed {when}"
        with monkeypatch.context() as patch:
            patch.setattr(Mark, "write", strike)
            with pytest.raises(Kill):
                learn(folder)
        assert learn(folder) == whole, when
