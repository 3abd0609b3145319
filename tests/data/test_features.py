"""Files of features: three kinds with one meaning, and a sentence for everything that can be wrong with them."""

import builtins
import csv
import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purereplay.data.features import FeatureTable, _listed, first_not_finite, read_features
from purereplay.data.files import whole_file
from purereplay.data.scores import check_destination, write_scores
from purereplay.errors import UserError

FEATURES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
LABELS = ["cat", "7", "cat", "dog, small", "-12"]
EXPECTED = ["cat", 7, "cat", "dog, small", -12]
IDS = ["a", "b", "c", "d", "e"]


def write_csv(path: Path, rows: list[list], header: list[str] | None = None) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header or ["id", "f0", "label", "f1", "f2"], *rows])
    return path


def good_rows() -> list[list]:
    return [[name, f[0], label, f[1], f[2]] for name, label, f in zip(IDS, LABELS, FEATURES.tolist(), strict=True)]


def table_file(path: Path) -> Path:
    """The five samples as a file of the kind that its name says."""
    if path.suffix == ".npz":
        np.savez(path, features=FEATURES, labels=np.array(LABELS), ids=np.array(IDS))
    elif path.suffix == ".csv":
        write_csv(path, good_rows())
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet")
        columns = {f"f{i}": FEATURES[:, i].astype(np.float64) for i in range(3)}
        pyarrow.parquet.write_table(pyarrow.table({"label": LABELS, **columns, "id": IDS}), path)
    return path


def assert_the_five(table: FeatureTable) -> None:
    assert table.features.dtype == np.float32 and np.array_equal(table.features, FEATURES)
    assert table.labels.tolist() == EXPECTED and [type(v) for v in table.labels] == [type(v) for v in EXPECTED]
    assert table.ids == IDS


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_every_kind_of_file_says_the_same(tmp_path: Path, kind: str):
    assert_the_five(read_features(table_file(tmp_path / f"five.{kind}")))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_by_name_and_pattern(tmp_path: Path, kind: str):
    path = table_file(tmp_path / f"five.{kind}")
    table = read_features(path, features="f1, f[2]", labels="id", ids="id")
    assert np.array_equal(table.features, FEATURES[:, 1:]) and table.labels.tolist() == table.ids == IDS
    assert _listed([*(f"f{i}" for i in range(64)), "category", "path"]) == "f0 … f63 (64 columns), category, path"
    assert _listed(["x1", "x2", "7", "8", "9", "10", "y", "a", "b", "c", "d"]) == (
        "x1, x2, 7 … 10 (4 columns), y, a, b, c, d"
    )
    assert _listed([f"{i} column" for i in range(30)]).endswith("19 column, …")
    with pytest.raises(UserError, match=r"no column 'kind' \(--labels\); its columns are: "):
        read_features(path, labels="kind")
    with pytest.raises(UserError, match=r"no column 'kind' \(--ids\)"):
        read_features(path, ids="kind")
    with pytest.raises(UserError, match=r"no columns of features \(--columns 'x\*'\)"):
        read_features(path, features="x*")


def test_arrays_by_name_and_of_any_real_type(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", x=FEATURES.astype(np.float16), y=np.array([0, 1, 1, 0, 2]), name=IDS)
    table = read_features(tmp_path / "a.npz", features="x", labels="y", ids="name")
    assert table.features.dtype == np.float16 and table.labels.tolist() == [0, 1, 1, 0, 2] and table.ids == IDS
    for labels in (np.array([b"7", b"cat"]), np.array([7.0, 1.5]), np.array([True, False])):
        np.savez(tmp_path / "b.npz", features=FEATURES[:2], labels=labels)
        found = read_features(tmp_path / "b.npz")
        assert found.ids is None
        assert found.labels.tolist() == {"S": [7, "cat"], "f": [7, 1.5], "b": [True, False]}[labels.dtype.kind]


def test_parquet_takes_lists_and_numbers_of_any_width(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    flat = pyarrow.array(FEATURES.ravel())
    for column in (
        pyarrow.FixedSizeListArray.from_arrays(flat, 3),
        pyarrow.array(FEATURES.tolist()),
        pyarrow.array(FEATURES.tolist(), pyarrow.large_list(pyarrow.float32())),
    ):
        pyarrow.parquet.write_table(pyarrow.table({"embedding": column, "labels": [3, 3, 4, 4, 4]}), path)
        table = read_features(path)
        assert np.array_equal(table.features, FEATURES) and table.labels.tolist() == [3, 3, 4, 4, 4]
    calls: list[tuple[str, int, int]] = []
    pyarrow.parquet.write_table(pyarrow.table({"a": range(20_000), "label": ["x"] * 20_000}), path)
    table = read_features(path, progress=lambda *now: calls.append(now))
    assert (
        np.array_equal(table.features[:, 0], np.arange(20_000))
        and calls[-1] == (path.name, 20_000, 20_000)
        and len(calls) > 1
    )

    def refused(words: str, **columns) -> None:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        with pytest.raises(UserError, match=words):
            read_features(path)

    refused("row 2 of .* are 2 numbers, but earlier rows have 1", a=[[1.0], [1.0], [1.0, 2.0]], label=["x"] * 3)
    refused("row 8192 of .* are 2 numbers", a=[[1.0]] * 8192 + [[1.0, 2.0]], label=["x"] * 8193)
    refused("row 1 of .* are 0 numbers", a=[[1.0], None], label=["x"] * 2)
    refused("features on row 1 of .* hold NaN", a=[1.0, None], label=["x"] * 2)
    refused("features on row 0 of .* hold NaN or inf", a=[1e300, 1.0], label=["x"] * 2)
    refused("'a' of .* holds string, not numbers", a=["1", "2"], label=["x"] * 2)
    refused("'a' of .* holds string, not numbers", a=[["1"], ["2"]], label=["x"] * 2)
    refused("label on row 1 of .* is missing", a=[1.0, 2.0], label=["x", None])
    refused("label on row 0 of .* is neither a name nor a number", a=[1.0, 2.0], label=[[1], [2]])


@given(label=st.one_of(st.integers(-(10**17), 10**17), st.text(st.characters(codec="utf-8"), max_size=20)))
def test_a_label_is_the_same_in_npz_and_csv(tmp_path_factory: pytest.TempPathFactory, label):
    folder = tmp_path_factory.mktemp("labels")
    write_csv(folder / "a.csv", [[label, 1.5]], ["label", "f"])
    found = []
    for path in (folder / "a.csv", folder / "a.npz"):
        if path.suffix == ".npz":
            np.savez(path, features=[[1.5]], labels=np.array([label]))
        try:
            found.append(read_features(path).labels[0])
        except UserError as error:
            found.append("missing" if "missing or empty" in str(error) else str(error))
    # numpy's text arrays end at the first of their trailing NULs, csv refuses some
    if "\0" not in str(label):
        assert found[0] == found[1] and type(found[0]) is type(found[1])


def test_csv_with_quotes_blank_lines_and_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('\ufefflabel,"f,0"\r\n"two\r\nlines",1\r\n\r\n cat ,2e-3\r\n', encoding="utf-8", newline="")
    table = read_features(path)
    assert table.labels.tolist() == ["two\r\nlines", "cat"] and table.features.ravel().tolist() == [1, np.float32(2e-3)]
    path.write_text('label,f\r\n"two\r\nlines",1\r\n\r\ncat,x\r\n', encoding="utf-8", newline="")
    with pytest.raises(UserError, match=r"Line 5 of .*a.csv, column 'f': 'x' is not a number: .*--columns, .*--ids"):
        read_features(path)


def test_long_csv_in_pieces(tmp_path: Path):
    n = 10_000
    write_csv(tmp_path / "a.csv", [[i % 7, i, -i] for i in range(n)], ["label", "a", "b"])
    calls: list[tuple[str, int, int]] = []
    table = read_features(tmp_path / "a.csv", progress=lambda *now: calls.append(now))
    assert np.array_equal(table.features, np.stack([np.arange(n), -np.arange(n)], 1))
    assert table.labels.tolist() == [i % 7 for i in range(n)]
    assert calls[-1] == ("a.csv", *[(tmp_path / "a.csv").stat().st_size] * 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({(1, 1): "x"}, r"Line 3 of .*, column 'f0': 'x' is not a number"),
        ({(4, 4): ""}, r"Line 6 of .*, column 'f2': '' is not a number"),
        ({(2, 3): "nan"}, r"features on line 4 of .* hold NaN or infinity"),
        ({(2, 3): "-inf"}, r"features on line 4 of .* hold NaN or infinity"),
        ({(2, 3): "1e39"}, r"features on line 4 of .* hold NaN or infinity"),
        ({(3, 2): ""}, r"label on line 5 of .* is missing or empty"),
        ({(3, 2): "  "}, r"label on line 5 of .* is missing or empty"),
        ({(0, 0): ""}, r"id on line 2 of .* is missing or empty"),
        ({(3, 0): "b"}, r"id 'b' is on line 3 and on line 5 of"),
        ({(3, 2): "x" * 200_000}, r"Line 5 of .* cannot be read: field larger"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, change: dict, words: str):
    rows = good_rows()
    for (row, column), cell in change.items():
        rows[row][column] = cell
    with pytest.raises(UserError, match=words) as caught:
        read_features(write_csv(tmp_path / "a.csv", rows))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".") and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"label,f\n", r"a\.csv holds no rows"),
        (b"label,f\na,1\nb", "Line 3 of .* has 1 cells, but the header 2"),
        (b"label,f\na,1,2\n", "Line 2 of .* has 3 cells, but the header 2"),
        (b"f,g\n1,2\n", "no column 'label'"),
        (b"label\na\n", "no columns of features"),
        (b"label,f,f\na,1,2\n", "two columns named 'f'"),
        (b'label,f\n"a,1\n', "Line 2 of .* cannot be read: unexpected end"),
        (b"label,f\n\xff\xfe,1\n", "not text in UTF-8"),
    ],
)
def test_a_bad_table_is_named(tmp_path: Path, content: bytes, words: str):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_features(tmp_path / "a.csv")
    assert "a.csv" in str(caught.value) and "\n" not in str(caught.value)


def with_value(value: float) -> np.ndarray:
    features = FEATURES.copy()
    features[3, 1] = value
    return features


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": LABELS}, "no array 'features'; its arrays are: labels"),
        ({"features": FEATURES}, "no array 'labels'; its arrays are: features"),
        ({"features": FEATURES[0], "labels": LABELS}, r"float32 of shape \(3,\)"),
        ({"features": FEATURES[:0], "labels": []}, r"a\.npz holds no rows"),
        ({"features": FEATURES.astype(str), "labels": LABELS}, "real numbers"),
        ({"features": FEATURES, "labels": LABELS[:4]}, r"labels in .* have shape \(4,\), but 5 samples need \(5,\)"),
        ({"features": FEATURES, "labels": [LABELS] * 5}, r"labels in .* have shape \(5, 5\)"),
        ({"features": FEATURES, "labels": LABELS, "ids": IDS[:2]}, r"ids in .* have shape \(2,\)"),
        ({"features": FEATURES, "labels": LABELS, "ids": list("abcac")}, "id 'a' is on row 0 and on row 3"),
        ({"features": with_value(np.nan), "labels": LABELS}, "features on row 3 of .* hold NaN or infinity"),
        ({"features": with_value(-np.inf), "labels": LABELS}, "features on row 3 of .* hold NaN or infinity"),
        ({"features": FEATURES, "labels": [1.0, 2.0, np.nan, 1.0, 1.0]}, "label on row 2 of .* is missing"),
        ({"features": FEATURES, "labels": ["a", "a", "a", "", "a"]}, "label on row 3 of .* is missing"),
        ({"features": FEATURES, "labels": np.array([None] * 5)}, "'labels' in .* holds Python objects"),
    ],
)
def test_a_bad_array_is_named(tmp_path: Path, arrays: dict, words: str):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=words) as caught:
        read_features(tmp_path / "a.npz")
    assert "a.npz" in str(caught.value) and "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_file_cut_off_anywhere_is_an_error_or_shorter_never_a_traceback(tmp_path: Path, kind: str):
    whole = table_file(tmp_path / f"whole.{kind}").read_bytes()
    path = tmp_path / f"cut.{kind}"
    for length in range(0, len(whole) - 2, max(1, len(whole) // 60)):
        path.write_bytes(whole[:length])
        try:
            found = read_features(path)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:  # a CSV file may well end after any line, or inside the last number
            assert kind == "csv" and len(found.labels) <= 5


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_damaged_bytes_are_a_sentence_or_do_no_harm(tmp_path: Path, kind: str):
    whole = bytearray(table_file(tmp_path / f"whole.{kind}").read_bytes())
    path = tmp_path / f"bad.{kind}"
    for place in range(0, len(whole), max(1, len(whole) // 80)):
        damaged = whole.copy()
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = read_features(path)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:  # what is read in spite of it is right: an npz file has checksums, parquet has them rarely
            assert len(found.labels) == 5 and (kind == "parquet" or np.array_equal(found.features, FEATURES))


def test_files_that_are_not_there_or_not_files(tmp_path: Path):
    with pytest.raises(UserError, match=r"nowhere.npz cannot be read: No such file"):
        read_features(tmp_path / "nowhere.npz")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"folder.csv cannot be read: Is a directory"):
        read_features(tmp_path / "folder.csv")
    with pytest.raises(UserError, match=r"a.txt cannot be read: its suffix must be one of"):
        read_features(tmp_path / "a.txt")
    (tmp_path / "a.npz").write_bytes(b"\x93NUMPY and more")
    with pytest.raises(UserError, match="not an npz file"):
        read_features(tmp_path / "a.npz")


def test_without_pyarrow_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = builtins.__import__

    def importing(name: str, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    for task in (
        lambda: read_features(tmp_path / "a.parquet"),
        lambda: check_destination(tmp_path / "b.parquet", tmp_path),
    ):
        with pytest.raises(UserError, match=r"parquet needs pyarrow, which is not installed: install purereplay\[par"):
            task()


def test_first_not_finite_looks_at_every_row():
    features = np.zeros((50_000, 200), np.float16)
    assert first_not_finite(features) is None
    features[49_999, 7] = np.inf
    assert first_not_finite(features) == 49_999
    features[30_000, 199] = np.nan
    assert first_not_finite(features) == 30_000
    assert first_not_finite(np.ones((3, 2), np.int64)) is None


SCORES = {
    "id": ["a", 'b "x", y', 3],
    "label": np.array(["cat", 7, "two\nlines"], dtype=object),
    "clean_probability": np.array([0.1, 1 / 3, 1e-48]),
    "selected": np.array([True, False, False]),
}


def test_scores_come_back_with_every_digit(tmp_path: Path):
    write_scores(tmp_path / "a.csv", SCORES)
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == list(SCORES) and [row[0] for row in rows] == ["a", 'b "x", y', "3"]
    assert [row[1] for row in rows] == ["cat", "7", "two\nlines"] and [row[3] for row in rows] == [
        "true",
        *["false"] * 2,
    ]
    assert [float(row[2]) for row in rows] == SCORES["clean_probability"].tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_scores_as_parquet(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_scores(tmp_path / "a.parquet", {**SCORES, "row": np.arange(3)})
    table = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert table["label"] == ["cat", "7", "two\nlines"] and table["row"] == [0, 1, 2]
    assert table["clean_probability"] == SCORES["clean_probability"].tolist() and table["selected"] == [
        True,
        False,
        False,
    ]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("old")
    with pytest.raises(UserError, match=r"a.csv cannot be written: No space left"), whole_file(path) as part:
        part.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_the_place_of_the_scores_is_checked_before_anything_is_computed(tmp_path: Path):
    source = tmp_path / "a.csv"
    source.write_text("x")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(source)
    for name, words in (
        ("b.txt", "its suffix must be one of"),
        ("no/where/b.csv", "does not exist"),
        ("folder.csv", "it is a folder"),
        ("a.csv", "holds features"),
        ("link.csv", "holds features"),
    ):
        with pytest.raises(UserError, match=words):
            check_destination(tmp_path / name, source)
    check_destination(tmp_path / "b.csv", source)
