"""Defaults of the filter's options: every public entry point takes them from `FilterOptions`."""

import dataclasses
import inspect

import pytest

from purereplay import BetaMixture, SelfCenteredFilter, clean_probability
from purereplay.cli.filtering import filter_
from purereplay.purify.options import BLOCK_SIZE, DEFAULTS, FilterOptions


@pytest.mark.parametrize("entry", [clean_probability, SelfCenteredFilter.__init__, BetaMixture.__init__, filter_])
def test_every_entry_point_has_the_same_defaults(entry):
    expected = dataclasses.asdict(DEFAULTS) | {"lookup": DEFAULTS.posterior, "graphs": DEFAULTS.n_graphs}
    expected["block_size"] = BLOCK_SIZE
    found = {name: p.default for name, p in inspect.signature(entry).parameters.items() if name in expected}
    assert found and found == {name: expected[name] for name in found}


def test_options_are_frozen_and_named():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULTS.n_graphs = 3
    with pytest.raises(TypeError):
        FilterOptions(3)
