"""Files of features that hold far more than their size: refused before they are decoded, or read in parts.

Also the spellings of numbers and labels that are not what they look like.
"""

import csv
import io
import sys
import tracemalloc
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from purereplay.data import memory, parquet
from purereplay.data.features import read_features, read_rows
from purereplay.errors import UserError
from purereplay.purify import graph, self_centered
from purereplay.purify.filter import SelfCenteredFilter

DOCS = Path(__file__).parents[2] / "docs"


def refused(path: Path, **options) -> str:
    """Return the sentence with which a file is refused."""
    with pytest.raises(UserError) as error:
        read_features(path, **options)
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text and str(path) in text
    return text


def packed(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def array(shape: tuple[int, ...], kind: str, content: bytes | None = None) -> bytes:
    """A member of an npz file; its contents are zeros, or as given."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return file.getvalue() + (bytes(size) if content is None else content)


@pytest.fixture
def undecoded(monkeypatch):
    """Fail if numpy decodes an array."""

    def decodes(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", decodes)


# ---------------------------------------------------------------- npz


def test_an_array_above_the_limit_is_refused_with_its_size_before_it_is_decoded(tmp_path, monkeypatch, undecoded):
    monkeypatch.setattr(memory, "machine_memory", lambda: 2_000_000)
    path = packed(tmp_path / "a.npz", features=array((1000, 2000), "|i1"), labels=array((1000,), "|i1"))
    assert path.stat().st_size < 10_000
    said = "does not fit into memory: its contents take 2,000,000 bytes, and at most 1,000,000 (half of"
    assert f"The array 'features' in {path} {said}" in refused(path)
    with pytest.raises(UserError, match="does not fit into memory"):
        read_rows(path)


def test_labels_above_the_limit_are_refused_too(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 2_000_000)
    path = packed(tmp_path / "a.npz", features=array((10, 2), "|i1"), labels=array((2_000_000,), "|i1"))
    assert "The array 'labels'" in refused(path)


def test_more_samples_than_the_limit_are_refused_with_the_remedy(tmp_path, monkeypatch, undecoded):
    monkeypatch.setattr(memory, "MAX_SAMPLES", 1000)
    path = packed(tmp_path / "a.npz", features=array((1001, 1), "|i1"), labels=array((1001,), "|i1"))
    assert "has 1,001 samples, more than 1,000: split it by label, which gives the same scores" in refused(path)


def test_a_member_without_a_header_is_not_decoded(tmp_path, undecoded):
    path = packed(tmp_path / "a.npz", features=bytes(1000), labels=array((10,), "|i1"))
    assert "is truncated or damaged: it has no header" in refused(path)


@pytest.mark.parametrize(("kind", "n"), [("<U5000", 5000), ("|S5000", 5000)])
def test_an_array_of_long_texts_is_refused(tmp_path, kind, n):
    path = packed(tmp_path / "a.npz", features=array((10, 2), "<f4"), labels=array((10,), kind))
    assert f"The array 'labels' in {path} holds text of up to {n:,} characters, more than 4,096" in refused(path)


def test_a_long_label_is_refused_by_its_place(tmp_path):
    (tmp_path / "a.csv").write_text(f"label,f\na,1\n{'x' * 5000},2\n")
    assert "The label on line 3 of" in refused(tmp_path / "a.csv")
    assert "has 5,000 characters, more than 4,096" in refused(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(f"label,f\na,1\n{'x' * 4096},2\n")
    assert len(read_features(tmp_path / "a.csv").labels[1]) == 4096


# ---------------------------------------------------------------- parquet


@pytest.fixture
def arrow():
    pytest.importorskip("pyarrow.parquet")
    import pyarrow

    return pyarrow


@pytest.mark.parametrize("wrapped", [True, False], ids=["dictionary", "text"])
@pytest.mark.parametrize("role", ["label", "id"])
def test_a_text_that_is_stored_once_for_many_rows_gets_the_right_sentence(tmp_path, arrow, wrapped, role):
    """It was said that Python cannot represent string values, after more than 2 GB."""
    n, path = 300, tmp_path / "a.parquet"
    texts = arrow.DictionaryArray.from_arrays(arrow.array(np.zeros(n, np.int32)), arrow.array(["x" * 100_000]))
    columns = {"f": np.arange(n, dtype=np.float32), "label": arrow.array(["a"] * n)}
    columns[role] = texts if wrapped else texts.dictionary_decode()
    arrow.parquet.write_table(arrow.table(columns), path)
    before = arrow.total_allocated_bytes()
    arrow.default_memory_pool().release_unused()
    assert f"The column {role!r} of {path} holds text of 100,000 characters, more than 4,096" in refused(path)
    assert arrow.total_allocated_bytes() - before < 2**20


@pytest.mark.parametrize(("use", "encoding"), [(False, "DELTA_BYTE_ARRAY"), (False, "PLAIN")])
def test_long_texts_in_other_encodings_are_refused_after_a_few_rows(tmp_path, arrow, monkeypatch, use, encoding):
    path = tmp_path / "a.parquet"
    columns = {"f": np.arange(2000, dtype=np.float32), "label": ["x" * 10_000] * 2000}
    options = {"use_dictionary": use, "column_encoding": {"label": encoding}, "compression": "zstd"}
    arrow.parquet.write_table(arrow.table(columns), path, **options)
    seen: list[int] = []
    plain = parquet._check_lengths
    monkeypatch.setattr(parquet, "_check_lengths", lambda *a: (seen.append(len(a[3])), plain(*a)))
    assert "holds text of 10,000 characters" in refused(path)
    assert sum(seen) < 500


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_ordinary_texts_in_any_encoding_are_read(tmp_path, arrow, encoding):
    columns = {"f": np.arange(300, dtype=np.float32), "label": [f"class {i % 3}" for i in range(300)]}
    options = {"use_dictionary": False, "column_encoding": {"label": encoding}}
    arrow.parquet.write_table(arrow.table(columns), tmp_path / "a.parquet", **options)
    assert list(read_features(tmp_path / "a.parquet").labels) == columns["label"]


def test_a_table_with_more_rows_than_the_limit_is_refused_at_once(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(memory, "MAX_SAMPLES", 1000)
    table = arrow.table({"f": np.zeros(1001, np.float32), "label": np.zeros(1001, np.int8)})
    arrow.parquet.write_table(table, tmp_path / "a.parquet")
    monkeypatch.setattr(arrow.parquet.ParquetFile, "iter_batches", None)
    assert "has 1,001 samples, more than 1,000" in refused(tmp_path / "a.parquet")


def test_lists_above_the_limit_are_refused_with_their_size_before_they_are_decoded(tmp_path, arrow, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 2_000_000)
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(np.zeros(500_000, np.float32)), 50_000)
    arrow.parquet.write_table(arrow.table({"f": lists, "label": np.zeros(10, np.int8)}), tmp_path / "a.parquet")
    monkeypatch.setattr(arrow.parquet.ParquetFile, "iter_batches", None)
    assert "its contents take 2,00" in refused(tmp_path / "a.parquet")


def test_wide_lists_are_converted_a_few_rows_at_a_time(tmp_path, arrow, monkeypatch):
    values = np.arange(400_000, dtype=np.float32)
    lists = arrow.ListArray.from_arrays(np.arange(41, dtype=np.int32) * 10_000, arrow.array(values))
    arrow.parquet.write_table(arrow.table({"f": lists, "label": np.zeros(40, np.int8)}), tmp_path / "a.parquet")
    monkeypatch.setattr(parquet, "_ENTRIES", 100_000)
    asked: list[int] = []
    plain = arrow.parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        arrow.parquet.ParquetFile, "iter_batches", lambda self, n, **more: asked.append(n) or plain(self, n, **more)
    )
    assert np.array_equal(read_features(tmp_path / "a.parquet").features, values.reshape(40, -1)) and asked == [10]


# ---------------------------------------------------------------- the filter


@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u1", "i8"])
def test_wide_features_give_the_same_similarities_up_to_rounding(monkeypatch, kind):
    monkeypatch.setattr(graph, "_PIECE", 500)
    values = (np.random.default_rng(0).normal(size=(20, 333)) * 30).astype(kind)
    values[3] = 0
    features, rows = torch.from_numpy(values), torch.tensor([[0, 2, 3, 19], [5, 5, 1, 7]])
    whole = graph.similarity(features[rows].to(torch.float64))
    torch.testing.assert_close(graph.wide_similarity(features, rows), whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("n_graphs", [0, 3])
def test_a_filter_on_wide_features_gives_the_same_scores(monkeypatch, n_graphs):
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(60, 300)).astype(np.float32) + 1, np.repeat([0, 1, 2], 20)
    whole = SelfCenteredFilter(n_graphs=n_graphs).fit(values, labels).clean_probability_
    for module in (graph, self_centered):
        monkeypatch.setattr(module, "WIDE", 1000)
    wide = SelfCenteredFilter(n_graphs=n_graphs).fit(values, labels).clean_probability_
    assert np.array_equal(whole, wide) if n_graphs else np.allclose(whole, wide, atol=1e-9)


def test_wide_features_take_little_more_memory_than_they_hold(monkeypatch):
    """One int8 feature took 50 bytes."""
    for module in (graph, self_centered):
        monkeypatch.setattr(module, "WIDE", 2**16)
    monkeypatch.setattr(graph, "_PIECE", 2**16)
    values = np.random.default_rng(0).integers(-9, 9, (16, 2**18), dtype=np.int8)
    peaks: list[int] = []
    plain = torch.Tensor.to

    def counted(self: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        found = plain(self, *arguments, **named)
        peaks.append(found.numel() * found.element_size())
        return found

    monkeypatch.setattr(torch.Tensor, "to", counted)
    tracemalloc.start()
    SelfCenteredFilter(n_graphs=1, n_jobs=1).fit(values, np.zeros(16, int))
    peak = tracemalloc.get_traced_memory()[1]  # of numpy; tensors are counted above
    tracemalloc.stop()
    assert peak < 2 * values.nbytes and max(peaks) <= values.nbytes


# ---------------------------------------------------------------- spellings


@pytest.mark.parametrize("cell", ["1_000", "١٢", "１２", "1e1_0", "−1", "²"])
def test_spellings_that_only_python_reads_as_numbers_are_refused(tmp_path, cell):
    rows = [["a", "label", "b"], ["1", "x", "2"], ["3", "x_1", cell], ["5", "é", "6"]]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    assert f"Line 3 of {tmp_path / 'a.csv'}, column 'b': {cell!r} is not a number" in refused(tmp_path / "a.csv")
    found = read_features(tmp_path / "a.csv", features="a")
    assert found.features[:, 0].tolist() == [1, 3, 5] and list(found.labels) == ["x", "x_1", "é"]


@pytest.mark.parametrize(("one", "many", "option"), [("label", "labels", "--labels"), ("id", "ids", "--ids")])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_two_columns_that_may_be_meant_are_refused(tmp_path, one, many, option, suffix):
    columns = {"f": [1.0, 2.0], "label": [1, 2], one: [3, 4], many: [5, 6]}
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
    else:
        pytest.importorskip("pyarrow.parquet")
        import pyarrow

        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert f"has columns {one!r} and {many!r}: choose one of them with {option}" in refused(path)
    chosen = read_features(path, **{option[2:]: many}, features="f")
    assert (chosen.labels.tolist() if one == "label" else chosen.ids) == [5, 6]


SAME = {"number 7": 7, "number 7.0": 7.0, 'text "7"': "7", 'text " 7 "': " 7 "}  # one label: 7
TEXTS = {"text 7.0": "7.0", "text 07": "07", "text 7e0": "7e0", "decimal 7.00": Decimal("7.00")}


def test_labels_are_compared_as_the_documentation_says(tmp_path, arrow):
    said = " ".join((DOCS / "filter.md").read_text(encoding="utf-8").split())
    assert 'the numbers 7 and 7.0 and the text "7" are one label' in said
    assert 'The texts "7.0" and "07" and the decimal 7.00 are labels of their own' in said

    def label(value: object, kind: str) -> object:
        path = tmp_path / f"a.{kind}"
        if kind == "csv":
            path.write_text(f"label,f\n{value},1\n")
        elif kind == "npz":
            np.savez(path, features=np.ones((1, 1)), labels=np.array([value]))
        else:
            arrow.parquet.write_table(arrow.table({"label": arrow.array([value]), "f": [1.0]}), path)
        return read_features(path).labels[0]

    for value in SAME.values():
        kinds = ("csv", "npz", "parquet") if isinstance(value, str) else ("npz", "parquet")
        assert {label(value, kind) for kind in kinds} == {7}
    for value in TEXTS.values():
        kinds = ("csv", "npz", "parquet") if isinstance(value, str) else ("csv", "parquet")
        assert {label(value, kind) for kind in kinds} == {str(value)}


def test_the_limit_is_half_of_the_memory(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 1000)
    memory.check_contents("It", 500)
    with pytest.raises(UserError, match="It does not fit into memory: its contents take 501 bytes, and at most 500"):
        memory.check_contents("It", 501)
    monkeypatch.setattr(memory, "machine_memory", lambda: None)
    memory.check_contents("It", 2**60)  # unknown, as on Windows
    if sys.platform != "win32":
        monkeypatch.undo()
        assert (memory.machine_memory() or 0) > 2**28
