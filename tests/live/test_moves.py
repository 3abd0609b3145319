"""Files moved to the folder of another label: the same sample, with a corrected label."""

import base64
import csv
import json
import shutil

import pytest
import torch
from tiny_state import fingerprint, items, picture, png, tiny

from purereplay.errors import UserError, WriteError
from purereplay.live.audit import audit
from purereplay.live.corrections import Correction, apply
from purereplay.live.intake import open_source
from purereplay.live.items import CHUNK
from purereplay.live.plan import plan
from purereplay.live.settings import Wanted
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

N = 24


@pytest.fixture
def photos(tmp_path):
    for i in range(N):
        path = tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(picture(i, i % 2)))
    return tmp_path / "photos"


@pytest.fixture
def state(photos):
    learn(photos)
    return photos.parent / "state"


def learn(photos):
    """Add the folder as `learn` does; returns the outcomes."""
    with tiny(photos.parent / "state") as session:
        found = [
            o for chunk in open_source(str(photos), state=photos.parent / "state").chunks for o in session.take(chunk)
        ]
        session.work(rest=True)
    return found


def move(photos, before, after):
    (photos / after).parent.mkdir(exist_ok=True)
    (photos / before).rename(photos / after)


def corrected(state):
    """Corrections in their order: id and label."""
    found = fingerprint(state)
    names, labels = {row[0]: row[1] for row in found["samples"]}, dict(found["classes"])
    return [(names[position], labels[code]) for _, position, code in found["corrections"]]


def test_a_moved_file_is_corrected_once(photos, state):
    move(photos, "cat/00.png", "dog/00.png")
    move(photos, "dog/01.png", "bird/other name.png")  # a new label
    outcomes = {o.name: o for o in learn(photos)}
    assert outcomes["dog/00.png"].corrected and outcomes["bird/other name.png"].corrected
    assert not any(o.new or o.error for o in outcomes.values()) and sum(o.corrected for o in outcomes.values()) == 2
    assert len(fingerprint(state)["samples"]) == N
    assert sorted(corrected(state)) == [("cat/00.png", "dog"), ("dog/01.png", "bird")]
    before = fingerprint(state)
    assert not any(o.new or o.error or o.corrected for o in learn(photos))
    assert fingerprint(state) == before


def test_a_file_may_be_moved_again_and_back(photos, state):
    move(photos, "cat/00.png", "dog/00.png")
    learn(photos)
    move(photos, "dog/00.png", "bird/00.png")
    learn(photos)
    move(photos, "bird/00.png", "cat/00.png")
    learn(photos)
    assert corrected(state) == [("cat/00.png", label) for label in ("dog", "bird", "cat")]
    learn(photos)
    assert len(corrected(state)) == 3 and len(fingerprint(state)["samples"]) == N


def test_a_correction_by_a_file_stays_though_the_image_does_too(photos, state):
    with tiny(state) as session:
        [outcome] = apply(session, [Correction("cat/00.png", "dog")])
        assert outcome.new
    learn(photos)
    assert corrected(state) == [("cat/00.png", "dog")]


def test_the_path_of_a_moved_file_names_its_sample_too(photos, state):
    move(photos, "cat/00.png", "dog/00.png")
    learn(photos)
    with tiny(state) as session:
        assert [o.new for o in apply(session, [Correction("dog/00.png", "bird")])] == [True]
    assert corrected(state)[-1] == ("cat/00.png", "bird")
    with Store.reading(state) as store:
        audit(store, Engine(torch.device("cpu")), state.parent / "audit.csv")
    with (state.parent / "audit.csv").open(newline="") as file:
        names = {row["id"]: row for row in csv.DictReader(file)}
    assert names["dog/00.png"]["corrected_label"] == "bird" and "cat/00.png" not in names and len(names) == N


def test_a_dry_run_counts_moved_and_unusable_files(photos, state):
    move(photos, "cat/00.png", "dog/00.png")
    move(photos, "cat/02.png", "cat/renamed.png")
    (photos / "cat" / "04.png").write_bytes((photos / "cat" / "06.png").read_bytes())  # another image under a known id
    (photos / "dog" / "bad.png").write_bytes(png(picture(99))[:50])
    (photos / "dog" / "new.png").write_bytes(png(picture(98)))
    before, seen = fingerprint(state), []
    found = plan(str(photos), state, Wanted(), progress=lambda n, total: seen.append((n, total)))
    assert (found.n_items, found.n_read, found.n_known) == (N + 2, N + 2, N - 2)
    assert (found.n_moved, len(found.refused)) == (2, 2) and seen[0] == (0, N + 2)
    assert fingerprint(state) == before
    outcomes = learn(photos)
    assert sum(o.new for o in outcomes) == 1 and sum(o.error is not None for o in outcomes) == 2
    assert sum(found.labels.values()) == N


def test_a_dry_run_reads_some_of_many_files(photos, state, monkeypatch):
    monkeypatch.setattr("purereplay.live.plan.N_READ", 5)
    found = plan(str(photos), state, Wanted())
    assert (found.n_items, found.n_read, found.n_known) == (N, 5, N)


def test_a_dry_run_of_items_without_a_usable_image(tmp_path):
    """No image whose time could be measured: all are empty, or the first chunk is refused."""
    state, path, line = tmp_path / "state", tmp_path / "list.jsonl", {"label": "cat", "image": ""}
    with tiny(state, "full-memory") as session:
        session.take(items(0, 2))
    path.write_text("".join(json.dumps(line | {"id": name}) + "\n" for name in "ab"))
    found = plan(str(path), state, Wanted())
    assert (found.n_items, len(found.refused), found.seconds, found.labels) == (2, 2, None, {})
    image = base64.b64encode(png(picture(99))).decode()
    lines = [line | {"id": str(n), "image": image, "label": "cat" if n >= CHUNK else ""} for n in range(CHUNK + 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = plan(str(path), state, Wanted())
    assert (found.n_items, len(found.refused), found.seconds) == (CHUNK + 1, CHUNK, None)


def test_a_copy_is_a_second_sample(photos, state):
    shutil.copy(photos / "cat/00.png", photos / "dog/00.png")
    assert sum(o.new for o in learn(photos)) == 1 and corrected(state) == []


def test_a_moved_file_may_stay_in_its_label(photos, state):
    move(photos, "cat/00.png", "cat/renamed.png")
    assert not any(o.new or o.corrected for o in learn(photos)) and corrected(state) == []


def test_another_folder_with_the_same_image_is_no_move(photos, state, tmp_path):
    """Only the name of the file, or a folder that holds most of the images, says that it was moved."""
    other = tmp_path / "other"
    (other / "dog").mkdir(parents=True)
    shutil.copy(photos / "cat/00.png", other / "dog" / "x.png")
    with tiny(state) as session:
        for chunk in open_source(str(other), state=state).chunks:
            assert [o.new for o in session.take(chunk)] == [True]


def test_labels_of_a_second_folder_are_no_corrections_of_the_first(photos, state, tmp_path):
    """Two people labelled the same images, in two folders: a file is not moved while the first folder is there."""
    (tmp_path / "second").mkdir()
    shutil.copytree(photos, tmp_path / "second" / "photos")
    shutil.copytree(state, tmp_path / "second" / "state")
    move(tmp_path / "second" / "photos", "cat/00.png", "dog/00.png")
    outcomes = {o.name: o for o in learn(tmp_path / "second" / "photos")}
    assert not any(o.corrected for o in outcomes.values()) and outcomes["dog/00.png"].new
    assert corrected(tmp_path / "second" / "state") == []


def test_a_folder_that_was_moved_as_a_whole_is_still_that_of_the_state(photos, state, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    photos.rename(tmp_path / "elsewhere" / "photos")
    state.rename(tmp_path / "elsewhere" / "state")
    move(tmp_path / "elsewhere" / "photos", "cat/00.png", "dog/00.png")
    assert sum(o.corrected for o in learn(tmp_path / "elsewhere" / "photos")) == 1


def test_a_moved_file_with_other_pixels_is_refused(photos, state):
    move(photos, "cat/00.png", "dog/00.png")
    learn(photos)
    (photos / "dog/00.png").write_bytes(png(picture(99)))
    [refused] = [o for o in learn(photos) if o.error]
    assert refused.sentence == "dog/00.png was added before with another image: use a new id"


def test_a_sample_that_waits_cannot_be_corrected_by_a_move(photos):
    state = photos.parent / "state"
    with tiny(state) as session:
        for chunk in open_source(str(photos), state=state).chunks:
            session.take(chunk)
    move(photos, "cat/00.png", "dog/00.png")
    with tiny(state) as session:
        outcomes = [o for chunk in open_source(str(photos), state=state).chunks for o in session.take(chunk)]
    assert [o.name for o in outcomes if o.error] == ["dog/00.png"]


def test_an_interrupted_chunk_changes_nothing(photos, state, monkeypatch):
    before = fingerprint(state)
    move(photos, "cat/00.png", "dog/00.png")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="full"):
        patch.setattr("purereplay.live.store.write_whole", lambda *_, **__: (_ for _ in ()).throw(WriteError("full")))
        learn(photos)
    assert fingerprint(state) == before
    learn(photos)
    assert corrected(state) == [("cat/00.png", "dog")]
