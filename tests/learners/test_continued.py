"""Learners with several jobs on a batch or buffer: stopped between or within them, they go on to the same bits."""

import pytest
from test_contract import learner, same, separable

from purereplay.nets.lockstep import drive

NAMES = ["puridiver", "cnll", "aer"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_works", [1, 2, 5])
def test_a_state_within_a_buffer_is_continued_to_the_same_bits(name, n_works):
    one, other = learner(name), learner(name)
    one.take(separable(87, seed=1))
    one.finish()
    for _ in range(n_works):
        drive(one.work(), one.engine)
    other.load({n: t.clone() for n, t in one.state().items()})
    assert same(one, other)
    for each in (one, other):
        while each.pending:
            drive(each.work(), each.engine)
    assert same(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_abandoned_jobs_are_done_again(name):
    one, other = learner(name), learner(name)
    for each in (one, other):
        each.take(separable(87, seed=1))
        each.finish()
        while each.pending:
            if each is one:
                work = each.work()
                next(work)  # the request is never answered
                work.close()
            drive(each.work(), each.engine)
    assert same(one, other)
