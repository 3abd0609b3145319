"""Hostile CSV files, in every reader: lists of samples, corrections, and the filter's tables."""

import json
import os
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from tiny_state import items, picture, png, tiny

from purereplay.cli import main
from purereplay.data.csv_files import BadRow, open_csv
from purereplay.data.features import read_features
from purereplay.errors import UserError
from purereplay.live import predict as predicting
from purereplay.live.corrections import correct
from purereplay.live.intake import open_source
from purereplay.live.items import Item, Refusal
from purereplay.live.lists import csv_rows, read_csv
from purereplay.live.predict import image_files, predict, ready_classifier
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

LIMIT = "purereplay.data.csv_files.MAX_ROW"


@pytest.fixture
def folder(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(png(picture(i)))
    return tmp_path


@pytest.fixture
def session(tmp_path):
    with tiny(tmp_path / "state") as session:
        session.take(items(0, 20))
        session.work()
        yield session


def listed(folder: Path, text: str) -> list[Item | Refusal]:
    (folder / "list.csv").write_text(text)
    return list(read_csv(folder / "list.csv", folder))


def corrected(session, tmp_path: Path, text: str) -> list[tuple[str | None, int | None, str | None]]:
    (tmp_path / "fixes.csv").write_text(text)
    return [(done.name, done.line, done.error) for done in correct(session, tmp_path / "fixes.csv")]


# ---------------------------------------------------------------- quotes


def test_a_quote_that_is_not_closed_is_refused_with_all_its_lines(folder):
    first, refused = listed(folder, 'path,label\n0.png,cat\n1.png,"dog\n2.png,dog\n3.png,dog\n')
    assert isinstance(first, Item) and first.label == "cat"
    assert refused == Refusal(None, "is not CSV (lines 3 to 5): unexpected end of data: a quote is not closed", 3)


def test_a_quote_that_is_closed_in_another_line_does_not_join_them(folder):
    """The second quote is in the middle of a cell, so the first was never closed."""
    refused, last = listed(folder, 'path,label\n0.png,"cat\n1.png,"dog"\n2.png,dog\n')
    assert isinstance(refused, Refusal) and refused.line == 2 and "is not CSV (lines 2 to 3)" in refused.reason
    assert isinstance(last, Item) and last.id == "2.png"


def test_corrections_after_a_quote_that_is_not_closed_are_refused_and_those_before_it_applied(session, tmp_path):
    outcomes = corrected(session, tmp_path, 'id,label\ns0,label 2\ns1,"label 2\ns2,label 0\n')
    assert outcomes[0] == ("s0", 2, None) and len(outcomes) == 2
    assert outcomes[1][:2] == (None, 3) and "(lines 3 to 4)" in (outcomes[1][2] or "")
    assert session.store.one("SELECT count(*) FROM corrections") == (1,)


def test_the_filter_names_the_line_on_which_a_quote_is_opened(tmp_path):
    (tmp_path / "a.csv").write_text('label,f\na,1\n"b,2\nc,3\nd,4\n')
    with pytest.raises(UserError, match=r"Line 3 of .* cannot be read: unexpected end of data: a quote is not closed"):
        read_features(tmp_path / "a.csv")


def test_quoted_cells_with_line_ends_and_quotes_are_read(folder):
    found = listed(folder, 'path,label\r\n"0.png","a\nb"\r\n1.png,"say ""x"""\r\n2.png,a"b\r\n')
    assert [(item.label, item.line) for item in found] == [("a\nb", 3), ('say "x"', 4), ('a"b', 5)]


# ---------------------------------------------------------------- cells and columns


def test_a_row_with_more_cells_than_the_header_is_refused(folder, session, tmp_path):
    refused, good = listed(folder, "path,label\n0.png,cat,dog\n1.png,dog\n")
    assert refused == Refusal(None, "has 3 cells, but the header 2", 2) and isinstance(good, Item)
    assert corrected(session, tmp_path, "id,label\ns0,label 1,label 2\ns1,label 2\n") == [
        (None, 2, "has 3 cells, but the header 2"),
        ("s1", 3, None),
    ]


@pytest.mark.parametrize("header", ["path,label,label", "path,Label, label", "path,path,label", "id,path,label,ID"])
def test_two_columns_of_one_name_are_refused(folder, header):
    (folder / "list.csv").write_text(f"{header}\n0.png,cat,dog,x\n")
    with pytest.raises(UserError, match=r"list\.csv has two columns named '(label|path|id)'\.$"):
        open_source(str(folder / "list.csv"), state=folder / "state")


def test_two_columns_that_are_not_read_may_share_a_name(folder):
    [item] = listed(folder, "path,label,note,note,,\n0.png,cat,x,y,,\n")
    assert isinstance(item, Item) and item.label == "cat"


def test_a_correction_without_the_cell_of_its_label_is_refused(session, tmp_path):
    reason = "has no label"
    assert corrected(session, tmp_path, "id,label\ns0\ns1,label 2\ns2,\n") == [
        ("s0", 2, reason),
        ("s1", 3, None),
        ("s2", 4, reason),
    ]
    # rows of the audit that nobody filled in, whole or cut after the last cell with text
    assert corrected(session, tmp_path, "id,note,corrected_label\ns3\ns4,a\ns5,,\ns6,,label 0\n") == [("s6", 5, None)]


def test_a_sample_of_a_list_without_the_cell_of_its_label_is_refused(folder):
    first, second = listed(folder, "path,label\n0.png\n1.png,cat\n")
    assert isinstance(first, Refusal) and first.reason == "has no label" and isinstance(second, Item)


def test_a_correction_with_two_columns_of_labels_changes_nothing(session, tmp_path):
    with pytest.raises(UserError, match="two columns named 'label'"):
        corrected(session, tmp_path, "id,label,label\ns0,label 1,label 2\n")
    assert session.store.one("SELECT count(*) FROM corrections") == (0,)


# ---------------------------------------------------------------- rows without an end


def endless(path: Path, head: str, kind: str) -> None:
    """A file whose second row has 64 MiB: one line, or many lines within quotes."""
    with path.open("wb") as file:
        file.write(head.encode())
        if kind == "line":
            file.truncate(2**26)  # takes no space
        else:
            file.write(b'"\n",' * (2**26 // 4))


READERS = {
    "list": ("path,label\n", lambda path: next(csv_rows(path, ("path", "label")))[1].reason),
    "corrections": ("id,label\n", lambda path: next(csv_rows(path, ("id", "label")))[1].reason),
    "features": ("f,label\n", read_features),
    "header of a list": ("", lambda path: list(csv_rows(path, ("path", "label")))),
    "header of features": ("", read_features),
}


@pytest.mark.parametrize("kind", ["line", "quoted lines"])
@pytest.mark.parametrize("reader", READERS)
def test_a_row_without_an_end_is_refused_after_a_bounded_number_of_bytes(tmp_path, monkeypatch, reader, kind):
    monkeypatch.setattr(LIMIT, 2**20)
    head, read = READERS[reader]
    endless(tmp_path / "a.csv", head, kind)
    tracemalloc.start()
    try:
        said = read(tmp_path / "a.csv")
    except UserError as error:
        said = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "it has more than 1,048,576 bytes" in said
    assert peak < 30 * 2**20


def test_a_row_just_below_the_limit_is_read(tmp_path):
    text = "x" * 100_000
    (tmp_path / "a.csv").write_text("a\n" + ",".join([text] * 160) + "\nb\n")  # 16 MB
    with open_csv(tmp_path / "a.csv") as table:
        rows = list(table)
    assert [len(row) for row in rows] == [1, 160, 1] and not any(isinstance(row, BadRow) for row in rows)


def test_many_rows_may_have_more_bytes_than_one(tmp_path, monkeypatch):
    monkeypatch.setattr(LIMIT, 1000)
    (tmp_path / "a.csv").write_text("label,f\n" + "a,1\n" * 100_000)
    assert len(read_features(tmp_path / "a.csv").labels) == 100_000


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_not_read(session, tmp_path, kind):
    path = tmp_path / "endless.csv"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    said: list[str] = []

    def ask() -> None:
        for read in (
            lambda: list(csv_rows(path, ("id", "label"))),
            lambda: read_features(path),
            lambda: open_source(str(path), state=tmp_path / "new"),
        ):
            try:
                read()
            except UserError as error:
                said.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(20)
    assert len(said) == 3 and all(f"{path} is not a regular file" in sentence for sentence in said)


# ---------------------------------------------------------------- images to be classified


@pytest.fixture
def state(session, tmp_path):
    return tmp_path / "state"


def test_a_link_out_of_a_folder_to_be_classified_is_not_followed(state, tmp_path):
    new, outside = tmp_path / "new", tmp_path / "outside"
    new.mkdir()
    outside.mkdir()
    for path in (new / "a.png", outside / "b.png"):
        path.write_bytes(png(picture(1)))
    (new / "in.png").symlink_to("a.png")
    (new / "out.png").symlink_to(outside / "b.png")
    (new / "sub").symlink_to(outside)
    (tmp_path / "named.png").symlink_to(outside / "b.png")
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, Engine(torch.device("cpu")))
        answers = list(predict(store, classifier, image_files([new, tmp_path / "named.png"])))
    found = {answer.path.name: answer.error for answer in answers}
    assert found == {
        "a.png": None,
        "in.png": None,  # the link stays in the folder
        "out.png": f"leads out of the folder {new}",
        "named.png": None,  # the user's own argument
    }


def test_a_file_that_becomes_a_link_before_it_is_classified_is_not_followed(state, tmp_path, monkeypatch):
    new = tmp_path / "new"
    new.mkdir()
    (new / "a.png").write_bytes(png(picture(1)))
    (tmp_path / "b.png").write_bytes(png(picture(1)))
    within = predicting.within

    def swapped(name: object, root: Path) -> tuple[Path, Path]:
        found = within(name, root)
        (new / "a.png").unlink()
        (new / "a.png").symlink_to(tmp_path / "b.png")
        return found

    monkeypatch.setattr(predicting, "within", swapped)
    with Store.reading(state) as store:
        classifier, _ = ready_classifier(store, Engine(torch.device("cpu")))
        [answer] = predict(store, classifier, image_files([new]))
    assert answer.error == "was replaced by a link, which is not followed"


@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_a_folder_without_files_is_a_sentence(state, tmp_path, monkeypatch, capsys, form):
    (tmp_path / "new" / "deeper").mkdir(parents=True)
    (tmp_path / "new" / ".hidden.png").write_bytes(b"")
    arguments = ["predict", tmp_path / "new", "--state", state, "--format", form, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    assert " ".join(said.err.split()) == f"purereplay: {tmp_path / 'new'} holds no images to classify."


def test_a_list_with_a_quote_that_is_not_closed_ends_with_exit_code_2(folder, monkeypatch, capsys):
    (folder / "list.csv").write_text('path,label\n0.png,"cat\n1.png,dog\n2.png,dog\n')
    arguments = ["learn", folder / "list.csv", "--state", folder / "state", "--device", "cpu", "--hold-rest"]
    monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "line 2 is not CSV (lines 2 to 4)" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["purereplay", "status", "--state", str(folder / "state"), "--format", "json"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["samples"] == 0
