"""A report as one self-contained HTML file: its parts, all text escaped, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from purereplay.report.pictures import svg

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_THUMBNAIL = 64  # pixels


Progress = Callable[[str, int, int], None]  # part of a report, done, total


class Extent(NamedTuple):
    """Amount of content of a report."""

    n_images: int  # in each gallery
    n_fixed: int  # buffers with a fixed graph, the last ones; those of a run are scored again


class Tile(NamedTuple):
    """One image of a gallery."""

    pixels: NDArray[np.uint8]  # (C, H, W)
    label: str
    probability: float | str  # of being clean; or a text, such as "not judged"
    title: str = ""
    is_wrong: bool = False


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole file."""
    own = files("purereplay.report")
    style, script = ((own / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{text(title)}</title>\n<style>{style}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{text(title)}</h1>\n{''.join(parts)}\n</main>\n<script>{script}</script>\n"
        "</body>\n</html>\n"
    )


def text(value: object) -> str:
    """Return text for HTML."""
    return html.escape(str(value))


def _unbroken(words: str) -> str:
    """Return text for HTML in which no line ends between a number and its percent sign."""
    return text(words).replace(" %", "&nbsp;%")


def section(title: str, *parts: str) -> str:
    """Return a part with a heading."""
    return f"<section><h2>{text(title)}</h2>{''.join(parts)}</section>\n"


def paragraph(words: str, *, soft: bool = False) -> str:
    """Return a paragraph."""
    return f"<p{' class=soft' if soft else ''}>{_unbroken(words)}</p>"


def headline(numbers: Sequence[tuple[str, str, str]]) -> str:
    """Return the most important numbers: value, name and note."""
    cells = "".join(f"<div><b>{text(v)}</b>{text(name)}<br><span>{_unbroken(n)}</span></div>" for v, name, n in numbers)
    return f'<div class="headline">{cells}</div>'


def picture(figure: Figure, caption: str) -> str:
    """Return a picture with a caption, which also describes it for a screen reader."""
    drawn = svg(figure).replace('role="img"', f'role="img" aria-label="{text(caption)}"', 1)
    return f"<figure>{drawn}<figcaption>{text(caption)}</figcaption></figure>"


def row(*parts: str) -> str:
    """Return parts side by side."""
    return f'<div class="row">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()) -> str:
    """Return a table; `numbers` are the columns that are aligned to the right."""
    right = set(numbers)

    def cell(tag: str, i: int, value: object) -> str:
        return f"<{tag}{' class=n' if i in right else ''}>{text(value)}</{tag}>"

    heads = "".join(cell("th", i, name) for i, name in enumerate(head))
    lines = "".join(f"<tr>{''.join(cell('td', i, v) for i, v in enumerate(values))}</tr>" for values in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def details(summary: str, *parts: str) -> str:
    """Return parts that are folded away."""
    return f"<details><summary>{text(summary)}</summary>{''.join(parts)}</details>"


def gallery(tiles: Sequence[Tile]) -> str:
    """Return images with label and clean probability."""
    cells = []
    for tile in tiles:
        is_text = isinstance(tile.probability, str)
        chance = tile.probability if is_text else f"{tile.probability:.2f}"
        clean = f"{'' if is_text else 'clean with probability '}{chance}"
        alt = f"{tile.label}, {clean}{', wrong label' if tile.is_wrong else ''}"
        image = f'<img src="{data_address(tile.pixels)}" alt="{text(alt)}" title="{text(tile.title)}" loading="lazy">'
        note = f'<span class="label">{text(tile.label)}</span>{chance}'
        cells.append(f"<li{' class=wrong' if tile.is_wrong else ''}>{image}{note}</li>")
    return f'<ul class="gallery">{"".join(cells)}</ul>'


def data_address(pixels: NDArray[np.uint8]) -> str:
    """Return an image as an address that holds it: PNG, at most 64 pixels wide; JPEG if that is much smaller."""
    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    png, jpeg = io.BytesIO(), io.BytesIO()
    image.save(png, "png", optimize=True)
    image.save(jpeg, "jpeg", quality=85)
    kind, file = ("jpeg", jpeg) if 2 * jpeg.tell() < png.tell() else ("png", png)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def histograms(data: dict[str, Any]) -> str:
    """Return the choice of buffer and label, with two histograms; see report.js for the data."""
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    boxes = "".join(
        f'<figure><div id="histogram-{kind}" data-name="{name}" data-none="{none}"></div>'
        f"<figcaption>{name}</figcaption></figure>"
        for kind, name, none in (
            ("sampled", "As scored: mean over the sampled graphs", "too few samples"),
            ("fixed", "Fixed graph: all similarities, no sampling", "not computed for this buffer"),
        )
    )
    return (
        '<p><label>Buffer <select id="choose-buffer"></select></label>'
        '<label>Label <select id="choose-label"></select></label><span id="histogram-note" role="status"></span></p>'
        f"{row(boxes)}<noscript>The histograms need JavaScript.</noscript>"
        f'<script type="application/json" id="histograms">{content}</script>'
    )
