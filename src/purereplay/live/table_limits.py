"""Limits on tables, from what they state, before anything is decompressed: a small file can hold very large cells.

Parquet states the decompressed size of each column. Arrow files of `datasets` are not compressed and are views on the
file, so compressed ones are refused: their sizes would be known only to the reader that decompresses them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from purereplay.errors import UserError
from purereplay.live.items import CHUNK, CHUNK_BYTES

_REPEATED = 2**26  # bytes of the rows decoded together, if one cell may be stored once for many rows
_MAX_COLUMN = 2**28  # decompressed bytes of a column in one row group, unless the file is large itself
_TIMES = 4  # the size of the file
_V4 = 3  # version of Arrow's metadata with an earlier form of compression
_RECORDS, _DICTIONARY = 3, 2  # kinds of messages with data


def rows_at_a_time(path: Path, metadata: Any, names: list[str]) -> int:
    """Return how many rows of a Parquet file can be decoded together; UserError if a column is too large."""
    most = max(_MAX_COLUMN, _TIMES * path.stat().st_size)
    n_bytes = n_rows = 0
    largest = 0  # of the columns in which one cell may be stored once for many rows
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        n_rows += group.num_rows
        for column in map(group.column, range(group.num_columns)):
            place, size = column.path_in_schema, column.total_uncompressed_size
            name = next((own for own in names if place == own or place.startswith(f"{own}.")), None)  # a struct's parts
            if name is None:
                continue
            if not 0 <= size <= most:
                raise UserError(
                    f"The column `{name}` of {path} has {size:,} bytes in one row group, more than {most:,}: save it "
                    "with smaller row groups."
                )
            n_bytes += size
            if any("DICTIONARY" in encoding or "DELTA" in encoding for encoding in column.encodings):
                largest = max(largest, size)
    most_rows = max(1, min(CHUNK, _REPEATED // max(1, largest)))
    return max(1, min(most_rows, CHUNK_BYTES * n_rows // max(1, n_bytes)))


def check_uncompressed(arrow: Any, path: Path, file: Any) -> None:
    """Raise UserError if an Arrow file in the form of a stream holds compressed data; ValueError if it is damaged."""
    reader = arrow.ipc.MessageReader.open_stream(file)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        try:
            compressed = _is_compressed(message.metadata.to_pybytes())
        except struct.error:
            raise ValueError("the metadata of a message cannot be read") from None
        if compressed:
            raise UserError(f"{path} is compressed: save the dataset with `Dataset.save_to_disk`, or as Parquet.")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the flatbuffer of a message names a compression of its body."""
    (message,) = struct.unpack_from("<I", metadata)
    version, kind = _field(metadata, message, 0), _field(metadata, message, 1)
    header = _table(metadata, message, 2)
    if kind is None or header is None:
        return False
    if (version is not None and metadata[version] <= _V4) and b"ARROW:experimental_compression" in metadata:
        return True
    if metadata[kind] == _DICTIONARY:
        header = _table(metadata, header, 1)
    elif metadata[kind] != _RECORDS:
        return False
    return header is not None and _field(metadata, header, 3) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return where a field of a flatbuffer's table is; None if the table has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    if fields < 0 or place >= struct.unpack_from("<H", data, fields)[0]:
        return None
    (offset,) = struct.unpack_from("<H", data, fields + place)
    if table + offset >= len(data):
        raise struct.error("a field is outside of the metadata")
    return table + offset if offset else None


def _table(data: bytes, table: int, number: int) -> int | None:
    """Return where the table is that a field refers to."""
    at = _field(data, table, number)
    return None if at is None else at + int(struct.unpack_from("<I", data, at)[0])
