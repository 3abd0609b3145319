import numpy as np
import pytest
import torch
from scipy import stats

from purereplay.nets.draws import RandomStream, permutations, uniforms


def splitmix64(state: int) -> int:
    """The generator's next output, written with Python's integers."""
    mask = (1 << 64) - 1
    z = state & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_uniforms_equal_splitmix64_in_plain_integers():
    golden, key, step, stream = 0x9E3779B97F4A7C15, 123456789012345678, 7, 2
    start = splitmix64(key ^ splitmix64(step * golden + stream + 1))
    expected = [(splitmix64(start + (i + 1) * golden) >> 40) / 2**24 for i in range(50)]
    ours = uniforms(torch.tensor([key]), torch.tensor(step), 50, stream=stream)
    assert ours[0].tolist() == expected


def test_uniforms_are_uniform_and_uncorrelated():
    keys = torch.arange(4)  # keys as close to each other as can be
    u = torch.stack([uniforms(keys, torch.tensor(t), 5000, stream=0) for t in range(4)]).flatten(0, 1).numpy()
    assert u.min() >= 0 and u.max() < 1
    for row in u:
        assert stats.kstest(row, "uniform").pvalue > 1e-4
    correlation = np.corrcoef(u) - np.eye(len(u))
    assert np.abs(correlation).max() < 5 / np.sqrt(5000)  # networks, and steps of one network
    assert abs(np.corrcoef(u[0, :-1], u[0, 1:])[0, 1]) < 5 / np.sqrt(5000)


def test_a_network_draws_the_same_whoever_trains_beside_it():
    together = uniforms(torch.tensor([5, 6, 7]), torch.tensor(3), 10, stream=1)
    alone = uniforms(torch.tensor([6]), torch.tensor(3), 10, stream=1)
    assert torch.equal(together[1], alone[0])


def test_streams_and_steps_differ():
    key = torch.tensor([1])
    draws = [uniforms(key, torch.tensor(t), 8, stream=s) for t in range(3) for s in range(3)]
    assert len({tuple(d[0].tolist()) for d in draws}) == 9


def test_numbers_of_streams_stay():
    """Results of earlier versions depend on them."""
    assert {stream.name: stream.value for stream in RandomStream} == {
        "ORDER": 0,
        "REPLAY": 1,
        "VIEWS": 2,
        "CUTMIX": 3,
        "SHIFT": 4,
        "CLEAN": 5,
        "FISHER_LABELS": 6,
        "MEMORY_REPLAY": 7,
        "STEP_VIEWS": 8,
        "MIXUP": 9,
    }
    key, step = torch.tensor([1]), torch.tensor(2)
    assert torch.equal(uniforms(key, step, 8, stream=RandomStream.SHIFT), uniforms(key, step, 8, stream=4))


def test_permutations_are_permutations_and_reach_every_place():
    orders = torch.cat([permutations(torch.tensor([9]), torch.tensor(t), 5, stream=0) for t in range(2000)])
    assert (orders.sort(1).values == torch.arange(5)).all()
    counts = torch.stack([(orders == v).sum(0) for v in range(5)]).numpy()
    assert stats.chisquare(counts.ravel()).pvalue > 1e-4


@pytest.mark.gpu
def test_draws_are_the_same_on_both_devices():
    keys = torch.tensor([1, 2, 3])
    here = uniforms(keys, torch.tensor(5), 1000, stream=1)
    there = uniforms(keys.cuda(), torch.tensor(5).cuda(), 1000, stream=1)
    assert torch.equal(here, there.cpu())
