"""The files of a state folder, each damaged, lost or replaced by something else: the right answer, or a sentence."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from test_commands import line
from tiny_state import TINY, TINY_OPTIONS, fingerprint, items, picture, png, tiny

from purereplay.data.packing import unpack_tensors
from purereplay.errors import UserError
from purereplay.live import digests, schema
from purereplay.live.audit import audit
from purereplay.live.folders import ImageFolder
from purereplay.live.intake import open_source
from purereplay.live.predict import ready_classifier
from purereplay.live.settings import Wanted
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

ENGINE = Engine(torch.device("cpu"))
LARGE = 400 * 2**20  # bytes of a sparse file


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two scored buffers, ten samples that wait, and a classifier."""
    folder = tmp_path_factory.mktemp("finished") / "state"
    with tiny(folder) as session:
        session.take(items(0, 50))
        session.work()
    with Store.reading(folder) as store:
        ready_classifier(store, ENGINE)
    without_journals(folder)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files of a process that was killed with 50 samples acknowledged, most of them in the journal only."""
    folder = tmp_path_factory.mktemp("killed")
    with tiny(folder / "whole") as session:
        for start in range(0, 50, 5):
            session.take(items(start, start + 5))
            session.work()
        shutil.copytree(folder / "whole", folder / "state")
    (folder / "state" / "state.sqlite-shm").unlink()
    return folder / "state"


@pytest.fixture
def state(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "state")


@pytest.fixture
def dead(killed, tmp_path):
    """A copy of what the killed process left."""
    return shutil.copytree(killed, tmp_path / "dead")


def without_journals(folder: Path) -> None:
    for suffix in ("-wal", "-shm"):
        (folder / f"state.sqlite{suffix}").unlink(missing_ok=True)


def counts(folder: Path) -> tuple[int, int]:
    with Store.reading(folder) as store:
        found = status(store)
    return found["samples"], found["scored"]


def predicted(folder: Path) -> list[str]:
    with Store.reading(folder) as store:
        return ready_classifier(store, ENGINE)[1]


def audited(folder: Path) -> int:
    with Store.reading(folder) as store:
        return audit(store, ENGINE, folder.parent / "audit.csv").scored


def learned(folder: Path) -> int:
    with tiny(folder) as session:
        session.take(items(50, 51))
        return session.store.n_samples


COMMANDS = {"status": counts, "predict": predicted, "audit": audited, "learn": learned}


def refused(folder: Path, sentence: str) -> None:
    """Assert that every command names the culprit in one sentence."""
    for ask in COMMANDS.values():
        with pytest.raises(UserError, match=sentence) as error:
            ask(folder)
        assert "\n" not in str(error.value)


# ---------------------------------------------------------------- a damaged journal


def damaged(content: bytes, number: int, dice: np.random.Generator) -> bytes:
    at = int(dice.integers(len(content)))
    if number % 6 == 5:
        return content[:at]
    return content[:at] + bytes([content[at] ^ 1 << int(dice.integers(8))]) + content[at + 1 :]


def damage_journal(killed: Path, folder: Path, n: int) -> Counter[str]:
    """Flip a bit of the journal, or cut it; count what `status` and `learn` answer."""
    content, dice, found = (killed / "state.sqlite-wal").read_bytes(), np.random.default_rng(n), Counter()
    for number in range(n):
        copy = shutil.copytree(killed, folder / "copy")
        (copy / "state.sqlite-wal").write_bytes(damaged(content, number, dice))
        for ask, right in ((counts, (50, 40)), (learned, 51)):
            try:
                found["right" if ask(copy) == right else "different"] += 1
            except UserError as error:
                found["named" if "state.sqlite is damaged" in str(error) else str(error)] += 1
        shutil.rmtree(copy)
    sys.stdout.write(f"damages of state.sqlite-wal: {dict(found)}\n")
    return found


def test_a_damaged_journal_dropped_acknowledged_samples(killed, tmp_path):
    assert damage_journal(killed, tmp_path, 30).keys() <= {"right", "named"}


@pytest.mark.slow
def test_three_hundred_damages_of_the_journal(killed, tmp_path):
    assert damage_journal(killed, tmp_path, 300).keys() <= {"right", "named"}


def test_a_state_that_lost_commits_says_how_much_and_changes_nothing(dead):
    whole = (dead / "state.sqlite-wal").read_bytes()
    cut = whole[: len(whole) // 2]
    (dead / "state.sqlite-wal").write_bytes(cut)
    sentence = r"newest \d+ of 15 commits are missing, with \d+ of 50 samples; restore .* or delete state\.mark"
    refused(dead, sentence)
    assert (dead / "state.sqlite-wal").read_bytes() == cut
    (dead / "state.sqlite-wal").write_bytes(whole)  # restored
    assert counts(dead) == (50, 40)


def test_the_rest_of_a_damaged_state_is_used_once_its_mark_is_deleted(tmp_path):
    with tiny(tmp_path / "whole") as session:
        for start in range(0, 15, 5):
            session.take(items(start, start + 5))
        state = shutil.copytree(tmp_path / "whole", tmp_path / "state")
    (state / "state.sqlite-shm").unlink()
    whole = (state / "state.sqlite-wal").read_bytes()
    (state / "state.sqlite-wal").write_bytes(whole[:-1])
    refused(state, "its newest 1 of 4 commits are missing, with 5 of 15 samples")
    (state / "state.mark").unlink()
    assert counts(state) == (10, 0)
    with tiny(state) as session:
        assert sum(outcome.new for outcome in session.take(items(0, 15))) == 5
    assert counts(state) == (15, 0)


@pytest.mark.parametrize("left", ["state.sqlite", "nothing"])
def test_a_deleted_journal_is_named(dead, left):
    (dead / "state.sqlite-wal").unlink()
    if left == "nothing":
        (dead / "state.sqlite").write_bytes(b"")
    refused(dead, r"state\.sqlite is damaged: its newest 15 of 15 commits are missing, with 50 of 50 samples")


@pytest.mark.parametrize("mark", ["kept", "deleted"])
def test_an_empty_database_beside_a_learner_became_a_new_state(dead, mark):
    without_journals(dead)
    (dead / "state.sqlite").write_bytes(b"")
    if mark == "deleted":
        (dead / "state.mark").unlink(missing_ok=True)
    before = sorted(path.name for path in dead.iterdir())
    with (
        pytest.raises(UserError, match=r"state\.sqlite is damaged"),
        Store.writing(dead, Wanted(learner="spr", seed=9, overrides=TINY)),
    ):
        pass
    assert {path.name for path in dead.iterdir()} - set(before) <= {"state.sqlite-wal", "state.sqlite-shm"}


def test_an_older_database_is_named(state, tmp_path):
    old = (state / "state.sqlite").read_bytes()
    with tiny(state) as session:
        session.take(items(50, 55))
    without_journals(state)
    (state / "state.sqlite").write_bytes(old)
    refused(state, "its newest 1 of 7 commits are missing, with 5 of 55 samples")


def test_a_database_of_another_state_is_named(state, tmp_path):
    with tiny(tmp_path / "other") as session:
        for number in range(40, 40 + 5):
            session.take(items(number, number + 1))
    (state / "state.sqlite").write_bytes((tmp_path / "other" / "state.sqlite").read_bytes())
    refused(state, r"state\.sqlite is damaged: it does not match state\.mark")


def test_a_missing_database_is_named_if_only_the_mark_is_left(tmp_path):
    with tiny(tmp_path / "state") as session:
        session.take(items(0, 5))
    (tmp_path / "state" / "state.sqlite").unlink()
    with (
        pytest.raises(UserError, match=r"state\.sqlite is missing, but .* holds state\.mark"),
        tiny(tmp_path / "state"),
    ):
        pass


# ---------------------------------------------------------------- the mark


class Killed(Exception):
    """The process ends here."""


def test_a_process_killed_between_a_commit_and_its_mark_leaves_a_good_state(state, monkeypatch):
    from purereplay.live.mark import Mark, read_mark

    before = read_mark(state / "state.mark")

    def write(self, commit):
        raise Killed

    with tiny(state) as session:
        monkeypatch.setattr(Mark, "write", write)
        with pytest.raises(Killed):
            session.take(items(50, 52))
    monkeypatch.undo()
    assert read_mark(state / "state.mark") == before
    assert counts(state) == (52, 40)
    with tiny(state):
        pass
    assert read_mark(state / "state.mark").n_samples == 52


def test_the_mark_is_on_the_disk_before_samples_are_acknowledged(state, monkeypatch):
    from purereplay.live.mark import read_mark

    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    with tiny(state) as session:
        assert not synced
        for n in range(51, 54):
            session.take(items(n - 1, n))
            assert read_mark(state / "state.mark").n_samples == n
            assert synced.pop() == (state / "state.mark").stat().st_ino and not synced
        session.take(items(0, 53))  # nothing new
        assert not synced


def test_nothing_is_acknowledged_if_the_mark_cannot_be_written(state, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with tiny(state) as session:
        monkeypatch.setattr(os, "fdatasync", full)
        for known in (0, 1):  # sent again, the sample is stored, but not marked yet
            with pytest.raises(UserError, match=r"state\.mark cannot be written: No space left"):
                session.take(items(50, 51))
            assert session.store.n_samples == 51, known
        monkeypatch.undo()
        assert [outcome.new for outcome in session.take(items(50, 51))] == [False]
    assert counts(state) == (51, 40)


def test_one_damaged_slot_of_the_mark_changes_nothing_and_two_are_named(state):
    path = state / "state.mark"
    whole = path.read_bytes()
    for at in (0, 20, 4096, 4096 + 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert counts(state) == (50, 40)
    for content in (b"", whole[:50], bytes(len(whole)), whole.replace(b"samples 50", b"samples 51")):
        path.write_bytes(content)
        refused(state, r"state\.mark is damaged, .* or delete the file")
    path.unlink()
    assert learned(state) == 51


def test_a_deleted_mark_stops_a_writer(state):
    with tiny(state) as session:
        (state / "state.mark").unlink()
        with pytest.raises(UserError, match=r"state\.mark was deleted, moved or replaced"):
            session.take(items(50, 51))


def test_a_killed_pipe_with_a_damaged_journal_is_named(tmp_path):
    state = tmp_path / "state"
    command = [sys.executable, "-m", "purereplay.cli", "learn", "-", "--state", str(state), *TINY_OPTIONS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for number in range(25):
        process.stdin.write(line(number).encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["ok"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    content = bytearray((state / "state.sqlite-wal").read_bytes())
    content[len(content) // 3] ^= 1
    (state / "state.sqlite-wal").write_bytes(content)
    refused(state, r"state\.sqlite is damaged: its newest \d+ of \d+ commits are missing, with \d+ of 25 samples")


# ---------------------------------------------------------------- a hostile database


@contextmanager
def forged(state: Path):
    """Change a database as somebody who also computes its digests again."""
    with sqlite3.connect(state / "state.sqlite", isolation_level=None) as database:
        yield database
        [version] = database.execute("PRAGMA user_version").fetchone()
        digests.record_all(database, version)
    database.close()
    (state / "state.mark").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER INSERT ON samples BEGIN UPDATE classes SET label = 'mine' || code; END",
        "ALTER TABLE corrections RENAME TO c; CREATE VIEW corrections AS SELECT * FROM c",
        "ALTER TABLE facts RENAME TO f; CREATE VIEW facts AS SELECT name, value FROM f",
        "CREATE VIEW v AS SELECT hex(zeroblob(1000000000))",
        "CREATE INDEX i ON samples (length(hex(id)))",
        "CREATE TABLE mine (x)",
        "ALTER TABLE purified ADD COLUMN x DEFAULT 7",
        "DROP INDEX corrections_position",
    ],
)
def test_a_database_with_sql_of_its_own_was_opened(state, sql):
    with forged(state) as database:
        database.executescript(sql)
    refused(state, r"state\.sqlite is damaged: its tables are not a state's")


def test_a_value_that_no_state_holds_is_not_read(state, monkeypatch):
    monkeypatch.setattr(schema, "_MAX_VALUE", 500)  # the settings have more bytes
    refused(state, r"state\.sqlite is damaged: (string or blob too big|row too big)")


@pytest.mark.parametrize("change", [None, "UPDATE decisions SET selected = 1 - selected WHERE position = 3"])
def test_an_upgrade_of_a_database_with_digests_compares_them_first(state, change):
    with forged(state) as database:
        for table in ("moves", "revisions", "verdicts", "likely", "noise", "features"):
            database.execute(f"DROP TABLE {table}")
            database.execute("DELETE FROM digests WHERE name = ?", [table])
        database.execute("PRAGMA user_version = 3")
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute("UPDATE digests SET name = 'schema' WHERE name = 'commits'")
        database.execute(change or "SELECT 1")
    if change is None:
        assert counts(state) == (50, 40) and learned(state) == 51
    else:
        refused(state, r"state\.sqlite is damaged: the table decisions does not match its digest")


@pytest.mark.parametrize("version", ["0.1.0", "now"])
def test_comments_in_declarations_do_not_matter(tmp_path, version):
    """Those of version 0.1.0 differ."""
    if version == "0.1.0":
        state = shutil.copytree(Path(__file__).parents[1] / "kept" / "0.1.0" / "state", tmp_path / "state")
    else:
        with tiny(tmp_path / "state") as session:
            session.take(items(0, 50))
        state = tmp_path / "state"
    assert counts(state)[0] == 50


@pytest.mark.parametrize("kind", ["absolute", "above", "folder", "empty", "other", "passwd"])
def test_the_database_named_a_learner_file_elsewhere(state, tmp_path, kind):
    [learner] = state.glob("learner-*")
    [classifier] = state.glob("classifier-*")
    classifier.unlink()
    outside = shutil.copy(learner, tmp_path / learner.name)
    names = {
        "absolute": str(outside),
        "above": f"../{learner.name}",
        "folder": ".",
        "empty": "",
        "passwd": "/etc/passwd",
    }
    shutil.copy(learner, state / "learner-0123456789abcdef.safetensors")
    with forged(state) as database:
        database.execute("UPDATE learner SET file = ?", [names.get(kind, "learner-0123456789abcdef.safetensors")])
    for ask in (predicted, audited, learned):
        with pytest.raises(
            UserError, match=r"state\.sqlite is damaged: its learner file is '.*', which no state writes"
        ):
            ask(state)


@pytest.mark.parametrize("change", ["taken = -1", "taken = 51", "taken = 'x'", "digest = 'x'", "digest = 7"])
def test_an_impossible_learner_is_named(state, change):
    with forged(state) as database:
        database.execute(f"UPDATE learner SET {change}")
    for ask in (predicted, audited, learned):
        with pytest.raises(UserError, match=r"state\.sqlite is damaged: its learner"):
            ask(state)


# ---------------------------------------------------------------- links, folders, pipes


def test_a_link_instead_of_the_database_was_followed_and_written(state, tmp_path):
    outside = tmp_path / "outside.sqlite"
    (state / "state.sqlite").rename(outside)
    before = outside.read_bytes()
    (state / "state.sqlite").symlink_to(outside)
    refused(state, r"state\.sqlite is a link, but the files of a state are regular files")
    assert outside.read_bytes() == before and not list(tmp_path.glob("outside.sqlite-*"))


def test_a_dangling_link_instead_of_the_database_creates_nothing(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.sqlite").symlink_to(tmp_path / "outside.sqlite")
    refused(tmp_path / "state", r"state\.sqlite is a link")
    assert not (tmp_path / "outside.sqlite").exists()


def test_a_state_folder_may_be_a_link(state, tmp_path):
    (tmp_path / "link").symlink_to(state)
    assert counts(tmp_path / "link") == (50, 40) and learned(tmp_path / "link") == 51


@contextmanager
def released(fifo: Path, seconds: float = 3.0):
    """Open a FIFO after a while, for those who wait for it."""
    opened: list[int] = []
    timer = threading.Timer(seconds, lambda: opened.append(os.open(fifo, os.O_RDWR | os.O_NONBLOCK)))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for descriptor in opened:
            os.close(descriptor)


@pytest.mark.parametrize("name", ["state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "state.mark"])
def test_a_pipe_instead_of_a_file_blocked_every_command(state, name):
    (state / name).unlink(missing_ok=True)
    os.mkfifo(state / name)
    for ask in COMMANDS.values():
        with (
            released(state / name),
            pytest.raises(UserError, match=rf"{name} is a pipe or a device, but the files of a state are regular"),
        ):
            ask(state)


@pytest.mark.parametrize("name", ["state.sqlite-wal", "state.sqlite-shm", "state.sqlite-journal", "state.mark"])
@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_link_or_folder_beside_the_database_is_called_so(state, tmp_path, name, kind):
    """Before: the sentence spoke of a read-only folder."""
    (state / name).unlink(missing_ok=True)
    (tmp_path / "mine").write_text("mine" * 100)
    if kind == "link":
        (state / name).symlink_to(tmp_path / "mine")
    else:
        (state / name).mkdir()
    refused(state, rf"{name} is a {kind}, but the files of a state are regular files: restore the file")
    assert (tmp_path / "mine").read_text() == "mine" * 100


def test_a_link_instead_of_a_learner_is_not_followed(state, tmp_path):
    [learner] = state.glob("learner-*")
    [classifier] = state.glob("classifier-*")
    classifier.unlink()
    learner.rename(tmp_path / "outside")
    learner.symlink_to(tmp_path / "outside")
    for ask in (predicted, learned):
        with pytest.raises(UserError, match=f"{learner.name} cannot be read: it is a link"):
            ask(state)


# ---------------------------------------------------------------- large files


def sparse(path: Path, content: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(content)
        file.truncate(LARGE)


def honest(path: Path) -> None:
    """A file whose header describes one tensor as large as the file."""
    header = {"__metadata__": {"facts": "{}", "digest": "x", "seal": "x"}}
    for _ in range(3):
        n = LARGE - 8 - len(json.dumps(header))
        header["x"] = {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}
    text = json.dumps(header).encode()
    text = text.ljust(LARGE - header["x"]["shape"][0] - 8)
    sparse(path, len(text).to_bytes(8, "little") + text)


@contextmanager
def little_memory():
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


FORGERIES = {
    "zeros": lambda path: sparse(path),
    "longer": lambda path: sparse(path, path.read_bytes()),
    "honest": honest,
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_large_file_instead_of_a_learner_was_read_whole(state, kind):
    [learner] = state.glob("learner-*")
    [classifier] = state.glob("classifier-*")
    classifier.unlink()
    FORGERIES[kind](learner)
    for ask in (predicted, learned):
        with (
            little_memory(),
            pytest.raises(UserError, match=f"{learner.name} cannot be read: it has 419,430,400 bytes"),
        ):
            ask(state)


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_large_file_instead_of_a_classifier_was_read_whole(state, kind):
    [path] = state.glob("classifier-*")
    size = path.stat().st_size
    FORGERIES[kind](path)
    with little_memory():
        assert len(predicted(state)) == 3  # it is made again
    assert path.stat().st_size == size


@pytest.mark.parametrize("kind", ["zeros", "longer"])
def test_a_large_packed_file_of_any_kind_is_compared_with_its_header_before_it_is_read(state, kind):
    [path] = state.glob("learner-*")
    FORGERIES[kind](path)
    with little_memory(), pytest.raises(ValueError, match="cannot be read: "):
        unpack_tensors(path)


@pytest.mark.parametrize(
    "content", [b"", b"1234567", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{"]
)
def test_a_short_packed_file_is_refused(tmp_path, content):
    (tmp_path / "short").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read: "):
        unpack_tensors(tmp_path / "short")


# ---------------------------------------------------------------- a state among the data


def photos(folder: Path) -> Path:
    for number in range(6):
        path = folder / f"c{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(number)))
    return folder


@pytest.mark.parametrize("follow", [False, True])
def test_a_state_in_the_folder_of_a_label_hid_its_images(tmp_path, follow):
    data = photos(tmp_path / "photos")
    with pytest.raises(UserError, match=r"c0 cannot be the state of .*photos: 0\.png is in it and would be skipped"):
        open_source(str(data), state=data / "c0", follow=follow)
    assert sorted(path.name for path in (data / "c0").iterdir()) == ["0.png", "2.png", "4.png"]


def test_a_state_in_a_folder_of_its_own_among_the_data_is_skipped(tmp_path):
    data = photos(tmp_path / "photos")
    for _ in range(2):
        source = open_source(str(data), state=data / "c0" / "state")
        assert source.total == 6
        with tiny(data / "c0" / "state") as session:
            for chunk in source.chunks:
                assert not any(outcome.error for outcome in session.take(chunk))
    assert counts(data / "c0" / "state")[0] == 6


def test_an_image_that_appears_in_the_state_folder_is_refused(tmp_path):
    data = photos(tmp_path / "photos")
    with tiny(data / "state"):
        folder = ImageFolder(data, data / "state")
        (data / "state" / "new.png").write_bytes(png(picture(9)))
        refusals = [offer for offer in folder.listing() if not hasattr(offer, "image")]
    assert [(r.name, r.reason) for r in refusals] == [("state/new.png", "is in the state folder")]


# ---------------------------------------------------------------- learning rates


@pytest.mark.parametrize("name", ["finetune_lr", "lr"])
@pytest.mark.parametrize("value", ["1e15", "1.1"])
def test_a_state_with_a_learning_rate_that_diverges_was_created(tmp_path, name, value):
    sentence = f"The setting {name} must be at most 1 in a state, not {value.replace('e', 'e.')}"
    with (
        pytest.raises(UserError, match=sentence),
        Store.writing(tmp_path / "state", Wanted(learner="spr", overrides={name: value})),
    ):
        pass
    assert not (tmp_path / "state").exists()


def test_the_largest_learning_rate_is_accepted(tmp_path):
    with tiny(tmp_path / "state", lr="1", finetune_lr="1") as session:
        session.take(items(0, 40))
        session.work()
    assert len(predicted(tmp_path / "state")) == 3
    assert len(fingerprint(tmp_path / "state")["decisions"]) == 40
