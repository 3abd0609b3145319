import torch

from purereplay.memory.judged import Decisions, JudgedSamples


def decisions(n, buffer):
    generator = torch.Generator().manual_seed(buffer)
    p, centrality = (torch.rand(n, dtype=torch.float64, generator=generator) for _ in range(2))
    return Decisions(torch.arange(n) % 3, p, centrality, torch.full((n,), buffer), p > 0.5)


def test_decisions_stand_in_the_order_in_which_they_came():
    judged, parts = JudgedSamples(), [decisions(n, i) for i, n in enumerate((4, 1, 6))]
    assert judged.n == 0 and judged.table().labels.shape == (0,)
    for part in parts:
        judged.add(part)
    assert judged.n == 11
    for column, expected in zip(judged.table(), zip(*parts, strict=True), strict=True):
        assert torch.equal(column, torch.cat(expected))
    moved = JudgedSamples()
    moved.add(decisions(2, 9))
    moved.load(judged.state())
    moved.add(parts[0])
    judged.add(parts[0])
    assert all(torch.equal(a, b) for a, b in zip(moved.table(), judged.table(), strict=True))
    assert moved.n == 15
