"""The settings of one run, resolved and saved with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

import numpy as np

from purereplay.data.catalogue import DatasetInfo, info_for
from purereplay.data.encoders import EncoderFacts
from purereplay.data.episodes import tasks_for
from purereplay.data.noise import corrupt
from purereplay.errors import UserError
from purereplay.evaluate.kinds import (
    FLAG,
    OBJECT,
    POSITIVE,
    POSITIVE_COUNT,
    SHARE,
    TEXT,
    WHOLE,
    Kind,
    check_values,
    one_of,
    or_null,
)
from purereplay.learners import registry
from purereplay.learners.renamed import upgrade, upgrade_preset
from purereplay.learners.settings import DataFacts, Settings, from_json, parse, preset_values
from purereplay.learners.settings import resolve as resolve_options
from purereplay.nets.device import Precision, pick_device, pick_precision

FORMAT = 5  # of the run directory
EVALUATIONS = ("tasks", "end")
_KINDS: dict[str, Kind] = {  # of the values in settings.json
    "dataset": TEXT,
    "noise": TEXT,
    "noise_rate": SHARE,
    "episode": TEXT,
    "learner": TEXT,
    "preset": TEXT,
    "budget": POSITIVE,
    "seed": WHOLE,
    "device": one_of("cpu", "cuda"),
    "precision": one_of(*get_args(Precision)),
    "validation": FLAG,
    "evaluate": one_of(*EVALUATIONS),
    "features_file": or_null(TEXT),
    "encoder": or_null(OBJECT),
    "lookahead": POSITIVE_COUNT,
    "options": OBJECT,
}
_ENCODER: dict[str, Kind] = {"text": TEXT, "digest": TEXT, "dim": POSITIVE_COUNT, "size": POSITIVE_COUNT}
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
    evaluate: str  # "tasks": after each task; "end": at the end only, which gives the same final numbers
    features_file: str | None  # file of features that the filter compares, instead of an expert's
    encoder: EncoderFacts | None  # its features are the samples, instead of images
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
    evaluate: str = "tasks",
    features_file: str | None = None,
    encoder: EncoderFacts | None = None,
    overrides: dict[str, str] | None = None,
) -> RunSettings:
    """Check and complete the settings that a user asked for; `overrides` are settings of the learner as text."""
    info, entry = info_for(dataset), registry.entry(learner)
    if noise is None:
        noise = "none" if info.noisy else "symmetric"
    noise_rate = 0.0 if noise == "none" else noise_rate
    _check_stream(info, noise, noise_rate, episode)
    if evaluate not in EVALUATIONS:
        raise UserError(f"A run is evaluated after each task or once at the end: use tasks or end, not {evaluate!r}.")
    chosen = _chosen_options(entry, overrides or {}, features_file, encoder)
    facts = DataFacts(
        image_shape=info.shape,
        buffer_size=info.buffer_size,
        noise_rate=_ASSUMED_NOISE if info.noisy else _wrong_share(noise, noise_rate),
        is_vectors=encoder is not None,
    )
    used_device = pick_device(device)
    return RunSettings(
        dataset=dataset,
        noise=noise,
        noise_rate=noise_rate,
        episode=episode,
        learner=learner,
        preset=preset_name,
        budget=budget,
        seed=seed,
        device=used_device,
        precision=pick_precision(precision, used_device),
        validation=validation,
        evaluate=evaluate,
        features_file=features_file,
        encoder=encoder,
        lookahead=64 if used_device == "cuda" else 8,
        options=resolve_options(entry.settings, chosen, facts, preset=preset_name, budget=budget),
    )


def _check_stream(info: DatasetInfo, noise: str, noise_rate: float, episode: str) -> None:
    """Raise UserError for a noise, a rate or an episode that the dataset does not have; reads no data."""
    if info.noisy and noise != "none":
        raise UserError(f"The labels of {info.name} are already noisy: use the noise 'none', not {noise!r}.")
    corrupt(
        noise,
        np.empty(0, np.int64),
        noise_rate,
        np.random.default_rng(0),
        n_classes=info.n_classes,
        mapping=info.asymmetric,
        superclass=info.superclass,
    )
    tasks_for(info.name, noise, episode)


def _chosen_options(
    entry: registry.Entry, overrides: dict[str, str], features_file: str | None, encoder: EncoderFacts | None
) -> dict[str, Any]:
    """Return the learner's settings that are not left to preset and data."""
    names = {f.name for f in fields(entry.settings)}
    if features_file is not None:
        if "features" not in names:
            raise UserError(f"--features-file is for the Self-Centered filter: the learner {entry.name} has no filter.")
        overrides = overrides | {"features": "file"}
    if encoder is not None:
        if features_file is not None:
            raise UserError("--encoder and --features-file both give features: leave one of them out.")
        _check_takes_vectors(entry)
        overrides = {"features": "inputs"} | overrides
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


def _check_takes_vectors(entry: registry.Entry) -> None:
    if not _takes_vectors(entry):
        takers = ", ".join(e.name for e in registry.entries() if _takes_vectors(e))
        raise UserError(f"The learner {entry.name} takes images, not the features of an encoder: use one of {takers}.")


def _takes_vectors(entry: registry.Entry) -> bool:
    return any(f.name == "feature_dropout" for f in fields(entry.settings))  # it has views of feature vectors


def changed_options(settings: RunSettings) -> dict[str, Any]:
    """Return the options that have an effect and differ from those of the dataset, learner, preset and budget."""
    usual = resolve(
        dataset=settings.dataset,
        noise=settings.noise,
        noise_rate=settings.noise_rate,
        learner=settings.learner,
        preset_name=settings.preset,
        budget=settings.budget,
        encoder=settings.encoder,
        device="cpu",  # options do not depend on it, and the run's own may not be available here
    ).options
    without = settings.options.ineffective()
    own = {name: value for name, value in asdict(settings.options).items() if name not in without}
    return {name: value for name, value in own.items() if value != getattr(usual, name)}


def _wrong_share(noise: str, rate: float) -> float:
    """Return the approximate share of wrong labels; asymmetric noise affects half of the classes."""
    return {"none": 0.0, "asymmetric": rate / 2}.get(noise, rate)


def on_device(settings: RunSettings, device: str) -> RunSettings:
    """Return the same run on another device, in that device's default precision if it is a different one."""
    chosen = pick_device(device)
    precision = settings.precision if chosen == settings.device else pick_precision("auto", chosen)
    return replace(settings, device=chosen, precision=precision)


def decisive_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that decide a run's numbers up to rounding, by name, the learner's options included.

    A resumed run may have another device, another lookahead or another place of its features.
    """
    names = ("dataset", "noise", "noise_rate", "episode", "learner", "seed", "validation")
    encoder = {} if settings.encoder is None else {"encoder": settings.encoder.digest}  # may be at another place
    return {name: getattr(settings, name) for name in names} | encoder | asdict(settings.options)


def to_json(settings: RunSettings) -> dict[str, Any]:
    """Return the content of settings.json."""
    encoder = None if settings.encoder is None else settings.encoder._asdict()
    return {"format": FORMAT, **asdict(settings), "encoder": encoder}


def read_settings(values: dict[str, Any]) -> RunSettings:
    """Return the settings of a saved run, checked like those of the command line.

    The device may be one that is not available here.
    """
    if values.get("format") in (3, 4):
        values = _upgrade_run(values)
    if values.get("format") != FORMAT:
        raise UserError(f"The run has format {values.get('format')!r}, this version reads format {FORMAT}.")
    values = {"evaluate": "tasks", "encoder": None} | values  # settings of later versions
    names = {f.name for f in fields(RunSettings)}
    if set(values) != names | {"format"}:
        raise UserError(f"The run's settings do not fit: {', '.join(sorted(set(values) ^ (names | {'format'})))}.")
    check_values(values, _KINDS)
    info, entry = info_for(values["dataset"]), registry.entry(values["learner"])
    _check_stream(info, values["noise"], values["noise_rate"], values["episode"])
    preset_values(entry.settings, values["preset"])
    pick_precision(values["precision"], values["device"])
    options = from_json(entry.settings, values["options"])
    options.check()
    own = {name: values[name] for name in names - {"options", "encoder"}}
    settings = RunSettings(**own, options=options, encoder=read_encoder(values["encoder"]))
    _check_options(settings, entry)
    return settings


def read_encoder(values: dict[str, Any] | None) -> EncoderFacts | None:
    """Return the encoder of a saved run or result, None if it has no encoder; UserError if the entry is damaged."""
    if values is None:
        return None
    if set(values) != set(_ENCODER):
        raise UserError(f"An encoder has the values {', '.join(_ENCODER)}, not {', '.join(map(str, values))}.")
    check_values(values, _ENCODER)
    return EncoderFacts(**values)


def _check_options(settings: RunSettings, entry: registry.Entry) -> None:
    """Raise UserError for options that the command line does not combine with the learner and the other settings."""
    options = settings.options
    for name, value in entry.fixed.items():
        if getattr(options, name) != value:
            raise UserError(f"The learner {entry.name} has {name}={value}, not {getattr(options, name)}.")
    if getattr(options, "robust", "none") != "none" and not entry.takes_robust_loss:
        raise UserError(f"The learner {entry.name} takes no loss against wrong labels.")
    if (getattr(options, "features", None) == "file") != (settings.features_file is not None):
        raise UserError("The setting features=file and a features_file need each other.")
    if settings.encoder is not None:
        _check_takes_vectors(entry)
    if settings.noise == "none" and settings.noise_rate != 0:
        raise UserError(f"The noise rate must be 0 without noise, not {settings.noise_rate}.")


def _upgrade_run(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings.json of an earlier version in the present format; format 3 had no validation."""
    old = ("learner", "preset", "options")
    check_values(values, {name: _KINDS[name] for name in old}, old)
    values = {"validation": False, **values, "format": FORMAT}
    values["features_file"] = values.pop("features", None)
    values["preset"] = upgrade_preset(values["preset"])
    values["options"] = upgrade(values["learner"], values["options"])
    return values
