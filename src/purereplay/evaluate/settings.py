"""The settings of one run, resolved and saved with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from purereplay.data.catalogue import info_for
from purereplay.errors import UserError
from purereplay.learners.baselines.settings import RIVAL_RANGES, RIVALS, WITH_ROBUST, RivalSettings, rival_settings
from purereplay.learners.options import from_json
from purereplay.learners.settings import (
    LEARNERS,
    RANGES,
    SprSettings,
    buffer_size,
    for_dataset,
    preset_settings,
    with_budget,
)
from purereplay.nets.device import Precision, pick_device, pick_precision

FORMAT = 4  # of the run directory
_OWN_NOISE = 0.2  # share of wrong labels that a method which must be told one assumes of data that come noisy


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What makes a run what it is; together with the code and the device it fixes every number."""

    dataset: str
    noise: str  # none, symmetric, asymmetric, superclass
    noise_rate: float  # share of a class's labels that are wrong, in [0, 1]
    episode: str  # A, B or C: which classes form the tasks
    learner: str
    preset: str
    budget: float  # factor on the preset's self-supervised epochs
    seed: int
    device: str  # "cpu", "cuda"
    precision: Precision  # of the networks' products in training
    validation: bool  # whether it is judged on held-out training data in the place of the test data
    features: str | None  # file whose features the filter uses in the place of experts'
    lookahead: int  # full delayed buffers taken at once, whose experts may train side by side
    options: SprSettings | RivalSettings  # resolved: preset, dataset, budget and --set are in it


def resolve(
    *,
    dataset: str,
    noise: str | None = None,
    noise_rate: float = 0.4,
    episode: str = "A",
    learner: str = "spr",
    preset_name: str = "default",
    budget: float = 1.0,
    seed: int = 1,
    device: str = "auto",
    precision: str = "auto",
    validation: bool = False,
    features: str | None = None,
    overrides: dict[str, str] | None = None,
) -> RunSettings:
    """Check and fill in what the user asked for."""
    info = info_for(dataset)
    if learner not in (*LEARNERS, *RIVALS):
        raise UserError(f"The learner {learner!r} is unknown: choose one of {', '.join((*LEARNERS, *RIVALS))}.")
    if noise is None:
        noise = "none" if info.noisy else "symmetric"
    chosen = pick_device(device)
    if features is not None:
        if learner in RIVALS:
            raise UserError(f"--features are for the Self-Centered filter, and {learner} has none.")
        overrides = (overrides or {}) | {"features": "file"}
    options: SprSettings | RivalSettings
    if learner in RIVALS:
        options = rival_settings(
            learner,
            preset_name,
            overrides,
            memory_size=buffer_size(dataset),
            image_shape=info.shape,
            noise_rate=_OWN_NOISE if info.noisy else _wrong_share(noise, noise_rate),
        )
    else:
        if "robust" in (overrides or {}):
            raise UserError(f"Techniques against wrong labels go with {', '.join(WITH_ROBUST)}, not with {learner}.")
        settings = preset_settings(preset_name, _with_fixed(learner, overrides or {}))
        options = with_budget(for_dataset(settings, dataset, info.shape, preset_name), budget)
    return RunSettings(
        dataset=dataset,
        noise=noise,
        noise_rate=0.0 if noise == "none" else noise_rate,
        episode=episode,
        learner=learner,
        preset=preset_name,
        budget=budget,
        seed=seed,
        device=chosen,
        precision=pick_precision(precision, chosen),
        validation=validation,
        features=features,
        lookahead=64 if chosen == "cuda" else 8,
        options=options,
    )


def changed_options(settings: RunSettings) -> dict[str, Any]:
    """The options that are not as dataset, learner, preset and budget have them."""
    usual = resolve(
        dataset=settings.dataset,
        noise=settings.noise,
        noise_rate=settings.noise_rate,
        learner=settings.learner,
        preset_name=settings.preset,
        budget=settings.budget,
        device=settings.device,
    ).options
    return {name: own for name, own in asdict(settings.options).items() if own != getattr(usual, name)}


def _wrong_share(noise: str, rate: float) -> float:
    """About which share of a stream's labels is wrong; asymmetric noise touches half of the classes."""
    return {"none": 0.0, "asymmetric": rate / 2}.get(noise, rate)


def _with_fixed(learner: str, overrides: dict[str, str]) -> dict[str, str]:
    """What makes an ablation one, on top of the user's own settings."""
    fixed = LEARNERS[learner]
    for name in fixed.keys() & overrides.keys():
        if overrides[name] != fixed[name]:
            raise UserError(f"The learner {learner} has {name}={fixed[name]}: leave --set {name} out.")
    return overrides | fixed


def on_device(settings: RunSettings, device: str) -> RunSettings:
    """The same run on a device that may be another; then in that device's usual precision."""
    chosen = pick_device(device)
    precision = settings.precision if chosen == settings.device else pick_precision("auto", chosen)
    return replace(settings, device=chosen, precision=precision)


def to_json(settings: RunSettings) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(settings)}


def read_settings(values: dict[str, Any]) -> RunSettings:
    """The settings of a saved run."""
    if values.get("format") == 3:  # which had no validation
        values = {**values, "format": FORMAT, "validation": False}
    if values.get("format") != FORMAT:
        raise UserError(f"The run has format {values.get('format')!r}, this version reads format {FORMAT}.")
    names = {f.name for f in fields(RunSettings)}
    if set(values) != names | {"format"}:
        raise UserError(f"The run's settings do not fit: {', '.join(sorted(set(values) ^ (names | {'format'})))}.")
    kept = {name: values[name] for name in names - {"options"}}
    options: SprSettings | RivalSettings
    if values["learner"] in RIVALS:
        options = from_json(RivalSettings, values["options"], RIVAL_RANGES)
    else:
        options = from_json(SprSettings, values["options"], RANGES)
    return RunSettings(**kept, options=options)
