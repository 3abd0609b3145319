"""Lists of settings, and the runs that their combinations are."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from purereplay.errors import UserError
from purereplay.evaluate.settings import RunSettings, resolve


def combinations(
    lists: dict[str, str], overrides: dict[str, str], *, device: str, out: Path
) -> dict[Path, RunSettings]:
    """One run per combination of the comma-separated values, in folders named after what varies."""
    values = {name: [v.strip() for v in text.split(",")] for name, text in (lists | overrides).items()}
    varied = [name for name, choices in values.items() if len(choices) > 1]
    runs: dict[Path, RunSettings] = {}
    for choice in product(*values.values()):
        chosen = dict(zip(values, choice, strict=True))
        folder = "_".join(f"{name}-{chosen[name]}".replace("/", "-") for name in varied) or "run"
        if out / folder in runs:
            raise UserError(f"The lists give {folder} twice.")
        runs[out / folder] = resolve(
            dataset=chosen["dataset"],
            noise=chosen["noise"] or None,
            noise_rate=_number("noise-rate", chosen["noise_rate"]),
            episode=chosen["episode"],
            learner=chosen["learner"],
            preset_name=chosen["preset"],
            budget=_number("budget", chosen["budget"]),
            seed=_whole("seed", chosen["seed"]),
            device=device,
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
