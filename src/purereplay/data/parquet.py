"""Parquet files through pyarrow, which is optional: reads tables of features, writes tables of scores."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data.progress import Progress
from purereplay.errors import UserError

_ROWS = 8192  # rows converted at a time


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
            features = np.empty((n, 0), np.float32)
            wanted = [*columns.features, columns.labels, *([columns.ids] if columns.ids else [])]
            for batch in file.iter_batches(_ROWS, columns=wanted):
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
    try:
        column = column.dictionary_decode() if types.is_dictionary(column.type) else column
        kind = column.type
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
        raise UserError(f"The column {name!r} of {path} holds {kind}, not numbers: choose columns with --columns.")


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
