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
from purereplay.live.items import MAX_ID, MAX_LABEL, Item, Offer, Refusal, Refused, checked_id, checked_label, short
from purereplay.live.lists import readable, within
from purereplay.live.table_limits import check_uncompressed, rows_at_a_time

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

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [name for name in (self.image, self.label, self.id) if name]


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
            rows_at_a_time(path, file.metadata, _columns(arrow, path, file.schema_arrow, labels).names)
            n_rows += file.metadata.num_rows
    return Table(_parquet_rows(arrow, paths, labels), n_rows)


def _parquet_rows(arrow: Any, paths: list[Path], labels: str | None) -> Iterator[Offer]:
    for path in paths:
        with _reading(arrow, path), arrow.parquet.ParquetFile(path, buffer_size=65536, pre_buffer=False) as file:
            columns = _columns(arrow, path, file.schema_arrow, labels)
            first, n_rows = 0, rows_at_a_time(path, file.metadata, columns.names)
            for batch in file.iter_batches(n_rows, columns=columns.names):
                yield from _offers(path, columns, batch, first, path.parent)
                first += batch.num_rows


def read_saved_dataset(folder: Path, labels: str | None = None) -> Table:
    """Open a folder written by `Dataset.save_to_disk`; UserError if it holds several splits."""
    if (folder / "dataset_dict.json").is_file():
        listing = folder / "dataset_dict.json"
        splits = _json(listing).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise _not_saved(listing)
        if len(splits) != 1:
            raise UserError(
                f"{folder} holds the splits {', '.join(splits) or 'none'}: name one of them, as in "
                f"{folder / (splits[0] if splits else 'train')}."
            )
        try:
            within(splits[0], folder)
        except Refused as reason:
            raise UserError(f"The split {short(splits[0])!r} in {listing} {reason}.") from None
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
            mapped.seek(0)
            check_uncompressed(arrow, path, mapped)
    return Table(_arrow_rows(arrow, paths, folder, labels), None)


def _arrow_rows(arrow: Any, paths: list[Path], folder: Path, labels: str | None) -> Iterator[Offer]:
    for path in paths:
        with _reading(arrow, path), arrow.memory_map(str(path)) as mapped:
            check_uncompressed(arrow, path, mapped)
            mapped.seek(0)
            stream = arrow.ipc.open_stream(mapped)
            columns, first = _columns(arrow, path, stream.schema, labels), 0
            for batch in stream:
                yield from _offers(path, columns, batch, first, folder)  # views on the file
                first += batch.num_rows


def _offers(path: Path, columns: _Columns, batch: Any, first: int, root: Path) -> Iterator[Offer]:
    """Yield the rows of a batch; cells become Python objects one row at a time, after their sizes were compared."""
    batch = batch.select(columns.names)
    batch.validate(full=True)  # offsets of damaged files lead anywhere in the memory
    images, labels = batch.column(columns.image), batch.column(columns.label)
    ids = batch.column(columns.id) if columns.id else None
    for k in range(batch.num_rows):
        row = first + k + 1
        name = f"{path.name}#{row}"
        try:
            if ids is not None:
                name = checked_id(_id(ids[k]))
            _check_text(labels[k], "a label", MAX_LABEL)
            label = checked_label(_label(labels[k].as_py(), columns.classes))
            image, real_root = _image(images[k], root)
            yield Item(name, label, image, row, real_root)
        except Refused as reason:
            yield Refusal(name, str(reason), row)


def _id(cell: Any) -> str | None:
    _check_text(cell, "an id", MAX_ID)
    value = cell.as_py()
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")  # refused if it is not UTF-8
    return value if value is None or isinstance(value, str) else str(value)


def _check_text(cell: Any, what: str, most: int) -> None:
    """Raise Refused if a text is so long that it should not be converted at all."""
    if hasattr(cell, "dictionary"):
        cell = cell.value
    if cell is not None and cell.is_valid and hasattr(cell, "as_buffer") and (n := cell.as_buffer().size) > 8 * most:
        raise Refused(f"has {what} of {n:,} bytes, more than {most:,} characters")


def _label(value: object, classes: tuple[str, ...] | None) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if classes is None:
            return str(value)
        if not 0 <= value < len(classes):
            raise Refused(f"has the label {value}, but there are {len(classes):,} classes")
        return classes[value]
    return value


def _image(cell: Any, root: Path) -> tuple[bytes | Path, Path | None]:
    """Return an encoded image, or a file and its root folder."""
    content, path = cell, None
    if cell.is_valid and not hasattr(cell, "as_buffer"):  # a struct
        content = cell["bytes"]
        if cell.type.get_field_index("path") >= 0:
            path = cell["path"]
    if content.is_valid:
        if (n := content.as_buffer().size) > MAX_BYTES:
            raise Refused(f"has {n:,} bytes, more than {MAX_BYTES:,}")
        return content.as_py(), None
    if path is not None and path.is_valid:
        _check_text(path, "a path", MAX_ID)
        return within(path.as_py(), root)
    raise Refused("has no image")


def _columns(arrow: Any, path: Path, schema: Any, labels: str | None) -> _Columns:
    """Return the columns of a table by their names and types, or raise UserError."""
    images = [field.name for field in schema if _holds_images(arrow, field.type)]
    known = [name for name in _IMAGE_NAMES if name in images]
    if not known and len(images) != 1:
        found = f"the columns {', '.join(images)} hold bytes" if images else "no column holds bytes"
        raise UserError(f"{path} needs a column `image` with encoded images: {found}.")
    label = labels or "label"
    for name in (*known[:1], label, "id"):
        if (n := schema.names.count(name)) > 1:
            raise UserError(f"{path} has {n} columns named `{name}`: rename all but one.")
    if label not in schema.names:
        raise UserError(
            f"{path} needs a column `{label}`; it has {', '.join(schema.names)}: name one of them with --labels."
        )
    kind = schema.field(label).type
    if not (_is_text(arrow, kind) or arrow.types.is_integer(kind)):
        raise UserError(f"The column `{label}` of {path} is {kind}; it must hold text or integers.")
    if "id" in schema.names and arrow.types.is_nested(schema.field("id").type):
        raise UserError(f"The column `id` of {path} is {schema.field('id').type}; it must hold text or numbers.")
    return _Columns(
        image=known[0] if known else images[0],
        label=label,
        id="id" if "id" in schema.names else None,
        classes=_class_names(schema.metadata or {}, label),
    )


def _holds_images(arrow: Any, type_: Any) -> bool:
    if arrow.types.is_struct(type_):
        place = type_.get_field_index("bytes")  # -1 also if there are several
        if place < 0 or arrow.types.is_null(type_.field(place).type):  # null: every image is named by its path
            return bool(place >= 0)
        type_ = type_.field(place).type
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
        raise _not_saved(path)
    return content


def _not_saved(path: Path) -> UserError:
    return UserError(f"{path} is damaged, or was not written by `datasets`.")


@contextmanager
def _reading(arrow: Any, path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into UserError that names the file."""
    try:
        yield
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{path} is truncated or damaged: {reason}.") from None
