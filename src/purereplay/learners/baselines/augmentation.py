"""Settings of the augmentation that some baselines train with, and the views that they describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from purereplay.learners.base import DataSpec
from purereplay.learners.settings import DataFacts, Settings, setting
from purereplay.nets.views import Views


@dataclass(frozen=True, kw_only=True)
class AugmentSettings(Settings):
    """Whether training images are augmented."""

    augment: bool = setting(
        "shift and flip the images of a step at random",
        by_data="true for colour images",
        source="the learner's own paper",
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"augment": facts.image_shape[0] == 3} | super().fill(chosen, facts, preset)


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Settings):
    """Random views: resized crops, flips and colour jitter."""

    crop_area: float = setting(
        "smallest share of the image that a view keeps", 0.2, source="Mai 2021, Michel 2024", most=1
    )
    flip: float = setting(
        "probability that a view is mirrored",
        by_data="0.5 for colour images, 0 for grey ones",
        source="Mai 2021, Michel 2024: 0.5",
        least=0,
        most=1,
    )

    @classmethod
    def fill(cls, chosen: dict[str, Any], facts: DataFacts, preset: str) -> dict[str, Any]:
        return {"flip": 0.5 if facts.image_shape[0] == 3 else 0.0} | super().fill(chosen, facts, preset)


def settings_views(s: ViewSettings, data: DataSpec) -> Views:
    """Return the views that the settings describe.

    The jitter is that of Mai et al. and Michel et al. They also turn a fifth of the views grey, which is left out.
    """
    jitter = (0.4, 0.4, 0.4, 0.1) if data.image_shape[0] == 3 else None
    return Views(area=(s.crop_area, 1.0), flip=s.flip, jitter=jitter, jitter_probability=0.8)
