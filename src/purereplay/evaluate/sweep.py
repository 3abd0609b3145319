"""Lists of settings, and the runs that their combinations are."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from purereplay.errors import UserError
from purereplay.evaluate.settings import RunSettings, resolve


def combinations(
    lists: dict[str, str],
    overrides: dict[str, str],
    *,
    device: str,
    precision: str,
    out: Path,
    validation: bool = False,
    features: str | None = None,
) -> dict[Path, RunSettings]:
    """One run per combination of the comma-separated values, in folders named after what varies.

    A noise may bring its own rate, `asymmetric:0.2`; then all do, and `noise_rate` plays no part.
    """
    values = {name: [v.strip() for v in text.split(",")] for name, text in (lists | overrides).items()}
    own_rates = [":" in noise for noise in values["noise"]]
    if any(own_rates):
        if not all(own_rates) or len(values["noise_rate"]) > 1:
            raise UserError("Give every noise its rate, as in symmetric:0.4,asymmetric:0.2, or none of them.")
        values["noise_rate"] = [""]
    varied = [name for name, choices in values.items() if len(choices) > 1]
    runs: dict[Path, RunSettings] = {}
    for choice in product(*values.values()):
        chosen = dict(zip(values, choice, strict=True))
        folder = "_".join(f"{name}-{chosen[name]}".replace("/", "-").replace(":", "-") for name in varied) or "run"
        if out / folder in runs:
            raise UserError(f"The lists give {folder} twice.")
        noise, _, own_rate = chosen["noise"].partition(":")
        runs[out / folder] = resolve(
            dataset=chosen["dataset"],
            noise=noise or None,
            noise_rate=_number("noise-rate", own_rate or chosen["noise_rate"]),
            episode=chosen["episode"],
            learner=chosen["learner"],
            preset_name=chosen["preset"],
            budget=_number("budget", chosen["budget"]),
            seed=_whole("seed", chosen["seed"]),
            device=device,
            precision=precision,
            validation=validation,
            features=features,
            overrides={name: chosen[name] for name in overrides},
        )
    return runs


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--{name} takes numbers, not {text!r}.") from None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"--{name} takes whole numbers, not {text!r}.") from None
