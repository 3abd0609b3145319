"""Every kind of image is converted as documented, or refused with a reason."""

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile
from PIL.PngImagePlugin import PngInfo

from purereplay.data.encoders.pictures import plain
from purereplay.live import images
from purereplay.live.images import look_at, read_pixels
from purereplay.live.items import Refused

GREY = np.arange(0, 240, 8, dtype=np.uint8).reshape(5, 6)
COLOUR = np.stack([GREY, GREY[::-1], 255 - GREY], axis=2)


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def read(content: bytes, **wanted: object) -> np.ndarray:
    return read_pixels(content, **({"size": None, "channels": None, "shape": None} | wanted))


def huge_png(width: int, height: int) -> bytes:
    """A PNG whose header states this size, with almost no data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


def enlarged(form: str, width: int, height: int) -> bytes:
    """An image whose header states this size, with almost no data."""
    if form == "PNG":
        return huge_png(width, height)
    content = encoded(Image.fromarray(COLOUR), form)
    if form == "JPEG":
        at = content.index(b"\xff\xc0") + 5
        size = struct.pack(">HH", height, width)
    elif form == "WEBP":  # VP8: two bytes each, behind the start code
        at = content.index(b"\x9d\x01\x2a") + 3
        size = struct.pack("<HH", width, height)
    else:
        at, kind = (18, "<ii") if form == "BMP" else (6, "<HH")
        size = struct.pack(kind, width, height)
    return content[:at] + size + content[at + len(size) :]


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP"])
def test_grey_and_colour_pixels_are_unchanged(form):
    options = {"lossless": True} if form == "WEBP" else {}
    if form != "WEBP":  # which has no grey
        found = read(encoded(Image.fromarray(GREY), form))
        assert np.array_equal(found if found.shape[0] == 1 else found[:1], GREY[None])
    if form != "GIF":  # which has palettes only
        assert np.array_equal(read(encoded(Image.fromarray(COLOUR), form, **options)), COLOUR.transpose(2, 0, 1))


def test_a_jpeg_is_nearly_unchanged():
    found = read(encoded(Image.fromarray(GREY), "JPEG", quality=95))
    assert found.shape == (1, 5, 6) and np.abs(found[0].astype(int) - GREY).max() < 12


def test_one_bit_is_black_and_white():
    bits = GREY > 100
    assert np.array_equal(read(encoded(Image.fromarray(bits)))[0], 255 * bits.astype(np.uint8))


def test_a_palette_is_applied():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert read(encoded(image))[:, 0].T.tolist() == [[10, 20, 30], [200, 100, 50]]
    assert read(encoded(image, transparency=0))[:, 0].T.tolist() == [[255, 255, 255], [200, 100, 50]]


def test_sixteen_bits_are_reduced_to_the_higher_eight():
    deep = (GREY.astype(np.uint16) << 8) + 77
    assert np.array_equal(read(encoded(Image.fromarray(deep)))[0], GREY)


def test_transparent_pixels_are_white():
    alpha = np.where(GREY > 100, 255, 0).astype(np.uint8)
    expected = np.where(GREY > 100, GREY, 255)
    found = read(encoded(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)])))
    assert found.shape == (1, 5, 6) and np.array_equal(found[0], expected)
    found = read(encoded(Image.fromarray(np.dstack([COLOUR, alpha]))))
    assert np.array_equal(found, np.where(alpha > 0, COLOUR.transpose(2, 0, 1), 255))
    half = read(encoded(Image.fromarray(np.full((1, 1, 4), [0, 0, 0, 128], np.uint8))))
    assert half.ravel().tolist() == [127, 127, 127]


def test_cmyk_is_converted():
    inks = Image.fromarray(np.full((4, 4, 4), [255, 0, 0, 0], np.uint8), "CMYK")  # cyan
    red, green, blue = read(encoded(inks, "JPEG", quality=95)).reshape(3, -1).mean(1)
    assert red < 20 and green > 235 and blue > 235


def test_the_camera_s_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    found = read(encoded(Image.fromarray(COLOUR), "PNG", exif=exif))
    assert np.array_equal(found, np.rot90(COLOUR, -1).transpose(2, 0, 1))


def test_size_and_channels_convert_images():
    assert read(encoded(Image.fromarray(COLOUR)), size=4).shape == (3, 4, 4)
    assert read(encoded(Image.fromarray(COLOUR)), channels=1).shape == (1, 5, 6)
    assert np.array_equal(read(encoded(Image.fromarray(GREY)), channels=3), np.stack([GREY] * 3))
    assert np.array_equal(read(encoded(Image.fromarray(GREY)), shape=(3, 5, 6)), np.stack([GREY] * 3))


def test_other_shapes_are_refused():
    with pytest.raises(Refused, match="a grey image of 6×5, but the images here are a grey image of 6×6"):
        read(encoded(Image.fromarray(GREY)), shape=(1, 6, 6))
    with pytest.raises(Refused, match="a colour image of 6×5, but the images here are a grey image"):
        read(encoded(Image.fromarray(COLOUR)), shape=(1, 5, 6))


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_animations_are_refused(form):
    frames = [Image.fromarray(np.roll(COLOUR, i, 1)) for i in range(3)]
    with pytest.raises(Refused, match="animation"):
        read(encoded(frames[0], form, save_all=True, append_images=frames[1:]))


@pytest.mark.parametrize(("size", "left", "top"), [((20, 10), 0, 5), ((10, 20), 5, 0), ((5, 5), 0, 0)])
def test_a_resized_image_keeps_its_aspect_and_repeats_its_edges(size, left, top):
    dice = np.random.default_rng(0)
    picture = Image.fromarray(dice.integers(0, 256, (size[1], size[0], 3)).astype(np.uint8))
    found = read(encoded(picture), shape=(3, 20, 20), fit="pad")
    inner = np.asarray(picture.resize((20 - 2 * left, 20 - 2 * top), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(found[:, top : 20 - top, left : 20 - left], inner)
    assert (found[:, :top] == found[:, top : top + 1]).all() and (
        found[:, :, :left] == found[:, :, left : left + 1]
    ).all()
    assert (found[:, 20 - top :] == found[:, 19 - top : 20 - top]).all()
    assert read(encoded(Image.fromarray(GREY)), shape=(3, 20, 20), fit="pad").shape == (3, 20, 20)
    assert read(encoded(Image.fromarray(COLOUR)), shape=(1, 4, 9), fit="pad").shape == (1, 4, 9)


def test_a_large_jpeg_is_nearly_the_same_if_it_is_decoded_smaller(monkeypatch):
    smooth = Image.fromarray(GREY).resize((1000, 800), Image.Resampling.BICUBIC)
    content = encoded(smooth, "JPEG", quality=95)
    decoded = []
    plain = images.plain
    monkeypatch.setattr(images, "plain", lambda image: decoded.append(image.size) or plain(image))
    found = read(content, shape=(1, 24, 30), fit="pad")
    expected = np.asarray(smooth.resize((30, 24), Image.Resampling.BILINEAR))
    assert decoded == [(125, 100)] and np.abs(found[0].astype(int) - expected).max() < 12


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_look_at_the_header_finds_the_size_as_shown(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(Image.fromarray(COLOUR), "JPEG", exif=exif)
    look = look_at(content)
    assert look.colour and (3, look.height, look.width) == read(content).shape
    assert look_at(encoded(Image.fromarray(GREY))) == (6, 5, False)
    with pytest.raises(Refused, match="is not an image"):
        look_at(b"hello")


def test_a_look_at_the_header_decodes_no_pixels(monkeypatch):
    """Also of a PNG without orientation, or with one in XMP."""
    xmp = PngInfo()
    xmp.add_itxt("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>')
    contents = {form: encoded(Image.fromarray(COLOUR), form) for form in ("PNG", "JPEG", "BMP", "GIF", "WEBP")}
    turned = encoded(Image.fromarray(GREY), pnginfo=xmp)

    def load(*values):
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    for form, content in contents.items():
        assert look_at(content) == (6, 5, True), form
    assert look_at(turned) == (5, 6, False)


@pytest.mark.parametrize("size", [(40_000, 40_000), (16_000, 15_000), (9_000, 8_000)])
def test_too_many_pixels_are_refused_before_they_are_decoded(size, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    for form in ("PNG", "JPEG", "BMP", "GIF", "WEBP"):
        if form == "WEBP" and max(size) > 16_383:
            continue  # the largest that the format can state
        with pytest.raises(Refused) as reason:
            look_at(enlarged(form, *size))
        sizes = f"{size[0]:,} × {size[1]:,}", f"{size[0] * size[1]:,}"
        assert str(reason.value) in {f"has {own} pixels, more than 50,000,000" for own in sizes}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"hello", "is not an image"),
        (b"\x89PNG\r\n\x1a\n", "is not an image|is damaged"),
        (encoded(Image.fromarray(COLOUR), "JPEG")[:-40], "is damaged"),
        (encoded(Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 20), np.uint8)))[:-60], "is damaged"),
        (encoded(Image.fromarray(COLOUR), "TIFF"), "is not an image in PNG"),
        (huge_png(300, 300), "is damaged"),
    ],
    ids=["empty", "text", "signature", "cut JPEG", "cut PNG", "TIFF", "missing rows"],
)
def test_files_that_are_not_images_are_refused_with_a_reason(content, reason):
    with pytest.raises(Refused, match=reason):
        read(content)


def test_damaged_bytes_are_refused_or_decoded():
    """Any damaged byte gives pixels of some shape, or a reason."""
    exif = Image.Exif()
    exif[0x0112] = 3
    text = PngInfo()
    text.add_text("comment", "x" * 20)
    originals = [
        encoded(Image.fromarray(COLOUR), "PNG", exif=exif, pnginfo=text),
        encoded(Image.fromarray(GREY), "GIF"),
    ]
    originals += [encoded(Image.fromarray(COLOUR), "JPEG", exif=exif), encoded(Image.fromarray(COLOUR), "WEBP")]
    dice = np.random.default_rng(0)
    refused = 0
    for original in originals:
        for _ in range(100):
            content = bytearray(original)
            content[dice.integers(len(content))] = dice.integers(256)
            try:
                assert read(bytes(content)).dtype == np.uint8
            except Refused:
                refused += 1
    assert 20 < refused < 400


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(Refused, match="cannot be read: No such file"):
        read(tmp_path / "nowhere.png")
    with pytest.raises(Refused, match="is not a file"):
        read(tmp_path)
    (tmp_path / "large.png").write_bytes(bytes(100))
    monkeypatch.setattr(images, "MAX_BYTES", 99)
    with pytest.raises(Refused, match="has 100 bytes, more than 99"):
        read(tmp_path / "large.png")


LARGE = {"RGBA": "RGBA", "grey with 16 bits": "I;16", "grey and alpha": "LA"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count memory in other units")
@pytest.mark.parametrize("mode", LARGE.values(), ids=LARGE.keys())
def test_converting_a_large_image_takes_little_memory(mode):
    """A process of its own converts 25 million pixels; they take 100 megabytes as colour."""
    code = f"""
import resource, sys
from PIL import Image
from purereplay.data.encoders.pictures import plain
image = Image.new({mode!r}, (5000, 5000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plain(image)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(made.stdout) < 180


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_transparency_in_rows_is_that_of_the_whole_image(mode):
    dice = np.random.default_rng(0)
    shape = {"RGBA": (600, 7, 4), "LA": (600, 7, 2), "RGB": (600, 7, 3)}.get(mode, (600, 7))
    array = dice.integers(0, 256, shape, dtype=np.uint8)
    image = Image.fromarray(array) if mode != "P" else Image.fromarray(array).convert("P")
    assert image.mode == mode
    if mode in "PL":
        image.info["transparency"] = 40
    if mode == "RGB":
        image.info["transparency"] = tuple(array[300, 3].tolist())
    grey = mode in ("L", "LA")
    layer = image.convert("RGBA")
    whole = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("L" if grey else "RGB")
    assert plain(image).mode == whole.mode
    np.testing.assert_array_equal(np.asarray(plain(image)), np.asarray(whole))
