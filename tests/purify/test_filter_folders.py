"""The filter over a folder of parquet files: as one table, and label by label as on a cluster."""

from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from purereplay.data.features import read_features  # noqa: E402
from purereplay.errors import UserError  # noqa: E402
from purereplay.purify import folders  # noqa: E402
from purereplay.purify.filter import SelfCenteredFilter  # noqa: E402
from purereplay.purify.folders import Choice, parquet_parts, read_parts  # noqa: E402
from purereplay.report.filtering import filter_file, filter_folder  # noqa: E402


def make(folder: Path, *, n: int = 300, n_files: int = 3, text: bool = False, ids: bool = False) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(n_files):
        labels = rng.integers(0, 4, n // n_files)
        features = rng.normal(size=(len(labels), 6)) + labels[:, None] * (rng.random((len(labels), 1)) < 0.7)
        columns = {f"f{j}": features[:, j].astype(np.float32) for j in range(6)}
        columns["label"] = [f"class {label}" for label in labels] if text else labels
        if ids:
            columns["id"] = [f"{i}-{k}" for k in range(len(labels))]
        pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")
    return folder


def by_label(parts: list[folders.Part], parameters: dict) -> dict[str, np.ndarray]:
    """What the tasks of a cluster compute: read each file, group by label, score each group, sort by row."""
    first = read_features(parts[0].path)
    layout = folders.Layout(parts[0].path, first.columns, first.features.shape[1])
    read, score = folders._reader(Choice(), layout), folders._scorer(parameters)
    items = [{"path": np.array([str(p.path)]), "first_row": np.array([p.first_row])} for p in parts[::-1]]
    tables = [read(item) for item in items]  # files arrive in any order
    whole = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    groups = [score({name: own[whole["label"] == k] for name, own in whole.items()}) for k in set(whole["label"])]
    joined = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
    order = np.argsort(joined["row"])
    return {name: own[order] for name, own in joined.items()}


@pytest.mark.parametrize("text", [False, True])
def test_label_by_label_gives_the_bits_of_the_whole_table(tmp_path, text):
    parts = parquet_parts(make(tmp_path / "in", text=text, ids=True))
    assert [p.first_row for p in parts] == [0, 100, 200]
    table = read_parts(parts, Choice())
    local = SelfCenteredFilter(seed=5, block_size=40, prepare="none").fit(table.features, table.labels)
    far = by_label(parts, local.get_params())
    assert (
        set(far["preparation"]) == {"none"}
        and np.array_equal(far["row"], np.arange(300))
        and far["label"].tolist() == table.labels.tolist()
    )
    assert np.array_equal(far["clean_probability"], local.clean_probability_)
    assert np.array_equal(far["centrality"], local.centrality_) and np.array_equal(far["selected"], local.select())
    assert far["id"].tolist() == table.ids
    other = SelfCenteredFilter(seed=6, block_size=40, prepare="none").fit(table.features, table.labels)
    assert not np.array_equal(far["clean_probability"], other.clean_probability_)


def test_a_folder_is_filtered_as_one_table(tmp_path):
    make(tmp_path / "in")
    filter_file(tmp_path / "in", tmp_path / "scores.parquet", SelfCenteredFilter(seed=5, prepare="none"))
    found = pq.read_table(tmp_path / "scores.parquet")
    far = by_label(parquet_parts(tmp_path / "in"), SelfCenteredFilter(seed=5, prepare="none").get_params())
    assert np.array_equal(found["clean_probability"].to_numpy(), far["clean_probability"])
    assert found["row"].to_pylist() == list(range(300))


def test_what_cannot_be_filtered_is_named(tmp_path):
    folder = make(tmp_path / "in")
    with pytest.raises(UserError, match="holds no parquet files"):
        parquet_parts(tmp_path)
    pq.write_table(pa.table({"f0": [1.0], "label": [1]}), folder / "part-9.parquet")
    with pytest.raises(UserError, match=r"part-9\.parquet has no column of features 'f1', but .*part-0\.parquet has"):
        read_parts(parquet_parts(folder), Choice())
    (folder / "part-9.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"part-9\.parquet is truncated, damaged"):
        parquet_parts(folder)
    with pytest.raises(UserError, match="is not a folder: --cluster filters a folder"):
        filter_folder(folder / "part-1.parquet", tmp_path / "out", SelfCenteredFilter(), "ray")
    with pytest.raises(UserError, match="add --prepare none"):
        filter_folder(make(tmp_path / "whole"), tmp_path / "out", SelfCenteredFilter(), "ray")
    with pytest.raises(UserError, match=r"part-1\.parquet holds features: choose another file"):
        filter_file(tmp_path / "whole", tmp_path / "whole" / "part-1.parquet", SelfCenteredFilter())
    with pytest.raises(UserError, match="must be all whole numbers or all text"):
        folders._plain_labels(Path("a"), np.array([1, "b"], object))


@pytest.mark.slow
def test_a_real_cluster_gives_the_same_scores(two_nodes, tmp_path):
    address = f"ray={two_nodes.address}"
    source = make(tmp_path / "in", n=6000, n_files=6)
    filter_folder(source, tmp_path / "out", SelfCenteredFilter(seed=5, prepare="none"), address)
    with pytest.raises(UserError, match="exists already"):
        filter_folder(source, tmp_path / "out", SelfCenteredFilter(seed=5, prepare="none"), address)
    table = read_parts(parquet_parts(source), Choice())
    local, found = (
        SelfCenteredFilter(seed=5, prepare="none").fit(table.features, table.labels),
        pq.read_table(tmp_path / "out"),
    )
    assert found["row"].to_pylist() == list(range(6000))
    assert np.array_equal(found["clean_probability"].to_numpy(), local.clean_probability_)
    assert np.array_equal(found["selected"].to_numpy(), local.select())
