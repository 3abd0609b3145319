"""Tar files in the layout of WebDataset."""

import io
import json
import tarfile
import tracemalloc

import pytest
from tiny_state import picture, png

from purereplay.errors import UserError
from purereplay.live import shards
from purereplay.live.intake import open_source
from purereplay.live.items import Item

PNG = png(picture(0))


def write(path, files, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def offers(data, tmp_path):
    source = open_source(str(data), state=tmp_path / "state")
    return [offer for chunk in source.chunks for offer in chunk]


def test_samples_are_the_files_of_one_name(tmp_path):
    files = [
        ("a/1.cls", b"3\n"),
        ("a/1.png", PNG),
        ("a/2.seg.png", PNG),
        ("a/2.PNG", PNG),
        ("a/2.json", b'{"label": "x"}'),
    ]
    write(tmp_path / "s.tar", files)
    assert offers(tmp_path / "s.tar", tmp_path) == [
        Item("s.tar/a/1", "3", PNG, 1),
        Item("s.tar/a/2", "x", PNG, 2),
    ]


def test_a_name_that_is_used_twice_is_two_samples_and_none_is_lost(tmp_path):
    other = png(picture(1))
    write(tmp_path / "s.tar", [("1.png", PNG), ("1.cls", b"a"), ("1.png", other), ("1.cls", b"b")])
    found = offers(tmp_path / "s.tar", tmp_path)  # the second one is refused when it is added: its id is known
    assert found == [Item("s.tar/1", "a", PNG, 1), Item("s.tar/1", "b", other, 2)]


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_and_several(tmp_path, mode):
    ending = mode[2:]
    for k in range(2):
        write(tmp_path / f"s-{k}.tar.{ending}", [("1.png", PNG), ("1.cls", b"cat")], mode)
    assert [offer.id for offer in offers(tmp_path / "s-*", tmp_path)] == [f"s-{k}.tar.{ending}/1" for k in range(2)]
    assert len(offers(tmp_path, tmp_path)) == 2  # a folder of tar files


def test_unusable_samples_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MAX_BYTES", 2000)
    files = [("1.png", PNG), ("2.cls", b"a"), ("3.png", PNG), ("3.jpg", PNG), ("3.cls", b"a"), ("4.jpg", b"x" * 2001)]
    files += [("4.cls", b"a"), ("5.png", PNG), ("5.json", b"["), ("6.png", PNG), ("6.cls", b"\xff"), ("7.png", PNG)]
    files += [("7.json", json.dumps({"label": 1.5}).encode()), ("8.png", PNG), ("8.txt", b"good")]
    write(tmp_path / "s.tar", files)
    *bad, good = offers(tmp_path / "s.tar", tmp_path)
    assert isinstance(good, Item)
    assert [(offer.name, offer.reason) for offer in bad] == [
        ("s.tar/1", "has no label: a file that ends in .cls, .label, .txt or .json is needed"),
        ("s.tar/2", "has no image: a file that ends in .jpg, .jpeg, .png, .webp, .bmp, .gif is needed"),
        ("s.tar/3", "has the images .png and .jpg; one is needed"),
        ("s.tar/4", "has more than 2,000 bytes"),
        ("s.tar/5", "has a label that cannot be read from its file .json"),
        ("s.tar/6", "has a label that cannot be read from its file .cls"),
        ("s.tar/7", "has a label that is a number, not text"),
    ]


def test_links_and_devices_are_not_read(tmp_path):
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("1.png")
            member.type, member.linkname = kind, "/etc/hostname"
            tar.addfile(member)
    with pytest.raises(UserError, match="lists no samples"):
        open_source(str(tmp_path / "s.tar"), state=tmp_path / "state")


def test_damaged_files_are_named(tmp_path):
    write(tmp_path / "s.tar", [("1.png", PNG), ("1.cls", b"a")] * 20)
    content = (tmp_path / "s.tar").read_bytes()
    for damaged in (b"", b"no tar file" * 100, content[:700], b"\x1f\x8b\x08" + content[3:]):
        (tmp_path / "s.tar").write_bytes(damaged)
        with pytest.raises(UserError, match=r"s\.tar"):
            offers(tmp_path / "s.tar", tmp_path)


def test_a_shard_of_many_files_takes_no_memory_per_file(tmp_path):
    peaks = []
    for n in (500, 5500):
        write(tmp_path / "s.tar", [(f"{k}.{end}", b"a") for k in range(n) for end in ("png", "cls")])
        tracemalloc.start()
        assert sum(1 for _ in shards.read_shards([tmp_path / "s.tar"])) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000  # ten bytes for each file


def test_learn_from_a_shard(tmp_path, cli, small_features):
    files = [
        (f"{k:02}.{end}", content)
        for k in range(30)
        for end, content in (("png", png(picture(k))), ("cls", b"%d" % (k % 2)))
    ]
    write(tmp_path / "s.tar", files)
    done = cli("learn", tmp_path / "s.tar", "--state", tmp_path / "state")
    assert (done.code, "samples added: 30" in done.out) == (0, True), done
