"""WebVision-14: the fourteen largest classes of WebVision's Google part (paper, section 5.1 and appendix).

In: the folder with `info/`, the listed images and `val_images/`. Out: uint8 images (n, 3, 84, 84) as a memory map, and
labels 0 … 13 in the paper's order of classes. The first use decodes all images into the cache, under a key made of the
file lists; later uses open that file. Images are resized to 84 × 84, bilinear, without cropping or keeping the aspect
ratio. The training labels are search results from the web: their truth is unknown.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from purereplay.data.catalogue import WEBVISION_CLASSES
from purereplay.data.files import disk_errors, move_into_place, wait_for_lock
from purereplay.data.progress import Progress
from purereplay.data.sources import cache_root
from purereplay.errors import UserError

SIZE = 84  # pixels
_FORMAT = "1"  # version of the decoded files; a change makes every cache decode again
_CHUNK = 256  # images between two reports of progress

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def load_part(root: Path, *, train: bool, progress: Progress | None = None) -> tuple[Images, Labels]:
    """Return images (memory-mapped, read-only) and labels of the training or the validation part."""
    listing = root / "info" / ("train_filelist_google.txt" if train else "val_filelist.txt")
    check_synsets(root / "info" / "synsets.txt")
    paths, labels = read_listing(listing, root if train else root / "val_images")
    key = hashlib.blake2b(f"{_FORMAT} {SIZE}".encode() + listing.read_bytes(), digest_size=8).hexdigest()
    cache = cache_root() / "webvision14"
    decoded = cache / f"{'train' if train else 'val'}-{SIZE}-{key}.npy"
    if not decoded.exists():
        with disk_errors(cache):
            cache.mkdir(parents=True, exist_ok=True)
        with wait_for_lock(cache / ".lock"):
            if not decoded.exists():
                _decode_all(paths, decoded, progress=progress)
    try:
        images = np.load(decoded, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{decoded} is damaged, delete it to decode the images again: {error}.") from error
    if images.shape != (len(labels), 3, SIZE, SIZE) or images.dtype != np.uint8:
        raise UserError(f"{decoded} is damaged, delete it to decode the images again.")
    return images, labels


def read_listing(listing: Path, folder: Path) -> tuple[list[Path], Labels]:
    """Return paths and labels (0 … 13) of the lines "path class" with one of the fourteen classes."""
    position = {class_id: number for number, class_id in enumerate(WEBVISION_CLASSES)}
    paths, labels = [], []
    for number, line in enumerate(_lines(listing), start=1):
        name, _, class_id = line.strip().rpartition(" ")
        if not name and not class_id:
            continue
        if not name or not class_id.isdigit():
            raise UserError(f"Line {number} of {listing} must be the path of an image and its class.")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"Line {number} of {listing} points outside the folder of the dataset.")
        if int(class_id) in position:
            paths.append(folder / name)
            labels.append(position[int(class_id)])
    if not paths:
        raise UserError(f"{listing} lists no image of the fourteen classes.")
    return paths, np.array(labels, dtype=np.int64)


def check_synsets(synsets: Path) -> None:
    """Raise UserError if the class ids have other meanings, as in WebVision 2.0."""
    lines = _lines(synsets)
    for class_id, word in WEBVISION_CLASSES.items():
        # a line is "n02747177 ashcan, trash can, …"; a line with the id alone is accepted
        _, _, names = lines[class_id].partition(" ") if class_id < len(lines) else ("", "", "no such line")
        if names and word.lower() not in names.lower():
            raise UserError(f"{synsets} is not WebVision 1.0's: class {class_id} should be {word!r}, not {names!r}.")


def decode(path: Path) -> Images:
    """Return one image as (3, 84, 84)."""
    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * SIZE, 2 * SIZE))  # a JPEG is decoded at the smallest scale that is still larger
            resized = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"The image {path} is missing or damaged: {str(error).rstrip('.')}.") from error
    return np.asarray(resized).transpose(2, 0, 1)


def _decode_all(paths: list[Path], decoded: Path, *, progress: Progress | None) -> None:
    """Decode on all cores into a file that gets its final name when it is complete.

    The pixels are written, not memory-mapped: on a full disk a write raises an error, a map would kill the process.
    """
    part = decoded.with_name(decoded.name + ".part")
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(paths), 3, SIZE, SIZE)}
    with disk_errors(part):
        part.unlink(missing_ok=True)  # of a killed process; the lock excludes a second writer
    with disk_errors(part), part.open("xb") as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(paths), _CHUNK):
            # Pillow releases the interpreter's lock, so threads are enough
            for pixels in pool.map(decode, paths[start : start + _CHUNK]):
                file.write(pixels.tobytes())
            if progress is not None:
                progress(decoded.stem, min(start + _CHUNK, len(paths)), len(paths))
    move_into_place(part, decoded)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
