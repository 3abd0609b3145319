"""The original files of a state's samples, which reviewers see instead of the small copies."""

import io
import os

import numpy as np
import pytest
from PIL import Image
from tiny_state import TINY, items

from purereplay.errors import UserError
from purereplay.live.learn import learn
from purereplay.live.originals import THUMBNAIL, copy_of, read_file, read_shown, roots
from purereplay.live.settings import Wanted
from purereplay.live.store import Store

N = 24


def photo(number: int, width: int = 400, height: int = 300) -> Image.Image:
    """A smooth picture that differs from all others."""
    small = np.random.default_rng(number).integers(0, 255, (3, 4, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def fill(folder, start: int = 0):
    for i in range(start, start + N):
        path = folder / ("cat", "dog")[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(i).save(path, quality=95)
    return folder


@pytest.fixture
def photos(tmp_path):
    return fill(tmp_path / "photos")


@pytest.fixture
def state(photos):
    folder = photos.parent / "state"
    learn(str(photos), folder, Wanted(learner="spr", overrides=TINY), device="cpu")
    return folder


def shown(state, name: str, size: int = 1024):
    with Store.reading(state) as store:
        [position] = store.one("SELECT position FROM samples WHERE id = ?", [name])
        copy = copy_of(store, position)
    return read_shown(copy, size)


def test_the_original_is_shown(state, photos):
    found = shown(state, "cat/00.jpg")
    with Image.open(photos / "cat/00.jpg") as image:
        assert np.array_equal(found.pixels.transpose(1, 2, 0), np.asarray(image))
    assert found.note == "file, 400 × 300 pixels"
    assert shown(state, "cat/00.jpg", 200).pixels.shape == (3, 150, 200)
    assert max(shown(state, "cat/00.jpg", THUMBNAIL).pixels.shape) <= 64  # thumbnails are the copies


def test_a_file_that_is_gone_or_changed_is_not_shown(state, photos):
    (photos / "cat/00.jpg").unlink()
    photo(99).save(photos / "cat/02.jpg")
    (photos / "cat/04.jpg").write_bytes(b"no image")
    for name, why in {"00": "the file was not found in", "02": "was changed", "04": "is not an image"}.items():
        found = shown(state, f"cat/{name}.jpg")
        assert max(found.pixels.shape) <= 64 and "copy in the state, 64 × 48 pixels" in found.note and why in found.note


def test_a_moved_file_is_found(state, photos):
    (photos / "cat/00.jpg").rename(photos / "dog/00.jpg")
    learn(str(photos), state, Wanted(), device="cpu")
    assert shown(state, "cat/00.jpg").note == "file, 400 × 300 pixels"


def test_files_of_a_second_folder_are_found(state, photos, tmp_path):
    second = fill(tmp_path / "more", N)
    learn(str(second), state, Wanted(), device="cpu")
    with Store.reading(state) as store:
        assert roots(store) == [str(photos.resolve()), str(second.resolve())]
    assert shown(state, f"cat/{N:02}.jpg").note == shown(state, "cat/00.jpg").note == "file, 400 × 300 pixels"


def test_an_image_without_a_file(tmp_path):
    from tiny_state import tiny

    with tiny(tmp_path / "state") as session:
        session.take(items(0, 20))
    assert shown(tmp_path / "state", "s0").note == "copy in the state, 6 × 6 pixels: its file is not known"


def test_the_orientation_is_applied(tmp_path):
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    photo(1).save(file, "JPEG", exif=exif)
    (tmp_path / "x.jpg").write_bytes(file.getvalue())
    found = read_file(tmp_path, "x.jpg", 1024)
    assert found.pixels.shape == (3, 400, 300) and found.note == "file, 300 × 400 pixels"


@pytest.mark.parametrize("how", ["link", "folder link", "pipe", "folder", "large"])
def test_nothing_else_is_read(state, photos, how):
    """The path of a sample leads to something else now: the copy is shown, at once."""
    secret = photos.parent / "secret"
    fill(secret)
    path = photos / "cat" / "00.jpg"
    path.unlink()
    if how == "link":
        path.symlink_to(secret / "cat" / "00.jpg")  # even if it is the same image
    elif how == "folder link":
        for other in (photos / "cat").iterdir():
            other.unlink()
        (photos / "cat").rmdir()
        (photos / "cat").symlink_to(secret / "cat")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"")
        os.truncate(path, 65 * 2**20)
    found = shown(state, "cat/00.jpg")
    assert "copy in the state" in found.note and max(found.pixels.shape) <= 64


def test_a_path_of_a_foreign_state_does_not_lead_out_of_its_folder(state, photos):
    fill(photos.parent / "secret")
    with Store.reading(state) as store:
        copy = copy_of(store, 0)
    for name in ("../secret/cat/00.jpg", str(photos.parent / "secret/cat/00.jpg"), "cat/\0.jpg", ""):
        found = read_shown(copy._replace(places=[(photos, name)]), 1024)
        assert "copy in the state" in found.note


@pytest.mark.parametrize("text", ["[", "{}", "[1]", "null", "[" * 100_000])
def test_a_list_of_folders_that_is_none_is_damage(tmp_path, text):
    from tiny_state import tiny

    with tiny(tmp_path / "state") as session:
        session.take(items(0, 3))
        with session.store.transaction():
            session.store.write_fact("roots", text)
        with pytest.raises(UserError, match="its list of folders cannot be read"):
            roots(session.store)
