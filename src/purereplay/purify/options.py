"""Options of the Self-Centered filter and their default values, which are written nowhere else.

This module imports nothing heavy: the command line reads the defaults before PyTorch is loaded.
"""

from dataclasses import dataclass
from typing import Literal

from purereplay.errors import UserError

SmallClass = Literal["drop", "keep"]
Scaling = Literal["trimmed", "minmax"]
Posterior = Literal["exact", "table"]
Preparation = Literal["directions", "none"]


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Options of the Self-Centered filter; `beta_mixture` explains those of the mixture."""

    n_graphs: int = 5  # stochastic graphs per label (E_max in the paper); 0: the similarity graph itself
    small_class: SmallClass = "drop"  # labels with too few samples for a mixture; drop: probability 0, keep: 0.5
    scaling: Scaling = "trimmed"  # bounds of the scores; trimmed: 5th and 95th percentile (code), minmax: extremes
    posterior: Posterior = "exact"  # exact: monotone in the score; table: 100 bins (code)
    n_iter: int = 10  # EM steps of the mixture (code); not in the paper


DEFAULTS = FilterOptions()
PREPARATION: Preparation = "directions"  # of users' own features; directions: centred main directions, none: as given
BLOCK_SIZE = 2048  # samples of a class that are compared with each other; larger classes are split (see `blocks`)


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise UserError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise UserError(f"{name} is {value!r}, but must be one of: {', '.join(allowed)}.")
