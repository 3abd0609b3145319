"""Readers of the official file formats: from a path to arrays, with errors that name the file.

IDX (MNIST), CIFAR's pickles, and CIFAR-N's label files. Pickles can run code when opened, so they are read by an
unpickler that accepts only NumPy arrays and plain containers, and refuses every other name.
"""

import gzip
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


def read_idx(path: Path, *, n_dims: int) -> Images:
    """Return the uint8 array of `n_dims` dimensions in an IDX file, gzipped or not."""
    content = _read(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
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


def read_cifar(path: Path, *label_keys: str) -> tuple[Images, tuple[Labels, ...]]:
    """Return images (n, 3, 32, 32) of a pickled CIFAR batch, and its labels (n,) under each of `label_keys`."""
    content = read_pickle(path)
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


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of arrays and plain containers; anything else is refused, not run."""
    try:
        content = _ArrayUnpickler(path).load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything; no foreign code has run
        raise UserError(f"{path} is truncated or damaged: {error}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a dictionary.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def read_label_sets(path: Path) -> dict[str, Labels]:
    """Return CIFAR-N's label sets by name, from a pickle-free .npz or the authors' .pt file."""
    try:
        content = _read_torch(path) if path.suffix == ".pt" else _read_npz(path)
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


def _read_npz(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(_read(path))):  # a clear error if it is not a zip file, before NumPy guesses
        pass
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _read_torch(path: Path) -> dict[str, Any]:
    """Read a dictionary of NumPy arrays saved by torch, without running code."""
    import torch

    rebuild, dtypes = _rebuild(), [type(np.dtype(code)) for code in ("i1", "i2", "i4", "i8", "u1")]
    allowed: list[Any] = [np.ndarray, np.dtype, *dtypes]
    allowed += [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    with torch.serialization.safe_globals(allowed):
        content = torch.load(io.BytesIO(_read(path)), map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a dictionary.")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _rebuild() -> Any:
    """Return NumPy's function that creates the empty array of a pickle; its module differs between versions."""
    return np.empty(0).__reduce__()[0]


def _latin1(text: str, codec: str) -> bytes:
    """Replace `_codecs.encode` in pickles that Python 3 wrote for Python 2; no other codec is accepted."""
    if codec not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {codec!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler that accepts nothing but NumPy arrays and plain containers."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(_read(path)), encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): _rebuild(),
            ("numpy._core.multiarray", "_reconstruct"): _rebuild(),
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in known:
            raise UserError(f"{self._path} was refused: it refers to {module}.{name}, which is not part of image data.")
        return known[module, name]
