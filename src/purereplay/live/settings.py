"""What a state was begun with: fixed then, saved in it, and compared with what is asked for later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from purereplay.errors import UserError
from purereplay.learners.build import make_backbone
from purereplay.learners.options import from_json, parse
from purereplay.learners.settings import RANGES, SprSettings, for_dataset, preset_settings
from purereplay.live.images import Shape

MAX_SIZE = 1024  # pixels


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What somebody asks for; None: what the state has, or the default in a new one."""

    preset: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    size: int | None = None
    channels: int | None = None


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """What makes the learner of a state what it is, together with the samples."""

    preset: str
    seed: int
    size: int | None  # images are stretched to size × size; None: they come as the first one
    channels: int | None  # images are made grey (1) or colour (3); None: they come as the first one
    shape: Shape | None  # of the images; None: none came yet
    options: SprSettings  # what depends on the images is filled in when their shape is known


def new_settings(wanted: Wanted) -> StateSettings:
    """The settings of a new state."""
    preset = wanted.preset or "daily"
    options = preset_settings(preset, wanted.overrides)
    if options.filter == "none":
        raise UserError("The setting filter=none judges nothing: a state needs the filter.")
    if options.self_replay == "task-end":
        raise UserError("The setting self_replay=task-end waits for the ends of tasks, which a state never hears of.")
    if wanted.size is not None and not 1 <= wanted.size <= MAX_SIZE:
        raise UserError(f"The size must be between 1 and {MAX_SIZE} pixels, not {wanted.size}.")
    if wanted.channels not in (None, 1, 3):
        raise UserError(f"The channels must be 1 (grey) or 3 (colour), not {wanted.channels}.")
    seed = 1 if wanted.seed is None else wanted.seed
    return StateSettings(
        preset=preset, seed=seed, size=wanted.size, channels=wanted.channels, shape=None, options=options
    )


def check_same(have: StateSettings, wanted: Wanted, state: Path) -> None:
    """Complain of anything that is asked for and is not what the state was begun with."""
    asked = {"preset": wanted.preset, "seed": wanted.seed, "size": wanted.size, "channels": wanted.channels}
    pairs = [(name, value, getattr(have, name)) for name, value in asked.items() if value is not None]
    parsed = {name: parse(SprSettings, name, text) for name, text in wanted.overrides.items()}
    pairs += [(name, value, getattr(have.options, name)) for name, value in parsed.items()]
    for name, value, fixed in pairs:
        if value != fixed:
            raise UserError(f"{state} was begun with {name} {fixed}, not {value}: choose another --state.")


def with_shape(settings: StateSettings, shape: Shape) -> StateSettings:
    """The settings once the first image has come; UserError where no network takes such images."""
    options = for_dataset(settings.options, "", shape, settings.preset)
    make_backbone(options, shape)
    return replace(settings, shape=shape, options=options)


def to_text(settings: StateSettings) -> str:
    return json.dumps(asdict(settings))


def from_text(text: str) -> StateSettings:
    """Settings as they were saved; an option that came later has its default."""
    values = json.loads(text)
    options = from_json(SprSettings, asdict(SprSettings()) | values.pop("options"), RANGES)
    shape = values.pop("shape")
    return StateSettings(**values, shape=None if shape is None else tuple(shape), options=options)
