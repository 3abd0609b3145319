"""Learners with several jobs per batch or buffer: the steps counted before a run are those taken in it."""

import pytest

from purereplay.evaluate.experiment import prepare
from purereplay.evaluate.settings import resolve
from purereplay.nets.lockstep import drive

SHORT = {"puridiver": {"epochs": "2", "warm_up": "1"}, "aer": {"epochs": "3"}, "cnll": {"warm_up": "2", "epochs": "2"}}


@pytest.mark.parametrize("name", SHORT)
def test_counted_steps_are_taken(name, tmp_path):
    overrides = SHORT[name] | {"hidden": "8"}
    settings = resolve(dataset="digits", learner=name, preset_name="demo", device="cpu", overrides=overrides)
    experiment = prepare(settings, tmp_path / "run")
    result = drive(experiment.running(), experiment.engine, experiment.account)
    counted = experiment.workload
    assert result["n_buffers"] == counted.n_buffers and set(result["steps"]) == set(counted.steps)
    for phase, n in counted.steps.items():
        # how many samples are clean is not known before
        assert result["steps"][phase] == (pytest.approx(n, rel=0.4) if phase == "finetune" else n), phase
