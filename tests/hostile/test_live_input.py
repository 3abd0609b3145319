"""Hostile input of the live commands: links, devices, costly images, large lines, names with escapes and formulas."""

import base64
import csv
import errno
import io
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from tiny_state import TINY_OPTIONS, picture, png, tiny

from purereplay.data.text import printable, spreadsheet_raw, spreadsheet_safe
from purereplay.errors import UserError
from purereplay.live import images, items, settings
from purereplay.live.audit import audit
from purereplay.live.corrections import correct
from purereplay.live.folders import ImageFolder
from purereplay.live.images import read_pixels
from purereplay.live.items import Item, Outcome, Refused, in_chunks
from purereplay.live.lists import offer_from, read_lines
from purereplay.live.pipe import acknowledge, piped
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

ENGINE = Engine(torch.device("cpu"))
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def read(image: Path | bytes, root: Path | None = None) -> np.ndarray:
    return read_pixels(image, size=None, channels=None, shape=None, root=root)


# ---------------------------------------------------------------- links and races


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "0.png").write_bytes(png(picture(0)))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0.png").write_bytes(png(picture(1)))
    return folder


def listed(photos: Path) -> Item:
    [item] = ImageFolder(photos, photos / "state").listing()
    assert isinstance(item, Item)
    return item


def test_a_file_replaced_by_a_link_after_listing_is_not_followed(photos):
    item = listed(photos)
    assert np.array_equal(read(item.image, item.root)[0], picture(0))
    (photos / "a" / "0.png").unlink()
    (photos / "a" / "0.png").symlink_to(photos.parent / "outside" / "0.png")
    with pytest.raises(Refused, match="was replaced by a link"):
        read(item.image, item.root)


def test_a_folder_replaced_by_a_link_after_listing_is_not_followed(photos):
    item = listed(photos)
    (photos / "a").rename(photos.parent / "before")
    (photos / "a").symlink_to(photos.parent / "outside")
    with pytest.raises(Refused, match="was replaced by a link"):
        read(item.image, item.root)


def test_a_link_within_the_folder_is_still_read(photos):
    (photos / "b").mkdir()
    (photos / "b" / "1.png").symlink_to(photos / "a" / "0.png")
    item = offer_from(None, {"path": "b/1.png", "label": "b"}, photos)
    assert isinstance(item, Item) and np.array_equal(read(item.image, item.root)[0], picture(0))


@pytest.mark.parametrize("by_root", [True, False])
def test_a_fifo_swapped_in_does_not_hang(photos, by_root):
    item = listed(photos)
    (photos / "a" / "0.png").unlink()
    os.mkfifo(photos / "a" / "0.png")
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(read(item.image, item.root if by_root else None))
        except Refused as reason:
            found.append(str(reason))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(10)
    assert found == ["is not a file"]


def test_a_device_without_end_does_not_fill_memory(photos):
    (photos / "a" / "0.png").unlink()
    try:
        os.mknod(photos / "a" / "0.png", 0o20600, os.makedev(1, 5))  # a node of our own that yields zeros for ever
    except PermissionError:
        pytest.skip("only root can make a device node")
    item = Item("x", "a", photos / "a" / "0.png", None, photos)
    with pytest.raises(Refused, match=r"is not a file|cannot be read: Permission denied"):
        read(item.image, item.root)


def test_a_file_that_grows_while_it_is_read_is_read_up_to_the_limit(photos, monkeypatch):
    """The size at the check is smaller than the file at the read."""
    (photos / "a" / "0.png").write_bytes(bytes(1000))
    monkeypatch.setattr(images, "MAX_BYTES", 500)
    small = os.stat_result((0o100644, 1, 1, 1, 0, 0, 10, 0, 0, 0))
    monkeypatch.setattr(images.os, "fstat", lambda _: small)
    with pytest.raises(Refused, match="has more than 500 bytes"):
        read(photos / "a" / "0.png")


# ---------------------------------------------------------------- decoding takes a limited time


def many_scans(side: int, n: int) -> bytes:
    """A progressive JPEG whose last scan is repeated n times."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = [found.start() for found in re.finditer(rb"\xff\xda", content)][-1]
    return content[:-2] + content[last:-2] * n + b"\xff\xd9"


def test_a_progressive_jpeg_with_very_many_scans_is_refused_at_once():
    content = many_scans(4000, 5000)  # several minutes
    began = time.monotonic()
    with pytest.raises(Refused, match=r"has 5,006 scans of 4,000 × 4,000 pixels, too many to decode"):
        read(content)
    assert time.monotonic() - began < 5


def test_an_ordinary_progressive_jpeg_is_read():
    assert read(many_scans(64, 0)).shape == (1, 64, 64)


def test_a_comment_of_very_many_blocks_is_given_up(monkeypatch):
    """Pillow puts the blocks of a GIF's comment together one by one."""
    file = io.BytesIO()
    Image.new("P", (6, 6)).save(file, "GIF")
    content = file.getvalue()
    at = content.index(b"\x2c", 13 + 3 * 2 ** ((content[10] & 7) + 1))
    crafted = content[:at] + b"\x21\xfe" + b"\x01x" * 2_000_000 + b"\x00" + content[at:]
    calls = itertools.count()
    monkeypatch.setattr(images, "time", SimpleNamespace(monotonic=lambda: next(calls) / 1000))  # a read takes 1 ms
    with pytest.raises(Refused, match=r"takes more than 20 seconds to decode"):
        read(crafted)
    assert next(calls) < 21_000


# ---------------------------------------------------------------- large lines, large images


def large_lines(n: int, n_bytes: int) -> bytes:
    image = base64.b64encode(bytes(n_bytes)).decode()
    return b"".join(json.dumps({"id": str(i), "label": "a", "image": image}).encode() + b"\n" for i in range(n))


def test_chunks_of_embedded_images_are_limited_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(items, "CHUNK_BYTES", 5000)
    chunks = list(in_chunks(read_lines(io.BytesIO(large_lines(20, 2000)), tmp_path)))
    assert [len(chunk) for chunk in chunks] == [2] * 10
    assert [item.id for chunk in chunks for item in chunk] == [str(i) for i in range(20)]
    assert [len(c) for c in in_chunks(read_lines(io.BytesIO(large_lines(3, 9000)), tmp_path))] == [1, 1, 1]


def test_lines_that_a_pipe_reads_in_advance_are_limited_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("purereplay.live.pipe.CHUNK_BYTES", 5000)
    text = large_lines(20, 2000)
    file = io.BytesIO(text)
    chunks = piped(file, tmp_path)
    first = next(chunks)
    time.sleep(0.3)  # the thread reads as far as it may
    assert len(first) <= 2 and file.tell() < len(text) / 2
    rest = [item for chunk in chunks for item in chunk]
    assert [item.id for item in (*first, *rest)] == [str(i) for i in range(20)]


def test_a_first_image_that_was_too_large_is_reduced(tmp_path):
    with tiny(tmp_path / "state") as session:
        assert session.take([Item("big", "a", png(np.zeros((2000, 1000), np.uint8)))])[0].new
        assert session.store.image_settings.shape == (1, 64, 32)


def test_images_that_the_memory_cannot_hold_are_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "machine_memory", lambda: 2**20)
    with tiny(tmp_path / "state") as session:
        with pytest.raises(UserError, match=r"needs at least .* GiB, and this machine has .* Use --size"):
            session.take([Item("big", "a", png(np.zeros((500, 500), np.uint8)))])
        assert session.take([Item("small", "a", png(picture(0)))])[0].new


# ---------------------------------------------------------------- names

NAMES = ["=1+1", "+x", "-x", "@SUM(A1)", "'=1", "''=1", "'quoted", "\t=1", "plain", "a=b", "'"]


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_is_no_formula_and_can_be_read_back(name):
    safe = spreadsheet_safe(name)
    assert not safe.startswith(("=", "+", "-", "@", "\t", "\r")) and spreadsheet_raw(safe) == name


@pytest.fixture
def formulas(tmp_path):
    """A state whose labels and ids are formulas and escapes."""
    names = ["=label", "@label", f"{ESCAPE}label"]
    with tiny(tmp_path / "state") as session:
        session.take([Item(f"=s{i}{ESCAPE}", names[i % 3], png(picture(i, i % 3))) for i in range(20)])
        session.work()
    return tmp_path / "state"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_an_audit_for_people_has_no_formulas_and_one_for_programs_has_the_raw_text(formulas, tmp_path):
    with Store.reading(formulas) as store:
        done = audit(store, ENGINE, tmp_path / "audit.csv")
        assert audit(store, ENGINE, tmp_path / "audit.jsonl") == done
    people = rows_of(tmp_path / "audit.csv")
    programs = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert len(people) == len(programs) == done.scored == 20
    for row, raw in zip(people, programs, strict=True):
        assert row.keys() == raw.keys() and not any(text.startswith(("=", "+", "@")) for text in row.values())
        assert row["id"] == "'" + raw["id"] and raw["id"].startswith("=s")
        assert spreadsheet_raw(row["given_label"]) == raw["given_label"]
        assert float(row["clean_probability"]) == pytest.approx(raw["clean_probability"], abs=1e-6)


@pytest.mark.parametrize("marked", [True, False])
def test_correct_accepts_the_ids_and_labels_of_its_own_audit(formulas, tmp_path, marked):
    with Store.reading(formulas) as store:
        audit(store, ENGINE, tmp_path / "audit.csv")
    shown = (lambda text: text) if marked else spreadsheet_raw
    row = next(r for r in rows_of(tmp_path / "audit.csv") if r["given_label"] == "'=label")
    with (tmp_path / "fixes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "label"], [shown(row["id"]), shown("'@label")]])
    with tiny(formulas) as session:
        [outcome] = correct(session, tmp_path / "fixes.csv")
        assert outcome.error is None and outcome.new
        assert session.store.labels() == ["=label", "@label", f"{ESCAPE}label"]  # no fourth one


def call(
    *arguments: object, env: dict[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "purereplay.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.run(command, env=environment, timeout=120, **{"capture_output": True} | options)


@pytest.mark.long
def test_escapes_in_labels_and_names_do_not_reach_the_terminal(formulas, tmp_path):
    folder = tmp_path / f"new{ESCAPE}"
    folder.mkdir()
    (folder / f"ok{ESCAPE}.png").write_bytes(png(picture(1)))
    (folder / f"bad{ESCAPE}.png").write_bytes(b"x")
    done = [call("status", "--state", formulas), call("predict", folder, "--state", formulas, "--device", "cpu")]
    done.append(call("learn", folder, "--state", formulas, *TINY_OPTIONS))  # it refuses both files: no label
    done.append(call("audit", "--state", formulas, "--out", folder / "audit.csv", "--device", "cpu"))
    for found in done:
        text = found.stdout + found.stderr
        assert b"\x1b" not in text and b"\x07" not in text and b"Traceback" not in text
    assert rb"\x1b]0;owned\x07\x1b[2Jlabel" in done[0].stdout and b"bad\\x1b" in done[1].stderr
    raw = json.loads(call("status", "--state", formulas, "--format", "json").stdout)
    assert raw["classes"][2]["label"] == f"{ESCAPE}label"


def test_hidden_characters_are_shown_as_numbers():
    assert printable(f"a{ESCAPE}\n\u202e\udc80é") == r"a\x1b]0;owned\x07\x1b[2J\x0a\u202e\udc80é".replace(
        r"\x0a", r"\n"
    )


@pytest.mark.long
def test_names_that_the_terminal_cannot_show(tmp_path):
    with tiny(tmp_path / "state") as session:
        session.take([Item(f"s{i}", f"é猫{i % 3}", png(picture(i, i % 3))) for i in range(20)])
        session.work()
    name = os.fsencode(tmp_path) + b"/new\xff\xe9.png"
    Path(os.fsdecode(name)).write_bytes(png(picture(1)))
    for arguments in (("status",), *(("predict", os.fsdecode(name), "--format", f) for f in ("table", "csv", "jsonl"))):
        done = call(*arguments, "--state", tmp_path / "state", env={"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr


@pytest.mark.long
def test_output_for_programs_is_the_same_in_the_c_locale(tmp_path):
    """Before: the text \\xe9 instead of the letter, and half characters in JSON."""
    with tiny(tmp_path / "state") as session:
        session.take([Item(f"s{i}", f"é猫{i % 3}", png(picture(i, i % 3))) for i in range(20)])
        session.work()
    path = tmp_path / "new-é.png"
    path.write_bytes(png(picture(1)))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for form in ("csv", "jsonl"):
        arguments = ("predict", path, "--format", form, "--state", tmp_path / "state", "--device", "cpu")
        outputs = [call(*arguments, env=env).stdout for env in (plain, {"PYTHONUTF8": "1"})]
        assert outputs[0] == outputs[1] and outputs[0]
        rows = list(csv.DictReader(io.StringIO(outputs[0].decode()))) if form == "csv" else [json.loads(outputs[0])]
        assert rows[0]["image"] == str(path) and rows[0]["label"].startswith("é猫")


# ---------------------------------------------------------------- standard output


class Full(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_answers_that_cannot_be_written_are_one_sentence():
    with pytest.raises(UserError, match=r"answers cannot be written \(No space left on device\)"):
        acknowledge([Outcome("a", 1, new=True)], Full())


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("status",), ("status", "--format", "json")])
def test_a_closed_pipe_or_a_full_disk_behind_standard_output_is_no_traceback(arguments, formulas, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = call(*arguments, "--state", formulas, stdout=writer, stderr=subprocess.PIPE, capture_output=False)
    os.close(writer)
    assert done.returncode in (1, 2) and b"Traceback" not in done.stderr and b"ignored" not in done.stderr

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with (tmp_path / "out.txt").open("wb") as out:
        done = call(
            *arguments,
            "--state",
            formulas,
            stdout=out,
            stderr=subprocess.PIPE,
            capture_output=False,
            preexec_fn=small_files,
        )
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"cannot be written" in done.stderr
