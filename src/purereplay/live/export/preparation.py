"""Input of an exported classifier, described for its card: images of one shape, or features of an encoder.

In: the settings of a state. Out: sentences without text of the user's, and rows of a table that may have some. Pixels
are described as `data/encoders/pictures.py` makes them, and features as the encoders of `data/encoders` do.
"""

from __future__ import annotations

from purereplay.data.encoders import EncoderFacts
from purereplay.data.encoders.options import Named, Normal, parse_name
from purereplay.live.settings import StateSettings

_BILINEAR = """bilinear interpolation (`Image.Resampling.BILINEAR` of Pillow, which averages when it shrinks;
another interpolation changes the probabilities)"""
_SOURCES = {"python": "module and function", "timm": "model", "hf": "model"}  # of the other kinds: file


def image_words(settings: StateSettings) -> str:
    """Return how an image file becomes the input of a classifier of pixels."""
    channels, height, width = settings.shape
    if settings.fit == "pad":
        return _image_words("An image", channels, height, width)
    other = (
        "Images of another size were refused."
        if settings.size is None
        else f"Other sizes were stretched to it by {_BILINEAR}."
    )
    return f"An image is {_colour(channels)}, {width} × {height} pixels. {other}"


def encoder_words(facts: EncoderFacts) -> str:
    """Return how an image file becomes the features that a classifier takes."""
    named = parse_name(facts.name)
    about = f"""The input is not an image, but its features: {facts.dim:,} numbers, float32. They come from the encoder
below, which is not part of the file."""
    if named.kind == "file":
        return f"{about} They were computed elsewhere and read from a file of features."
    opened = f"`--encoder {named.kind}:{_source(named).replace(' and ', ':').upper()}`"
    options = ", with a question mark and the options behind it" if named.query else ""
    return f"""{about}

{_image_words("An image for the encoder", 3, facts.size, facts.size)}

{_values(named)}
An output (n, {facts.dim}, h, w) is averaged over its positions.

purereplay opens the encoder with {opened}{options}. The digest is that of
{_digested(named)} and of the options, as `open_encoder(…).digest` of `purereplay.data.encoders` returns it."""


def encoder_rows(facts: EncoderFacts) -> list[list[object]]:
    """Return what identifies an encoder, as rows of a table."""
    named = parse_name(facts.name)
    rows: list[list[object]] = [
        ["kind", named.kind],
        [_source(named), named.source],
        ["options", named.query or "none"],
        ["features", facts.dim],
    ]
    if named.kind == "file":
        return rows
    return [*rows, ["images", f"{facts.size} × {facts.size} pixels"], ["digest", facts.digest]]


def _source(named: Named) -> str:
    return _SOURCES.get(named.kind, "file")


def _digested(named: Named) -> str:
    return {"python": "the module's file", "timm": "the weights", "hf": "the weights"}.get(named.kind, "the file")


def _colour(channels: int) -> str:
    return "grey" if channels == 1 else "in colour"


def _image_words(subject: str, channels: int, height: int, width: int) -> str:
    return f"""{subject} is {_colour(channels)}, {width} × {height} pixels. The orientation in its EXIF data is applied
first, and transparent pixels are laid over white. Images of another size are resized with their
aspect kept, by {_BILINEAR}. Their edges are repeated to fill the rest."""


def _values(named: Named) -> str:
    """Return how pixels become the values that the network of an encoder gets."""
    normal, pixels = named.options.normal, "the pixels themselves, uint8 from 0 to 255"
    if named.kind == "python":
        return f"The function gets {pixels}: (n, 3, height, width)."
    if named.options.pixels:
        return f"The network gets {pixels}."
    if normal is None and named.kind in ("timm", "hf"):
        shift = "the model's own mean, divided by its own standard\ndeviation"
    else:
        found = normal or Normal()
        mean, std = (", ".join(f"{own:g}" for own in each) for each in (found.mean, found.std))
        shift = f"the mean ({mean}), divided by the standard\ndeviation ({std})"
    floats = f"pixels / 255, less {shift}, for red, green and blue"
    if named.kind == "onnx":
        return f"""If the input of the ONNX model is uint8, it gets the pixels themselves, from 0 to 255.
If it is of floats, it gets {floats}."""
    return f"The network gets {floats}."
