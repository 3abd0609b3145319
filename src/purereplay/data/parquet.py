"""Parquet files through pyarrow, which is optional: reads tables of features, writes tables of scores."""

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data.memory import check_samples
from purereplay.data.progress import Progress
from purereplay.errors import UserError

_ROWS = 8192  # rows converted at a time
_ENTRIES = 2**22  # features of these rows, or bytes of their labels and ids
_FEW = 64  # rows converted at a time if their texts may be much longer than the file
OTHER_COLUMNS = "choose columns of features with --columns, and that of ids with --ids"  # remedy for text in a column
MAX_NAME = 4096  # characters of a label or id


class Columns(NamedTuple):
    """Names of the columns of a table by role."""

    features: list[str]
    labels: str
    ids: str | None


def pyarrow_for(path: Path) -> Any:
    """Return pyarrow with its parquet modules, or raise UserError that `path` needs it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow, which is not installed: install purereplay[parquet].") from None
    return pyarrow


def read_parquet(
    path: Path, choose: Callable[[list[str]], Columns], progress: Progress | None
) -> tuple[NDArray[np.float32], list[Any], list[Any] | None]:
    """Return features (n, d), labels and ids from the columns that `choose` picks from all names."""
    arrow = pyarrow_for(path)
    labels: list[Any] = []
    ids: list[Any] = []
    try:
        # a million rows are often one row group: read in pieces, not whole
        with arrow.parquet.ParquetFile(path, buffer_size=65536, pre_buffer=False) as file:
            n = file.metadata.num_rows
            columns = choose(file.schema_arrow.names)
            n_rows = _check_size(path, file.metadata, columns)
            names = [columns.labels, *([columns.ids] if columns.ids else [])]
            _check_texts(arrow, path, file, names)
            features = np.empty((n, 0), np.float32)
            for batch in file.iter_batches(n_rows, columns=[*columns.features, *names]):
                part = _matrix(arrow, path, batch, columns.features, len(labels))
                if not labels:
                    features = np.empty((n, part.shape[1]), np.float32)
                if part.shape[1] != features.shape[1]:
                    raise _uneven(path, len(labels), part.shape[1], features.shape[1])
                features[len(labels) : len(labels) + len(part)] = part
                labels += _names(arrow, path, columns.labels, batch)
                ids += _names(arrow, path, columns.ids, batch) if columns.ids else []
                if progress:
                    progress(path.name, len(labels), n)
    except MemoryError as error:  # also a damaged file that states a huge number of rows
        raise UserError(f"{path} does not fit into memory: {str(error).rstrip('.') or 'it is too large'}.") from error
    except UnicodeError:
        raise
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{path} is truncated, damaged, or not a parquet file: {reason}.") from error
    return features, labels, ids if columns.ids else None


def _check_size(path: Path, metadata: Any, columns: Columns) -> int:
    """Raise UserError if a table is too large, by its metadata; return how many rows to convert at a time."""
    n: int = metadata.num_rows
    n_features = n_text = 0
    few = False
    chosen = set(columns.features)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema
            if name in chosen or name.partition(".")[0] == columns.features[0]:  # it may be a column of lists
                n_features += column.num_values
            elif name in (columns.labels, columns.ids):
                n_text += column.total_uncompressed_size
                few |= "DELTA_BYTE_ARRAY" in column.encodings
    check_samples(path, n, 4 * n_features + n_text)
    if few:  # a long beginning may be stored once for many rows
        return _FEW
    return max(1, min(_ROWS, _ENTRIES * n // max(1, n_features, n_text)))


def _check_texts(arrow: Any, path: Path, file: Any, names: list[str]) -> None:
    """Raise UserError if a text that is stored once for many rows is too long for a label or id."""
    texts = [name for name in names if _has_dictionary(arrow.types, file, name)]
    if not texts:
        return
    with arrow.parquet.ParquetFile(path, buffer_size=65536, pre_buffer=False, read_dictionary=texts) as short:
        for group in range(file.metadata.num_row_groups):
            for batch in islice(short.iter_batches(1, row_groups=[group], columns=texts), 1):
                for name in texts:
                    _check_lengths(arrow, path, name, batch.column(name).dictionary)


def _check_lengths(arrow: Any, path: Path, name: str, column: Any) -> None:
    """Raise UserError if a column holds text that is too long for a label or id."""
    if not _is_text(arrow.types, column.type):
        return
    compute = arrow.compute
    n_each = (compute.binary_length if arrow.types.is_binary(column.type) else compute.utf8_length)(column)
    if (longest := compute.max(n_each).as_py() or 0) > MAX_NAME:
        raise UserError(f"The column {name!r} of {path} holds text of {longest:,} characters, more than {MAX_NAME:,}.")


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))


def _has_dictionary(types: Any, file: Any, name: str) -> bool:
    """Return whether a column holds text that may be stored once for many rows."""
    kind = file.schema_arrow.field(name).type
    if not _is_text(types, kind.value_type if types.is_dictionary(kind) else kind):
        return False
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    columns = [column for group in groups for column in map(group.column, range(group.num_columns))]
    own = [column for column in columns if column.path_in_schema == name]
    return any(column.has_dictionary_page for column in own) and not any(
        "DELTA" in str(column.encodings) for column in own
    )


def write_parquet(path: Path, columns: Mapping[str, Any], *, to: Path) -> None:
    """Write a table of equally long columns to the file `to`; `path` is its final name, for errors."""
    arrow = pyarrow_for(path)
    table = arrow.table({name: _column(arrow, values) for name, values in columns.items()})
    arrow.parquet.write_table(table, to)


def _matrix(arrow: Any, path: Path, batch: Any, names: list[str], first: int) -> NDArray[np.float32]:
    """Return a batch's features (n, d) from numeric columns or one column of lists; `first` is its first row."""
    types = arrow.types
    kind = batch.schema.field(names[0]).type
    if len(names) == 1 and (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        lists = batch.column(names[0])
        lengths = arrow.compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(lengths != lengths[0])[:1]:
            raise _uneven(path, first + row, lengths[row], lengths[0])
        _check_numbers(types, path, names[0], kind.value_type)
        return _float32(lists.flatten()).reshape(len(lists), -1)
    for name in names:
        _check_numbers(types, path, name, batch.schema.field(name).type)
    return np.stack([_float32(batch.column(name)) for name in names], 1)


def _names(arrow: Any, path: Path, name: str, batch: Any) -> list[Any]:
    """Return a batch's labels or ids as values of Python, with or without pandas."""
    types, column = arrow.types, batch.column(name)
    if types.is_dictionary(column.type):
        used = column.indices.drop_null().unique()
        known = dict(zip(used.to_pylist(), _values(arrow, path, name, column.dictionary.take(used)), strict=True))
        return [known.get(i) for i in column.indices.to_pylist()]
    return _values(arrow, path, name, column)


def _values(arrow: Any, path: Path, name: str, column: Any) -> list[Any]:
    _check_lengths(arrow, path, name, column)
    types, kind = arrow.types, column.type
    try:
        # pyarrow would need pandas for nanoseconds; these casts fail if they lose digits
        if types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(arrow.timestamp("us", kind.tz))
        elif types.is_time64(kind) and kind.unit == "ns":
            column = column.cast(arrow.time64("us"))
        elif types.is_duration(kind) and kind.unit == "ns":
            column = column.cast(arrow.duration("us"))
        return list(column.to_pylist())
    except UnicodeError:
        raise
    except (arrow.ArrowException, OverflowError, ValueError) as error:
        raise UserError(
            f"The column {name!r} of {path} holds {column.type} values that Python cannot represent: save it as text."
        ) from error


def _uneven(path: Path, row: int, n: int, n_before: int) -> UserError:
    return UserError(f"The features on row {row} of {path} are {n} numbers, but earlier rows have {n_before}.")


def _check_numbers(types: Any, path: Path, name: str, kind: Any) -> None:
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise UserError(f"The column {name!r} of {path} holds {kind}, not numbers: {OTHER_COLUMNS}.")


def _float32(column: Any) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinity is reported later
        values: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
    return values


def _column(arrow: Any, values: Any) -> Any:
    """Return a column; names of mixed types and whole numbers beyond 64 bits become text."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return arrow.array(values)
    kinds = {type(value) for value in values}
    fits = kinds == {str} or (kinds == {int} and all(-(2**63) <= value < 2**63 for value in values))
    return arrow.array(list(values) if fits else [str(value) for value in values])
