"""Finetune: a network that learns from every batch as it comes, and remembers nothing."""

from __future__ import annotations

from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.online import Online, training
from purereplay.learners.baselines.settings import RivalSettings


def finetune(s: RivalSettings, ground: Ground) -> Online:
    return Online(ground, memory=None, how=training(s))
