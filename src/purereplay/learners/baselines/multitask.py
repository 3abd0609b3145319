"""Multitask: the upper bound, which holds the whole stream and learns only once it has seen all of it.

It is trained for 50 epochs, as the paper has it, by stochastic gradient descent in order drawn anew every epoch, on the
given labels or, with `--noise none`, on the true ones. Being no continual learner it is judged at the end alone.
"""

from __future__ import annotations

from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.scratch import FromScratch, Training
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.reservoir import Reservoir


class Multitask(FromScratch):
    is_offline = True


def multitask(s: RivalSettings, ground: Ground) -> Multitask:
    """`s.memory_size` is the length of the stream: a reservoir that never overflows."""
    how = Training(s.multitask_epochs, s.scratch_batch, s.multitask_rate)
    return Multitask(ground, memory=ground.memory(Reservoir, s), how=how)
