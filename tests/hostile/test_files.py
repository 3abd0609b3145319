"""Destinations that are not regular files, the state's own files, races of writers, and rights of new files."""

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from purereplay.cli import main
from purereplay.data.files import held, whole_file, write_whole
from purereplay.errors import UserError
from purereplay.live.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from tiny_state import items, tiny

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs the files of Unix")


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    with tiny(folder) as session:
        session.take(items(0, 25))
        session.work()
    return folder


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), capsys.readouterr().err


def contents(folder: Path) -> dict[str, bytes]:
    """The files whose contents matter; SQLite makes two of its files even when it only reads."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix not in (".sqlite-shm", ".sqlite-wal")}


# ---------------------------------------------------------------- destinations


def test_out_onto_a_device_replaced_it(state, tmp_path, monkeypatch, capsys):
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"x")
    except PermissionError:
        pytest.skip("needs the right to make and open a device")
    code, _ = call(monkeypatch, capsys, "audit", "--state", state, "--out", device)
    assert code == 0 and stat.S_ISCHR(device.lstat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["null", "state"]


def test_out_onto_a_pipe_replaced_it(state, tmp_path, monkeypatch, capsys):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    code, _ = call(monkeypatch, capsys, "audit", "--state", state, "--out", pipe)
    reader.join(10)
    assert code == 0 and stat.S_ISFIFO(pipe.lstat().st_mode)
    assert received[0].startswith("id,given_label") and received[0].count("\n") == 21


@pytest.mark.parametrize("exists", [True, False])
def test_out_onto_a_link_replaced_the_link(tmp_path, exists):
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    if exists:
        target.write_bytes(b"before")
    link.symlink_to(target)
    write_whole(link, b"after")
    assert link.is_symlink() and target.read_bytes() == b"after"
    assert [p.name for p in target.parent.iterdir()] == ["target"]


def test_a_loop_of_links_is_a_sentence(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match=r"a cannot be written: Too many levels"):
        write_whole(tmp_path / "a", b"x")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("way", ["name", "wal", "new learner", "link", "hard link", "dots", "learner", "lock"])
def test_out_onto_a_file_of_the_state_replaced_it(state, tmp_path, monkeypatch, capsys, way):
    [learner] = state.glob("learner-*")
    out = {
        "name": state / "state.sqlite",
        "wal": state / "state.sqlite-wal",
        "new learner": state / f"learner-{'0' * 16}.safetensors",
        "dots": state / ".." / "state" / "state.sqlite",
        "learner": learner,
        "lock": state / ".lock",
    }.get(way, tmp_path / "other.csv")
    if way == "link":
        out.symlink_to(state / "state.sqlite")
    elif way == "hard link":
        out.hardlink_to(state / "state.sqlite")
    before = contents(state)
    code, err = call(monkeypatch, capsys, "audit", "--state", state, "--out", out)
    assert code == 2 and "belongs to the state" in " ".join(err.split()) and contents(state) == before
    assert call(monkeypatch, capsys, "audit", "--state", state, "--out", state / "audit.csv")[0] == 0


def test_a_picture_is_written_whole(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    from purereplay.report.pictures import save

    (tmp_path / "run.png").write_bytes(b"before")

    def full(descriptor, *others):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        save(Figure(), tmp_path / "run.png")
    assert contents(tmp_path) == {"run.png": b"before"}


# ---------------------------------------------------------------- partly written files


def test_names_of_partly_written_files_could_be_guessed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "out.part").symlink_to(victim)
    names = []
    for _ in range(2):
        with whole_file(tmp_path / "out") as part:
            names.append(part.name)
            part.write_bytes(b"new")
    assert victim.read_bytes() == b"precious" and (tmp_path / "out").read_bytes() == b"new"
    assert len(set(names)) == 2 and all(len(name.removeprefix("out.").removesuffix(".part")) == 16 for name in names)


def test_a_partly_written_file_that_exists_is_not_reused(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr("secrets.token_hex", lambda n: "0" * 2 * n)  # as if somebody had guessed it
    (tmp_path / f"out.{'0' * 16}.part").symlink_to(victim)
    with pytest.raises(UserError, match="out cannot be written: File exists"):
        write_whole(tmp_path / "out", b"new")
    assert victim.read_bytes() == b"precious"


def test_two_writers_showed_a_torn_file(tmp_path):
    path, torn, end = tmp_path / "file", [], threading.Event()
    whole = {bytes([letter]) * 200_000 for letter in b"abcd"}
    write_whole(path, next(iter(whole)))

    def write(content: bytes) -> None:
        try:
            for _ in range(15):
                write_whole(path, content)
        except UserError as error:
            torn.append(str(error))

    def read() -> None:
        while not end.is_set():
            if path.read_bytes() not in whole:
                torn.append("torn")

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=[content]) for content in whole]
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    end.set()
    reader.join()
    assert torn == [] and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_long_name_leaves_room_for_the_partly_written_file(tmp_path):
    name = "ü" * 120
    write_whole(tmp_path / name, b"x")
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_that_is_a_pipe_hung(tmp_path, kind):
    lock, victim = tmp_path / ".lock", tmp_path / "victim"
    os.mkfifo(lock) if kind == "pipe" else lock.symlink_to(victim)
    with pytest.raises(UserError, match=r"\.lock cannot be written"), held(lock, "busy"):
        pass
    assert not victim.exists()


# ---------------------------------------------------------------- tidying


def test_tidying_deleted_the_users_files(state):
    theirs = ["learner-notes.txt", "classifier-of-mine.safetensors", "learner-1", f"learner-{'0' * 16}.safetensors.bak"]
    theirs += [f"learner-{'A' * 16}.safetensors", f"classifier-{'0' * 17}.safetensors"]
    for name in theirs:
        (state / name).write_text("mine")
    (state / f"learner-{'1' * 16}.safetensors").mkdir()
    ours = [f"learner-{'0' * 16}.safetensors", f"classifier-{'a' * 16}.safetensors"]
    ours += [f"learner-{'0' * 16}.safetensors.part", f"classifier-{'0' * 16}.safetensors.{'f' * 16}.part"]
    for name in ours:
        (state / name).write_text("old")
    with tiny(state) as session:
        session.take(items(25, 45))
        session.work()
    left = {p.name for p in state.iterdir()}
    assert left >= {*theirs, f"learner-{'1' * 16}.safetensors"} and not left & set(ours)


def test_a_users_file_made_a_new_folder_count_as_a_damaged_state(tmp_path):
    (tmp_path / "learner-notes.txt").write_text("mine")
    with tiny(tmp_path) as session:
        assert session.store.n_samples == 0


# ---------------------------------------------------------------- rights


def test_files_of_a_state_could_be_read_by_everybody(tmp_path):
    before = os.umask(0)
    try:
        with tiny(tmp_path / "state") as session:
            session.take(items(0, 25))
            session.work()
            found = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "state").iterdir()}
        with Store.reading(tmp_path / "state") as store:
            from purereplay.live.predict import ready_classifier

            ready_classifier(store, session.engine)
        [classifier] = (tmp_path / "state").glob("classifier-*")
        found[classifier.name] = stat.S_IMODE(classifier.stat().st_mode)
        assert len(found) >= 6 and set(found.values()) == {0o600}, found
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        write_whole(tmp_path / "audit.csv", b"")  # the user's own files have the usual rights
        assert stat.S_IMODE((tmp_path / "audit.csv").stat().st_mode) == 0o666
    finally:
        os.umask(before)
