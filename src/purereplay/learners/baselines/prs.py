"""PRS: as CRS, from a reservoir whose places are shared out by class (Kim et al. 2020).

The shares, who enters and who makes room: `memory/partitioned.py`. The shares are equal (`rho` is 0) as in the paper.
"""

from __future__ import annotations

from functools import partial

from purereplay.learners.baselines.ground import Ground
from purereplay.learners.baselines.online import Online, training
from purereplay.learners.baselines.settings import RivalSettings
from purereplay.memory.partitioned import PartitionedReservoir


def prs(s: RivalSettings, ground: Ground) -> Online:
    return Online(ground, memory=ground.memory(partial(PartitionedReservoir, rho=s.rho), s), how=training(s))
