"""Folders: labels by subfolder, ids by path, links out and loops refused; a watched folder yields unchanged files."""

import os
from itertools import islice

import pytest
from tiny_state import picture, png

from purereplay.errors import UserError
from purereplay.live.folders import ImageFolder
from purereplay.live.intake import open_source
from purereplay.live.items import Item, Refusal


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    for number, name in enumerate(("b/1.png", "a/2.png", "a/deep/3.png", "a/10.png")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(picture(number)))
    return root


def listing(folder, state=None):
    return ImageFolder(folder, state or folder.parent / "state").listing()


def test_labels_ids_and_order(folder):
    (folder / "a" / ".hidden.png").write_bytes(b"")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.png").write_bytes(b"")
    names = ["a/10.png", "a/2.png", "a/deep/3.png", "b/1.png"]
    assert listing(folder) == [Item(name, name[0], folder / name, None, folder) for name in names]


def test_the_state_folder_may_be_inside(folder):
    (folder / "state").mkdir()
    (folder / "state" / "state.sqlite").write_bytes(b"x")
    assert all(isinstance(offer, Item) for offer in listing(folder, folder / "state"))
    assert len(listing(folder, folder / "state")) == 4


def test_links_and_files_outside_of_a_label_s_folder(folder, tmp_path):
    (folder / "lost.png").write_bytes(png(picture(9)))
    (tmp_path / "outside.png").write_bytes(png(picture(9)))
    (tmp_path / "others").mkdir()
    (folder / "a" / "out.png").symlink_to(tmp_path / "outside.png")
    (folder / "a" / "in.png").symlink_to(folder / "a" / "2.png")
    (folder / "a" / "loop").symlink_to(folder)
    (folder / "a" / "self.png").symlink_to(folder / "a" / "self.png")
    (folder / "c").symlink_to(tmp_path / "others")
    refused = {offer.name: offer.reason for offer in listing(folder) if isinstance(offer, Refusal)}
    assert refused.keys() == {"lost.png", "a/out.png", "a/loop", "a/self.png", "c"}
    assert refused["lost.png"] == "has no label"
    assert "leads out of the folder" in refused["a/out.png"]
    assert refused["a/loop"] == refused["c"] == "is a link to a folder; such links are not followed"
    assert "cannot be read" in refused["a/self.png"]
    assert sum(isinstance(offer, Item) for offer in listing(folder)) == 5


def test_files_that_are_no_images_are_skipped(folder):
    for name in ("readme.txt", "a/Thumbs.db", "b/README", "b/empty"):
        (folder / name).write_bytes(b"" if name == "b/empty" else b"hello")
    (folder / "a" / "photo.backup").write_bytes(png(picture(8)))  # an image by content
    (folder / "a" / "photo.TIFF").write_bytes(b"II*")  # an image by name
    (folder / "a" / "cut.jpg").write_bytes(b"")
    found = ImageFolder(folder, folder.parent / "state")
    offers = found.listing()
    assert all(isinstance(offer, Item) for offer in offers)
    assert {offer.id for offer in offers} >= {"a/photo.backup", "a/photo.TIFF", "a/cut.jpg"} and len(offers) == 7
    assert found.others == ["a/Thumbs.db", "b/README", "b/empty", "readme.txt"]
    os.chmod(folder / "readme.txt", 0)  # noqa: PTH101
    assert len(found.listing()) == 7 and len(found.others) == 4


def test_a_name_that_is_not_utf8(folder):
    with open(os.fsencode(folder / "a") + b"/\xff.png", "wb") as file:  # noqa: PTH123
        file.write(png(picture(9)))
    [refusal] = [offer for offer in listing(folder) if isinstance(offer, Refusal)]
    assert "not valid UTF-8" in refusal.reason


def test_a_folder_that_cannot_be_listed(folder, monkeypatch):
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", guarded)
    found = listing(folder)
    assert found[-1] == Refusal("b", "cannot be read: Permission denied") and len(found) == 4


def test_no_images(tmp_path):
    with pytest.raises(UserError, match="holds no images"):
        open_source(str(tmp_path), state=tmp_path / "state")


def test_a_watched_folder_yields_a_file_once_it_has_stopped_changing(folder):
    chunks = ImageFolder(folder, folder.parent / "state").follow(pause=0.0)
    assert next(chunks) == []  # all files are new, and may still be growing
    assert [item.id for item in next(chunks)] == ["a/10.png", "a/2.png", "a/deep/3.png", "b/1.png"]
    assert next(chunks) == []
    half, whole = png(picture(5))[:30], png(picture(5))
    (folder / "a" / "new.png").write_bytes(half)
    assert next(chunks) == []
    (folder / "a" / "new.png").write_bytes(whole)
    assert next(chunks) == []  # it has changed
    assert [item.id for item in next(chunks)] == ["a/new.png"]
    assert list(islice(chunks, 3)) == [[], [], []]
    (folder / "a" / "new.png").write_bytes(whole + b" ")  # yielded again, to be compared with the stored sample
    assert [item.id for chunk in islice(chunks, 2) for item in chunk] == ["a/new.png"]


def test_a_file_that_is_written_while_others_are_learned_is_read_when_it_is_whole(folder, monkeypatch):
    written = iter((png(picture(5))[:30], png(picture(5))))  # in the first two pauses

    def pause(seconds):
        for content in islice(written, 1):
            (folder / "a" / "new.png").write_bytes(content)

    monkeypatch.setattr("purereplay.live.folders.time.sleep", pause)
    chunks = ImageFolder(folder, folder.parent / "state").follow()
    assert next(chunks) == []
    assert len(next(chunks)) == 4  # the new file is half written
    assert next(chunks) == []
    assert [item.id for item in next(chunks)] == ["a/new.png"]
