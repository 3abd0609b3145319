"""Readers of the official file formats: from a path to arrays, with errors that name the file.

IDX (MNIST), CIFAR's pickles, and CIFAR-N's label files. Pickles can run code when opened, so they are read by an
unpickler that accepts only NumPy arrays and plain containers, and refuses every other name. NumPy's own functions for
pickled arrays trust their arguments and can crash the process, so arrays are rebuilt here from checked parts. A file
whose official checksum is known must have it.
"""

import gzip
import hashlib
import io
import math
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purereplay.errors import UserError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
_LARGEST = 2**30  # bytes of an unpacked file
_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")  # of arrays in a pickle


def read_idx(path: Path, *, n_dims: int) -> Images:
    """Return the uint8 array of `n_dims` dimensions in an IDX file, gzipped or not."""
    content = _read(path)
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(_LARGEST)  # what a bomb holds beyond this does not fit its header
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path} is truncated or damaged: {error}.") from error
    header = 4 + 4 * n_dims
    if content[:4] != bytes((0, 0, 8, n_dims)):
        raise UserError(
            f"{path} is not an IDX file of bytes with {n_dims} dimensions (it starts with {content[:4]!r})."
        )
    if len(content) < header:
        raise UserError(f"{path} is truncated: its header has {len(content)} of {header} bytes.")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=n_dims, offset=4))
    if len(content) - header != math.prod(shape):
        found = len(content) - header
        raise UserError(f"{path} is truncated or damaged: it has {found} bytes of data, not {math.prod(shape)}.")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()


def read_cifar(path: Path, *label_keys: str, checksum: str | None = None) -> tuple[Images, tuple[Labels, ...]]:
    """Return images (n, 3, 32, 32) of a pickled CIFAR batch, and its labels (n,) under each of `label_keys`.

    `checksum` is "md5:…" or "sha256:…"; None: it is unknown.
    """
    content = read_pickle(path, checksum=checksum)
    for key in ("data", *label_keys):
        if key not in content:
            raise UserError(f"{path} is not a CIFAR batch: it has no {key!r}.")
    pixels = np.asarray(content["data"])
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise UserError(f"{path} is damaged: its images are {pixels.dtype} of shape {pixels.shape}.")
    return pixels.reshape(-1, 3, 32, 32), tuple(_labels(path, content[key], len(pixels)) for key in label_keys)


def _labels(path: Path, values: Any, n: int) -> Labels:
    plain = isinstance(values, list) and all(isinstance(value, int) for value in values)
    labels = np.asarray(values if plain or isinstance(values, np.ndarray) else ())
    if len(labels) == n == 0:
        return np.empty(0, dtype=np.int64)
    if labels.dtype.kind not in "iu" or labels.shape != (n,):
        raise UserError(f"{path} is damaged: it has {n} images but labels of shape {labels.shape}.")
    return labels.astype(np.int64)


def read_pickle(path: Path, *, checksum: str | None = None) -> dict[str, Any]:
    """Return the dictionary in a pickle of arrays and plain containers; anything else is refused, not run."""
    try:
        content = _unpickled(path, io.BytesIO(_read(path, checksum)))
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything; no foreign code has run
        raise UserError(f"{path} is truncated or damaged: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a dictionary.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def read_label_sets(path: Path, *, checksum: str | None = None) -> dict[str, Labels]:
    """Return CIFAR-N's label sets by name, from a pickle-free .npz or the authors' .pt file."""
    try:
        raw = _read(path, checksum)
        content = _read_torch(path, raw) if path.suffix == ".pt" else _read_npz(raw)
        sets = {str(name): np.asarray(labels) for name, labels in content.items()}
    except UserError:
        raise
    except Exception as error:  # as above: damaged files raise nearly anything, and no code in them is run
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UserError(f"{path} is damaged or is not a file of CIFAR-N labels: {reason}.") from error
    for name, labels in sets.items():
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise UserError(f"{path} is damaged: {name} is {labels.dtype} of shape {labels.shape}.")
    return {name: labels.astype(np.int64) for name, labels in sets.items()}


def _read_npz(content: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(content)):  # a clear error if it is not a zip file, before NumPy guesses
        pass
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _read_torch(path: Path, content: bytes) -> dict[str, Any]:
    """Read a dictionary of NumPy arrays saved by torch, without running code.

    torch pickles such a dictionary as it is: into the member data.pkl of a zip file, or, before version 1.6, after
    three pickles with its version and the sizes of numbers.
    """
    file = io.BytesIO(content)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as members:
            [name] = [name for name in members.namelist() if name.endswith("/data.pkl")]
            with members.open(name) as member:
                found = _unpickled(path, io.BytesIO(member.read(_LARGEST)))
    else:
        file.seek(0)
        *_, found = [_unpickled(path, file) for _ in range(4)]
    if not isinstance(found, dict):
        raise UserError(f"{path} does not hold a dictionary.")
    return found


def _read(path: Path, checksum: str | None = None) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    if checksum is not None:
        kind = checksum.partition(":")[0]
        found = f"{kind}:{hashlib.new(kind, content, usedforsecurity=False).hexdigest()}"
        if found != checksum:
            raise UserError(
                f"{path} is damaged or is not the official file: it has {found}, not {checksum}; delete it, "
                "and it is downloaded again."
            )
    return content


def _latin1(text: str, codec: str) -> bytes:
    """Replace `_codecs.encode` in pickles that Python 3 wrote for Python 2; no other codec is accepted."""
    if codec not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {codec!r}")
    return text.encode("latin1")


class _DType:
    """Stands for numpy.dtype within a pickle: numbers only."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if code not in _DTYPES:
            raise pickle.UnpicklingError(f"arrays of {code!r}")
        self.code, self.order = str(code), "="

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) == 8 else None
        if order not in ("<", ">", "|", "=") or state != (3, order, None, None, None, -1, -1, 0):
            raise pickle.UnpicklingError("a structured array")
        self.order = str(order)


class _NdArray:
    """Stands for numpy.ndarray within a pickle."""


class _Array:
    """Stands for an array within a pickle, until its contents are known."""

    def __init__(self, kind: object, shape: object, code: object) -> None:
        if kind is not _NdArray:
            raise pickle.UnpicklingError("an array of another class")
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("an array without its five parts")
        _, shape, dtype, fortran, content = state
        content = content.encode("latin1") if isinstance(content, str) else content
        sizes = isinstance(shape, tuple) and all(type(n) is int and 0 <= n < 2**31 for n in shape)
        if not sizes or not isinstance(dtype, _DType) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array of odd parts")
        kind = np.dtype(dtype.order.replace("|", "=") + dtype.code)
        if len(shape) > 8 or math.prod(shape) * kind.itemsize != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
        self.array = np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C").copy()


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _NdArray,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that accepts nothing but NumPy arrays and plain containers."""

    def __init__(self, path: Path, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise UserError(f"{self._path} was refused: it refers to {module}.{name}, which is not part of image data.")
        return _NAMES[module, name]


def _unpickled(path: Path, file: io.BytesIO) -> Any:
    """Return the next pickle in a file; a dictionary gets its arrays."""
    found = _ArrayUnpickler(path, file).load()
    if not isinstance(found, dict):
        return found
    return {key: value.array if isinstance(value, _Array) else value for key, value in found.items()}
