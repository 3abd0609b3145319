"""Tables of images: Parquet files, and folders as Hugging Face `datasets` writes them."""

import json
import subprocess
import sys

import pytest
from tiny_state import picture, png

from purereplay.errors import UserError
from purereplay.live import tables
from purereplay.live.intake import open_source
from purereplay.live.items import Item, Refusal
from purereplay.live.plan import plan
from purereplay.live.settings import Wanted
from purereplay.live.table_limits import rows_at_a_time

arrow = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

NAMES = ["dark", "light"]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}


def table(n=6, *, labels=None, images=None, metadata=True, **more):
    images = images or [{"bytes": png(picture(k)), "path": None} for k in range(n)]
    columns = {"image": images, "label": labels or [k % 2 for k in range(n)], **more}
    made = arrow.table(columns)
    if metadata:
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    return made


def offers(data, tmp_path):
    source = open_source(str(data), state=tmp_path / "state")
    return [offer for chunk in source.chunks for offer in chunk]


def save_dataset(folder, made, splits=None):
    """Write what `Dataset.save_to_disk` writes, as far as it is read."""
    if splits:
        folder.mkdir()
        (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
        for split in splits:
            save_dataset(folder / split, made)
        return
    folder.mkdir()
    name = "data-00000-of-00001.arrow"
    with arrow.OSFile(str(folder / name), "wb") as file, arrow.ipc.new_stream(file, made.schema) as stream:
        stream.write_table(made, max_chunksize=4)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (folder / "dataset_info.json").write_text("{}")


def test_integer_labels_get_the_names_of_their_classes(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    found = offers(tmp_path / "a.parquet", tmp_path)
    assert [offer.label for offer in found] == ["dark", "light"] * 3
    assert found[2] == Item("a.parquet#3", "dark", png(picture(2)), 3, None)


def test_plain_columns_of_bytes_and_text(tmp_path):
    images = [png(picture(k)) for k in range(3)]
    pq.write_table(arrow.table({"img": images, "label": ["a", "b", "a"], "id": [7, 8, 9]}), tmp_path / "a.parquet")
    assert offers(tmp_path / "a.parquet", tmp_path)[1] == Item("8", "b", images[1], 2, None)
    pq.write_table(arrow.table({"photo": images, "label": [3, 4, 5]}), tmp_path / "b.parquet")
    assert [offer.label for offer in offers(tmp_path / "b.parquet", tmp_path)] == ["3", "4", "5"]


def test_a_folder_of_parquet_files_and_a_pattern(tmp_path):
    data = tmp_path / "hub" / "data"
    data.mkdir(parents=True)
    for k in range(2):
        pq.write_table(table(), data / f"train-{k:05}-of-00002.parquet")
    assert len(offers(tmp_path / "hub", tmp_path)) == 12
    assert open_source(str(data), state=tmp_path / "state").total == 12
    pq.write_table(table(), data / "test-00000-of-00001.parquet")
    with pytest.raises(UserError, match=r"has files of test and train: name those of one"):
        open_source(str(data), state=tmp_path / "state")
    assert len(offers(data / "train-*.parquet", tmp_path)) == 12


def test_a_folder_of_images_with_a_table_beside_the_labels_is_still_one_of_images(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.png").write_bytes(png(picture(1)))
    pq.write_table(table(), tmp_path / "photos" / "scores.parquet")
    assert [offer.id for offer in offers(tmp_path / "photos", tmp_path) if isinstance(offer, Item)] == ["cat/1.png"]


def test_a_dataset_saved_to_disk(tmp_path):
    save_dataset(tmp_path / "saved", table(9))
    found = offers(tmp_path / "saved", tmp_path)
    assert [offer.label for offer in found] == [NAMES[k % 2] for k in range(9)]
    assert [offer.line for offer in found] == list(range(1, 10))
    save_dataset(tmp_path / "one", table(), splits=["train"])
    assert len(offers(tmp_path / "one", tmp_path)) == 6
    save_dataset(tmp_path / "two", table(), splits=["train", "test"])
    with pytest.raises(UserError, match=r"holds the splits train, test: name one of them, as in .*two/train"):
        open_source(str(tmp_path / "two"), state=tmp_path / "state")


def test_images_that_are_named_by_a_path_stay_in_the_folder(tmp_path):
    (tmp_path / "outside.png").write_bytes(png(picture(0)))
    images = [{"bytes": None, "path": name} for name in ("in.png", "../outside.png", str(tmp_path / "outside.png"))]
    save_dataset(tmp_path / "saved", table(3, images=images))
    (tmp_path / "saved" / "in.png").write_bytes(png(picture(1)))
    inside, *out = offers(tmp_path / "saved", tmp_path)
    assert inside.image == tmp_path / "saved" / "in.png"
    assert all(isinstance(offer, Refusal) and "leads out of the folder" in offer.reason for offer in out)


def test_unusable_rows_are_refused_by_number(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_BYTES", 1000)
    images = [{"bytes": b, "path": None} for b in (png(picture(0)), None, b"x" * 1001, png(picture(3)))]
    pq.write_table(table(4, images=images, labels=[0, 1, 1, 2]), tmp_path / "a.parquet")
    good, *bad = offers(tmp_path / "a.parquet", tmp_path)
    assert isinstance(good, Item)
    assert [(offer.line, offer.reason) for offer in bad] == [
        (2, "has no image"),
        (3, "has 1,001 bytes, more than 1,000"),
        (4, "has the label 2, but there are 2 classes"),
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1.0], "label": ["a"]}, "no column holds bytes"),
        ({"left": [b"1"], "right": [b"2"], "label": ["a"]}, "the columns left, right hold bytes"),
        (
            {"image": [b"1"], "kind": ["a"]},
            "needs a column `label`; it has image, kind: name one of them with --labels",
        ),
        ({"image": [b"1"], "label": [1.5]}, "`label` of .* is double"),
    ],
)
def test_columns_that_are_missing(tmp_path, columns, message):
    pq.write_table(arrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        open_source(str(tmp_path / "a.parquet"), state=tmp_path / "state")


@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_the_user_names_the_column_of_labels(cli, tmp_path, form):
    names = {"fine": {"names": ["x", "y"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    images = table().column("image")
    made = arrow.table({"image": images, "fine": [0, 1] * 3, "coarse": ["a", "b"] * 3}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": names}})}
    )
    if form == "parquet":
        pq.write_table(made, tmp_path / "a.parquet")
    else:
        save_dataset(tmp_path / "a.parquet", made)
    for column, labels in (("fine", ["x", "y"] * 3), ("coarse", ["a", "b"] * 3)):
        source = open_source(str(tmp_path / "a.parquet"), state=tmp_path / "state", labels=column)
        assert [offer.label for chunk in source.chunks for offer in chunk] == labels
    with pytest.raises(UserError, match=r"needs a column `no`; it has image, fine, coarse"):
        open_source(str(tmp_path / "a.parquet"), state=tmp_path / "state", labels="no")
    done = cli("learn", str(tmp_path / "a.parquet"), "--labels", "fine", "--state", str(tmp_path / "s"), "--dry-run")
    assert "2: x 3, y 3" in done.out


def test_only_tables_have_a_column_of_labels(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na.png,1\n")
    (tmp_path / "photos" / "a").mkdir(parents=True)
    (tmp_path / "photos" / "a" / "1.png").write_bytes(png(picture(0)))
    for data in (tmp_path / "list.csv", tmp_path / "photos", "-"):
        with pytest.raises(UserError, match="--labels names a column of Parquet files or of a saved dataset"):
            open_source(str(data), state=tmp_path / "state", labels="fine")


def test_damaged_files_are_named(tmp_path):
    pq.write_table(table(), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[:-20])
    with pytest.raises(UserError, match=r"a\.parquet is truncated or damaged"):
        open_source(str(tmp_path / "a.parquet"), state=tmp_path / "state")
    save_dataset(tmp_path / "saved", table(9))
    path = tmp_path / "saved" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"\.arrow is truncated or damaged"):
        offers(tmp_path / "saved", tmp_path)
    for state in ("[]", '{"_data_files": 3}', '{"_data_files": [{"filename": "../a.parquet"}]}', "{"):
        (tmp_path / "saved" / "state.json").write_text(state)
        with pytest.raises(UserError, match=r"saved"):
            open_source(str(tmp_path / "saved"), state=tmp_path / "state")


def test_one_image_for_many_rows_is_decoded_a_few_rows_at_a_time(tmp_path):
    made = arrow.table({"image": [b"x" * 300_000] * 1000, "label": ["a"] * 1000})
    pq.write_table(made, tmp_path / "a.parquet", use_dictionary=True)
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert rows_at_a_time(tmp_path / "a.parquet", file.metadata, ["image", "label"]) <= 2**26 // 300_000
    small = arrow.table({"image": [png(picture(0))] * 1000, "label": ["a"] * 1000})
    pq.write_table(small, tmp_path / "b.parquet", use_dictionary=False)
    with pq.ParquetFile(tmp_path / "b.parquet") as file:
        assert rows_at_a_time(tmp_path / "b.parquet", file.metadata, ["image", "label"]) > 16


@pytest.mark.parametrize(
    ("names", "culprit"),
    [
        (["image", "label", "id", "id"], "2 columns named `id`"),
        (["image", "label", "label", "label"], "3 columns named `label`"),
        (["label", "image", "image", "image"], "3 columns named `image`"),
    ],
)
def test_columns_of_one_name_are_refused(tmp_path, names, culprit):
    columns = [[b"x"] if name == "image" else ["a"] for name in names]
    pq.write_table(arrow.Table.from_arrays([arrow.array(c) for c in columns], names=names), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=rf"a\.parquet has {culprit}: rename all but one"):
        open_source(str(tmp_path / "a.parquet"), state=tmp_path / "state")


def test_ids_of_bytes_are_utf8(tmp_path):
    made = arrow.table({"image": [b"1", b"2", b"3"], "label": ["a"] * 3, "id": [b"x1", "ü".encode(), b"\xff"]})
    pq.write_table(made, tmp_path / "a.parquet")
    *good, bad = offers(tmp_path / "a.parquet", tmp_path)
    assert [offer.id for offer in good] == ["x1", "ü"]
    assert bad.reason == "has an id that is not valid UTF-8"


def test_ids_of_lists_are_refused(tmp_path):
    pq.write_table(arrow.table({"image": [b"1"], "label": ["a"], "id": [[1]]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"`id` of .* is list"):
        open_source(str(tmp_path / "a.parquet"), state=tmp_path / "state")


def test_long_texts_are_refused_by_row(tmp_path):
    texts = ["x" * 100_000, "b"]
    pq.write_table(arrow.table({"image": [b"1"] * 2, "label": texts}), tmp_path / "a.parquet")
    pq.write_table(arrow.table({"image": [b"1"] * 2, "label": ["a"] * 2, "id": texts}), tmp_path / "b.parquet")
    encoded = arrow.table({"image": [b"1"] * 2, "label": arrow.array(texts).dictionary_encode()})
    pq.write_table(encoded, tmp_path / "c.parquet")
    for name, what in (("a", "a label"), ("b", "an id"), ("c", "a label")):
        bad, good = offers(tmp_path / f"{name}.parquet", tmp_path)
        assert bad.reason.startswith(f"has {what} of 100,000 bytes, more than ") and isinstance(good, Item)


@pytest.mark.parametrize("offset", [-5, 900, 2**31 - 256])
@pytest.mark.parametrize("column", ["image", "label"])
def test_changed_offsets_of_an_arrow_file_are_found(tmp_path, offset, column):
    made = arrow.table(
        {"image": [png(picture(k)) for k in range(40)], "label": ["abc"[: k % 3 + 1] for k in range(40)]}
    )
    save_dataset(tmp_path / "saved", made)
    path = tmp_path / "saved" / "data-00000-of-00001.arrow"
    content = bytearray(path.read_bytes())
    values = made.column(column).combine_chunks()
    at = content.find(values[:4].buffers()[1].to_pybytes()[:20])
    assert at > 0
    content[at + 8 : at + 12] = offset.to_bytes(4, "little", signed=True)
    path.write_bytes(content)
    code = "import sys; from pathlib import Path; from purereplay.live.intake import open_source\n"
    code += "[0 for _ in open_source(sys.argv[1], state=Path('none')).chunks]"  # it may kill the process
    done = subprocess.run([sys.executable, "-c", code, path.parent], capture_output=True, text=True)
    assert "UserError" in done.stderr and ".arrow is truncated or damaged" in done.stderr, done
    assert done.returncode == 1


@pytest.mark.parametrize("split", ["../saved", "absolute", "link"])
def test_a_split_outside_of_the_folder_is_not_followed(tmp_path, split):
    save_dataset(tmp_path / "saved", table())
    (tmp_path / "other").mkdir()
    if split == "link":
        (tmp_path / "other" / "link").symlink_to(tmp_path / "saved")
    name = str(tmp_path / "saved") if split == "absolute" else split
    (tmp_path / "other" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(UserError, match=r"The split .* in .*dataset_dict\.json leads out of the folder"):
        open_source(str(tmp_path / "other"), state=tmp_path / "state")


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"splits": 5}', '{"splits": null}', '{"splits": "x"}', '{"splits": [5]}']
)
def test_a_damaged_list_of_splits_is_named(tmp_path, content):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text(content)
    with pytest.raises(UserError, match=r"dataset_dict\.json is damaged, or was not written by `datasets`"):
        open_source(str(tmp_path / "saved"), state=tmp_path / "state")


def save_compressed(folder, made, codec):
    save_dataset(folder, made)
    path, options = folder / "data-00000-of-00001.arrow", arrow.ipc.IpcWriteOptions(compression=codec)
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, made.schema, options=options) as stream:
        stream.write_table(made)


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
def test_compressed_arrow_files_are_refused(tmp_path, codec):
    labels = arrow.array(["a", "b"] * 3).dictionary_encode()
    made = arrow.table({"image": [png(picture(k)) for k in range(6)], "label": labels})
    save_compressed(tmp_path / "saved", made, codec)
    if codec is None:
        assert [offer.label for offer in offers(tmp_path / "saved", tmp_path)] == ["a", "b"] * 3
        return
    with pytest.raises(UserError, match=r"\.arrow is compressed: save the dataset with"):
        open_source(str(tmp_path / "saved"), state=tmp_path / "state")


@pytest.mark.parametrize(("form", "name"), [("parquet", "image"), ("parquet", "own.image"), ("saved", "image")])
def test_a_large_cell_of_a_small_file_takes_no_memory(tmp_path, form, name):
    made = arrow.table({name: [bytes(300 * 2**20)], "label": ["a"]})
    if form == "parquet":
        pq.write_table(made, tmp_path / "a", compression="zstd", use_dictionary=False)
        (tmp_path / "a").rename(tmp_path / "a.parquet")
    else:
        save_compressed(tmp_path / "a.parquet", made, "zstd")
    before = arrow.default_memory_pool().max_memory()
    with pytest.raises(UserError, match=r"more than 268,435,456: save it with smaller row groups|is compressed"):
        offers(tmp_path / "a.parquet", tmp_path)
    assert arrow.default_memory_pool().max_memory() <= before


def test_a_plan_counts_all_rows_and_keeps_few_images(tmp_path):
    pq.write_table(table(300), tmp_path / "a.parquet")
    found = plan(str(tmp_path / "a.parquet"), tmp_path / "state", Wanted())
    assert (found.n_items, found.labels) == (300, {"dark": 150, "light": 150})
    assert found.seconds is not None
    assert not (tmp_path / "state").exists()


def test_parts_of_a_dataset_are_not_labels(tmp_path):
    for part in ("train", "val"):
        (tmp_path / "photos" / part / "cat").mkdir(parents=True)
        (tmp_path / "photos" / part / "cat" / "1.png").write_bytes(png(picture(1)))
    with pytest.raises(UserError, match=r"holds train and val, which are parts of a dataset and not labels"):
        open_source(str(tmp_path / "photos"), state=tmp_path / "state")
    assert offers(tmp_path / "photos" / "train", tmp_path)[0].label == "cat"


def test_learn_from_a_table_twice(tmp_path, cli, small_features):
    pq.write_table(table(40), tmp_path / "a.parquet")
    done = cli("learn", tmp_path / "a.parquet", "--state", tmp_path / "state")
    assert (done.code, "samples added: 40" in done.out) == (0, True), done
    again = cli("learn", tmp_path / "a.parquet", "--state", tmp_path / "state")
    assert "samples added: 0, already known: 40" in again.out
