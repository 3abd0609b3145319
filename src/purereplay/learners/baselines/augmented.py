"""Weak and strong views of images in supervised steps, for PuriDivER and CNLL.

Their authors crop and mirror images (weak), and apply AutoAugment as well (strong). Here both are the random views that
SPR uses (`nets/views.py`): a weak view crops little and does not change colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purereplay.learners.settings import DataFacts, Settings, setting
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.technique import Step
from purereplay.nets.views import Views, make_views

_WEAK_AREA = 0.8  # smallest share of an image's area in a weak view


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Settings):
    """Settings of the views."""

    crop_area: float = setting(
        "smallest share of an image's area that a strong view keeps",
        0.7,
        source="not in the papers; chosen on validation data of digits",
        least=1e-6,
        most=1,
    )
    flip: float = setting(
        "probability that a view is mirrored", by_data="0 for grey images, 0.5 for colour", least=0, most=1
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"flip": 0.0 if facts.image_shape[0] == 1 else 0.5} | super().fill(chosen, facts, preset)


class ViewKinds(NamedTuple):
    """The two kinds of views."""

    weak: Views
    strong: Views


def view_kinds(s: ViewSettings, image_shape: tuple[int, int, int]) -> ViewKinds:
    """Return the views that the settings describe; strong views of colour images change colours as SPR's do."""
    jitter = (0.5, 0.5, 0.5, 0.2) if image_shape[0] == 3 else None
    weak = Views(area=(max(_WEAK_AREA, s.crop_area), 1.0), flip=s.flip)
    return ViewKinds(weak, Views(area=(s.crop_area, 1.0), flip=s.flip, jitter=jitter))


def views_of(step: Step, images: Tensor, kinds: tuple[Views, ...]) -> list[Tensor]:
    """Return one view of each kind of images float (K, B, C, H, W), by the step's own random numbers."""
    k, b = images.shape[:2]
    n_numbers = sum(kind.n_numbers for kind in kinds)
    u = uniforms_per_key(step.keys, step.number, b * n_numbers, stream=RandomStream.STEP_VIEWS).view(k * b, -1)
    numbers = torch.split(u, [kind.n_numbers for kind in kinds], dim=1)
    flat = images.flatten(0, 1)
    with torch.no_grad():
        return [make_views(flat, own, kind).view(images.shape) for own, kind in zip(numbers, kinds, strict=True)]
