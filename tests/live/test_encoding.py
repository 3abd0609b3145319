"""A state with an encoder: its features are judged and kept, and bad images or encoders leave the state as it was."""

import io
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2
from tiny_state import fingerprint

from purereplay.data.encoders import as_encoder, open_encoder
from purereplay.errors import UserError
from purereplay.live.encoding import Encoding, inputs
from purereplay.live.items import Item
from purereplay.live.learn import LearnObserver, learn
from purereplay.live.predict import ImageFile, predict, ready_classifier
from purereplay.live.session import Session
from purereplay.live.settings import Wanted
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

ENGINE = Engine(torch.device("cpu"))
ORIENTATION = 0x0112
COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
# features: the colour of both halves, so that a turned image has other features
CODE = """
import numpy as np

def embed(images):
    if (images[:, 0] == 255).all((1, 2)).any():
        {bright}
    left, right = np.split(images.astype(np.float32), 2, axis=3)
    found = np.concatenate([left.mean((2, 3)), right.mean((2, 3))], 1)
    calls.append(len(images))
    return found

embed.size = 16
calls = []
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Write the encoder, with what it does on an image that is all bright; returns its name."""

    def write(bright: str = "pass") -> str:
        (tmp_path / "halves.py").write_text(CODE.format(bright=bright))
        monkeypatch.delitem(sys.modules, "halves", raising=False)
        return "python:halves:embed"

    return write


def picture(number: int, label: str, size: tuple[int, int] = (20, 12)) -> Image.Image:
    """An image of one colour with noise; the left half is darker."""
    noise = np.random.default_rng(number).integers(-30, 30, (size[1], size[0], 3))
    pixels = np.array(COLOURS[label]) + noise
    pixels[:, : size[0] // 2] //= 2
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def write_folder(folder: Path, n: int = 60) -> dict[str, str]:
    """Write n images of three colours, a seventh of them in the folder of another one; returns the wrong ones."""
    names, wrong = list(COLOURS), {}
    for i in range(n):
        true, label = names[i % 3], names[(i + (i % 7 == 3)) % 3]
        path = folder / label / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(i, true, (20 + i % 7, 12 + i % 5)).save(path)
        if true != label:
            wrong[f"{label}/{i:03}.png"] = true
    return wrong


def decisions(state: Path) -> dict[str, int]:
    with sqlite3.connect(state / "state.sqlite") as database:
        rows = database.execute("SELECT id, selected FROM decisions JOIN samples USING (position)")
        return dict(rows.fetchall())


def opened(folder: Path, encoder: str | None) -> object:
    wanted = Wanted(encoder=None if encoder is None else open_encoder(encoder))
    return Session.open(folder, wanted, ENGINE)


# ---------------------------------------------------------------- the way of an image


def test_features_are_judged_kept_and_classified(cli, code, tmp_path):
    wrong, text = write_folder(tmp_path / "photos"), code()
    done = cli("learn", "photos", "--state", "state", "--encoder", text)
    assert done.code == 0 and "samples added: 60" in done.out
    judged = decisions(tmp_path / "state")
    assert {name for name, selected in judged.items() if not selected} == set(wrong)
    with Store.reading(tmp_path / "state") as store:
        found = inputs(store, np.array([0, 30, 59]))
        assert found.shape == (3, 6) and found.dtype == torch.float32
        names = [store.one("SELECT id FROM samples WHERE position = ?", [p])[0] for p in (0, 30, 59)]
    encoder = open_encoder(text)
    for row, name in zip(found.numpy(), names, strict=True):
        image = Encoding(encoder).read(tmp_path / "photos" / name, store.image_settings, None)
        assert np.array_equal(row, encoder.embed(image.given[None]).features[0])
    new = tmp_path / "new"
    new.mkdir()
    for label in COLOURS:
        picture(99, label, (31, 17)).save(new / f"{label}.png")
    done = cli("predict", "--state", "state", new, "--format", "jsonl", "--encoder", text)
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert {Path(a["image"]).stem: a["label"] for a in answers} == {label: label for label in COLOURS}
    status = json.loads(cli("status", "--state", "state", "--format", "json").out)
    assert status["encoder"] == text and status["image_shape"][0] == 3
    assert "encoder" in cli("status", "--state", "state").out


def test_an_encoder_that_runs_code_must_be_named_again_and_an_onnx_file_not(cli, code, tmp_path):
    from small_onnx import write_onnx

    write_folder(tmp_path / "photos", 30)
    cli("learn", "photos", "--state", "state", "--encoder", code())
    for command in (("predict", "photos/red"), ("learn", "photos")):
        done = cli(*command, "--state", "state")
        assert done.code == 2 and "which runs code: name it again with --encoder python:halves:embed" in done.err
    write_onnx(tmp_path / "m.onnx")
    assert cli("learn", "photos", "--state", "other", "--encoder", "onnx:m.onnx?batch=4").code == 0
    (tmp_path / "elsewhere").mkdir()
    for command in (("predict", "photos/red"), ("learn", "photos")):
        assert cli(*command, "--state", "other").code == 0
    shutil.move(tmp_path / "m.onnx", tmp_path / "elsewhere" / "moved.onnx")
    done = cli("predict", "photos/red", "--state", "other")
    assert done.code == 2 and "m.onnx cannot be read: No such file" in done.err
    assert "name its new place with --encoder 'onnx:FILE?batch=4'." in " ".join(done.err.split())
    assert cli("predict", "photos/red", "--state", "other", "--encoder", "onnx:elsewhere/moved.onnx?batch=4").code == 0
    assert cli("learn", "photos", "--state", "other", "--encoder", "onnx:elsewhere/moved.onnx?batch=4").code == 0
    assert cli("predict", "photos/red", "--state", "other").code == 0  # its new place was saved


def test_a_dry_run_names_the_encoder_and_writes_nothing(cli, code, tmp_path):
    write_folder(tmp_path / "photos", 12)
    done = cli("learn", "photos", "--state", "state", "--encoder", code(), "--dry-run")
    assert "python:halves:embed, 6 features" in done.out and "time" in done.out and not Path("state").exists()
    told = " ".join(done.out.split())
    assert "The encoder gets 16 × 16; copies of 22 × 22, colour are kept." in told and "kept as 22 × 22" in told


def test_a_second_start_asks_the_cache_and_known_images_nothing(code, tmp_path, monkeypatch):
    write_folder(tmp_path / "photos", 40)
    text = code()

    def start(state: str) -> int:
        monkeypatch.delitem(sys.modules, "halves", raising=False)
        encoder = open_encoder(text)
        calls = sys.modules["halves"].calls
        calls.clear()  # without the trial
        learn("photos", tmp_path / state, Wanted(encoder=encoder))
        return len(calls)

    assert start("one") == 5 and start("two") == 0 and start("one") == 0
    a, b = (fingerprint(tmp_path / state) for state in ("one", "two"))
    assert a["samples"] == b["samples"] and a["decisions"] == b["decisions"]
    shutil.rmtree(tmp_path / "cache")
    assert start("one") == 0  # its samples are known


class Stop(LearnObserver):
    def __init__(self, after: int) -> None:
        self.after = after

    def took(self, progress, outcomes) -> None:
        self.after -= 1

    def should_stop(self) -> bool:
        return self.after <= 0


def test_an_interrupted_learn_ends_as_without_the_interruption(code, tmp_path):
    write_folder(tmp_path / "photos", 90)
    wanted = Wanted(encoder=open_encoder(code()))
    learn("photos", tmp_path / "whole", wanted)
    with pytest.raises(UserError, match="nothing is lost"):
        learn("photos", tmp_path / "stopped", wanted, observer=Stop(1))
    with Store.reading(tmp_path / "stopped") as store:
        assert store.n_samples == 32  # stored a few at a time
    shutil.rmtree(tmp_path / "cache")
    learn("photos", tmp_path / "stopped", wanted)
    a, b = (fingerprint(tmp_path / state) for state in ("whole", "stopped"))
    assert {name: rows for name, rows in a.items() if name != "facts"} == {
        name: rows for name, rows in b.items() if name != "facts"
    }


def test_a_file_of_features_is_found_by_the_id(cli, tmp_path):
    wrong = write_folder(tmp_path / "photos")
    paths = sorted((tmp_path / "photos").glob("*/*.png"))
    ids = [path.relative_to(tmp_path / "photos").as_posix() for path in paths]
    rows = np.stack([np.asarray(Image.open(path)).mean((0, 1)) for path in paths])
    np.savez("part.npz", features=rows[1:], ids=np.array(ids[1:]))
    done = cli("learn", "photos", "--state", "state", "--encoder", "file:part.npz")
    assert done.code == 2 and f"{ids[0]} has no features in part.npz" in done.err and "1 of 60 items" in done.err
    np.savez("whole.npz", features=rows, ids=np.array(ids))  # a later file may hold more
    assert cli("learn", "photos", "--state", "state", "--encoder", "file:whole.npz").code == 0
    assert {name for name, selected in decisions(tmp_path / "state").items() if not selected} == set(wrong)
    assert cli("predict", "photos/red", "--state", "state").code == 0
    np.savez("other.npz", features=rows[:, ::-1] + 1, ids=np.array(ids))
    done = cli("learn", "photos", "--state", "state", "--encoder", "file:other.npz")
    assert done.code == 2 and "other.npz has other features of" in done.err


def test_an_option_that_is_not_used_is_refused_for_a_new_state_only(cli, code, tmp_path, monkeypatch):
    write_folder(tmp_path / "photos", 30)
    text = f"{code()}?mean=0.5"
    done = cli("learn", "photos", "--state", "state", "--encoder", text)
    assert done.code == 2 and "does not take the option mean: use size, batch" in done.err
    assert not (tmp_path / "state").exists()
    with monkeypatch.context() as former:
        former.setattr("purereplay.data.encoders.base.CheckedEncoder.check_options", lambda self: None)
        assert cli("learn", "photos", "--state", "state", "--encoder", text).code == 0
    for command in (("learn", "photos"), ("predict", "photos/red")):
        assert cli(*command, "--state", "state", "--encoder", text).code == 0


def test_every_known_row_of_a_later_file_of_features_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr("purereplay.live.encoding._COMPARED", 100)
    rows = np.random.default_rng(0).normal(size=(1100, 2)).astype(np.float32)
    ids = [str(i) for i in range(1100)]
    rows[4, 0] = 0
    np.savez("first.npz", features=rows, ids=ids)
    image = encoded(picture(0, "red"))
    with opened(tmp_path / "state", "file:first.npz") as session:
        session.take([Item(name, "red", image) for name in ids])
    rows[4, 0] = -0.0  # the same number in other bits
    np.savez("more.npz", features=np.concatenate([rows, rows[:1]]), ids=[*ids, "new"])
    with opened(tmp_path / "state", "file:more.npz"):
        pass
    for row in (1, 777, 1099):
        other = rows.copy()
        other[row] += 1
        np.savez("other.npz", features=other, ids=ids)
        with (
            pytest.raises(UserError, match=f"has other features of {row} than"),
            opened(tmp_path / "state", "file:other.npz"),
        ):
            pass


def test_corrections_and_the_audit_work_with_features(cli, code, tmp_path):
    wrong = write_folder(tmp_path / "photos")
    cli("learn", "photos", "--state", "state", "--encoder", code())
    name = sorted(wrong)[0]
    Path("fixes.csv").write_text(f"id,label\n{name},{wrong[name]}\n")
    assert cli("correct", "--state", "state", "fixes.csv").code == 0  # needs no encoder
    assert cli("audit", "--state", "state", "--out", "audit.csv").code == 0
    assert len(Path("audit.csv").read_text().splitlines()) == 61
    moved = sorted(wrong)[1]
    shutil.move(Path("photos", moved), Path("photos", wrong[moved], Path(moved).name))
    done = cli("learn", "photos", "--state", "state", "--encoder", "python:halves:embed")
    assert "files moved to another label: 1" in done.out


# ---------------------------------------------------------------- bad encoders


def state_and(tmp_path: Path, text: str) -> tuple[Path, dict]:
    write_folder(tmp_path / "photos", 30)
    learn("photos", tmp_path / "state", Wanted(encoder=open_encoder(text)))
    return tmp_path / "state", fingerprint(tmp_path / "state")


def test_another_encoder_or_another_version_of_its_file_is_refused(cli, code, tmp_path):
    state, before = state_and(tmp_path, code())
    code("return np.zeros((len(images), 6))")  # another version of the file
    Path("other.py").write_text(CODE.format(bright="pass  # other"))
    for text in ("python:halves:embed", "python:other:embed"):
        for command in (("learn", "photos"), ("predict", "photos/red")):
            done = cli(*command, "--state", state, "--encoder", text)
            assert (
                done.code == 2
                and "was made with a different encoder or version than" in done.err
                and done.err.count("\n") == 1
            )
    done = cli("learn", "photos", "--state", state, "--encoder", "none")
    assert done.code == 2 and "was created with encoder python:halves:embed, not none" in done.err
    assert fingerprint(state) == before
    cli("learn", "photos", "--state", "plain")
    done = cli("learn", "photos", "--state", "plain", "--encoder", "python:halves:embed")
    assert done.code == 2 and "plain was created with encoder none, not python:halves:embed" in done.err


@pytest.mark.parametrize("encoder", ["onnx:no.onnx", "python:halves:nothing", "spam", "python:math:sqrt"])
def test_an_encoder_that_cannot_be_used_creates_no_state(cli, code, tmp_path, encoder):
    code()
    write_folder(tmp_path / "photos", 6)
    done = cli("learn", "photos", "--state", "state", "--encoder", encoder)
    assert done.code == 2 and done.err.count("\n") == 1 and not Path("state").exists()


def test_an_encoder_needs_the_learner_of_features(cli, code, tmp_path):
    write_folder(tmp_path / "photos", 6)
    done = cli("learn", "photos", "--state", "state", "--encoder", code(), "--learner", "spr")
    assert done.code == 2 and "--encoder works with the learner full-memory, not spr" in done.err
    assert not Path("state").exists()


@pytest.mark.parametrize(
    ("bright", "reason"),
    [
        ("return np.full((len(images), 6), np.nan)", "gets NaN or infinity from the encoder"),
        ("return np.zeros((len(images), 4))", "gets features of shape (8, 4) from the encoder, not (8, 6)"),
        ("raise ValueError('too bright')", "cannot be encoded: too bright"),
    ],
)
def test_an_image_on_which_the_encoder_fails_is_refused_and_the_others_are_added(cli, code, tmp_path, bright, reason):
    write_folder(tmp_path / "photos", 20)
    Image.new("RGB", (9, 9), (255, 255, 255)).save(tmp_path / "photos" / "red" / "bright.png")
    done = cli("learn", "photos", "--state", "state", "--encoder", code(bright))
    assert done.code == 2 and f"red/bright.png {reason}" in done.err and "1 of 21 items were refused" in done.err
    with Store.reading(tmp_path / "state") as store:
        assert store.n_samples == 20
    done = cli("predict", "photos/red", "--state", "state", "--encoder", "python:halves:embed")
    assert done.code == 2 and f"bright.png {reason}" in done.err


def test_bad_images_that_come_again_do_not_keep_new_ones_out(cli, code, tmp_path):
    write_folder(tmp_path / "photos")
    for k in (1, 2):  # side by side, so that later they are the only new ones of a piece
        Image.fromarray(np.full((20 + k, 12, 3), 255, np.uint8)).save(tmp_path / "photos" / "blue" / f"00{k}-bad.png")
    name = code("raise ValueError('too bright')")
    assert cli("learn", "photos", "--state", "state", "--encoder", name).code == 2
    picture(99, "green").save(tmp_path / "photos" / "red" / "new.png")
    done = cli("learn", "photos", "--state", "state", "--encoder", name)
    assert "blue/001-bad.png cannot be encoded: too bright" in done.err and "samples added: 1" in done.out
    done = cli("predict", "photos/blue/001-bad.png", "photos/blue/002-bad.png", "--state", "state", "--encoder", name)
    assert "All 2 images were refused" in done.err


def test_features_depend_on_the_file_and_the_encoder_alone(code, tmp_path):
    rng = np.random.default_rng(0)
    for k in range(3):
        path = tmp_path / "photos" / "red" / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (1200, 1600, 3), np.uint8)).save(
            path
        )  # decoded smaller, by a JPEG decoder
    found = []
    for size in (None, 16, 400):
        state = tmp_path / f"state-{size}"
        learn("photos", state, Wanted(encoder=open_encoder(code()), size=size))
        shutil.rmtree(tmp_path / "cache")
        with Store.reading(state) as store:
            found.append(inputs(store, np.arange(3)).numpy())
            assert store.image_settings.shape[2] == (size or 64)
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_damaged_features_are_detected(code, tmp_path):
    state, _ = state_and(tmp_path, code())
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute("UPDATE features SET features = zeroblob(24) WHERE position = 3")
    with Store.reading(state) as store, pytest.raises(UserError, match="features of sample 3 do not match"):
        inputs(store, np.arange(5))
    with sqlite3.connect(state / "state.sqlite") as database:
        database.execute("DELETE FROM features WHERE position = 3")
    with pytest.raises(UserError, match="the table features does not match its digest"), opened(state, None):
        pass


# ---------------------------------------------------------------- bad photos


def exif(value: object, tag: int = ORIENTATION) -> bytes:
    found = Image.Exif()
    found[tag] = value
    return found.tobytes()


def huge() -> bytes:
    """A JPEG whose header states 200 megapixels."""
    content = encoded(picture(0, "red"), "JPEG")
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + (12500).to_bytes(2, "big") + (16000).to_bytes(2, "big") + content[at + 4 :]


def animation() -> bytes:
    frames = [picture(i, "red") for i in range(3)]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


PLAIN = picture(7, "red")
REFUSED = {
    "huge": (huge(), "has 200,000,000 pixels, more than 50,000,000"),
    "animated": (animation(), "is an animation"),
    "truncated": (encoded(picture(0, "red", (400, 300)), "JPEG")[:1500], "is damaged"),
    "empty": (b"", "is empty"),
    "text": (b"no image", "is not an image"),
}


def test_photos_that_cannot_be_used_are_refused_before_they_are_encoded(code, tmp_path):
    with opened(tmp_path / "state", code()) as session:
        offers = [Item(name, "red", content) for name, (content, _) in REFUSED.items()]
        calls = sys.modules["halves"].calls
        calls.clear()
        outcomes = session.take(offers)
        assert not calls
        for outcome, (_, reason) in zip(outcomes, REFUSED.values(), strict=True):
            assert reason in outcome.error
        outcomes = session.take([*offers, Item("good", "red", encoded(PLAIN))])
        assert [outcome.new for outcome in outcomes] == [False] * 5 + [True]
        assert session.store.n_samples == 1


def features_by(session: Session, content: bytes, name: str) -> np.ndarray:
    [outcome] = session.take([Item(name, "red", content)])
    assert outcome.new, outcome
    return inputs(session.store, np.array([session.store.n_samples - 1]))[0].numpy()


def test_photos_of_every_kind_have_the_features_of_what_they_show(code, tmp_path):
    with opened(tmp_path / "state", code()) as session:
        plain = features_by(session, encoded(PLAIN), "plain")
        cmyk = features_by(session, encoded(PLAIN.convert("CMYK"), "JPEG", quality=95), "cmyk")
        assert np.abs(cmyk - plain).max() < 12
        deep = Image.fromarray(np.asarray(PLAIN.convert("L")).astype(np.uint16) * 256)
        grey = features_by(session, encoded(PLAIN.convert("L")), "grey")
        assert np.array_equal(features_by(session, encoded(deep), "16 bits"), grey)
        turned = PLAIN.transpose(Image.Transpose.ROTATE_90)  # orientation 6 turns it back
        assert np.array_equal(features_by(session, encoded(turned, exif=exif(6)), "turned"), plain)
        half = PLAIN.transpose(Image.Transpose.ROTATE_180)
        assert np.array_equal(features_by(session, encoded(half, exif=exif(3)), "half"), plain)
        assert not np.allclose(features_by(session, encoded(half), "half, not marked"), plain)


def directory(**tags: object) -> bytes:
    found = ImageFileDirectory_v2()
    for tag, value in tags.items():
        found[int(tag[1:])] = value
    return b"Exif\x00\x00" + found.tobytes()


LIES = {
    "an orientation that does not exist": exif(9),
    "an orientation of 65,535": exif(65535),
    "another size": directory(t256=9999, t257=1),
    "a directory beyond its end": b"Exif\x00\x00II*\x00\xff\xff\xff\x7f",
    "no directory": b"Exif\x00\x00MM",
}


@pytest.mark.parametrize("name", LIES)
def test_exif_that_lies_changes_nothing(code, tmp_path, name):
    with opened(tmp_path / "state", code()) as session:
        plain = features_by(session, encoded(PLAIN, "JPEG", quality=95), "plain")
        assert np.array_equal(features_by(session, encoded(PLAIN, "JPEG", quality=95, exif=LIES[name]), "lie"), plain)


def test_an_object_with_name_dim_and_embed_is_an_encoder_of_the_library(tmp_path):
    class Means:
        name, dim, size = "means", 3, 8

        def embed(self, images):
            return images.mean((2, 3))

    write_folder(tmp_path / "photos")
    encoder = as_encoder(Means())
    learn("photos", tmp_path / "state", Wanted(encoder=encoder))
    with Store.reading(tmp_path / "state") as store:
        classifier, labels = ready_classifier(store, ENGINE)
        [answer] = predict(store, classifier, [ImageFile(tmp_path / "photos/red/000.png")], encoder)
        assert labels[int(answer.probabilities.argmax())] == "red"


def test_the_filter_scores_the_labels_of_images(cli, code, tmp_path):
    import csv

    wrong = write_folder(tmp_path / "photos")
    (tmp_path / "photos" / "red" / "bad.png").write_bytes(b"no image")
    done = cli("filter", "photos", "--encoder", code(), "--out", "scores.csv")
    assert done.code == 2 and "red/bad.png is not an image" in done.err and "1 of 61 images were refused" in done.err
    with Path("scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60 and list(rows[0])[:3] == ["id", "label", "clean_probability"]
    clean = {row["id"]: float(row["clean_probability"]) for row in rows}
    assert max(clean[name] for name in wrong) < np.median(list(clean.values()))
    done = cli("filter", "photos", "--encoder", "python:halves:embed", "--ids", "x", "--out", "other.csv")
    assert done.code == 2 and "leave --cluster, --columns and --ids out" in done.err
    done = cli("filter", "photos", "--encoder", "python:halves:embed", "--labels", "x", "--out", "other.csv")
    assert done.code == 2 and "--labels names a column of Parquet files or of a saved dataset" in done.err


def test_the_accuracy_of_a_page_needs_an_encoder_that_runs_code_to_be_named_again(cli, code, tmp_path, monkeypatch):
    """The estimate of wrong labels does not need it."""
    from purereplay.live import predict
    from purereplay.live.opinion import Opinion
    from purereplay.web.samples import StateSamples
    from purereplay.web.teaching import Teacher

    text, sizes, found = code(), [], []
    state, _ = state_and(tmp_path, text)
    classify = Opinion.probabilities
    monkeypatch.setattr(Opinion, "probabilities", lambda *values: sizes.append(len(values[1])) or classify(*values))
    monkeypatch.setattr(predict, "PIECE", 8)
    with Store.reading(state) as store:
        for encoder in (None, open_encoder(text)):
            teacher = Teacher(StateSamples(store), ENGINE, found.append, tmp_path / "photos", encoder=encoder)
            teacher._look()
            assert (teacher._test_failure is None) == (encoder is not None), teacher._test_failure
            if encoder is None:
                assert "name it again with --encoder python:halves:embed" in teacher._test_failure
    assert [opinion.noise is not None for opinion in found] == [True, True]
    assert found[0].accuracy is None and found[1].accuracy > 0.8
    assert max(sizes) <= 8 and sum(sizes) == 30  # read and classified in pieces
    done = cli("review", "--state", state, "--encoder", "none", "--no-browser")
    assert done.code == 2 and "was created with encoder python:halves:embed, not none" in done.err


def test_review_and_report_use_the_features(cli, code, tmp_path):
    from purereplay.web.opinions import features_of
    from purereplay.web.samples import StateSamples
    from purereplay.web.teaching import Teacher

    state, _ = state_and(tmp_path, code())
    found = []
    with Store.reading(state) as store:
        samples = StateSamples(store)
        assert samples.input(4).shape == (1, 6) and samples.image(4, 128).pixels.shape[0] == 3
        Teacher(samples, ENGINE, found.append, None)._look()
    [opinion] = found
    assert opinion.clean_features.shape[1] == features_of(opinion.classifier, torch.zeros(1, 6)).shape[1]
    assert (opinion.suggested >= 0).all()
    done = cli("report", "--state", state, "--out", "report.html")
    assert done.code == 0 and Path("report.html").stat().st_size > 1000


def test_the_first_image_of_a_pipe_fixes_the_shape_however_many_arrive_at_once(code, tmp_path):
    offers = [Item(str(i), "red", encoded(picture(i, "red", (40 + 9 * i, 30)))) for i in range(4)]
    text, shapes = code(), []
    for name, step in (("one", 1), ("all", 4)):
        with opened(tmp_path / name, text) as session:
            for start in range(0, 4, step):
                session.take(offers[start : start + step])
            shapes.append(session.store.image_settings.shape)
    assert shapes == [(3, 30, 40)] * 2


def test_a_large_jpeg_of_a_state_with_an_encoder_is_found_again(code, tmp_path, monkeypatch):
    """It was decoded at a size that suits the encoder, and is compared at the same one."""
    from purereplay.live.originals import copy_of, read_shown

    monkeypatch.chdir(tmp_path)
    for i in range(30):
        label = list(COLOURS)[i % len(COLOURS)]
        path = tmp_path / "large" / label / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(i, label, (900, 700)).save(path, quality=90)
    code()
    (tmp_path / "halves.py").write_text((tmp_path / "halves.py").read_text().replace("size = 16", "size = 224"))
    learn("large", tmp_path / "state", Wanted(encoder=open_encoder("python:halves:embed")))
    with Store.reading(tmp_path / "state") as store:
        for position in (0, 29):
            assert read_shown(copy_of(store, position), 1024).note == "file, 900 × 700 pixels"
