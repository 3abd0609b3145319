"""Identity of a run: a key of everything that decides its numbers, and the settings behind a result.

Two runs with equal keys have the same numbers up to rounding, so one of them need not be computed. The key covers the
resolved settings that have an effect, the user's own features and the version of the code that decides the numbers.
The seed is separate: runs of one cell of a table differ by it alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from purereplay.data.episodes import tasks_version
from purereplay.errors import UserError
from purereplay.evaluate.settings import RunSettings, decisive_settings, read_encoder, resolve
from purereplay.learners import registry
from purereplay.learners.renamed import former_defaults, upgrade_names, upgrade_preset
from purereplay.learners.settings import Settings, completed, validated

Result = dict[str, Any]
_DEFAULTS: Result = {
    "episode": "A",
    "budget": 1.0,
    "judged_on": "test",
}  # of values that results of early versions lack


class RunKey(NamedTuple):
    """The identity of a run."""

    cell: str  # digest of everything but the seed
    seed: int


def run_key(settings: RunSettings, features: str | None = None) -> RunKey:
    """Return the key of a run with the present code; `features` is the digest of the user's own features."""
    version = tasks_version(settings.dataset, settings.noise, settings.episode)
    return RunKey(_digest(settings, features, version), settings.seed)


def result_key(result: Result) -> RunKey | None:
    """Return the key of a finished run, or None if this version does not know its learner or one of its settings."""
    settings = settings_of(result)
    if settings is None:
        return None
    digest = _digest(settings, result.get("features_digest"), result.get("numbers_version", 1))
    return RunKey(digest, settings.seed)


def settings_of(result: Result) -> RunSettings | None:
    """Return the settings of a finished run, with present names; None if this version does not know them.

    A result of version 0.1.0 has only the options that differed from the defaults of that time.
    """
    result = _DEFAULTS | result
    try:
        usual = _usual(
            result["dataset"],
            result["noise"],
            float(result["noise_rate"]),
            result["episode"],
            result["learner"],
            upgrade_preset(result.get("preset", "default")),
            float(result["budget"]),
        )
        options, encoder = _options(result, usual.options), read_encoder(result.get("encoder"))
    except (UserError, KeyError):
        return None
    return replace(
        usual,
        seed=result["seed"],
        validation=result["judged_on"] == "validation",
        features_file="" if getattr(options, "features", "") == "file" else None,
        encoder=encoder,
        options=options,
    )


def _options(result: Result, usual: Settings) -> Settings:
    """Return the options of a finished run; KeyError for one that this version does not have."""
    learner, known = result["learner"], {f.name for f in fields(usual)}
    if "options" in result:
        own = completed(type(usual), result["options"])
    else:
        named = {name: result[name] for name in registry.entry(learner).named if name in result}
        named = {name: value for name, value in named.items() if name in known}
        own = former_defaults(learner, usual) | named | upgrade_names(learner, result.get("changed", {}))
    if not own.keys() <= known:
        raise KeyError(min(own.keys() - known))
    return validated(replace(usual, **own))


@lru_cache(maxsize=4096)
def _usual(
    dataset: str, noise: str, noise_rate: float, episode: str, learner: str, preset: str, budget: float
) -> RunSettings:
    return resolve(
        dataset=dataset,
        noise=noise,
        noise_rate=noise_rate,
        episode=episode,
        learner=learner,
        preset_name=preset,
        budget=budget,
        device="cpu",  # numbers depend on it by rounding only, and the run's own may not be available here
    )


def _digest(settings: RunSettings, features: str | None, version: int) -> str:
    values = decisive_settings(settings)
    without = {"seed", *settings.options.ineffective()}
    decisive = {name: _plain(value) for name, value in values.items() if name not in without}
    decisive |= {"own features": features, "version": version}
    return hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=12).hexdigest()


def _plain(value: Any) -> Any:
    """Return numbers as floats: 1 and 1.0 are the same setting."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
