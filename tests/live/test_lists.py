"""Lists and pipes: unusable lines are refused by name or number, and the others are read."""

import base64
import io
import json

import pytest
from tiny_state import picture, png

from purereplay.errors import UserError
from purereplay.live import lists
from purereplay.live.intake import open_source
from purereplay.live.items import CHUNK, Item, Refusal
from purereplay.live.lists import csv_rows, read_csv, read_lines
from purereplay.live.pipe import piped

GOOD = base64.b64encode(png(picture(0))).decode()


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    (root / "a.png").write_bytes(png(picture(1)))
    (tmp_path / "outside.png").write_bytes(png(picture(2)))
    (root / "out.png").symlink_to(tmp_path / "outside.png")
    (root / "in.png").symlink_to(root / "a.png")
    (root / "loop.png").symlink_to(root / "loop2.png")
    (root / "loop2.png").symlink_to(root / "loop.png")
    return root


def one(line: object, folder) -> Item | Refusal:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    [offer] = read_lines(io.BytesIO(text), folder)
    return offer


def test_good_lines(folder):
    assert one({"path": "a.png", "label": "cat"}, folder) == Item("a.png", "cat", folder / "a.png", 1, folder)
    assert one({"id": "7", "path": "in.png", "label": " cat "}, folder) == Item("7", "cat", folder / "a.png", 1, folder)
    assert one({"id": "8", "image": GOOD, "label": "cat"}, folder).image == png(picture(0))
    assert one({"path": str(folder / "a.png"), "label": "cat"}, folder).image == folder / "a.png"


BAD = {
    "label missing": ({"path": "a.png"}, "a.png", "has no label"),
    "label null": ({"path": "a.png", "label": None}, "a.png", "has no label"),
    "label empty": ({"path": "a.png", "label": "  "}, "a.png", "has an empty label"),
    "label a number": ({"path": "a.png", "label": 3}, "a.png", "has a label that is a number, not text"),
    "label a float": ({"path": "a.png", "label": 3.5}, "a.png", "has a label that is a number, not text"),
    "label a list": ({"path": "a.png", "label": ["cat"]}, "a.png", "has a label that is a list, not text"),
    "label an object": ({"path": "a.png", "label": {}}, "a.png", "has a label that is an object, not text"),
    "label a truth": ({"path": "a.png", "label": True}, "a.png", "has a label that is true or false, not text"),
    "label NaN": (b'{"path": "a.png", "label": NaN}', None, "is not JSON: NaN is not a number"),
    "label infinite": (b'{"path": "a.png", "label": -Infinity}', None, "is not JSON: -Infinity is not a number"),
    "label of 10 MB": ({"path": "a.png", "label": "x" * 10**7}, "a.png", "has a label of 10,000,000 characters"),
    "label not UTF-8": (b'{"path": "a.png", "label": "\\ud800"}', "a.png", "has a label that is not valid UTF-8"),
    "id a number": ({"id": 3, "path": "a.png", "label": "cat"}, None, "has an id that is a number, not text"),
    "id too long": ({"id": "x" * 5000, "path": "a.png", "label": "cat"}, None, "has an id of 5,000 characters"),
    "no id": ({"image": GOOD, "label": "cat"}, None, "has no id and no path"),
    "no image": ({"id": "7", "label": "cat"}, "7", "has neither a path nor an image"),
    "two images": ({"id": "7", "path": "a.png", "image": GOOD, "label": "cat"}, "7", "has both a path and an image"),
    "no base64": ({"id": "7", "image": "§§", "label": "cat"}, "7", "has an image that is not base64"),
    "image a list": ({"id": "7", "image": [1.0, 2.0], "label": "cat"}, "7", "has an image that is not base64 text"),
    "path a number": ({"id": "7", "path": 7, "label": "cat"}, "7", "has a path that is not text"),
    "path outside": ({"path": "../outside.png", "label": "cat"}, "../outside.png", "leads out of the folder"),
    "path absolute": ({"path": "/etc/passwd", "label": "cat"}, "/etc/passwd", "leads out of the folder"),
    "link outside": ({"path": "out.png", "label": "cat"}, "out.png", "leads out of the folder"),
    "loop of links": ({"path": "loop.png", "label": "cat"}, "loop.png", "cannot be read"),
    "no such file": ({"path": "b.png", "label": "cat"}, "b.png", "was not found in"),
    "NUL in path": ({"path": "a\0.png", "label": "cat"}, "a\0.png", "cannot be read"),
    "cut in the middle": (b'{"path": "a.png", "lab', None, "is not JSON: Unterminated string"),
    "not an object": ([1, 2], None, "is not a JSON object"),
    "deep": (b"[" * 100_000, None, "is not JSON"),
    "bytes": (b"\xff\xfe{}", None, "is not JSON"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_lines_are_refused_by_name_and_the_others_are_read(kind, folder):
    line, name, reason = BAD[kind]
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    good = json.dumps({"path": "a.png", "label": "cat"}).encode()
    offers = list(read_lines(io.BytesIO(good + b"\n" + text + b"\n\n" + good), folder))
    assert [offer.line for offer in offers] == [1, 2, 4]
    assert isinstance(offers[0], Item) and isinstance(offers[2], Item)
    refusal = offers[1]
    assert isinstance(refusal, Refusal) and refusal.name == name and reason in refusal.reason
    assert len(refusal.reason) < 400


def test_a_line_that_is_too_long_is_skipped(folder, monkeypatch):
    monkeypatch.setattr(lists, "MAX_LINE", 1000)
    good = json.dumps({"path": "a.png", "label": "cat"}).encode()
    offers = list(read_lines(io.BytesIO(good + b"\n" + b"x" * 5500 + b"\n" + good), folder))
    assert [offer.line for offer in offers] == [1, 2, 3]
    assert offers[1] == Refusal(None, "has more than 1,000 bytes", 2)


def test_csv(folder):
    path = folder / "list.csv"
    path.write_bytes('\ufeffLabel, path ,id\r\ncat,a.png,\r\n"a ""cat""",in.png,x\r\n\r\n'.encode())
    assert list(read_csv(path, folder)) == [
        Item("a.png", "cat", folder / "a.png", 2, folder),
        Item("x", 'a "cat"', folder / "a.png", 3, folder),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le with mark", "utf-16-be with mark"])
@pytest.mark.parametrize("first", ["", "sep=;\r\n", '"sep=;"\n'])
def test_csv_as_excel_writes_it(folder, encoding, first):
    path, text = folder / "list.csv", first + "path;label\r\na.png;Kätzchen, klein\r\n"
    plain, _, mark = encoding.partition(" with ")
    path.write_bytes((("\ufeff" if mark else "") + text).encode(plain))
    line = 3 if first else 2
    assert list(read_csv(path, folder)) == [Item("a.png", "Kätzchen, klein", folder / "a.png", line, folder)]


def test_csv_in_an_encoding_that_cannot_be_told(folder):
    path = folder / "list.csv"
    path.write_bytes("path,label\na.png,cat\n".encode("utf-16-le"))
    with pytest.raises(UserError, match=r"list\.csv is not text in UTF-8: save the table as CSV in UTF-8"):
        list(read_csv(path, folder))
    path.write_bytes("path,label\na.png,cat\n".encode("utf-16") + b"a")  # half of a letter
    good, bad = read_csv(path, folder)
    assert isinstance(good, Item) and "not valid UTF-16" in bad.reason
    path.write_bytes("path,label\na.png,c\ud800\na.png,b\n".encode("utf-16", "surrogatepass"))
    bad, good = read_csv(path, folder)
    assert "not valid UTF-8" in bad.reason and good.label == "b"


def test_unusable_csv_rows(folder):
    path = folder / "list.csv"
    rows = [
        b"path,label",
        b"a.png,cat",
        b"a.png",
        b"a.png,",
        b",cat",
        b"a.png," + b"x" * 10**7,
        b"a.png,\xff",
        b"a.png,b",
    ]
    path.write_bytes(b"\n".join(rows))
    offers = list(read_csv(path, folder))
    assert [isinstance(offer, Item) for offer in offers] == [True, False, False, False, False, False, True]
    reasons = [offer.reason for offer in offers if isinstance(offer, Refusal)]
    assert reasons[0] == reasons[1] == "has no label" and "no id and no path" in reasons[2]
    assert "field larger than field limit" in reasons[3] and "not valid UTF-8" in reasons[4]
    assert [offer.line for offer in offers] == [2, 3, 4, 5, 6, 7, 8]


def test_a_file_that_is_not_a_list_is_an_error(folder):
    (folder / "list.csv").write_text("file,class\na.png,cat\n")
    with pytest.raises(UserError, match=r"list\.csv needs .* columns path and label; it has: file, class\."):
        list(csv_rows(folder / "list.csv", ("path", "label")))
    state = folder / "state"
    for name, content, sentence in [
        ("empty.csv", "path,label\n", "lists no samples"),
        ("void.csv", "", "it has: nothing"),
        ("list.txt", "x", "neither a folder nor"),
    ]:
        (folder / name).write_text(content)
        with pytest.raises(UserError, match=sentence):
            open_source(str(folder / name), state=state)
    with pytest.raises(UserError, match="does not exist"):
        open_source(str(folder / "nowhere.csv"), state=state)
    with pytest.raises(UserError, match=r"--follow needs a folder; .*list\.csv is not one"):
        open_source(str(folder / "list.csv"), state=state, follow=True)
    with pytest.raises(UserError, match=r"--root needs a folder; .*nowhere is not one"):
        open_source(str(folder / "list.csv"), state=state, root=folder / "nowhere")
    with pytest.raises(UserError, match=r"--root is for lists and pipes; .*data is a folder"):
        open_source(str(folder), state=state, root=folder)


def test_a_list_in_another_folder_than_its_images(folder, tmp_path):
    (tmp_path / "list.jsonl").write_text('{"path": "a.png", "label": "cat"}\n')
    source = open_source(str(tmp_path / "list.jsonl"), state=tmp_path / "state", root=folder)
    assert source.total == 1 and source.ends
    assert next(source.chunks) == [Item("a.png", "cat", folder / "a.png", 1, folder)]


def test_a_pipe_yields_available_lines_in_order(folder):
    n = 2 * CHUNK + 10
    text = b"".join(json.dumps({"id": str(i), "path": "a.png", "label": "cat"}).encode() + b"\n" for i in range(n))
    chunks = list(piped(io.BytesIO(text), folder))
    assert [item.id for chunk in chunks for item in chunk] == [str(i) for i in range(n)]
    assert max(len(chunk) for chunk in chunks) <= CHUNK
