"""Self-Purified Replay on feature vectors, which stay float32 in all steps."""

import math
from dataclasses import replace

import pytest
import torch

from purereplay.data.batch import Batch
from purereplay.errors import UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.spr.build import build_spr
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine

CPU = torch.device("cpu")
TINY = SprSettings(
    delayed_size=30,
    purified_size=20,
    network="mlp",
    hidden=16,
    projection_size=8,
    expert_epochs=6,
    base_epochs=4,
    expert_batch=30,
    base_batch=30,
    warm_epochs=1,
    finetune_epochs=30,
)
SIX = DataSpec(image_shape=(6, 1, 1), n_classes=3, is_vectors=True)
TWO = DataSpec(image_shape=(2, 1, 1), n_classes=2, is_vectors=True)


def test_it_learns_from_vectors():
    ours = build_spr(TINY, SIX, engine=Engine(CPU), seed=0)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (70,), generator=generator)
    vectors = torch.randn(70, 6, 1, 1, generator=generator) * 0.3
    vectors[torch.arange(70), labels] += 3
    ours.observe(Batch(vectors, labels, torch.arange(70)))
    held = ours.held()
    assert held.images.dtype == torch.float32 and torch.equal(held.images, vectors[held.index])
    accuracy = (ours.classifier().predict(vectors) == labels).double().mean()
    assert accuracy > 0.9
    moved = build_spr(TINY, SIX, engine=Engine(CPU), seed=0)
    moved.load(ours.state())
    assert all(torch.equal(t, moved.state()[name]) for name, t in ours.state().items())
    assert torch.equal(moved.held().images, held.images)


def test_vectors_are_refused_unless_they_are_finite_floats():
    ours = build_spr(TINY, TWO, engine=Engine(CPU), seed=0)
    labels, index = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    broken = torch.zeros(3, 2, 1, 1)
    broken[1, 0] = math.nan
    with pytest.raises(UserError, match="row 1 holds NaN"):
        ours.take(Batch(broken, labels, index))
    with pytest.raises(UserError, match="float32 with shape"):
        ours.take(Batch(torch.zeros(3, 2, 1, 1, dtype=torch.uint8), labels, index))
    assert ours.delayed.n == 0
    with pytest.raises(UserError, match="need the network mlp, not resnet18"):
        build_spr(replace(TINY, network="resnet18"), TWO, engine=Engine(CPU), seed=0)
