import torch

from purereplay.memory.verdict_log import VerdictLog, Verdicts


def verdicts(n, buffer):
    generator = torch.Generator().manual_seed(buffer)
    p, centrality = (torch.rand(n, dtype=torch.float64, generator=generator) for _ in range(2))
    return Verdicts(torch.arange(n) % 3, p, centrality, torch.full((n,), buffer), p > 0.5)


def test_verdicts_are_kept_in_stream_order():
    log, parts = VerdictLog(), [verdicts(n, i) for i, n in enumerate((4, 1, 6))]
    assert log.n == 0 and log.table().labels.shape == (0,)
    for part in parts:
        log.add(part)
    assert log.n == 11
    for column, expected in zip(log.table(), zip(*parts, strict=True), strict=True):
        assert torch.equal(column, torch.cat(expected))
    moved = VerdictLog()
    moved.add(verdicts(2, 9))
    moved.load(log.state())
    moved.add(parts[0])
    log.add(parts[0])
    assert all(torch.equal(a, b) for a, b in zip(moved.table(), log.table(), strict=True))
    assert moved.n == 15


def test_copies_that_are_dropped_change_nothing():
    log = VerdictLog()
    log.add(verdicts(4, 0))
    dropped = log.copy()
    dropped.add(verdicts(2, 1))
    assert (log.n, dropped.n) == (4, 6) and log.table().buffer.tolist() == [0] * 4
    log.add(verdicts(1, 2))
    assert log.table().buffer.tolist() == [0] * 4 + [2] and dropped.table().buffer.tolist() == [0] * 4 + [1] * 2


def test_saved_states_keep_their_keys():
    log = VerdictLog()
    log.add(verdicts(3, 0))
    assert list(log.state()) == ["labels", "clean_probability", "centrality", "buffer", "passed_mask"]
