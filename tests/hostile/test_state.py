"""The state folder against damage, deletion and read-only media: the right result, or a sentence, and nothing else."""

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from tiny_state import TINY_OPTIONS, fingerprint, items, picture, png, tiny

from purereplay.cli import main
from purereplay.errors import UserError
from purereplay.live.audit import audit
from purereplay.live.corrections import correct
from purereplay.live.predict import ImageFile, predict, ready_classifier
from purereplay.live.status import status
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

ENGINE = Engine(torch.device("cpu"))
KEPT = Path(__file__).parents[1] / "kept" / "0.1.0"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two scored buffers, ten samples that wait, and five corrections."""
    folder = tmp_path_factory.mktemp("finished")
    with tiny(folder / "state") as session:
        session.take(items(0, 50))
        session.work()
        (folder / "fixes.csv").write_text("id,label\n" + "".join(f"s{i},label {(i + 1) % 3}\n" for i in range(5)))
        correct(session, folder / "fixes.csv")
    with Store.reading(folder / "state") as store:
        ready_classifier(store, ENGINE)  # its file is kept
    return folder / "state"


@pytest.fixture
def state(finished, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(finished, tmp_path / "state")


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> Done:
    """Call the command line in this process."""
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main()
    return Done(int(end.value.code or 0), *capsys.readouterr())


# ---------------------------------------------------------------- damage


def read_all(folder: Path) -> list[object]:
    """Return what `status`, `audit` and `predict` answer."""
    image = folder.parent / "image.png"
    image.write_bytes(png(picture(7)))
    with Store.reading(folder) as store:
        found = status(store)
        audit(store, ENGINE, folder.parent / "audit.csv")
        classifier, labels = ready_classifier(store, ENGINE)
        [answer] = predict(store, classifier, [ImageFile(image)])
    assert answer.probabilities is not None
    size = found.pop("bytes")
    assert size > 0
    return [found, (folder.parent / "audit.csv").read_text(), labels, answer.probabilities.tolist()]


def predicted(folder: Path) -> list[object]:
    """Return what `predict` alone answers; it checks less than the other commands."""
    with Store.reading(folder) as store:
        classifier, labels = ready_classifier(store, ENGINE)
        pixels = torch.from_numpy(picture(7)[None, None].copy())
        return [labels, classifier.probabilities(pixels).tolist()]


def continued(folder: Path) -> list[object]:
    """Add known and new samples, learn and correct; return every table without the pixels."""
    (folder.parent / "more.csv").write_text("id,label\ns7,label 0\ns8,brand new\n")
    with tiny(folder) as session:
        taken = session.take(items(0, 65))
        session.work()
        outcomes = correct(session, folder.parent / "more.csv")
    tables = fingerprint(folder)
    tables["samples"] = [(position, name, code, digest) for position, name, code, _, digest in tables["samples"]]
    return [taken, outcomes, tables]


def answers(folder: Path) -> list[object]:
    """Return what all commands answer; a sentence for each that refuses."""
    found: list[object] = []
    for ask in (read_all, predicted, continued):
        try:
            found.append(ask(folder))
        except UserError as error:
            found.append(str(error))
    return found


def compared(found: list[object], expected: list[object]) -> str:
    """Return the worst kind of answer."""
    kinds = set()
    for answer, wanted in zip(found, expected, strict=True):
        kinds.add("named" if isinstance(answer, str) else "right" if answer == wanted else "different")
    return next(kind for kind in ("different", "named", "right") if kind in kinds)


def flips(finished: Path, folder: Path, n: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Flip one bit of the database `n` times; return the counts of what the commands answer, and the bad flips."""
    folder.mkdir()
    expected = answers(shutil.copytree(finished, folder / "whole"))
    assert not any(isinstance(answer, str) for answer in expected), expected
    dice, counts, bad = np.random.default_rng(seed), Counter(), []
    for number in range(n):
        copy = shutil.copytree(finished, folder / "flipped")
        path = copy / "state.sqlite"
        content = bytearray(path.read_bytes())
        used = np.flatnonzero(np.frombuffer(content, np.uint8))  # most bytes of a small database are unused zeros
        at = int(dice.choice(used) if number % 2 else dice.integers(len(content)))
        bit = int(dice.integers(8))
        content = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        path.write_bytes(content)
        try:
            kind = compared(answers(copy), expected)
        except Exception as error:
            kind = "traceback"
            bad.append(f"byte {at} bit {bit}: {error!r}")
        if kind == "different":
            bad.append(f"byte {at} bit {bit}: silently different")
        counts[kind] += 1
        shutil.rmtree(copy)
    sys.stdout.write(f"flips of state.sqlite: {dict(counts)}\n")
    return counts, bad


@pytest.mark.long
def test_a_flipped_bit_in_the_database_is_named_or_changes_nothing(finished, tmp_path):
    counts, bad = flips(finished, tmp_path / "flips", 40, seed=1)
    assert not bad and set(counts) == {"right", "named"}


@pytest.mark.slow
def test_three_hundred_flipped_bits_in_the_database(finished, tmp_path):
    counts, bad = flips(finished, tmp_path / "flips", 300, seed=2)
    assert not bad and counts["right"] + counts["named"] == 300


@pytest.mark.parametrize("text", [b"s17", b"label 1", b"learner-", b"settings"])
def test_a_flipped_bit_in_a_name_or_in_its_index_is_named(state, text):
    """Before: a known sample was scored twice, a class split in two."""
    whole = (state / "state.sqlite").read_bytes()
    found = [i for i in range(len(whole)) if whole.startswith(text, i)]
    assert len(found) >= (1 if text == b"learner-" else 2)
    for at in found:
        content = bytearray(whole)
        content[at] ^= 1
        (state / "state.sqlite").write_bytes(content)
        with pytest.raises(UserError, match=r"state\.sqlite (is damaged|was written by)"), tiny(state):
            pass


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE decisions SET selected = 1 - selected WHERE position = 3",
        "UPDATE decisions SET probability = probability + 1e-12 WHERE position = 3",
        "DELETE FROM decisions WHERE position = 39",
        "UPDATE classes SET label = 'label 9' WHERE code = 1",
        "DELETE FROM purified WHERE position = (SELECT min(position) FROM purified)",
        "UPDATE corrections SET label = 2 WHERE number = 1",
        "DELETE FROM corrections WHERE number = 5",
        "UPDATE samples SET label = 2 WHERE position = 3",
        "DELETE FROM samples WHERE position = 49",
        "UPDATE learner SET taken = 39",
        "DELETE FROM digests WHERE name = 'purified'",
    ],
)
def test_a_changed_row_is_named_by_every_command_that_reads_it(state, change):
    with sqlite3.connect(state / "state.sqlite") as database:
        assert database.execute(change).rowcount == 1
    with (
        pytest.raises(UserError, match=r"state\.sqlite is damaged: the table \w+ does not match its digest"),
        tiny(state),
    ):
        pass
    with Store.reading(state) as store:
        with pytest.raises(UserError, match="does not match its digest"):
            status(store)
        with pytest.raises(UserError, match="does not match its digest"):
            audit(store, ENGINE, state.parent / "audit.csv")
        if "classes" in change or "learner" in change:
            with pytest.raises(UserError, match="does not match its digest"):
                ready_classifier(store, ENGINE)


def test_a_changed_declaration_of_a_table_is_named(state):
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute("ALTER TABLE decisions RENAME COLUMN buffer TO buffeR")
    with pytest.raises(UserError, match="its tables are not a state's"), tiny(state):
        pass
    with pytest.raises(UserError, match="its tables are not a state's"), Store.reading(state):
        pass


@pytest.mark.parametrize("version", [0, 1, 2, 7])
def test_a_flipped_version_is_named(state, version):
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute(f"PRAGMA user_version = {version}")
    for opened in (tiny(state), Store.reading(state)):
        with pytest.raises(UserError, match=r"is damaged|newer purereplay|is not the database"), opened:
            pass


def test_the_digests_of_an_upgraded_state_are_those_of_a_new_one(state):
    def digests() -> list[tuple[object, ...]]:
        with sqlite3.connect(state / "state.sqlite") as database:
            return database.execute("SELECT * FROM digests ORDER BY name").fetchall()

    before = digests()
    (state / "state.mark").unlink()
    with sqlite3.connect(state / "state.sqlite") as database:
        for table in ("digests", "moves", "revisions", "verdicts", "likely", "noise", "features"):
            database.execute(f"DROP TABLE {table}")
        database.execute("PRAGMA user_version = 2")
    with tiny(state):
        pass
    commits = [[row for row in rows if row[0] == "commits"] for rows in (before, digests())]
    assert [n for [(_, n, _)] in commits] == [7, 0]  # counted from the upgrade on
    assert [row for row in digests() if row[0] != "commits"] == [row for row in before if row[0] != "commits"]
    assert len(before) == 14


# ---------------------------------------------------------------- deleted, moved and replaced folders


def delete(state: Path) -> None:
    shutil.rmtree(state)


def move(state: Path) -> None:
    state.rename(state.with_name("moved"))


def replace(state: Path) -> None:
    """Put a copy in its place, as a backup program that restores a folder does."""
    move(state)
    shutil.copytree(state.with_name("moved"), state)


def unlink(name: str):
    def change(state: Path) -> None:
        (state / name).unlink()

    return change


CHANGES = {
    "deleted": delete,
    "moved": move,
    "replaced": replace,
    "database": unlink("state.sqlite"),
    "journal": unlink("state.sqlite-wal"),
    "lock": unlink(".lock"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_acknowledged_after_the_state_is_gone(state, change):
    with tiny(state) as session:
        assert session.take(items(50, 52))[0].new
        CHANGES[change](state)
        with pytest.raises(UserError, match="was deleted, moved or replaced while it was in use"):
            session.take(items(52, 53))


def test_a_deleted_lock_file_lets_no_second_writer_in(state):
    with tiny(state):
        (state / ".lock").unlink()
        with pytest.raises(UserError, match="Another process is working on"), tiny(state):
            pass
    with tiny(state) as session:
        assert session.store.n_samples == 50


def line(number: int) -> bytes:
    [item] = items(number, number + 1)
    image = base64.b64encode(item.image).decode()
    return json.dumps({"id": item.id, "label": item.label, "image": image}).encode() + b"\n"


@pytest.mark.long
def test_a_pipe_stops_when_its_state_folder_is_deleted(tmp_path):
    command = [sys.executable, "-m", "purereplay.cli", "learn", "-", "--state", str(tmp_path / "state"), *TINY_OPTIONS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(line(0))
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == {"id": "s0", "ok": True}
    shutil.rmtree(tmp_path / "state")
    out, err = process.communicate(line(1), timeout=60)
    assert out == b"" and process.returncode == 2
    assert err.count(b"\n") == 1 and b"was deleted, moved or replaced" in err


# ---------------------------------------------------------------- corrections


def test_correct_says_how_many_corrections_the_purified_buffer_holds(tmp_path, monkeypatch, capsys):
    """Before: it said 30 corrected where the purified buffer held 10 of them."""
    state = tmp_path / "state"
    with tiny(state, purified_size="10") as session:
        session.take(items(0, 40))
        session.work()
    (tmp_path / "fixes.csv").write_text("id,label\n" + "".join(f"s{i},label {(i + 1) % 3}\n" for i in range(30)))
    out = run(monkeypatch, capsys, "correct", tmp_path / "fixes.csv", "--state", state, "--device", "cpu").out
    assert "labels corrected: 30, already corrected: 0" in out and "of these in the purified buffer: 10" in out
    assert "holds 10 samples, balanced over the labels" in out and "The other 20 are recorded" in out
    with tiny(state, purified_size="10") as session:
        batch, probability = session.learning.learner.purified.contents()
        assert sorted(batch.index.tolist()) == list(range(20, 30)) and probability.tolist() == [1.0] * 10
    with Store.reading(state) as store:
        found = status(store)
    assert (found["corrected"], found["corrected_in_purified"]) == (30, 10)
    again = run(monkeypatch, capsys, "correct", tmp_path / "fixes.csv", "--state", state, "--device", "cpu").out
    assert "labels corrected: 0, already corrected: 30" in again and "of these in the purified buffer: 10" in again


def test_correct_says_nothing_of_room_where_there_is_enough(state, monkeypatch, capsys):
    (state.parent / "fixes.csv").write_text("id,label\ns1,label 0\ns1,label 0\ns9,label 0\n")
    out = run(monkeypatch, capsys, "correct", state.parent / "fixes.csv", "--state", state, "--device", "cpu").out
    assert "labels corrected: 2, already corrected: 0" in out and "of these in the purified buffer: 2" in out
    assert "balanced" not in out


# ---------------------------------------------------------------- read-only media


@contextmanager
def read_only(folder: Path):
    """Copy a state into a folder that this process cannot write to, also if it is root's."""
    with tempfile.TemporaryDirectory() as place:
        state = shutil.copytree(folder, Path(place) / "medium" / "state")
        (Path(place) / "out").mkdir()
        for path in (Path(place), state.parent):
            path.chmod(0o755)
        (Path(place) / "out").chmod(0o777)
        for path in state.iterdir():
            path.chmod(0o444)
        state.chmod(0o555)
        me = os.geteuid()
        if me == 0:
            os.seteuid(65534)
        try:
            yield state
        finally:
            if me == 0:
                os.seteuid(0)
            state.chmod(0o755)


def read_from_medium(state: Path) -> tuple[dict[str, object], str, list[str]]:
    out = state.parent.parent / "out"
    with Store.reading(state) as store:
        found = dict(status(store))
        audit(store, ENGINE, out / "audit.csv")
        _, labels = ready_classifier(store, ENGINE)
    return found, (out / "audit.csv").read_text(), labels


@pytest.mark.parametrize("left", ["", "-wal -shm", "-wal"])
def test_a_state_is_read_from_a_read_only_medium(state, left):
    """Before: unable to open database file. A reader leaves empty files behind, a writer none."""
    expected = read_from_medium_copy(state)
    for suffix in ("-wal", "-shm"):
        (state / f"state.sqlite{suffix}").unlink(missing_ok=True)
        if suffix in left.split():
            (state / f"state.sqlite{suffix}").write_bytes(b"")
    with read_only(state) as medium:
        found = read_from_medium(medium)
        assert [found[0] | {"bytes": 0}, *found[1:]] == [expected[0] | {"bytes": 0}, *expected[1:]]
        with pytest.raises(UserError, match=r"cannot be (written|opened)"), tiny(medium):
            pass


def read_from_medium_copy(state: Path) -> tuple[dict[str, object], str, list[str]]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "out").mkdir()
        return read_from_medium(shutil.copytree(state, Path(place) / "medium" / "state"))


@pytest.mark.parametrize("name", ["state", "state-without-images"])
def test_a_state_of_version_0_1_0_is_read_from_a_read_only_medium(name):
    with read_only(KEPT / name) as medium, Store.reading(medium) as store:
        found = status(store)
    assert found["samples"] == (50 if name == "state" else 0)


def test_changes_that_a_read_only_medium_cannot_show_are_named(tmp_path):
    """A killed process left its last commits in the journal: without them the answers would be old ones."""
    with tiny(tmp_path / "whole") as session:
        session.take(items(0, 5))
        killed = shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    (killed / "state.sqlite-shm").unlink()
    with (
        read_only(killed) as medium,
        pytest.raises(UserError, match=r"changes in state\.sqlite-wal that a full or read-only disk cannot show: copy"),
        Store.reading(medium),
    ):
        pass


def no_room(monkeypatch, folder: Path, code: int) -> list[str]:
    """Let SQLite fail to create the files that readers share, as on a full disk; returns what was opened."""
    connect, opened = sqlite3.connect, []

    def connected(database, **options):
        opened.append(str(database))
        if "mode=ro" in opened[-1] and "immutable" not in opened[-1]:
            (folder / "state.sqlite-shm").write_bytes(b"???")  # what SQLite leaves on a full tmpfs
            (folder / "state.sqlite-wal").touch()
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error
        return connect(database, **options)

    monkeypatch.setattr("purereplay.live.schema.sqlite3.connect", connected)
    return opened


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_FULL])
def test_a_state_is_read_from_a_full_disk(tmp_path, monkeypatch, code):
    """Before: `state.sqlite cannot be written: disk I/O error`, from commands that only read."""
    with tiny(tmp_path / "state") as session:
        session.take(items(0, 5))
    opened = no_room(monkeypatch, tmp_path / "state", code)
    for _ in range(2):  # the second time with the file that the first one left
        with Store.reading(tmp_path / "state") as store:
            assert status(store)["samples"] == 5
    assert any("immutable" in name for name in opened)
    with (tmp_path / "state" / "state.sqlite-shm").open("wb") as file:
        file.truncate(2**15)  # somebody may be writing
    monkeypatch.setattr(Path, "write_bytes", lambda self, content: None)
    with pytest.raises(UserError, match="cannot be written: disk I/O error"), Store.reading(tmp_path / "state"):
        pass
