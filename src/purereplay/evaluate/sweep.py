"""Lists of options, and one run for each combination of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

from purereplay.errors import UserError
from purereplay.evaluate.settings import RunSettings


def combinations(
    lists: Mapping[str, str], resolve: Callable[[dict[str, str]], RunSettings], out: Path
) -> dict[Path, RunSettings]:
    """Return one run per combination of comma-separated values, in folders named after the values that vary.

    `lists` has an item per option and setting, `resolve` makes a run from one value of each. A noise may have its own
    rate, `asymmetric:0.2`. Then every noise but `none` must have one, and the option noise_rate is not used. The name
    of a setting may start with a learner, `gdumb.epochs`; it then concerns the runs of that learner only.
    """
    values = {name: [v.strip() for v in text.split(",")] for name, text in lists.items()}
    for name, choices in values.items():
        if len(choices) > 1 and "" in choices:
            raise UserError(f"The list of {name} has an empty item: {lists[name]!r}.")
    with_rate = [":" in noise for noise in values["noise"] if noise != "none"]
    if any(with_rate):
        if not all(with_rate) or len(values["noise_rate"]) > 1:
            raise UserError("Give every noise its rate, as in symmetric:0.4,asymmetric:0.2, or none of them.")
        values["noise_rate"] = ["0"]
    varied = [name for name, choices in values.items() if len(choices) > 1]
    runs: dict[Path, RunSettings] = {}
    for combination in product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        foreign = [name for name in varied if "." in name and name.rpartition(".")[0] != chosen["learner"]]
        if any(chosen[name] != values[name][0] for name in foreign):
            continue  # another learner's setting would only repeat this run
        named = [name for name in varied if name not in foreign]
        folder = "_".join(f"{name}-{chosen[name]}".replace("/", "-").replace(":", "-") for name in named) or "run"
        if out / folder in runs:
            raise UserError(f"The lists contain {folder} twice.")
        noise, _, rate = chosen["noise"].partition(":")
        runs[out / folder] = resolve(chosen | {"noise": noise, "noise_rate": rate or chosen["noise_rate"]})
    return runs
