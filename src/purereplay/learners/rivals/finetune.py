"""Finetune: a network that learns from every batch as it comes, and remembers nothing."""

from __future__ import annotations

from purereplay.learners.rivals.ground import Ground
from purereplay.learners.rivals.online import Online, training
from purereplay.learners.rivals.settings import RivalSettings


def finetune(s: RivalSettings, ground: Ground) -> Online:
    return Online(ground, memory=None, how=training(s))
