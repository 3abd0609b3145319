"""The shape of all images, chosen by some of them."""

import pytest
from tiny_state import picture, png

from purereplay.live.images import Look
from purereplay.live.items import Item, Refusal
from purereplay.live.shapes import N_LOOKS, choose, look_at_some

PHOTO, TURNED, ICON = Look(4000, 3000, True), Look(3000, 4000, True), Look(28, 28, False)


@pytest.mark.parametrize(
    ("looks", "shape"),
    [
        ([ICON], (1, 28, 28)),
        ([ICON, Look(28, 28, True)], (3, 28, 28)),
        ([PHOTO] * 3, (3, 48, 64)),
        ([PHOTO, Look(800, 600, True)], (3, 48, 64)),
        ([PHOTO, TURNED], (3, 64, 64)),
        ([Look(20, 30, False), Look(40, 20, False), Look(25, 25, False)], (1, 30, 30)),
        ([Look(10_000, 3, False)], (1, 1, 64)),
    ],
)
def test_the_shape_follows_from_the_images(looks, shape):
    assert choose(looks, None, None).shape == shape


def test_the_user_s_wishes_are_followed():
    assert choose([PHOTO], 100, None).shape == (3, 100, 100)
    assert choose([PHOTO], None, 1).shape == (1, 48, 64)


def test_the_choice_is_told():
    mixed = choose([PHOTO, TURNED, Look(640, 480, True)], None, None)
    assert mixed.resizes and mixed.sentence == (
        "3 images looked at: 640 × 480 pixels to 4,000 × 3,000. "
        "All images are resized to 64 × 64, colour; the aspect is kept."
    )
    kept = choose([ICON], None, None)
    assert not kept.resizes and kept.sentence == (
        "1 image looked at: 28 × 28 pixels. All images are kept as 28 × 28, grey."
    )


def test_some_images_all_over_a_source_are_looked_at():
    offers = [Item(f"{i}", "x", png(picture(i, size=3 + i // 500))) for i in range(1000)]
    offers[5] = Refusal("5", "is nothing")
    offers[10] = Item("10", "x", b"nothing")
    looks = look_at_some(offers)
    assert len(looks) == N_LOOKS - 2 and {look.width for look in looks} == {3, 4}
