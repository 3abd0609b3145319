"""Column names of tables: data frames of pandas, polars and others, and tables of pyarrow; none of them is imported.

Names and errors follow scikit-learn's `feature_names_in_`.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purereplay.errors import InputError, InputTypeError

_SHOWN = 5  # names in an error


def feature_names(samples: Any) -> NDArray[Any] | None:
    """Return the column names of a table as objects (d,), or None unless all are strings."""
    names = getattr(samples, "column_names", None)  # pyarrow calls them so
    names = getattr(samples, "columns", None) if names is None else names
    if names is None or not hasattr(samples, "__array__"):
        return None
    own = list(names)
    kinds = sorted({type(name).__name__ for name in own})
    if not any(isinstance(name, str) for name in own):
        return None
    if not all(isinstance(name, str) for name in own):
        raise InputTypeError(
            "Feature names are only supported if all input features have string names, but your input has "
            f"{kinds} as feature name / column name types. If you want feature names to be stored and validated, you "
            "must convert them all to strings, by using X.columns = X.columns.astype(str) for example. Otherwise you "
            "can remove feature / column names from your input data, or convert them all to a non-string data type."
        )
    array = np.empty(len(own), dtype=object)
    array[:] = [str(name) for name in own]
    return array


def check_feature_names(names: NDArray[Any] | None, known: NDArray[Any] | None, estimator: str) -> None:
    """Raise InputError unless `names` are the known ones in their order; warn if only one of the two has names."""
    if names is None and known is None:
        return
    if known is None:
        _warn(f"X has feature names, but {estimator} was fitted without feature names")
        return
    if names is None:
        _warn(f"X does not have valid feature names, but {estimator} was fitted with feature names")
        return
    if names.tolist() == known.tolist():
        return
    text = "The feature names should match those that were passed during fit.\n"
    unexpected, missing = (sorted({*a} - {*b}) for a, b in ((names, known), (known, names)))
    if unexpected:
        text += "Feature names unseen at fit time:\n" + _listed(unexpected)
    if missing:
        text += "Feature names seen at fit time, yet now missing:\n" + _listed(missing)
    if not unexpected and not missing:
        text += "Feature names must be in the same order as they were in fit.\n"
    raise InputError(text)


def _listed(names: list[str]) -> str:
    return "".join(f"- {name}\n" for name in names[:_SHOWN]) + ("- ...\n" if len(names) > _SHOWN else "")


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=6)
