"""Settings of a state: fixed when the state is created, saved in it, and compared with later requests.

A state starts with `NewSettings`. Its first image fixes the image shape and turns them into `StateSettings`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from purereplay.data.encoders import NONE, CheckedEncoder, EncoderFacts, FeatureFile, open_encoder
from purereplay.data.encoders import check_same as check_same_encoder
from purereplay.data.memory import machine_memory
from purereplay.errors import UserError
from purereplay.learners import own_data
from purereplay.learners.networks import make_backbone
from purereplay.learners.renamed import upgrade, upgrade_preset
from purereplay.learners.settings import DataFacts, from_json, parse, resolve
from purereplay.learners.spr.settings import SprSettings
from purereplay.live.images import Fit, Shape
from purereplay.live.memory_settings import FULL_MEMORY, FullMemorySettings

FORMAT = 2  # of the saved text; version 0.1.0 wrote format 1, without this key
MAX_SIZE = 1024  # pixels
MAX_LR = 1.0
DEFAULT_LEARNER = FULL_MEMORY
Options = SprSettings | FullMemorySettings
_GREY, _COLOUR = (1, 1, 1), (3, 1, 1)  # image shapes that stand in for an unknown one


Opened = CheckedEncoder | FeatureFile


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options of `learn`; None: the value that the state has, or the default of a new state."""

    learner: str | None = None
    preset: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)  # settings of the learner as text, by name
    seed: int | None = None
    size: int | None = None
    channels: int | None = None
    encoder: Opened | Literal["none"] | None = None


@dataclass(frozen=True, kw_only=True)
class NewSettings:
    """Settings of a state before its first image."""

    learner: str
    preset: str
    seed: int
    size: int | None  # images are resized to size × size; None: to a size chosen by the first ones
    channels: int | None  # images are converted to grey (1) or colour (3); None: chosen by the first ones
    chosen: Mapping[str, Any]  # settings of the learner that the user chose, by name
    fit: Fit = "pad"  # see images.py
    encoder: EncoderFacts | None = None  # None: the pixels themselves are compared


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Settings of a state whose image shape is known; with the samples they determine its results."""

    learner: str
    preset: str
    seed: int
    size: int | None
    channels: int | None
    shape: Shape  # of all images
    options: Options
    fit: Fit = "pad"
    encoder: EncoderFacts | None = None

    @property
    def spr_options(self) -> SprSettings:
        """The settings of a learner with delayed buffers."""
        assert isinstance(self.options, SprSettings)
        return self.options

    @property
    def memory_options(self) -> FullMemorySettings:
        """The settings of `full-memory`."""
        assert isinstance(self.options, FullMemorySettings)
        return self.options


def new_settings(wanted: Wanted) -> NewSettings:
    """Return the settings of a new state; UserError if no state can have them."""
    if isinstance(wanted.encoder, CheckedEncoder):
        wanted.encoder.check_options()
    learner = wanted.learner or DEFAULT_LEARNER
    new = NewSettings(
        learner=learner,
        preset=wanted.preset or "live",
        seed=1 if wanted.seed is None else wanted.seed,
        size=wanted.size,
        channels=wanted.channels,
        chosen=_parsed(wanted, learner),
        encoder=encoder_facts(wanted),
    )
    options = _resolved(new, _GREY)
    if isinstance(options, SprSettings):
        _check_spr(options)
        if new.encoder is not None:
            raise UserError(f"--encoder works with the learner {FULL_MEMORY}, not {learner}: leave one of them out.")
    if new.size is not None and not 1 <= new.size <= MAX_SIZE:
        raise UserError(f"The size must be between 1 and {MAX_SIZE} pixels, not {new.size}.")
    if new.channels not in (None, 1, 3):
        raise UserError(f"The channels must be 1 (grey) or 3 (colour), not {new.channels}.")
    return new


def wanted_encoder(text: str | None) -> Opened | Literal["none"] | None:
    """Return the encoder that a text names, perhaps that of a state that exists; UserError if it cannot be used."""
    if text is None:
        return None
    return "none" if text == NONE else open_encoder(text, again=True)


def encoder_facts(wanted: Wanted) -> EncoderFacts | None:
    """Return the facts about the encoder that the user named; None: there is none."""
    found = wanted.encoder
    if found is None or isinstance(found, str):
        return None
    return EncoderFacts(found.text, found.digest, found.dim, found.size)


def _check_spr(options: SprSettings) -> None:
    """Raise UserError for settings that a state cannot have."""
    if options.filter == "none":
        raise UserError("The setting filter=none scores no samples: a state needs a filter.")
    if options.self_replay == "task-end":
        raise UserError("The setting self_replay=task-end needs task ends, and a state has no tasks: use every-buffer.")
    if options.features == "file":
        raise UserError("The setting features=file is for `purereplay run`: use patches, projection or combined.")
    _check_rates(options)


def _check_rates(options: SprSettings) -> None:
    """Raise UserError for a learning rate with which training can diverge: the settings of a state cannot be changed.

    A step of Adam changes a weight by about the learning rate, so that no network learns with more than `MAX_LR`.
    """
    for f in fields(options):
        value = getattr(options, f.name)
        if (f.name == "lr" or f.name.endswith("_lr")) and value > MAX_LR:
            raise UserError(f"The setting {f.name} must be at most {MAX_LR:g} in a state, not {value:g}.")


def with_shape(new: NewSettings, shape: Shape) -> StateSettings:
    """Return the settings once the image shape is known; UserError if such images cannot be learned."""
    options = _resolved(new, shape)
    _check_learnable(options, shape)
    if isinstance(options, SprSettings):
        make_backbone(options, shape)
    return StateSettings(
        learner=new.learner,
        preset=new.preset,
        seed=new.seed,
        size=new.size,
        channels=new.channels,
        shape=shape,
        options=options,
        fit=new.fit,
        encoder=new.encoder,
    )


def _check_learnable(options: Options, shape: Shape) -> None:
    """Raise UserError if images of this shape are too large to learn from."""
    _, height, width = shape
    if height * width > MAX_SIZE**2:
        raise UserError(f"It has {width:,} × {height:,} pixels, more than {MAX_SIZE:,} × {MAX_SIZE:,}.")
    present = machine_memory()
    needed = least_memory(options, shape) if isinstance(options, SprSettings) else 0
    if present is not None and needed > present:
        raise UserError(
            f"Learning from images of {width:,} × {height:,} pixels needs at least {needed / 2**30:,.0f} GiB, "
            f"and this machine has {present / 2**30:,.0f} GiB of memory."
        )


def least_memory(options: SprSettings, shape: Shape) -> int:
    """Return a lower bound of the bytes that learning takes: both buffers, the first layer and one batch of views."""
    n_inputs = math.prod(shape)
    buffers = (options.delayed_size + options.purified_size) * n_inputs
    layer = 4 * 4 * n_inputs * options.hidden if options.network == "mlp" else 0  # weights, gradients and two moments
    views = 2 * 4 * min(options.base_batch, options.delayed_size) * n_inputs
    return buffers + layer + views


def buffer_sizes(settings: NewSettings | StateSettings) -> tuple[int, int] | None:
    """Return the capacities of the delayed and of the purified buffer; None if the learner has none."""
    options = settings.options if isinstance(settings, StateSettings) else _resolved(settings, _GREY)
    return (options.delayed_size, options.purified_size) if isinstance(options, SprSettings) else None


def check_same(have: NewSettings | StateSettings, wanted: Wanted, state: Path) -> None:
    """Raise UserError if an option differs from the settings that the state was created with."""
    names = ("learner", "preset", "seed", "size", "channels")
    asked = {name: getattr(wanted, name) for name in names if getattr(wanted, name) is not None}
    empty = isinstance(have, NewSettings)
    remedy = "use another --state, or delete this one, which holds no images" if empty else "use another --state"
    _check_equal(asked, {name: getattr(have, name) for name in names}, state, remedy)
    _check_equal(_parsed(wanted, have.learner), _fixed_options(have), state, remedy)
    if wanted.encoder is None:
        return
    if have.encoder is None or isinstance(wanted.encoder, str):
        theirs = NONE if have.encoder is None else have.encoder.text
        ours = wanted.encoder if isinstance(wanted.encoder, str) else wanted.encoder.text
        if ours != theirs:
            raise UserError(f"{state} was created with encoder {theirs}, not {ours}: {remedy}.")
        return
    check_same_encoder(wanted.encoder, have.encoder.text, have.encoder.digest, state)


def _check_equal(asked: Mapping[str, Any], fixed: Mapping[str, Any], state: Path, remedy: str) -> None:
    for name, value in asked.items():
        found = fixed.get(name, "undecided")
        if value != found:
            shown = f"without {name}, not with" if found is None else f"with {name} {found}, not"
            raise UserError(f"{state} was created {shown} {value}: {remedy}.")


def to_text(settings: NewSettings | StateSettings) -> str:
    """Return the settings as they are saved."""
    return json.dumps({"format": FORMAT, **asdict(settings)})


def from_text(text: str) -> NewSettings | StateSettings:
    """Return saved settings; those that a later version added have their defaults.

    A state that names no learner, or no fit, was created before there was a choice.
    """
    values = json.loads(text)
    if values.setdefault("format", 1) == 1:
        values = _from_format_1(values)
    found = values.pop("format")
    if found != FORMAT:
        raise ValueError(f"their format is {found}, not {FORMAT}")
    if values.setdefault("fit", "exact") not in get_args(Fit):
        raise ValueError(f"their fit is {values['fit']!r}")
    if (saved := values.get("encoder")) is not None:
        values["encoder"] = EncoderFacts(*saved)
    cls = _options_class(values.setdefault("learner", own_data.UNNAMED))
    if "chosen" in values:
        return NewSettings(**values)
    options = from_json(cls, _defaults(cls) | values.pop("options"))
    return StateSettings(**values | {"shape": tuple(values["shape"])}, options=options)


def _from_format_1(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that version 0.1.0 saved: all options, those that depend on the data None without images."""
    preset, shape = upgrade_preset(values["preset"]), values.pop("shape")
    options = _defaults(SprSettings) | upgrade("spr", values.pop("options"))
    known = {"chosen": options} if shape is None else {"shape": shape, "options": options}
    return values | {"format": FORMAT, "preset": preset} | known


def _options_class(learner: str) -> type[Options]:
    return FullMemorySettings if learner == FULL_MEMORY else own_data.settings_class(learner)


def _defaults(cls: type[Options]) -> dict[str, Any]:
    return {f.name: f.default for f in fields(cls) if f.default is not MISSING}


def _parsed(wanted: Wanted, learner: str) -> dict[str, Any]:
    cls = _options_class(learner)
    others = {f.name for f in fields(own_data.settings_class("pure-replay"))} - {f.name for f in fields(cls)}
    if learner == FULL_MEMORY and (foreign := [name for name in wanted.overrides if name in others]):
        raise UserError(
            f"The setting {foreign[0]} belongs to other learners than full-memory: add --learner spr, or leave it out."
        )
    return {name: parse(cls, name, text) for name, text in wanted.overrides.items()}


def _resolved(new: NewSettings, shape: Shape) -> Options:
    if new.learner == FULL_MEMORY:
        return resolve(FullMemorySettings, new.chosen, DataFacts(shape), preset=new.preset)
    return own_data.resolved(new.learner, new.chosen, DataFacts(shape), preset=new.preset)


def _fixed_options(settings: NewSettings | StateSettings) -> dict[str, Any]:
    """Return the learner's settings that are fixed; before the first image, those that any image would give."""
    if isinstance(settings, StateSettings):
        return asdict(settings.options)
    grey, colour = (asdict(_resolved(settings, shape)) for shape in (_GREY, _COLOUR))
    return {name: value for name, value in grey.items() if value == colour[name]}
