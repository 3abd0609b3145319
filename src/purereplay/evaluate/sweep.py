"""Lists of options, and one run for each combination of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

from purereplay.errors import UserError
from purereplay.evaluate.settings import RunSettings
from purereplay.learners.settings import takes_budget


def combinations(
    lists: Mapping[str, str], resolve: Callable[[dict[str, str]], RunSettings], out: Path
) -> dict[Path, RunSettings]:
    """Return one run per combination of comma-separated values, in folders named after the values that vary.

    `lists` has an item per option and setting, `resolve` makes a run from one value of each. A noise may have its own
    rate, `asymmetric:0.2`. Then every noise but `none` must have one, and the option noise_rate is not used. The name
    of a setting may start with a learner, `gdumb.epochs`; it then concerns the runs of that learner only. Runs without
    noise have no noise_rate, and learners without self-supervised epochs have no budget.
    """
    values = {name: [v.strip() for v in text.split(",")] for name, text in lists.items()}
    for name, choices in values.items():
        if len(choices) > 1 and "" in choices:
            raise UserError(f"The list of {name} has an empty item: {lists[name]!r}.")
    if odd := next((noise for noise in values["noise"] if noise.startswith("none:")), None):
        raise UserError(f"The noise none has no rate: write none instead of {odd}.")
    with_rate = [":" in noise for noise in values["noise"] if noise != "none"]
    if any(with_rate):
        if not all(with_rate) or len(values["noise_rate"]) > 1:
            raise UserError("Give every noise its rate, as in symmetric:0.4,asymmetric:0.2, or none of them.")
        values["noise_rate"] = ["0"]
    varied = [name for name, choices in values.items() if len(choices) > 1]
    folders: dict[RunSettings, str] = {}
    for combination in product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        noise, _, rate = chosen["noise"].partition(":")
        run = resolve(chosen | {"noise": noise, "noise_rate": rate or chosen["noise_rate"]})
        foreign = [name for name in varied if "." in name and name.rpartition(".")[0] != chosen["learner"]]
        if run.noise == "none":
            foreign.append("noise_rate")
        if not takes_budget(type(run.options)):
            foreign.append("budget")
        if any(chosen[name] != values[name][0] for name in foreign):
            continue  # a value that does not concern this run would only repeat it
        named = [name for name in varied if name not in foreign]
        folder = "_".join(f"{name}-{chosen[name]}".replace("/", "-").replace(":", "-") for name in named) or "run"
        if run in folders:
            same = "" if folders[run] == folder else f", also as {folder}"
            raise UserError(f"The lists contain {folders[run]} twice{same}.")
        folders[run] = folder
    return {out / folder: run for run, folder in folders.items()}
