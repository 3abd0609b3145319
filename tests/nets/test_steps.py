import math
from dataclasses import replace

import pytest
import torch

from purereplay.nets.jobs import Contrastive, Supervised
from purereplay.nets.steps import batch_index, distinct_index, lr_at, replay_index


def test_learning_rates_are_the_schedules():
    def rates(recipe, steps, per_epoch=2, start=0):
        return [float(lr_at(recipe, torch.tensor(t), per_epoch, torch.tensor(start))) for t in steps]

    cosine = Contrastive(epochs=20, batch_size=1, lr=1.0, warm_epochs=10)
    assert rates(cosine, [0, 19, 20]) == pytest.approx([1, 1, 1])
    assert rates(cosine, [2 * 15]) == pytest.approx([(1 + math.cos(math.pi * 5 / 20)) / 2])
    # never restarted: after one buffer's epochs it falls on, after 20 it rises again
    assert rates(cosine, [0], start=20) == pytest.approx([0], abs=1e-6)
    assert rates(cosine, [0], start=30) == pytest.approx([0.5], abs=1e-6)
    assert rates(replace(cosine, schedule="constant"), [0, 39]) == [1, 1]
    steps = Supervised(epochs=1, lr=1.0, decay_every=300)
    assert rates(steps, [0, 299, 300, 600]) == pytest.approx([1, 1, 0.1, 0.01])
    assert rates(replace(steps, decay_every=None), [900]) == [1]


def test_an_epoch_shows_every_image_once_in_a_new_order():
    keys = torch.tensor([3, 4])
    epochs = [torch.cat(list(batch_index(keys, torch.arange(e, e + 3), 12, 4)), 1) for e in (0, 3)]
    for order in epochs:
        assert (order.sort(1).values == torch.arange(12)).all()
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[0][0], epochs[0][1])
    assert (batch_index(keys, torch.arange(2), 4, 4) == torch.arange(4)).all()  # everything, in order


def test_replay_is_drawn_with_replacement_or_distinct():
    keys = torch.tensor([3])
    often = replay_index(keys, torch.arange(300), torch.tensor([10]), 10)[:, 0]
    assert often.min() == 0 and often.max() == 9
    n_distinct = torch.tensor([row.unique().numel() for row in often]).double().mean()
    assert abs(n_distinct - 10 * (1 - 0.9**10)) < 0.3  # what drawing with replacement gives
    once = distinct_index(keys, torch.arange(1), 10, 10)
    assert once.unique().numel() == 10
