import colorsys

import kornia
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from purereplay.nets.draws import uniforms
from purereplay.nets.views import FeatureViews, Views, colour_jitter, draw_boxes, make_views


def numbers(n: int, views: Views | FeatureViews, seed: int = 0) -> torch.Tensor:
    return uniforms(torch.tensor([seed]), torch.tensor(0), n * views.n_numbers, stream=0).view(n, views.n_numbers)


def slow_view(image: torch.Tensor, box: tuple[float, float, float, float], flip: bool) -> torch.Tensor:
    """One crop, by the library's own interpolation at explicit coordinates."""
    left, top, w, h = box
    height, width = image.shape[-2:]
    x = left + w * (torch.arange(width) + 0.5) / width
    y = top + h * (torch.arange(height) + 0.5) / height
    x = x.flip(0) if flip else x
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], -1) * 2 - 1
    return F.grid_sample(image[None], grid[None], align_corners=False, padding_mode="border")[0]


def test_crop_and_flip_equal_grid_sampling_image_by_image():
    views = Views()
    images = torch.rand(40, 3, 9, 12)
    u = numbers(40, views)
    ours = make_views(images, u, views)
    w, h = draw_boxes(u.T[:6], views)
    for i in range(40):
        box = (float(u[i, 6] * (1 - w[i])), float(u[i, 7] * (1 - h[i])), float(w[i]), float(h[i]))
        torch.testing.assert_close(ours[i], slow_view(images[i], box, bool(u[i, 8] < 0.5)), atol=1e-5, rtol=1e-4)


def test_boxes_follow_the_law_of_kornias_random_resized_crop():
    n, views = 20_000, Views()
    w, h = draw_boxes(numbers(n, views).T[:6], views)
    assert w.max() <= 1 and h.max() <= 1
    size = 512  # large, so that kornia's whole pixels do not matter
    theirs = kornia.augmentation.RandomResizedCrop((size, size), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    torch.manual_seed(0)
    corners = theirs.forward_parameters(torch.Size((n, 1, size, size)))["src"]
    tw, th = ((corners[:, 2] - corners[:, 0] + 1) / size).T
    for ours, other in ((w * h, tw * th), ((w / h).log(), (tw / th).log())):
        assert stats.ks_2samp(ours.numpy(), other.numpy()).statistic < 0.02


def test_view_statistics_match_kornias():
    images = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(1)).expand(6000, 1, 28, 28)
    ours = make_views(images, numbers(6000, Views()), Views())
    torch.manual_seed(0)
    crop = kornia.augmentation.RandomResizedCrop((28, 28), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    theirs = kornia.augmentation.RandomHorizontalFlip(p=0.5)(crop(images.contiguous()))
    assert abs(float(ours.mean() - theirs.mean())) < 0.01
    assert abs(float(ours.std() - theirs.std())) < 0.02
    assert (ours.mean((0, 1)) - theirs.mean((0, 1))).abs().max() < 0.04  # pixel by pixel


def test_each_image_gets_its_own_draw_and_half_are_flipped():
    views = Views(area=(1.0, 1.0), ratio=(1.0, 1.0))
    images = torch.arange(8.0).repeat(8, 1)[None, None].expand(4000, 1, 8, 8) / 8
    ours = make_views(images, numbers(4000, views), views)
    flipped = ours[:, 0, 0, 0] > ours[:, 0, 0, -1]
    assert abs(float(flipped.double().mean()) - 0.5) < 0.03
    torch.testing.assert_close(ours[~flipped][0], images[0])
    torch.testing.assert_close(ours[flipped][0], images[0].flip(-1))


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_each_jitter_step_equals_kornias(name):
    x = torch.rand(16, 3, 6, 6)
    one, zero = torch.ones(16, 1, 1, 1), torch.zeros(16, 1, 1, 1)
    factor = 0.5 + torch.rand(16, 1, 1, 1)
    turn = 0.4 * torch.rand(16, 1, 1, 1) - 0.2
    arguments = {
        "brightness": (factor, one, one, zero),
        "contrast": (one, factor, one, zero),
        "saturation": (one, one, factor, zero),
        "hue": (one, one, one, turn),
    }[name]
    ours = colour_jitter(x, *arguments, "factors")
    flat = factor.flatten()
    enhance = kornia.enhance
    if name == "brightness":
        theirs = enhance.adjust_brightness_accumulative(x, flat)
    elif name == "contrast":
        theirs = enhance.adjust_contrast_with_mean_subtraction(x, flat)
    elif name == "saturation":
        theirs = enhance.adjust_saturation_with_gray_subtraction(x, flat)
    else:
        theirs = enhance.adjust_hue(x, turn.flatten() * 2 * torch.pi)
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-2)


def test_hue_equals_the_standard_library_pixel_by_pixel():
    x = torch.rand(5, 3, 2, 2, dtype=torch.float64)
    turn = torch.tensor([-0.2, -0.1, 0.0, 0.13, 0.2], dtype=torch.float64).view(5, 1, 1, 1)
    one = torch.ones_like(turn)
    ours = colour_jitter(x, one, one, one, turn, "factors")
    for i in range(5):
        for pixel, expected in zip(ours[i].flatten(1).T, x[i].flatten(1).T, strict=True):
            h, s, v = colorsys.rgb_to_hsv(*expected.tolist())
            np.testing.assert_allclose(pixel, colorsys.hsv_to_rgb((h + float(turn[i])) % 1, s, v), atol=1e-6)


def test_additive_jitter_adds_brightness_and_scales_contrast():
    x = torch.full((1, 3, 1, 1), 0.4)
    one = torch.ones(1, 1, 1, 1)
    ours = colour_jitter(x, one + 0.2, one * 0.5, one, one * 0, "additive")
    torch.testing.assert_close(ours, torch.full((1, 3, 1, 1), 0.3))


def test_jitter_reaches_its_share_of_the_images():
    views = Views(area=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=(0.5, 0.5, 0.5, 0.2))
    images = torch.rand(2000, 3, 4, 4)
    changed = (make_views(images, numbers(2000, views), views) - images).abs().amax((1, 2, 3)) > 1e-3
    assert abs(float(changed.double().mean()) - 0.5) < 0.05


def test_views_of_vectors_leave_features_out_and_add_noise():
    views = FeatureViews(5, dropout=0.3, noise=0.5)
    vectors = torch.arange(1.0, 6.0).expand(4000, 5)[:, :, None, None]
    u = numbers(4000, views)
    seen = make_views(vectors, u, views)
    assert seen.shape == vectors.shape
    for i in range(50):  # one by one
        for j in range(5):
            expected = 0.0 if u[i, j] < 0.3 else j + 1 + 0.5 * stats.norm.ppf(float(u[i, 5 + j]) + 2.0**-25)
            assert float(seen[i, j]) == pytest.approx(expected, abs=1e-5)
    dropped = seen == 0
    assert float(dropped.double().mean()) == pytest.approx(0.3, abs=0.01)
    assert stats.kstest(((seen - vectors)[~dropped] / 0.5).numpy(), "norm").pvalue > 0.01
    assert len(seen[:, 0].unique()) > 2000  # everyone has a draw of its own


def test_views_of_vectors_are_finite_at_both_ends_of_the_draws():
    views, vectors = FeatureViews(2, dropout=0.0, noise=1.0), torch.zeros(2, 2, 1, 1)
    ends = torch.tensor([[0.0] * 4, [1 - 2.0**-24] * 4])
    low, high = make_views(vectors, ends, views)[:, 0, 0, 0].tolist()
    assert low == -high and 5 < high < 6
    still = make_views(vectors + 3, ends, FeatureViews(2, dropout=0.0, noise=0.0))
    assert torch.equal(still, vectors + 3)
