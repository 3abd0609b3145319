"""How well the filter works on real digits, and what a long stream costs in memory. Minutes: `make test-slow`."""

import resource

import numpy as np
import pytest
import torch

from purereplay.data.batch import Batch
from purereplay.evaluate.experiment import prepare
from purereplay.evaluate.settings import resolve
from purereplay.learners.base import DataSpec
from purereplay.learners.spr.build import build_spr
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive


@pytest.mark.slow
def test_what_passes_and_what_stays_is_clean(tmp_path):
    """40 % symmetric noise, buffers of 100, experts of 300 epochs, mean of five seeds."""
    results = []
    for seed in range(1, 6):
        short = {"expert_epochs": "300", "base_epochs": "1"}
        settings = resolve(dataset="digits", preset_name="demo", seed=seed, device="cpu", overrides=short)
        assert settings.options.delayed_size == 100
        experiment = prepare(settings, tmp_path / str(seed))
        results.append(drive(experiment.running(), experiment.engine))
    passed = [r["passed_noise"] for r in results]
    held = [1 - r["purity"] for r in results]
    print(f"noise in what passes {np.round(passed, 3)}, in P {np.round(held, 3)}")  # noqa: T201
    assert np.mean(passed) <= 0.15
    assert np.mean(held) <= 0.05


@pytest.mark.slow
def test_a_million_samples_in_constant_memory():
    settings = SprSettings(
        delayed_size=1000,
        purified_size=500,
        network="mlp",
        hidden=16,
        projection_size=8,
        expert_epochs=1,
        base_epochs=1,
        expert_batch=1000,
        base_batch=100,
        finetune_epochs=1,
        graphs=1,
    )
    learner = build_spr(
        settings, DataSpec(image_shape=(1, 8, 8), n_classes=10), engine=Engine(torch.device("cpu")), seed=0
    )
    generator = torch.Generator().manual_seed(0)
    after_warm_up = 0
    for start in range(0, 1_000_000, 2500):
        images = torch.randint(0, 256, (2500, 1, 8, 8), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, 10, (2500,), generator=generator)
        learner.observe(Batch(images, labels, torch.arange(start, start + 2500)))
        if start == 50_000:
            after_warm_up = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert learner.n_done == 1000 and learner.purified.is_full and not learner.queue
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - after_warm_up) / 1024
    print(f"peak memory grew by {grown:.1f} MiB over 950,000 samples")  # noqa: T201
    assert grown < 30
