"""Main directions of features, and features of two kinds together."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from purereplay.data.batch import Batch
from purereplay.evaluate.estimate import count_steps
from purereplay.evaluate.settings import resolve
from purereplay.learners.base import DataSpec
from purereplay.learners.spr.build import build_spr
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.purify.directions import concatenate_features, main_directions
from purereplay.purify.patches import patch_features
from purereplay.purify.self_centered import score_samples


def similarity(features: torch.Tensor) -> torch.Tensor:
    return features @ features.T


def test_main_directions_are_the_same_from_either_product():
    x = torch.randn(60, 60, generator=torch.Generator().manual_seed(5))
    short = main_directions(torch.cat([x, x], 1))  # 60 × 120
    u, s, _ = torch.linalg.svd((x - x.mean(0)) / x.std(0, correction=0), full_matrices=False)
    expected = u[:, :32] * (2**0.5 * s[:32]) ** 0.3
    torch.testing.assert_close(similarity(short), similarity(expected), rtol=1e-3, atol=1e-4)
    long = torch.randn(90, 40, generator=torch.Generator().manual_seed(6))
    features = main_directions(long)
    standard = ((long - long.mean(0)) / long.std(0, correction=0)).double()
    u, s, _ = torch.linalg.svd(standard, full_matrices=False)
    expected = (u[:, :32] * s[:32] ** 0.3).float()
    torch.testing.assert_close(similarity(features), similarity(expected), rtol=1e-3, atol=1e-4)


def test_what_all_have_in_common_and_a_feature_of_one_value_do_not_count():
    x = torch.randn(50, 20, generator=torch.Generator().manual_seed(7))
    shifted = torch.cat([x + 100, torch.full((50, 3), 7.0)], 1)
    torch.testing.assert_close(
        similarity(main_directions(shifted)), similarity(main_directions(x)), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("n", [1, 2, 31])
def test_few_images_have_few_directions_and_finite_ones(n):
    features = main_directions(torch.randn(n, 64, generator=torch.Generator().manual_seed(n)))
    assert features.shape == (n, n) and features.isfinite().all()


def test_two_kinds_of_features_have_the_mean_of_their_similarities():
    one, other = (torch.randn(9, d, generator=torch.Generator().manual_seed(d)) * d for d in (4, 7))
    cosines = [F.cosine_similarity(x[:, None], x[None], dim=-1) for x in (one, other, concatenate_features(one, other))]
    torch.testing.assert_close(cosines[2], (cosines[0] + cosines[1]) / 2)


def test_a_run_may_compare_experts_and_patches_at_once():
    settings = resolve(
        dataset="digits", device="cpu", preset_name="demo", overrides={"features": "combined", "expert_epochs": "3"}
    )
    assert set(count_steps(settings, (1437,)).steps) == {"expert", "base", "finetune"}
    engine = Engine(torch.device("cpu"))
    one = build_spr(settings.options, DataSpec(image_shape=(1, 8, 8), n_classes=10), engine=engine, seed=3)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (100, 1, 8, 8), np.uint8))
    labels = torch.arange(100) % 10
    one.take(Batch(images, labels, torch.arange(100)))
    work = one.work()
    [trained] = engine.train(next(work))
    with pytest.raises(StopIteration):  # the expert is all that is asked for
        work.send([trained])
    projected = embed(one.network, trained.state, images)
    features = concatenate_features(main_directions(projected), patch_features(images, one._seed("patches", 0)))
    expected = score_samples(features, labels, one._seed("graphs", 0))
    assert torch.equal(one.queue[0].clean_probability, expected.clean_probability)
