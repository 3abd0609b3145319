"""Features without training: against a slow computation, and that the filter finds wrong labels by them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.linalg import sqrtm
from sklearn.metrics import roc_auc_score

from purereplay.data.batch import Batch
from purereplay.data.datasets import load
from purereplay.errors import InputError, UserError
from purereplay.evaluate.estimate import count_steps
from purereplay.evaluate.settings import resolve
from purereplay.learners.base import DataSpec
from purereplay.learners.settings import DataFacts
from purereplay.learners.settings import resolve as resolve_settings
from purereplay.learners.spr.build import build_spr, make_spr
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine
from purereplay.purify import patches
from purereplay.purify.patches import patch_features
from purereplay.purify.self_centered import score_samples


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def similarity(features: torch.Tensor) -> torch.Tensor:
    return features @ features.T


def test_responses_are_those_of_every_patch_by_itself():
    pixels = torch.rand(3, 2, 9, 8, generator=torch.Generator().manual_seed(1))
    filters, offset = patches.make_filters(pixels, 3, torch.Generator().manual_seed(2))
    responses = patches.responses(pixels, filters, offset).view(3, 2, 256, 2, 2)
    all_patches = F.unfold(pixels, 3).transpose(1, 2)  # (3, 7 · 6, 18)
    flat = (all_patches - all_patches.mean(2, keepdim=True)) / (
        all_patches.var(2, correction=0, keepdim=True) + 0.01
    ).sqrt()
    expected = (flat @ filters.flatten(1).T - offset).transpose(1, 2).view(3, 256, 7, 6)
    for sign, ours in ((1, responses[:, 0]), (-1, responses[:, 1])):
        loud = (sign * expected - 0.25).clamp(min=0)
        theirs = torch.stack(  # quarters of seven rows overlap in the middle
            [
                loud[:, :, rows, columns].mean((2, 3))
                for rows in (slice(0, 4), slice(3, 7))
                for columns in (slice(0, 3), slice(3, 6))
            ],
            dim=-1,
        )
        torch.testing.assert_close(ours.flatten(2), theirs, rtol=1e-4, atol=1e-5)


def test_filters_are_whitened_patches(monkeypatch):
    monkeypatch.setattr(patches, "_N_PATCHES", 300)
    pixels = torch.rand(20, 2, 12, 9, generator=torch.Generator().manual_seed(3))
    filters, offset = patches.make_filters(pixels, 3, torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    which, top, left = (torch.randint(n, (300,), generator=generator).tolist() for n in (20, 10, 7))
    drawn = np.stack(
        [pixels[i, :, y : y + 3, x : x + 3].numpy().ravel() for i, y, x in zip(which, top, left, strict=True)]
    )
    drawn = (drawn - drawn.mean(1, keepdims=True)) / np.sqrt(drawn.var(1, keepdims=True) + 0.01)
    usual = drawn.mean(0)
    whiten = np.linalg.inv(sqrtm(np.cov(drawn.T, bias=True).astype(np.float64) + 0.1 * np.eye(18)).real)
    bank = (drawn[:256] - usual) @ whiten
    expected = bank / np.linalg.norm(bank, axis=1, keepdims=True) @ whiten
    np.testing.assert_allclose(filters.flatten(1).numpy(), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(offset.numpy(), expected @ usual, rtol=1e-3, atol=1e-4)


def test_same_seed_same_bits_other_seed_other_features():
    images = noise(40, 3, 16, 16)
    assert torch.equal(patch_features(images, 7), patch_features(images.clone(), 7))
    assert not torch.allclose(similarity(patch_features(images, 7)), similarity(patch_features(images, 8)), rtol=1e-3)
    assert patch_features(images, 7).shape == (40, 32) and patch_features(images, 7).dtype == torch.float32


@pytest.mark.parametrize(
    "images",
    [
        noise(1, 1, 8, 8),
        noise(2, 3, 32, 32),
        noise(30, 3, 100, 60),
        noise(6, 1, 2, 5),
        noise(5, 1, 1, 1),
        torch.zeros(9, 3, 8, 8, dtype=torch.uint8),
    ],
    ids=["one", "two", "large", "two rows", "one pixel", "blank"],
)
def test_whatever_the_images_features_are_finite(images):
    features = patch_features(images, 0)
    assert features.shape[0] == len(images) and features.isfinite().all()


@pytest.mark.parametrize(
    "images", [torch.rand(4, 3, 8, 8), noise(4, 8, 8), noise(0, 1, 8, 8)], ids=["floats", "three axes", "no images"]
)
def test_what_is_no_batch_of_images_is_refused(images):
    with pytest.raises(InputError, match=r"Images must be uint8 \(n, channels, height, width\), not "):
        patch_features(images, 0)


def test_wrong_labels_are_found_by_them():
    """Better than by raw pixels."""
    digits = load("digits")
    images, truth = torch.from_numpy(digits.images[:600]), digits.true_labels[:600]
    dice = np.random.default_rng(0)
    given = np.where(dice.random(600) < 0.4, dice.integers(0, 10, 600), truth)
    found = {}
    for name, features in (("patches", patch_features(images, 1)), ("pixels", images.flatten(1).float())):
        probability = score_samples(features, torch.from_numpy(given), 0).clean_probability
        found[name] = roc_auc_score(given == truth, probability)
    assert found["patches"] > 0.9, found
    assert found["patches"] > found["pixels"], found


def test_no_expert_is_trained():
    settings = resolve(dataset="digits", device="cpu", preset_name="demo", overrides={"features": "patches"})
    assert set(count_steps(settings, (1437,)).steps) == {"base", "finetune"}
    data = DataSpec(image_shape=(1, 8, 8), n_classes=10)
    one = build_spr(settings.options, data, engine=Engine(torch.device("cpu")), seed=3)
    images, labels = noise(100, 1, 8, 8), torch.arange(100) % 10
    one.take(Batch(images, labels, torch.arange(100)))
    with pytest.raises(StopIteration):  # no training is requested
        next(one.work())
    expected = score_samples(patch_features(images, one._seed("patches", 0)), labels, one._seed("graphs", 0))
    assert torch.equal(one.scored[0].clean_probability, expected.clean_probability)


@pytest.mark.parametrize("features", ["patches", "combined"])
def test_vectors_have_no_patches(features):
    settings = settings_of("demo", {"features": features}, VECTORS)
    data = DataSpec(image_shape=(12, 1, 1), n_classes=2, is_vectors=True)
    with pytest.raises(UserError, match="Feature vectors have no patches"):
        build_spr(settings, data, engine=Engine(torch.device("cpu")), seed=0)
    assert make_spr((1, 8, 8), 2, features=features).buffer_filter.choice.features == features


IMAGES, VECTORS = DataFacts((1, 8, 8)), DataFacts((12, 1, 1), is_vectors=True)


def settings_of(preset: str, chosen: dict, facts: DataFacts) -> SprSettings:
    return resolve_settings(SprSettings, chosen, facts, preset=preset)


def test_the_live_preset_scores_images_by_patches_unless_experts_are_asked_for():
    assert settings_of("live", {}, IMAGES).features == "patches"
    assert settings_of("live", {"expert_epochs": 5}, IMAGES).features == "projection"
    assert settings_of("live", {"expert_epochs": 5, "features": "patches"}, IMAGES).features == "patches"
    assert settings_of("live", {}, VECTORS).features == "projection"
    assert settings_of("paper", {}, VECTORS).features == "penultimate"


@pytest.mark.gpu
def test_a_gpu_finds_the_same():
    images = noise(120, 3, 32, 32)
    here, there = patch_features(images, 1), patch_features(images.cuda(), 1).cpu()
    torch.testing.assert_close(
        similarity(there), similarity(here), rtol=0.02, atol=0.02 * float(similarity(here).max())
    )
    assert torch.equal(there, patch_features(images.cuda(), 1).cpu())
