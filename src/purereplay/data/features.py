"""Files of features and given labels for the filter: from a path to arrays, with errors that name the item.

- `.npz`: arrays `features` (n, d) and `labels` (n,), optionally `ids` (n,); never unpickled. Features keep their dtype.
- `.csv`: a header, a column `label`, optionally a column `id`; all other columns are features, read as float32.
- `.parquet`: the same columns, or the features as one column of lists; needs pyarrow.

Other names can be chosen. A label is the same in every kind of file: text without surrounding blanks, and whole numbers
(the numbers 7 and 7.0, the text "7") are integers. Other text stays as it is: "7.0" and the decimal 7.00 are not 7.
"""

import math
import re
import stat
import sys
import zipfile
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purereplay.data.csv_files import BadRow, CsvRows, open_csv
from purereplay.data.files import whole_file
from purereplay.data.labels import is_missing, plain_value
from purereplay.data.memory import check_contents, check_samples
from purereplay.data.parquet import MAX_NAME, OTHER_COLUMNS, Columns, read_parquet
from purereplay.data.progress import Progress
from purereplay.errors import UserError

SUFFIXES = (".npz", ".csv", ".parquet")
_OF_ENCODER = ("encoder", "encoder_digest")  # arrays with one text each, in a file that says what made it
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_LINES = 4096  # lines of a CSV file parsed at a time
_RUN = 4  # numbered columns from which on only the first and the last are named
_MAGIC = b"\x93NUMPY"
_CELLS = 2**20  # cells of these lines


class FeatureTable(NamedTuple):
    """Contents of a file with n samples."""

    features: NDArray[Any]  # (n, d), finite
    labels: NDArray[Any]  # objects (n,): int, str or another type of the file; none is missing
    ids: list[Hashable] | None  # n unique names, if the file has them
    columns: list[str] | None = None  # names of the columns of features, if the file has them: d, or one of lists


def read_features(
    path: Path,
    *,
    features: str | None = None,
    labels: str | None = None,
    ids: str | None = None,
    progress: Progress | None = None,
) -> FeatureTable:
    """Read and check the features, labels and ids in `path`.

    `features`, `labels` and `ids` select other arrays or columns than the default ones. Columns of features are a
    comma-separated list in which `*` and `?` are wildcards.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise UserError(f"{path} cannot be read: its suffix must be one of {', '.join(SUFFIXES)}.")
    with _reading(path):
        found = path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # a folder cannot be opened
            raise UserError(f"{path} is not a regular file: save the features as a file first.")
        with path.open("rb") as file:
            if not file.read(1):
                raise UserError(f"{path} is empty.")
        if kind == ".npz":
            return _checked(path, *_read_npz(path, features or "features", labels, ids), lambda row: f"row {row}")

        chosen: list[str] = []

        def choose(names: list[str]) -> Columns:
            columns = _columns(path, names, features or "*", labels, ids)
            chosen[:] = columns.features
            return columns

        if kind == ".parquet":
            table = _checked(path, *read_parquet(path, choose, progress), lambda row: f"row {row}")
        else:
            values, names, own, lines = _read_csv(path, choose, progress)
            table = _checked(path, values, names, own, lambda row: f"line {lines[row]}")
        return table._replace(columns=chosen)


def read_rows(path: Path) -> NDArray[Any]:
    """Read and check the array `features` (n, d) of an npz file alone, as float32 or float64."""
    if path.suffix.lower() != ".npz":
        raise UserError(f"{path} is not an npz file.")
    with _reading(path):
        path.open("rb").close()  # a missing file is not reported as damaged
        [features] = _load_arrays(path, lambda names: ["features"])
    _check_matrix(path, features, None)
    with np.errstate(over="ignore"):  # infinity is reported below
        rows = np.ascontiguousarray(features, np.float64 if features.dtype == np.float64 else np.float32)
    _check_matrix(path, rows, lambda row: f"row {row}")
    return rows


def read_encoder_name(path: Path) -> tuple[str, str] | None:
    """Return name and digest of the encoder that made an npz file of features, or None if the file does not say it."""
    with _reading(path):
        found = _load_arrays(path, lambda names: [name if name in names else None for name in _OF_ENCODER])
    if found[0] is None:
        return None
    texts = ["" if array is None else array for array in found]
    if any(np.ndim(text) or np.asarray(text).dtype.kind != "U" for text in texts):
        raise UserError(f"The arrays {' and '.join(_OF_ENCODER)} in {path} must each hold one text.")
    return str(texts[0]), str(texts[1])


def write_rows(path: Path, features: NDArray[Any], encoder: str, digest: str) -> None:
    """Write features (n, d) as an npz file that names the encoder which made them."""
    with whole_file(path) as part, part.open("wb") as file:
        np.savez(file, features=features, encoder=np.array(encoder), encoder_digest=np.array(digest))


def read_named(path: Path, progress: Progress | None = None) -> tuple[NDArray[Any], list[Hashable]]:
    """Read and check features (n, d) and their ids; the file needs no labels, and those that it has are skipped."""

    def choose(names: list[str]) -> Columns:
        own = _first_of(names, ("id", "ids"))
        if own is None:
            raise UserError(f"{path} has no column 'id', by which images find their features.")
        given = _first_of(names, ("label", "labels"))
        columns = _columns(path, names, "*", given or own, own)
        return Columns(columns.features, own, None)

    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise UserError(f"{path} cannot be read: its suffix must be one of {', '.join(SUFFIXES)}.")
    with _reading(path):
        path.open("rb").close()  # a missing file is not reported as damaged
        if kind == ".npz":
            features, ids = _load_arrays(path, lambda names: ["features", _first_of(names, ("ids", "id")) or "ids"])
        elif kind == ".parquet":
            features, ids, _ = read_parquet(path, choose, progress)
        else:
            features, ids, _, _ = _read_csv(path, choose, progress)
    table = _checked(path, features, ids, ids, lambda row: f"row {row}")
    return table.features, list(table.ids or ())


def first_not_finite(features: NDArray[Any]) -> int | None:
    """Return the first row of (n, d) that holds NaN or infinity, or None."""
    # in pieces: a mask of all entries would take a quarter of the memory of the features
    step = max(1, 2**22 // max(1, features.shape[1]))
    for start in range(0, len(features), step):
        finite = np.isfinite(features[start : start + step]).all(1)
        if not finite.all():
            return start + int(np.flatnonzero(~finite)[0])
    return None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of a missing, unreadable or binary file into a UserError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 (byte {error.start} of what was being read).") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read_npz(
    path: Path, features: str, labels: str | None, ids: str | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    def choose(names: Sequence[str]) -> list[str | None]:
        own_labels = labels or _first_of(names, ("labels", "label")) or "labels"
        return [features, own_labels, ids or _first_of(names, ("ids", "id"))]

    found = _load_arrays(path, choose)
    return found[0], found[1], found[2]


def _load_arrays(path: Path, choose: Callable[[Sequence[str]], Sequence[str | None]]) -> list[Any]:
    """Return the arrays of an npz file that `choose` picks from its names (None for None); never unpickled."""
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is truncated, damaged, or not an npz file.")
    what = str(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            known, found = ", ".join(arrays.files) or "none", list[Any]()
            for name in choose(arrays.files):
                if name is not None and name not in arrays:
                    raise UserError(f"{path} has no array {name!r}; its arrays are: {known}.")
                what = f"The array {name!r} in {path}"
                if name is not None:
                    _check_member(what, arrays, name, is_matrix=not found)
                array = None if name is None else arrays[name]
                if array is not None:
                    _check_dtype(what, array)
                found.append(array)
        return found
    except (UserError, OSError):
        raise
    except MemoryError as error:  # also a damaged header that states a huge shape
        raise UserError(f"{what} does not fit into memory: {str(error).rstrip('.') or 'it is too large'}.") from error
    except Exception as error:  # a damaged file can raise nearly anything; no foreign code has run
        if "Object arrays" in str(error):
            raise UserError(f"{what} holds Python objects, which are not unpickled: save numbers or text.") from None
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{what} is truncated or damaged: {reason}.") from error


def _check_member(what: str, arrays: Any, name: str, *, is_matrix: bool) -> None:
    """Raise UserError if an array of an npz file is too large, by its header; nothing is decoded yet."""
    archive: zipfile.ZipFile = arrays.zip
    member = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
    with archive.open(member) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UserError(f"{what} is truncated or damaged: it has no header.")  # numpy would return all its bytes
        file.seek(0)
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    if dtype.kind in "SU" and dtype.itemsize > MAX_NAME * (4 if dtype.kind == "U" else 1):
        n = dtype.itemsize // (4 if dtype.kind == "U" else 1)
        raise UserError(f"{what} holds text of up to {n:,} characters, more than {MAX_NAME:,}.")
    n_bytes = math.prod(shape) * dtype.itemsize
    check_contents(what, n_bytes)
    if is_matrix and shape:
        check_samples(what, shape[0], n_bytes)


def _check_dtype(what: str, array: NDArray[Any]) -> None:
    """Raise UserError unless an array of any shape holds numbers, dates or valid text."""
    if array.dtype.kind not in "biufcSUmM":
        raise UserError(f"{what} holds {array.dtype}: save numbers, text or dates.")
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:  # numpy would make strings that no Python program can handle
            raise UserError(f"{what} is damaged: its text holds characters that do not exist.")


def _read_csv(
    path: Path, choose: Callable[[list[str]], Columns], progress: Progress | None
) -> tuple[NDArray[np.float32], list[str], list[str] | None, NDArray[np.int64]]:
    """Return features, labels, ids, and the line on which each sample ends."""
    features: list[NDArray[np.float32]] = []
    labels: list[str] = []
    ids: list[str] = []
    lines: list[int] = []
    with open_csv(path) as table:
        rows = iter(table)
        header = [name.strip() for name in _good_row(path, next(rows, []))]
        columns = choose(header)
        place = {name: i for i, name in enumerate(header)}
        places = [place[name] for name in columns.features]
        adjacent = places == list(range(places[0], places[-1] + 1))
        whole = slice(places[0], places[-1] + 1) if adjacent else None  # twice as fast
        label, name = place[columns.labels], place[columns.ids] if columns.ids else None
        for batch, own_lines in _batches(path, table, rows, len(header)):
            cells = [row[whole] for row in batch] if whole else [[row[i] for i in places] for row in batch]
            features.append(_numbers(path, cells, own_lines, columns.features))
            labels += [row[label] for row in batch]
            ids += [row[name] for row in batch] if name is not None else []
            lines += own_lines
            if progress:
                progress(path.name, table.done, table.size)
    found = np.concatenate(features) if features else np.empty((0, len(places)), np.float32)
    return found, labels, ids if name is not None else None, np.array(lines)


def _batches(
    path: Path, table: CsvRows, rows: Iterator[list[str] | BadRow], width: int
) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Yield rows of `width` cells, some at a time, with the line on which each ends; blank lines are skipped."""
    most = max(1, min(_LINES, _CELLS // width))
    batch: list[list[str]] = []
    lines: list[int] = []
    for found in rows:
        row = _good_row(path, found)
        if len(row) != width:
            if not row:
                continue
            raise UserError(f"Line {table.line} of {path} has {len(row)} cells, but the header {width}.")
        batch.append(row)
        lines.append(table.line)
        if len(batch) == most:
            yield batch, lines
            batch, lines = [], []
    if batch:
        yield batch, lines


def _good_row(path: Path, row: list[str] | BadRow) -> list[str]:
    if isinstance(row, BadRow):
        raise UserError(f"Line {row.first} of {path} cannot be read: {row.reason}.")
    return row


def _numbers(path: Path, cells: list[list[str]], lines: list[int], names: Sequence[str]) -> NDArray[np.float32]:
    """Return cells (n, d) as numbers; UserError names line and column of the first cell that is not a number."""
    try:
        text = "".join(map("".join, cells))
        if "_" in text or not text.isascii():  # Python reads 1_000 and digits of other scripts as numbers
            raise ValueError
        values = np.array(cells, dtype=np.float64).reshape(len(cells), len(names))
    except ValueError:
        for line, row in zip(lines, cells, strict=True):
            for name, cell in zip(names, row, strict=True):
                if not _is_number(cell):
                    where = f"Line {line} of {path}, column {name!r}"
                    raise UserError(f"{where}: {cell[:80]!r} is not a number: {OTHER_COLUMNS}.") from None
        raise
    with np.errstate(over="ignore"):  # infinity is reported later
        return values.astype(np.float32)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell


def _columns(path: Path, names: list[str], features: str, labels: str | None, ids: str | None) -> Columns:
    """Return the columns of features, labels and ids of a table."""
    known_names = set[str]()
    for own in names:
        if own in known_names:
            raise UserError(f"{path} has two columns named {own!r}.")
        known_names.add(own)
    known = _listed(names)
    for (one, many), chosen_name, option in ((("label", "labels"), labels, "--labels"), (("id", "ids"), ids, "--ids")):
        if chosen_name is None and one in known_names and many in known_names:
            raise UserError(f"{path} has columns {one!r} and {many!r}: choose one of them with {option}.")
    own_label, own_id = labels or _first_of(names, ("label", "labels")), ids or _first_of(names, ("id", "ids"))
    for name, option in ((own_label or "label", "--labels"), (own_id, "--ids")):
        if name is not None and name not in known_names:
            raise UserError(f"{path} has no column {name!r} ({option}); its columns are: {known}.")
    free = [name for name in names if name not in (own_label, own_id)]
    own_names, chosen = set(free), set[str]()
    for entry in (part.strip() for part in features.split(",")):
        found = {entry} & own_names
        if any(sign in entry for sign in "*?["):
            found |= {name for name in free if fnmatchcase(name, entry)}
        if entry and not found:
            why = "that is the label or id" if entry in known_names else f"its columns are: {known}"
            raise UserError(f"{path} has no columns of features (--columns {entry!r}); {why}.")
        chosen |= found
    if not chosen:
        raise UserError(f"{path} has no columns of features (--columns {features!r}); its columns are: {known}.")
    return Columns([name for name in free if name in chosen], own_label or "label", own_id)


def _listed(names: Sequence[str]) -> str:
    """Return names as text; a run of numbered ones, such as f0 to f63, as its first and last."""
    parts = []
    for _, group in groupby(names, key=lambda name: (name.rstrip("0123456789"), name[-1:].isdigit())):
        run = list(group)
        is_run = len(run) >= _RUN and run[0][-1:].isdigit()
        parts += [f"{run[0]} … {run[-1]} ({len(run):,} columns)"] if is_run else run
    return ", ".join(parts[:20]) + (", …" if len(parts) > 20 else "")


def _first_of(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _checked(path: Path, features: NDArray[Any], labels: Any, ids: Any, place: Callable[[int], str]) -> FeatureTable:
    """Return the table, or raise UserError; `place` returns the position of a row in the file."""
    if features.dtype.kind == "f" and features.dtype.itemsize > 8:  # the filter computes in float64
        with np.errstate(over="ignore"):  # infinity is reported below
            features = features.astype(np.float64)
    n = len(features) if features.ndim else 0
    _check_matrix(path, features, None)
    for what, column in (("labels", labels), ("ids", ids)):
        shape = np.shape(column) if isinstance(column, np.ndarray) else (n if column is None else len(column),)
        if shape != (n,):
            raise UserError(f"The {what} in {path} have shape {shape}, but {n} samples need ({n},).")
    _check_matrix(path, features, place)
    names = None if ids is None else _normalised(path, "id", ids, place)
    if names is not None and len(set(names)) < n:
        seen: dict[Hashable, int] = {}
        for row, name in enumerate(names):
            if name in seen:
                raise UserError(f"The id {name!r} is on {place(seen[name])} and on {place(row)} of {path}.")
            seen[name] = row
    normalised = np.empty(n, dtype=object)
    normalised[:] = _normalised(path, "label", labels, place)
    return FeatureTable(features, normalised, names)


def _check_matrix(path: Path, features: NDArray[Any], place: Callable[[int], str] | None) -> None:
    """Raise UserError unless the features are a matrix of numbers and, if `place` is given, finite."""
    if features.ndim and not len(features):
        raise UserError(f"{path} holds no rows.")
    if features.ndim != 2 or features.dtype.kind not in "fiub" or 0 in features.shape:
        kind = f"{features.dtype} of shape {features.shape}"
        raise UserError(f"The features in {path} are {kind}, but must be (n, d) real numbers with n, d ≥ 1.")
    if place is not None and (row := first_not_finite(features)) is not None:
        raise UserError(f"The features on {place(row)} of {path} hold NaN or infinity.")


def _normalised(path: Path, what: str, values: Any, place: Callable[[int], str]) -> list[Hashable]:
    """Return values in the form common to all kinds of files; UserError if one is missing."""
    known: dict[Hashable, Hashable] = {}
    normalised: list[Hashable] = []
    for row, value in enumerate(_python_values(values) if isinstance(values, np.ndarray) else values):
        if not isinstance(value, Hashable):
            raise UserError(f"The {what} on {place(row)} of {path} is neither a name nor a number.")
        if value not in known:
            try:
                known[value] = _name(value)
            except UnicodeError:
                raise UserError(f"The {what} on {place(row)} of {path} is not valid Unicode text.") from None
            except OverflowError:
                raise UserError(
                    f"The {what} on {place(row)} of {path} is a date or time that Python cannot represent: "
                    "save it as text."
                ) from None
            if isinstance(own := known[value], str) and len(own) > MAX_NAME:
                raise UserError(
                    f"The {what} on {place(row)} of {path} has {len(own):,} characters, more than {MAX_NAME:,}."
                )
        if known[value] is None:
            raise UserError(f"The {what} on {place(row)} of {path} is missing or empty.")
        normalised.append(known[value])
    return normalised


def _name(value: Any) -> Hashable:
    """Return the normal form of a label or id; None if it is missing."""
    value = plain_value(value)
    if is_missing(value):
        return None
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        value.encode()  # UnicodeError for half of a surrogate pair, which no output file could hold
        value = value.strip()
        return int(value) if _WHOLE.fullmatch(value) else value or None
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, np.datetime64 | np.timedelta64):
        raise OverflowError
    return value if isinstance(value, int) else str(value)


def _python_values(array: NDArray[Any]) -> list[Any]:
    """Return an array's values as Python's; dates and times in nanoseconds are dates and times in microseconds."""
    if array.dtype.kind not in "mM":
        return list(array.tolist())
    unit, _ = np.datetime_data(array.dtype)
    if unit == "generic":  # a number without a unit
        return list(array.astype(np.int64).tolist())
    if unit in ("ns", "ps", "fs", "as"):
        rounded = array.astype(f"{array.dtype.kind}8[us]")
        exact = (rounded.astype(array.dtype) == array) | np.isnat(array)
        array = rounded if exact.all() else array
    return list(array)
