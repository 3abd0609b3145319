import pytest
import torch
import torch.nn.functional as F

from purereplay.nets.augment import cutmix, shifted_and_flipped


def test_cutmix_pastes_a_box_and_says_how_much():
    images = torch.arange(5.0).view(1, 5, 1, 1, 1).expand(1, 5, 1, 20, 20)
    labels = torch.arange(5)[None]
    mixed, (other, own) = cutmix(images, labels, torch.tensor([[0.36, 0.5, 0.5, 0.0]]), 0.5)
    assert (other == torch.tensor([[4, 0, 1, 2, 3]])).all()
    kept = (mixed[0, :, 0] == images[0, :, 0]).double().mean((1, 2))
    torch.testing.assert_close(kept, own[0].double().expand(5))
    assert own[0, 0] == pytest.approx(1 - (16 / 20) ** 2)  # a box of side sqrt(1 - 0.36) = 0.8
    untouched, (_, share) = cutmix(images, labels, torch.tensor([[0.36, 0.5, 0.5, 0.9]]), 0.5)
    assert torch.equal(untouched, images) and share.item() == 1


def test_shifted_and_flipped_images_are_crops_of_the_padded_ones():
    images = torch.rand(2, 3, 2, 8, 8)
    u = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0))
    found = shifted_and_flipped(images, u)
    padded = F.pad(images, (4, 4, 4, 4))
    for k in range(2):
        for b in range(3):
            top, left = (int(v * 9) for v in u[k, b, :2])
            crop = padded[k, b, :, top : top + 8, left : left + 8]
            assert torch.equal(found[k, b], crop if u[k, b, 2] < 0.5 else crop.flip(-1))
    still = torch.full((2, 3, 3), 0.45)  # a shift of 4: none
    assert torch.equal(shifted_and_flipped(images, still), images)
