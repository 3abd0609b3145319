"""The parts of AER against slow, obvious versions."""

import numpy as np
import pytest
import torch
from test_contract import learner, separable

from purereplay.learners.baselines.aer import replacements
from purereplay.nets.lockstep import drive

CAPACITY = 12


def slow_replacements(losses: list, is_current: list, offered: list, n_before: int, draws: np.ndarray) -> list[int]:
    """One sample at a time, with probabilities as lists."""
    slots = []
    for loss, (enter, group, sample) in zip(offered, draws.tolist(), strict=True):
        n_before += 1
        if int(enter * n_before) >= CAPACITY:
            slots.append(-1)
            continue
        from_past = group < is_current.count(False) / CAPACITY
        members = [i for i in range(CAPACITY) if is_current[i] != from_past]
        low, high = min(losses[i] for i in members), max(losses[i] for i in members)
        scaled = [(losses[i] - low) / (high - low) if high > low else 0.0 for i in members]
        weights = [(1 - v if from_past else v) + 1e-9 for v in scaled]
        left = sample * sum(weights)
        for slot, weight in zip(members, weights, strict=True):  # noqa: B007
            left -= weight
            if left < 0:
                break
        losses[slot], is_current[slot] = loss, True
        slots.append(slot)
    return slots


@pytest.mark.parametrize(("n_before", "n_past"), [(CAPACITY, 0), (20, 5), (40, CAPACITY)])
def test_replacements_are_those_of_an_obvious_loop(n_before, n_past):
    rng = np.random.default_rng(n_before)
    losses, offered, draws = rng.random(CAPACITY), rng.random(60), rng.random((60, 3))
    is_current = np.arange(CAPACITY) >= n_past
    found = replacements(losses, is_current, offered, n_before, draws)
    assert found == slow_replacements(losses.tolist(), is_current.tolist(), offered.tolist(), n_before, draws)
    assert len(set(found)) > 3 and -1 in found
    assert (is_current == (np.arange(CAPACITY) >= n_past)).all()  # the arguments are not changed


@pytest.mark.parametrize(("is_past", "leaves"), [(False, range(6, 12)), (True, range(6))])
def test_large_losses_leave_the_current_task_and_small_ones_the_past(is_past, leaves):
    losses, rng = np.arange(12.0), np.random.default_rng(1)
    is_current = np.full(12, not is_past)
    first = [replacements(losses, is_current, np.zeros(1), 0, rng.random((1, 3)))[0] for _ in range(400)]
    assert np.isin(first, list(leaves)).mean() > 0.7


def test_equal_losses_are_equally_likely_to_leave():
    rng = np.random.default_rng(2)
    counts = np.bincount(
        [replacements(np.ones(4), np.ones(4, bool), np.zeros(1), 0, rng.random((1, 3)))[0] for _ in range(4000)]
    )
    assert (abs(counts - 1000) < 150).all()


def test_forgetting_changes_the_memory_alone_and_learning_the_network_alone():
    one = learner("aer")
    one.observe(separable(80, seed=1))
    one.take(separable(40, seed=2))
    for epoch in range(10):
        weights, index = {n: t.clone() for n, t in one.weights.items()}, one.memory.index.clone()
        report = drive(one.work(), one.engine)
        moved = any(not torch.equal(t, weights[n]) for n, t in one.weights.items())
        learns = epoch % 2 == 1
        assert moved == learns
        assert not learns or torch.equal(one.memory.index, index)
    assert report is not None and len(report.index) == 40


def test_no_sample_is_in_the_memory_twice():
    one = learner("aer")
    for i in range(3):
        one.observe(separable(80, seed=i + 1))
        held = one.memory.index.tolist()
        assert len(set(held)) == len(held) > 10


def test_a_task_ends_with_its_last_samples():
    one = learner("aer")
    assert one.observe(separable(33, seed=1)) == []  # a delayed buffer has 40
    one.end_task()
    reports = []
    while one.pending:
        reports.append(drive(one.work(), one.engine))
    assert [len(r.index) for r in reports if r is not None] == [33] and one.waiting.n == 0
    assert one.memory.n and not one.is_current.any()
    one.observe(separable(40, seed=2))
    assert one.is_current.any() and not one.is_current.all()
