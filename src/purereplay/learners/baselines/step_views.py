"""Weak and strong views of images in supervised steps, for PuriDivER and CNLL.

Their authors crop and mirror images (weak), and apply AutoAugment as well (strong). Here both are random views as other
baselines have them (`augmentation.py`): a weak one crops little and does not change colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.augmentation import ViewSettings, settings_views
from purereplay.learners.settings import setting
from purereplay.nets.draws import RandomStream, uniforms_per_key
from purereplay.nets.technique import Step
from purereplay.nets.views import Views, make_views

_WEAK_AREA = 0.8  # smallest share of an image's area in a weak view


@dataclass(frozen=True, kw_only=True)
class StrongViewSettings(ViewSettings):
    """Settings of the strong views; weak ones are mirrored as often."""

    crop_area: float = setting(
        "smallest share of the image that a strong view keeps",
        0.7,
        source="not in the papers; chosen on validation data of digits",
        most=1,
    )


class ViewKinds(NamedTuple):
    """The two kinds of views."""

    weak: Views
    strong: Views


def view_kinds(s: StrongViewSettings, data: DataSpec) -> ViewKinds:
    """Return the views that the settings describe."""
    return ViewKinds(Views(area=(max(_WEAK_AREA, s.crop_area), 1.0), flip=s.flip), settings_views(s, data))


def views_of(step: Step, images: Tensor, kinds: tuple[Views, ...]) -> list[Tensor]:
    """Return one view of each kind of images float (K, B, C, H, W), by the step's own random numbers."""
    k, b = images.shape[:2]
    n_numbers = sum(kind.n_numbers for kind in kinds)
    u = uniforms_per_key(step.keys, step.number, b * n_numbers, stream=RandomStream.STEP_VIEWS).view(k * b, -1)
    numbers = torch.split(u, [kind.n_numbers for kind in kinds], dim=1)
    flat = images.flatten(0, 1)
    with torch.no_grad():
        return [make_views(flat, own, kind).view(images.shape) for own, kind in zip(numbers, kinds, strict=True)]
