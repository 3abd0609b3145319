"""Folders of parquet files whose parts do not fit together: taken by name, or refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from purereplay.data.features import FeatureTable, read_features  # noqa: E402
from purereplay.errors import UserError  # noqa: E402
from purereplay.purify.folders import Choice, Layout, _reader, parquet_parts, read_parts  # noqa: E402

FEATURES = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
NAMES = ["f0", "f1", "f2", "f3"]
DEFAULT = Choice()


def part(path: Path, rows: slice, names: list[str], order: list[int] | None = None, **more) -> None:
    """Write some rows of FEATURES; `order` permutes the columns together with their names."""
    own = FEATURES[rows]
    columns = {names[i]: own[:, i] for i in order or range(len(names))}
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"label": ["a"] * len(own), **columns, **more}), path)


def in_a_task(folder: Path, choice: Choice = DEFAULT) -> np.ndarray:
    """Return the features of the last part as a task on a cluster reads them."""
    parts = parquet_parts(folder)
    first = read_features(parts[0].path, **choice._asdict())
    read = _reader(choice, Layout(parts[0].path, first.columns or [], first.features.shape[1]))
    return read({"path": np.array([str(parts[-1].path)]), "first_row": np.array([4])})["features"]


def whole(folder: Path, choice: Choice = DEFAULT) -> FeatureTable:
    return read_parts(parquet_parts(folder), choice)


def test_columns_in_another_order_are_taken_by_name(tmp_path):
    part(tmp_path / "in" / "a.parquet", slice(4), NAMES)
    part(tmp_path / "in" / "b.parquet", slice(4, 8), NAMES, [2, 0, 3, 1])
    assert np.array_equal(whole(tmp_path / "in").features, FEATURES) and whole(tmp_path / "in").columns == NAMES
    assert np.array_equal(in_a_task(tmp_path / "in"), FEATURES[4:])


@pytest.mark.parametrize("read", [whole, in_a_task])
def test_columns_of_other_names_are_refused(tmp_path, read):
    part(tmp_path / "in" / "a.parquet", slice(4), NAMES)
    part(tmp_path / "in" / "b.parquet", slice(4, 8), ["f0", "f1", "f2", "zz"])
    with pytest.raises(UserError, match=r"b\.parquet has no column of features 'f3', but .*a\.parquet has: "):
        read(tmp_path / "in")
    with pytest.raises(UserError, match=r"b\.parquet has no column of features 'f3', but"):
        read(tmp_path / "in", Choice(features="f*,[zf]*"))
    part(tmp_path / "in" / "b.parquet", slice(4, 8), NAMES, size=np.arange(4.0))
    with pytest.raises(UserError, match=r"b\.parquet has a column of features 'size', but .*a\.parquet has none: "):
        read(tmp_path / "in")
    assert len(read(tmp_path / "in", Choice(features="f*"))) > 0


@pytest.mark.parametrize("read", [whole, in_a_task])
def test_lists_of_another_length_or_name_are_refused(tmp_path, read):
    (tmp_path / "in").mkdir()
    for name, column, width in (("a", "embedding", 4), ("b", "embedding", 3)):
        pq.write_table(pa.table({"label": ["a"] * 2, column: [[1.0] * width] * 2}), tmp_path / "in" / f"{name}.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has 3 features, but .*a\.parquet has 4"):
        read(tmp_path / "in")
    pq.write_table(pa.table({"label": ["a"] * 2, "other": [[1.0] * 4] * 2}), tmp_path / "in" / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet has no column of features 'embedding'"):
        read(tmp_path / "in")


def test_an_id_in_two_files_is_refused(tmp_path):
    part(tmp_path / "in" / "a.parquet", slice(4), NAMES, id=["p", "q", "r", "7"])
    part(tmp_path / "in" / "b.parquet", slice(4, 8), NAMES, id=["s", "t", "u", "v"])
    assert whole(tmp_path / "in").ids == ["p", "q", "r", 7, "s", "t", "u", "v"]
    part(tmp_path / "in" / "b.parquet", slice(4, 8), NAMES, id=["s", "t", "q ", "v"])
    with pytest.raises(UserError, match=r"The id 'q' is on row 1 of .*a\.parquet and on row 2 of .*b\.parquet"):
        whole(tmp_path / "in")
    part(tmp_path / "in" / "b.parquet", slice(4, 8), NAMES, id=[5, 6, 7, 8])  # the text "7" is the number 7
    with pytest.raises(UserError, match=r"The id 7 is on row 3 of .*a\.parquet and on row 2 of .*b\.parquet"):
        whole(tmp_path / "in")


def test_a_part_without_rows_is_named(tmp_path):
    part(tmp_path / "in" / "a.parquet", slice(4), NAMES)
    part(tmp_path / "in" / "b.parquet", slice(0), NAMES)
    with pytest.raises(UserError, match=r"b\.parquet holds no rows\.$"):
        whole(tmp_path / "in")
