"""The settings of one run, resolved and saved with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from purereplay.data.catalogue import info_for
from purereplay.errors import UserError
from purereplay.learners import registry
from purereplay.learners.renamed import upgrade, upgrade_preset
from purereplay.learners.settings import DataFacts, Settings, from_json, parse
from purereplay.learners.settings import resolve as resolve_options
from purereplay.nets.device import Precision, pick_device, pick_precision

FORMAT = 5  # of the run directory
_ASSUMED_NOISE = 0.2  # noise rate for methods that need one, on datasets whose labels are noisy by themselves


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that determines a run; together with the code and the device it fixes every number."""

    dataset: str
    noise: str  # none, symmetric, asymmetric, superclass
    noise_rate: float  # share of a class's labels that are wrong, in [0, 1]
    episode: str  # A, B or C: the classes that form the tasks
    learner: str
    preset: str
    budget: float  # factor on the preset's self-supervised epochs
    seed: int
    device: str  # "cpu", "cuda"
    precision: Precision  # of matrix products in training
    validation: bool  # evaluate on held-out training data instead of the test set
    features_file: str | None  # file of features that the filter compares, instead of an expert's
    lookahead: int  # full delayed buffers taken at once; their experts may train side by side
    options: Settings  # of the learner; preset, dataset, budget and --set are included


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
    features_file: str | None = None,
    overrides: dict[str, str] | None = None,
) -> RunSettings:
    """Check and complete the settings that a user asked for; `overrides` are settings of the learner as text."""
    info, entry = info_for(dataset), registry.entry(learner)
    if noise is None:
        noise = "none" if info.noisy else "symmetric"
    chosen = _chosen_options(entry, overrides or {}, features_file)
    facts = DataFacts(
        image_shape=info.shape,
        buffer_size=info.buffer_size,
        noise_rate=_ASSUMED_NOISE if info.noisy else _wrong_share(noise, noise_rate),
    )
    used_device = pick_device(device)
    return RunSettings(
        dataset=dataset,
        noise=noise,
        noise_rate=0.0 if noise == "none" else noise_rate,
        episode=episode,
        learner=learner,
        preset=preset_name,
        budget=budget,
        seed=seed,
        device=used_device,
        precision=pick_precision(precision, used_device),
        validation=validation,
        features_file=features_file,
        lookahead=64 if used_device == "cuda" else 8,
        options=resolve_options(entry.settings, chosen, facts, preset=preset_name, budget=budget),
    )


def _chosen_options(entry: registry.Entry, overrides: dict[str, str], features_file: str | None) -> dict[str, Any]:
    """Return the learner's settings that are not left to preset and data."""
    names = {f.name for f in fields(entry.settings)}
    if features_file is not None:
        if "features" not in names:
            raise UserError(f"--features-file is for the Self-Centered filter: the learner {entry.name} has no filter.")
        overrides = overrides | {"features": "file"}
    if "robust" in overrides and not entry.takes_robust_loss:
        takers = ", ".join(e.name for e in registry.entries() if e.takes_robust_loss)
        raise UserError(f"The learner {entry.name} takes no loss against wrong labels: choose one of {takers}.")
    for name in overrides:
        if name not in names:
            raise UserError(
                f"The setting {name!r} is unknown to the learner {entry.name}: its settings are "
                f"{', '.join(f.name for f in fields(entry.settings))}."
            )
    chosen = {name: parse(entry.settings, name, text) for name, text in overrides.items()}
    for name, value in entry.fixed.items():
        if chosen.setdefault(name, value) != value:
            raise UserError(f"The learner {entry.name} has {name}={value}: leave --set {name} out.")
    return chosen


def changed_options(settings: RunSettings) -> dict[str, Any]:
    """Return the options that differ from those of the dataset, learner, preset and budget."""
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
    """Return the approximate share of wrong labels; asymmetric noise affects half of the classes."""
    return {"none": 0.0, "asymmetric": rate / 2}.get(noise, rate)


def on_device(settings: RunSettings, device: str) -> RunSettings:
    """Return the same run on another device, in that device's default precision if it is a different one."""
    chosen = pick_device(device)
    precision = settings.precision if chosen == settings.device else pick_precision("auto", chosen)
    return replace(settings, device=chosen, precision=precision)


def to_json(settings: RunSettings) -> dict[str, Any]:
    """Return the content of settings.json."""
    return {"format": FORMAT, **asdict(settings)}


def read_settings(values: dict[str, Any]) -> RunSettings:
    """Return the settings of a saved run."""
    if values.get("format") in (3, 4):
        values = _upgrade_run(values)
    if values.get("format") != FORMAT:
        raise UserError(f"The run has format {values.get('format')!r}, this version reads format {FORMAT}.")
    names = {f.name for f in fields(RunSettings)}
    if set(values) != names | {"format"}:
        raise UserError(f"The run's settings do not fit: {', '.join(sorted(set(values) ^ (names | {'format'})))}.")
    kept = {name: values[name] for name in names - {"options"}}
    options = from_json(registry.entry(values["learner"]).settings, values["options"])
    return RunSettings(**kept, options=options)


def _upgrade_run(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings.json of an earlier version in the present format; format 3 had no validation."""
    values = {"validation": False, **values, "format": FORMAT}
    values["features_file"] = values.pop("features", None)
    values["preset"] = upgrade_preset(values["preset"])
    values["options"] = upgrade(values["learner"], values["options"])
    return values
