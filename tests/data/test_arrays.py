"""Samples of every supported type, and errors that name the sample that cannot be read."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy import sparse

from purereplay.data.arrays import as_given, is_vectors, read_samples
from purereplay.errors import InputError, InputTypeError, UserError

GREY = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)
COLOUR = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)


def test_grey_images_of_every_kind_are_the_same():
    kinds = [
        GREY,
        GREY[..., None],
        list(GREY),
        torch.from_numpy(GREY),
        torch.from_numpy(GREY)[:, None],
        [torch.from_numpy(row) for row in GREY],
        [Image.fromarray(row) for row in GREY],
        GREY.astype(np.float32) / 255,
        GREY.astype(np.float64) / 255,
        torch.from_numpy(GREY) / 255,
        np.asfortranarray(GREY),
    ]
    for samples in kinds:
        read = read_samples(samples)
        assert read.dtype == torch.uint8 and read.shape == (2, 1, 4, 5) and read.is_contiguous()
        assert np.array_equal(read[:, 0].numpy(), GREY)
    assert np.array_equal(as_given(read_samples(GREY)), GREY)


def test_colour_is_last_in_arrays_and_first_in_tensors():
    first = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)
    for samples in (COLOUR, first, [Image.fromarray(row) for row in COLOUR], list(COLOUR), list(first)):
        read = read_samples(samples)
        assert read.shape == (2, 3, 4, 5) and torch.equal(read, first)
    assert np.array_equal(as_given(read_samples(COLOUR)), COLOUR)


def test_two_axes_are_feature_vectors_whatever_the_dtype():
    for samples in (np.eye(3), np.eye(3, dtype=np.uint8), torch.eye(3), np.eye(3).tolist(), np.eye(3).astype(object)):
        read = read_samples(samples)
        assert is_vectors(read) and read.dtype == torch.float64 and read.shape == (3, 3, 1, 1)
        assert np.array_equal(as_given(read), np.eye(3))
    half = read_samples(torch.eye(2, dtype=torch.bfloat16))
    assert torch.equal(half[:, :, 0, 0], torch.eye(2, dtype=torch.float64))


def test_what_is_read_is_a_copy():
    for samples in (GREY.copy(), np.eye(3), torch.eye(3, dtype=torch.float64), torch.from_numpy(GREY.copy())):
        read = read_samples(samples)
        before = read.clone()
        samples[:] = 0
        assert torch.equal(read, before)


def broken(row, value):
    images = GREY.astype(np.float64) / 255
    images[row, 2, 3] = value
    return images


BAD = {
    "nan": (broken(1, np.nan), "Sample 1 of X holds NaN"),
    "infinity": (broken(0, np.inf), "Sample 0 of X holds NaN or infinity"),
    "outside": (
        broken(1, 1.5),
        r"Sample 1 of X holds 1\.5: images of floats must lie in \[0, 1\]. Divide them by .*, or give uint8\.",
    ),
    "negative": (broken(1, -0.1), r"Sample 1 of X holds -0.1: .* Scale them, or give uint8"),
    "whole numbers": (GREY.astype(np.int64), r"uint8 or floats in .* not int64: use astype\(np.uint8\) for"),
    "truth values": (GREY > 9, "not bool: use .* or divide by the largest value"),
    "16 bits": (GREY.astype(np.uint16), "not uint16: use .* or divide by the largest value"),
    "channels first": (np.moveaxis(COLOUR, 3, 1), "5 channels"),
    "four channels": (np.zeros((1, 4, 4, 4), np.uint8), "4 channels"),
    "no pixels": (np.zeros((1, 0, 4), np.uint8), "images of 0×4"),
    "one axis": (np.zeros(4), "Reshape your data"),
    "five axes": (np.zeros((1, 1, 1, 1, 1)), "Reshape your data"),
    "a number": (3.0, "Reshape your data"),
    "names of files": (["a.png", "b.png"], r"open them, as in \[PIL\.Image\.open"),
    "complex": (np.eye(2) + 1j, "Complex data not supported"),
    "text": (np.array([["a", "b"]]), "must be numbers"),
    "vector with nan": (np.array([[0.0], [np.nan]]), "Sample 1 of X holds NaN"),
    "vector with infinity": (np.array([[np.inf], [0.0]]), "Sample 0 of X holds NaN, infinity"),
    "vector too large": (np.array([[0.0], [1e39]]), "Sample 1 of X holds NaN, infinity or a number beyond"),
    "no features": (np.zeros((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is required"),
    "rows of two lengths": ([[1.0, 2.0], [1.0]], r"Sample 1 of X has shape \(1,\), but the first one has \(2,\)"),
    "images of two sizes": ([GREY[0], GREY[0][1:]], r"Sample 1 of X has shape \(3, 5\)"),
    "a ragged image": ([[[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0]]], "Sample 0 of X has rows of different lengths"),
    "tensors of two sizes": ([torch.eye(2), torch.eye(3)], r"Sample 1 of X has shape \(3, 3\)"),
    "pictures of two sizes": ([Image.new("L", (2, 2)), Image.new("L", (2, 3))], "Sample 1 of X is L of 2×3"),
    "pictures of two modes": ([Image.new("L", (2, 2)), Image.new("RGB", (2, 2))], "Sample 1 of X is RGB"),
    "palette": ([Image.new("L", (2, 2)), Image.new("P", (2, 2))], r"Sample 1 of X has mode P: call convert"),
    "text among numbers": (np.array([[1.0, "x"]], object), "Sample 0 of X does not hold numbers"),
}
BAD_TYPES = {
    "sparse": (sparse.csr_array(np.eye(2)), "Sparse"),
    "an object": (np.array([[1.0], [{}]], object), "Sample 1 of X does not hold numbers: float.. argument must be"),
    "no picture": ([Image.new("L", (2, 2)), 3], "Sample 1 of X is a int"),
    "no tensor": ([torch.eye(2), 3], "Sample 1 of X is a int"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named(case):
    samples, words = BAD[case]
    with pytest.raises(InputError, match=words) as caught:
        read_samples(samples)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, UserError)


@pytest.mark.parametrize("case", BAD_TYPES)
def test_a_wrong_type_is_a_type_error(case):
    samples, words = BAD_TYPES[case]
    with pytest.raises(InputTypeError, match=words) as caught:
        read_samples(samples)
    assert isinstance(caught.value, TypeError)


def test_a_truncated_file_is_named(tmp_path):
    rng = np.random.default_rng(0)
    whole = Image.fromarray(rng.integers(0, 256, (40, 40), np.uint8))
    whole.save(tmp_path / "whole.png")
    content = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with Image.open(tmp_path / "whole.png") as good, Image.open(tmp_path / "cut.png") as bad:  # noqa: SIM117
        with pytest.raises(InputError, match="Sample 1 of X cannot be read"):
            read_samples([good, bad])


@given(hnp.arrays(np.float64, (3, 2, 2), elements=st.floats(0, 1)))
def test_floats_are_rounded_to_the_nearest_of_256(images):
    read = read_samples(images)[:, 0].numpy()
    assert np.abs(read / 255 - images).max() <= 0.5 / 255 + 1e-12
