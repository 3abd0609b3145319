"""Threads that share an estimator: one learns at a time, predictions beside it come from a whole classifier.

The threads run in a process of their own, since the defect was a crash of the process.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from purereplay import SelfPurifiedClassifier, make_spr
from purereplay.data.batch import Batch
from purereplay.errors import UserError
from purereplay.estimator.turns import Turns
from purereplay.learners import full_memory
from purereplay.purify.opinions import forest

TINY = {
    "delayed_size": 20,
    "purified_size": 20,
    "expert_epochs": 3,
    "base_epochs": 3,
    "settings": {"hidden": 16, "projection_size": 8, "finetune_epochs": 20, "small_class": "keep", "graphs": 1},
}
LABELS = ["a", "b", "c"]


def piece(number, n=10):
    """A piece of an endless stream; a class appears in the fifth piece."""
    rng = np.random.default_rng(number)
    classes = rng.integers(0, 2 if number < 5 else 3, n)
    return 4 * np.eye(5)[classes] + rng.normal(size=(n, 5)), [LABELS[c] for c in classes]


QUESTION = piece(10**6)[0]


def together(works):
    """Run functions in threads that start at one moment; return the errors."""
    errors, start = [], threading.Barrier(len(works))

    def guarded(work):
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def make(learner="spr"):
    """A small classifier; one with full memory revises its verdicts at 20 samples, and has few trees."""
    full_memory.FIRST, forest.N_TREES = 20, 5
    return SelfPurifiedClassifier(learner=learner, **({} if learner == full_memory.NAME else TINY))


def fresh_agreement(n_tries, learner="spr"):
    """Two threads ask a freshly fitted classifier once each, many times over."""
    X, y = piece(7, 40)
    right = make(learner).fit(X, y).predict_proba(QUESTION)
    for _ in range(n_tries):
        one, answers = make(learner).fit(X, y), []
        errors = together([lambda one=one, a=answers: a.append(one.predict_proba(QUESTION))] * 2)
        assert not errors, errors
        answers.append(one.predict_proba(QUESTION))  # the one that is kept
        assert all(np.array_equal(answer, right) for answer in answers)


def beside_learning(seconds, n_readers, learner="spr"):
    """Many threads predict while one learns; every answer is that of a classifier between two pieces."""
    one = make(learner).fit(*piece(0))
    one.predict(QUESTION)
    answers: set[tuple[int, bytes]] = set()
    counts, waits, n_pieces, ended = [0] * n_readers, [0.0] * n_readers, [0], threading.Event()

    def learn():
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end or n_pieces[0] < 8:
                n_pieces[0] += 1
                one.partial_fit(*piece(n_pieces[0]))
        finally:
            ended.set()

    def ask(reader):
        while not ended.is_set():
            began = time.monotonic()
            shares = one.predict_proba(QUESTION)
            waits[reader] = max(waits[reader], time.monotonic() - began)
            answers.add((shares.shape[1], shares.tobytes()))
            assert set(one.predict(QUESTION)) <= set(LABELS)
            counts[reader] += 1
            time.sleep(0.002)

    errors = together([learn, *(lambda reader=reader: ask(reader) for reader in range(n_readers))])
    assert not errors, errors
    assert min(counts) > 0, counts
    again, whole = make(learner).fit(*piece(0)), set()
    for number in range(n_pieces[0] + 1):
        if number:
            again.partial_fit(*piece(number))
        shares = again.predict_proba(QUESTION)
        whole.add((shares.shape[1], shares.tobytes()))
    assert answers <= whole, f"{len(answers - whole)} of {len(answers)} answers belong to no whole classifier"
    assert len(answers) > 2, "the answers never changed beside learning"
    assert np.array_equal(one.predict_proba(QUESTION), again.predict_proba(QUESTION))
    print(f"{sum(counts)} answers of {len(answers)} classifiers beside {n_pieces[0]} pieces, no error,")  # noqa: T201
    print(f"longest wait for an answer {max(waits):.2f} s")  # noqa: T201


def in_a_process(call):
    code = f"import torch; torch.set_num_threads(1); from hostile.test_threads import *; {call}"
    path = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    print(done.stdout)  # noqa: T201


@pytest.mark.long
@pytest.mark.parametrize(("learner", "n_tries"), [("spr", 4), (full_memory.NAME, 2)])
def test_two_threads_agree_on_a_fresh_classifier_and_no_half_trained_one_is_kept(learner, n_tries):
    in_a_process(f"fresh_agreement({n_tries}, {learner!r})")


@pytest.mark.long
@pytest.mark.parametrize(
    ("learner", "seconds"), [pytest.param("spr", 3, marks=pytest.mark.slow), (full_memory.NAME, 1)]
)
def test_ten_threads_predict_while_one_learns(learner, seconds):
    in_a_process(f"beside_learning({seconds}, 10, {learner!r})")


@pytest.mark.slow
def test_ten_threads_predict_while_one_learns_for_a_minute():
    in_a_process("beside_learning(60, 10)")


@pytest.mark.long
def test_two_threads_may_learn_and_others_read_everything(tmp_path):
    """Learning in two threads loses no sample; copies, files and tables show whole states."""
    one = SelfPurifiedClassifier(learner="spr", **TINY).fit(*piece(0))

    def learn(first):
        for number in range(first, first + 6):
            one.partial_fit(*piece(number))

    def read():
        for i in range(4):
            one.save(tmp_path / f"{i}.safetensors")
            loaded = SelfPurifiedClassifier.load(tmp_path / f"{i}.safetensors")
            assert len(loaded.suspects()) <= loaded.n_seen_ and loaded.n_seen_ % 10 == 0
            assert len(one.suspects()) % 10 == 0 and len(one.purified().y) <= 20
            one.noise_estimate()

    errors = together([lambda: learn(1), lambda: learn(11), read])
    assert not errors, errors
    assert one.n_seen_ == 130 and len(one.flush().suspects()) == 130


def test_a_view_beside_learning_is_the_last_one_and_is_renewed_at_its_end():
    turns, state, made = Turns(), [1], []

    def make():
        made.append(state[0])
        return state[0]

    assert turns.view(make) == turns.view(make) == 1 and made == [1]
    turns.learning(lambda: state.insert(0, 2), make)
    assert made == [1], "no view is made unless one is asked for"

    def learn():
        state[0] = 3
        errors = together([lambda: made.append(turns.view(make))])
        assert not errors and made == [1, 1]

    turns.learning(learn, make)
    assert made == [1, 1, 3] and turns.view(make) == 3
    with pytest.raises(ZeroDivisionError):
        turns.learning(lambda: 1 / 0, make)
    assert turns.reading(lambda: "read") == "read", "the failed turn was not given back"


def test_readers_wait_for_the_first_view_and_turns_are_given_in_order():
    turns, order, waiting = Turns(), [], []

    def arrive(work):
        last = turns._last
        waiting.append(threading.Thread(target=work, daemon=True))
        waiting[-1].start()
        while turns._last is last:
            time.sleep(0.001)

    def learn():
        for name in ("a", "b", "c"):
            arrive(lambda name=name: turns.reading(lambda: order.append(name)))
        arrive(lambda: order.append(turns.view(lambda: "view")))
        time.sleep(0.05)
        assert order == []

    turns.learning(learn, lambda: "view")
    for thread in waiting:
        thread.join(10)
    assert order == ["a", "b", "c", "view"]


def test_a_turn_that_is_interrupted_while_it_waits_lets_nobody_in_early():
    turns, order, go_on, learns = Turns(), [], threading.Event(), threading.Event()
    main, arrived = threading.main_thread().ident, None

    def learn():
        learns.set()
        go_on.wait(20)
        order.append("learned")

    def follow():
        while turns._last is arrived:
            time.sleep(0.001)
        turns.reading(lambda: order.append("second"))

    def interrupt():
        while turns._last is arrived:
            time.sleep(0.001)
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGUSR1)

    def raise_interrupt(*_):
        raise KeyboardInterrupt

    learner = threading.Thread(target=turns.learning, args=[learn, lambda: "view"], daemon=True)
    learner.start()
    assert learns.wait(20)
    arrived = turns._last
    others = [threading.Thread(target=work, daemon=True) for work in (follow, interrupt)]
    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    try:
        for thread in others:
            thread.start()
        with pytest.raises(KeyboardInterrupt):
            turns.reading(lambda: order.append("first"))
        time.sleep(0.05)
        assert order == []
    finally:
        signal.signal(signal.SIGUSR1, before)
        go_on.set()
    for thread in (learner, *others):
        thread.join(20)
    assert order == ["learned", "second"]


def test_a_failed_first_fit_in_another_thread_leaves_the_classifier_unfitted():
    one = SelfPurifiedClassifier(learner="spr", **(TINY | {"settings": {**TINY["settings"], "lr": 1e15}}))
    with pytest.raises(UserError, match="diverged"):
        one.fit(*piece(7, 40))
    assert not one.__sklearn_is_fitted__() and not hasattr(one, "classes_")


def test_two_threads_at_one_learner_are_an_error_not_a_crash():
    learner = make_spr((1, 4, 4), 2, delayed_size=20, purified_size=20, expert_epochs=200, base_epochs=1, hidden=16)
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (20, 1, 4, 4), np.uint8))
    batch = Batch(images, torch.arange(20) % 2, torch.arange(20))
    inside, go_on = threading.Event(), threading.Event()

    def watch(progress):
        inside.set()
        go_on.wait(20)

    learner.engine.watch = watch
    learner.engine._reported_at = float("-inf")  # report the first steps, however fast they are
    thread = threading.Thread(target=lambda: learner.observe(batch))
    thread.start()
    assert inside.wait(20)
    try:
        with pytest.raises(UserError, match="one thread at a time"):
            learner.flush()
    finally:
        go_on.set()
        thread.join()
    learner.engine.watch = None
    learner.observe(batch._replace(index=batch.index + 20))
    learner.classifier()
