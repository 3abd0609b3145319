"""The backbone that a learner's settings describe."""

from __future__ import annotations

from purereplay.errors import UserError
from purereplay.learners.settings import NetworkSettings
from purereplay.nets.networks import MLP, Backbone
from purereplay.nets.resnet import ResNet18


def make_backbone(s: NetworkSettings, image_shape: tuple[int, int, int]) -> Backbone:
    """Return an untrained backbone for images of this shape."""
    channels, height, width = image_shape
    if s.network == "mlp":
        return MLP(channels * height * width, (s.hidden, s.hidden))
    if height != width:
        raise UserError(f"The resnet18 needs square images, not {height}×{width}: resize them or choose network=mlp.")
    return ResNet18(channels, height, s.stem)
