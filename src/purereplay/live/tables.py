"""Tables with an image and a label in each row: Parquet files, and folders written by Hugging Face `datasets`.

    FILE.parquet, or a folder of such files     read in the order of their names
    a folder written by `Dataset.save_to_disk`  its Arrow files, in the order of its state.json

The image is in the column `image` or `img`, or in the only column that holds bytes: an encoded image, or a struct of
`bytes` and `path`. The label is in the column `label`, or in one that the user names: text, or an integer. An integer
becomes the name of its class, if the table has the names as `datasets` writes them. The id is in the column `id`;
otherwise it is the name of the file and the number of the row, from 1. Rows are read a few at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from purereplay.data.parquet import pyarrow_for
from purereplay.errors import UserError
from purereplay.live.images import MAX_BYTES
from purereplay.live.items import CHUNK, CHUNK_BYTES, Item, Offer, Refusal, Refused, checked_id, checked_label
from purereplay.live.lists import readable, within

_FEW = 16  # rows decoded at a time if one image may be stored once for many rows
_IMAGE_NAMES = ("image", "img")
_SPLIT = re.compile(r"(.+)-\d{5}-of-\d{5}")  # data-00000-of-00002: the part of a dataset that a file belongs to
MAX_JSON = 64 * 2**20  # bytes of a description


class Table(NamedTuple):
    """Rows of one or more files."""

    offers: Iterator[Offer]
    n_rows: int | None  # None: unknown


class _Columns(NamedTuple):
    image: str
    label: str
    id: str | None
    classes: tuple[str, ...] | None  # names of integer labels


def is_saved_dataset(folder: Path) -> bool:
    """Return whether `datasets` has written a folder."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, by name; UserError if they belong to several splits."""
    found = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
    splits = sorted({match[1] for path in found if (match := _SPLIT.fullmatch(path.stem))})
    if len(splits) > 1:
        raise UserError(
            f"{folder} has files of {' and '.join(splits)}: name those of one, as in '{folder / splits[0]}-*.parquet'."
        )
    return found


def read_parquet_images(paths: list[Path], labels: str | None = None) -> Table:
    """Open Parquet files with images and labels; UserError if one is damaged or lacks a column."""
    arrow = pyarrow_for(paths[0])
    n_rows = 0
    for path in paths:
        with _reading(arrow, path), arrow.parquet.ParquetFile(path) as file:
            _columns(arrow, path, file.schema_arrow, labels)
            n_rows += file.metadata.num_rows
    return Table(_parquet_rows(arrow, paths, labels), n_rows)


def _parquet_rows(arrow: Any, paths: list[Path], labels: str | None) -> Iterator[Offer]:
    for path in paths:
        with _reading(arrow, path), arrow.parquet.ParquetFile(path, buffer_size=65536, pre_buffer=False) as file:
            columns = _columns(arrow, path, file.schema_arrow, labels)
            names = [name for name in (columns.image, columns.label, columns.id) if name]
            first = 0
            for batch in file.iter_batches(_rows_at_a_time(file.metadata, columns.image), columns=names):
                yield from _offers(path, columns, batch, first, path.parent)
                first += batch.num_rows


def _rows_at_a_time(metadata: Any, image: str) -> int:
    """Return how many rows can be decoded together in bounded memory."""
    n_bytes = n_rows = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        n_rows += group.num_rows
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.partition(".")[0] == image:
                n_bytes += column.total_uncompressed_size
                if any("DICTIONARY" in encoding or "DELTA" in encoding for encoding in column.encodings):
                    return _FEW
    return max(1, min(CHUNK, CHUNK_BYTES * n_rows // max(1, n_bytes)))


def read_saved_dataset(folder: Path, labels: str | None = None) -> Table:
    """Open a folder written by `Dataset.save_to_disk`; UserError if it holds several splits."""
    if (folder / "dataset_dict.json").is_file():
        splits = [str(name) for name in _json(folder / "dataset_dict.json").get("splits", [])]
        if len(splits) != 1:
            raise UserError(
                f"{folder} holds the splits {', '.join(splits) or 'none'}: name one of them, as in "
                f"{folder / (splits[0] if splits else 'train')}."
            )
        folder = folder / splits[0]
    arrow = pyarrow_for(folder)
    listed = _json(folder / "state.json").get("_data_files")
    try:
        paths = [within(entry["filename"], folder)[0] for entry in listed or []]
    except (Refused, TypeError, KeyError) as error:
        raise UserError(f"{folder / 'state.json'} does not list the files of a dataset: {error}.") from None
    if not paths:
        raise UserError(f"{folder} holds no rows.")
    for path in paths:
        with _reading(arrow, path), arrow.memory_map(str(path)) as mapped:
            _columns(arrow, path, arrow.ipc.open_stream(mapped).schema, labels)
    return Table(_arrow_rows(arrow, paths, folder, labels), None)


def _arrow_rows(arrow: Any, paths: list[Path], folder: Path, labels: str | None) -> Iterator[Offer]:
    for path in paths:
        with _reading(arrow, path), arrow.memory_map(str(path)) as mapped:
            stream = arrow.ipc.open_stream(mapped)
            columns, first = _columns(arrow, path, stream.schema, labels), 0
            for batch in stream:
                for start in range(0, batch.num_rows, _FEW):  # views on the file: a few rows become Python objects
                    yield from _offers(path, columns, batch.slice(start, _FEW), first + start, folder)
                first += batch.num_rows


def _offers(path: Path, columns: _Columns, batch: Any, first: int, root: Path) -> Iterator[Offer]:
    rows = {name: batch.column(name).to_pylist() for name in (columns.image, columns.label, columns.id) if name}
    for k in range(batch.num_rows):
        row = first + k + 1
        name = f"{path.name}#{row}"
        try:
            if columns.id:
                value = rows[columns.id][k]
                name = checked_id(value if value is None or isinstance(value, str) else str(value))
            label = checked_label(_label(rows[columns.label][k], columns.classes))
            image, real_root = _image(rows[columns.image][k], root)
            yield Item(name, label, image, row, real_root)
        except Refused as reason:
            yield Refusal(name, str(reason), row)


def _label(value: object, classes: tuple[str, ...] | None) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if classes is None:
            return str(value)
        if not 0 <= value < len(classes):
            raise Refused(f"has the label {value}, but there are {len(classes):,} classes")
        return classes[value]
    return value


def _image(value: object, root: Path) -> tuple[bytes | Path, Path | None]:
    path: object = None
    if isinstance(value, dict):
        path, value = value.get("path"), value.get("bytes")
    if isinstance(value, bytes):
        if len(value) > MAX_BYTES:
            raise Refused(f"has {len(value):,} bytes, more than {MAX_BYTES:,}")
        return value, None
    if path is not None:
        return within(path, root)
    raise Refused("has no image")


def _columns(arrow: Any, path: Path, schema: Any, labels: str | None) -> _Columns:
    """Return the columns of a table by their names and types, or raise UserError."""
    images = [field.name for field in schema if _holds_images(arrow, field.type)]
    known = [name for name in _IMAGE_NAMES if name in images]
    if not known and len(images) != 1:
        found = f"the columns {', '.join(images)} hold bytes" if images else "no column holds bytes"
        raise UserError(f"{path} needs a column `image` with encoded images: {found}.")
    label = labels or "label"
    if schema.names.count(label) != 1:
        raise UserError(
            f"{path} needs a column `{label}`; it has {', '.join(schema.names)}: name one of them with --labels."
        )
    kind = schema.field(label).type
    if not (_is_text(arrow, kind) or arrow.types.is_integer(kind)):
        raise UserError(f"The column `{label}` of {path} is {kind}; it must hold text or integers.")
    return _Columns(
        image=known[0] if known else images[0],
        label=label,
        id="id" if "id" in schema.names else None,
        classes=_class_names(schema.metadata or {}, label),
    )


def _holds_images(arrow: Any, type_: Any) -> bool:
    if arrow.types.is_struct(type_):
        return any(type_.field(k).name == "bytes" for k in range(type_.num_fields))
    return bool(arrow.types.is_binary(type_) or arrow.types.is_large_binary(type_))


def _is_text(arrow: Any, type_: Any) -> bool:
    if arrow.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(arrow.types.is_string(type_) or arrow.types.is_large_string(type_))


def _class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """Return the names of integer labels as `datasets` writes them; None if there are none."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _json(path: Path) -> dict[str, Any]:
    with readable(path), path.open("rb") as file:
        text = file.read(MAX_JSON + 1)
    try:
        content = json.loads(text) if len(text) <= MAX_JSON else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged, or was not written by `datasets`.")
    return content


@contextmanager
def _reading(arrow: Any, path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into UserError that names the file."""
    try:
        yield
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{path} is truncated or damaged: {reason}.") from None
