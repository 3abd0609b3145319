"""Interrupts at any moment: no sample is lost or taken twice, nothing is left held, and the end result is the same.

A trace function raises KeyboardInterrupt at the n-th line of the package that is executed, for n over the whole of a
small stream's life. An interrupt by a real signal can come at other places too, within PyTorch and Python's library;
the slow test sends some hundreds of them.
"""

import copy
import dis
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import pytest
import torch

import purereplay
from purereplay import SelfPurifiedClassifier
from purereplay.data.batch import Batch
from purereplay.learners import full_memory, pure_replay
from purereplay.learners.base import DataSpec
from purereplay.learners.recorded import RecordedLearner
from purereplay.learners.registry import entry
from purereplay.learners.settings import DataFacts, resolve
from purereplay.nets.engine import Engine

PACKAGE = str(Path(purereplay.__file__).parent)
SMALL = {"hidden": 4, "projection_size": 4, "finetune_epochs": 1, "small_class": "keep", "graphs": 1}
TINY = {"delayed_size": 8, "purified_size": 6, "expert_epochs": 1, "base_epochs": 1, "device": "cpu", "settings": SMALL}
QUESTION = np.random.default_rng(9).normal(size=(7, 3))


@pytest.fixture(autouse=True)
def it_ends(request):
    """Fail instead of waiting for ever for a lock, or for work that does not end."""

    def too_long(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(1800 if request.node.get_closest_marker("slow") else 120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- raising at a line


class InterruptAt:
    """Context that raises KeyboardInterrupt at the n-th line of the package (from 0), or the first time at a place.

    Without either it only counts.
    """

    def __init__(self, n: int | None = None, place: tuple[str, int] | None = None) -> None:
        self.n, self.place, self.where, self.lines = n, place, "", []

    def __enter__(self) -> "InterruptAt":
        sys.settrace(self._enters)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enters(self, frame: FrameType, event: str, _: object):
        return self._runs if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _runs(self, frame: FrameType, event: str, _: object):
        if event == "line" and frame.f_lasti not in exits_of_with(frame.f_code):
            place = (frame.f_code.co_filename, frame.f_lineno)
            if len(self.lines) == self.n or place == self.place:
                self.where = f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
            self.lines.append(place)
        return self._runs


@cache
def exits_of_with(code: CodeType) -> frozenset[int]:
    """Offsets at which a `with` statement is left normally: Python looks for no signal there, so none can interrupt."""
    found, started = set(), []  # offsets since the last line started
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("PRECALL", "PUSH_NULL", "NOP", "CACHE")]
    for at, instruction in enumerate(instructions):
        started = [instruction.offset] if instruction.starts_line else [*started, instruction.offset]
        nones = [i.opname == "LOAD_CONST" and i.argval is None for i in instructions[at : at + 3]]
        if all(nones) and instructions[at + 3 : at + 4] and instructions[at + 3].opname == "CALL" and len(started) < 3:
            found.add(started[0])
    return frozenset(found)


# ---------------------------------------------------------------- a small stream's life


def pieces():
    rng = np.random.default_rng(0)
    for number, n in enumerate((5, 6, 9)):
        classes = rng.integers(0, 2 if number < 2 else 3, n)
        yield 3 * np.eye(3)[classes] + rng.normal(size=(n, 3)), classes.tolist(), [f"{number}.{i}" for i in range(n)]


def make(learner: str) -> SelfPurifiedClassifier:
    return SelfPurifiedClassifier(learner=learner, **({} if learner == full_memory.NAME else TINY))


@pytest.fixture(autouse=True)
def early_revisions(monkeypatch):
    """Full memory revises its verdicts at 8 samples, and has few trees."""
    monkeypatch.setattr(full_memory, "FIRST", 8)
    monkeypatch.setattr("purereplay.purify.opinions.forest.N_TREES", 2)


def life(one: SelfPurifiedClassifier):
    """Calls in their order, each with the number of samples that it takes."""
    for number, (X, y, ids) in enumerate(pieces()):
        yield len(y), lambda X=X, y=y, ids=ids: one.partial_fit(X, y, sample_ids=ids)
        if number == 1:
            yield 0, lambda: one.predict_proba(QUESTION)
            yield 0, one.suspects
    yield 0, one.flush
    yield 0, one.purified
    yield 0, one.noise_estimate


def call(one: SelfPurifiedClassifier, n_samples: int, work) -> None:
    """Call until it succeeds, as a user would: samples that were taken are not given again."""
    before = getattr(one, "n_seen_", 0)
    try:
        work()
    except KeyboardInterrupt:
        assert torch.is_grad_enabled() and torch.get_num_threads() == 1
        assert nothing_is_held(one)
        seen = getattr(one, "n_seen_", 0)
        assert seen in (before, before + n_samples)
        if seen == before:
            work()


def nothing_is_held(one: SelfPurifiedClassifier) -> bool:
    last = one._turns._last
    return not (one._turns._learning.locked() or (last is not None and last.lock.locked()))


def outcome(one: SelfPurifiedClassifier) -> dict[str, bytes]:
    """Everything that the classifier has learned, and what it says."""
    facts, tensors = one._whole_state()
    found = {name: t.numpy().tobytes() for name, t in tensors.items()} | {"facts": repr(facts).encode()}
    found |= {"answer": one.predict_proba(QUESTION).tobytes(), "classes": repr(one.classes_).encode()}
    return found | {"suspects": repr(one.suspects().tolist()).encode(), "n_seen": repr(one.n_seen_).encode()}


def live(learner: str, n: int | None = None) -> tuple[dict[str, bytes], InterruptAt]:
    """Live with an interrupt at the n-th line of the package."""
    one = make(learner)
    with InterruptAt(n) as interrupt:
        for n_samples, work in life(one):
            call(one, n_samples, work)
    return outcome(one), interrupt


@cache
def undisturbed(learner: str) -> tuple[dict[str, bytes], list[tuple[str, int]]]:
    live(learner)  # the first life also compiles and imports
    right, counted = live(learner)
    return right, counted.lines


def check(learner: str, n: int) -> None:
    found, interrupt = live(learner, n)
    assert interrupt.where, f"line {n} was not reached"
    right = undisturbed(learner)[0]
    wrong = [name for name in right | found if right.get(name) != found.get(name)]
    assert not wrong, f"interrupted at {interrupt.where}: {wrong} differ"


def moments(learner: str, modules: tuple[str, ...] = ("",)) -> list[int]:
    """Numbers of executed lines, one for each line of the source."""
    rng, times = np.random.default_rng(1), {}
    for n, (path, line) in enumerate(undisturbed(learner)[1]):
        if path[len(PACKAGE) + 1 :].startswith(modules):
            times.setdefault((path, line), []).append(n)
    return sorted(int(rng.choice(own)) for own in times.values())


BOOKKEEPING = (
    "estimator",
    "learners/recorded",
    "learners/full_memory",
    "learners/spr/learner",
    "memory/",
    "data/names",
)
BUFFERED = ("spr", pure_replay.ENTRY.name)
LEARNERS = (*BUFFERED, full_memory.NAME)


@pytest.mark.parametrize(("learner", "every"), [("spr", 16), (pure_replay.ENTRY.name, 40), (full_memory.NAME, 100)])
def test_an_interrupt_at_any_line_of_the_bookkeeping_changes_nothing(learner, every):
    for n in moments(learner, BOOKKEEPING)[::every]:
        check(learner, n)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_an_interrupt_at_any_line_of_the_package_changes_nothing(learner):
    every = moments(learner)
    assert len(every) > 1000
    for n in every:
        check(learner, n)
    print(f"{len(every)} interrupts at as many lines, every end result the same")  # noqa: T201


def test_an_interrupt_while_samples_are_put_in_takes_all_or_none():
    [(X, y, ids), (others, theirs, names), _] = pieces()
    one = SelfPurifiedClassifier(learner="spr", **TINY).partial_fit(X, y, sample_ids=ids)

    def put(copied, **where):
        with InterruptAt(**where) as interrupt:
            copied.partial_fit(others[:2], [7, *theirs[:1]], sample_ids=names[:2])  # a new class, no full buffer
        return interrupt

    after = copy.deepcopy(one)
    places, states = put(after).lines, [outcome(one), outcome(after)]
    for n in range(len(places)):
        copied = copy.deepcopy(one)
        with pytest.raises(KeyboardInterrupt):
            put(copied, n=n)
        found = outcome(copied)
        assert found in states, places[n]
        if found == states[0]:
            put(copied)
        assert outcome(copied.partial_fit(X[:0], [])) == states[1], places[n]


# ---------------------------------------------------------------- fit


def test_an_interrupted_fit_leaves_the_classifier_as_it_was():
    [(X, y, _), _, (images, others, _)] = pieces()
    images = np.clip(images[:, :, None].repeat(4, 2), 0, 1)
    right = SelfPurifiedClassifier(learner="spr", **TINY).fit(images, others)
    with InterruptAt() as counted:
        SelfPurifiedClassifier(learner="spr", **TINY).fit(X, y).fit(images, others)
    one = SelfPurifiedClassifier(learner="spr", **TINY).fit(X, y)
    before = outcome(one)
    for n in range(50, len(counted.lines) // 2, len(counted.lines) // 30):
        with pytest.raises(KeyboardInterrupt), InterruptAt(n):
            one.fit(images, others)
        assert outcome(one) == before and one.n_features_in_ == 3 and nothing_is_held(one)
    one.fit(images, others)
    assert one._whole_state()[1].keys() == right._whole_state()[1].keys() and not hasattr(one, "n_features_in_")
    assert np.array_equal(one.predict_proba(images), right.predict_proba(images))
    fresh = SelfPurifiedClassifier(learner="spr", **TINY)
    with pytest.raises(KeyboardInterrupt), InterruptAt(len(counted.lines) // 3):
        fresh.fit(images, others)
    assert not fresh.__sklearn_is_fitted__() and not hasattr(fresh, "classes_")


# ---------------------------------------------------------------- both learners, on images


def recorded(name: str) -> RecordedLearner:
    """A learner of grey images."""
    sizes = {"delayed_size": 8, "purified_size": 6, "expert_epochs": 1, "base_epochs": 1, "network": "mlp"}
    shape, kind = (1, 4, 4), entry(name)
    chosen = {key: value for key, value in (SMALL | sizes).items() if key in kind.settings.__dataclass_fields__}
    options = resolve(kind.settings, chosen, DataFacts(shape, is_vectors=False), preset="live")
    data = DataSpec(image_shape=shape, n_classes=0)
    return RecordedLearner(kind.build(options, data, engine=Engine(torch.device("cpu")), seed=0))


def taught(name: str, n: int | None) -> tuple[dict[str, bytes], InterruptAt]:
    """The state after two pieces, with an interrupt at the n-th line; the second piece brings a new class."""
    generator, one = torch.Generator().manual_seed(0), recorded(name)
    with InterruptAt(n) as interrupt:
        for n_classes in (2, 3):
            labels = torch.randint(0, n_classes, (12,), generator=generator)
            images = torch.randint(0, 256, (12, 1, 4, 4), dtype=torch.uint8, generator=generator)
            while True:
                try:
                    more = one.copy()
                    more.grow(n_classes)
                    more.put(images, labels)
                    break
                except KeyboardInterrupt:
                    continue
            one = more
            for flush in (False, True):
                try:
                    one.work(flush=flush)
                except KeyboardInterrupt:
                    one.work(flush=flush)
    found = {key: t.numpy().tobytes() for key, t in one.state().items()}
    answer = one.classifier()
    assert answer is not None
    return found | {"answer": answer.logits(images).numpy().tobytes()}, interrupt


@pytest.mark.parametrize("name", BUFFERED)
def test_interrupted_learners_go_on_with_the_same_bits(name):
    taught(name, None)
    right, counted = taught(name, None)
    last = {where: n for n, where in enumerate(counted.lines)}  # the last time of every line
    learner = [n for (path, _), n in last.items() if "/learners/" in path or "/memory/" in path]
    for n in sorted(learner)[:: max(1, len(learner) // 20)]:
        found, interrupt = taught(name, n)
        assert interrupt.where
        assert [key for key in right | found if right.get(key) != found.get(key)] == [], interrupt.where


# ---------------------------------------------------------------- what a thread has to give back


def test_an_interrupt_within_a_change_of_the_grad_mode_leaves_the_mode_of_the_thread(monkeypatch):
    """PyTorch restores the mode in Python, where an interrupt may come first."""

    def interrupted(*_, **__):
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt

    X, y, _ = next(pieces())
    one = SelfPurifiedClassifier(learner="spr", **TINY).fit(X, y)
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_train_group", interrupted)
        for work in (lambda: one.fit(X, y), lambda: one.partial_fit(*piece_of(20)), lambda: one.predict(X), one.flush):
            with pytest.raises(KeyboardInterrupt):
                work()
            assert torch.is_grad_enabled()
    one.predict(X)
    monkeypatch.setattr("purereplay.nets.inference.network_input", interrupted)
    for work in (lambda: one.predict(X), one.noise_estimate):
        with pytest.raises(KeyboardInterrupt):
            work()
        assert torch.is_grad_enabled()


def test_it_learns_where_gradients_are_switched_off():
    X, y = piece_of(20)
    right = SelfPurifiedClassifier(learner="spr", **TINY).fit(X, y).predict_proba(X)
    with torch.no_grad():
        assert np.array_equal(SelfPurifiedClassifier(learner="spr", **TINY).fit(X, y).predict_proba(X), right)
        assert not torch.is_grad_enabled()


def piece_of(n: int):
    rng = np.random.default_rng(n)
    classes = rng.integers(0, 2, n)
    return 3 * np.eye(3)[classes] + rng.normal(size=(n, 3)), classes.tolist()


def test_an_interrupted_loop_is_not_used_again_and_the_engine_is_free(monkeypatch):
    jobs = next(learner_with_a_buffer().work())
    engine = Engine(torch.device("cpu"))
    right = engine.train(jobs)
    used = list(engine._loops.values())
    assert len(used) == 1

    def watch(_):
        raise KeyboardInterrupt

    engine.watch, engine._reported_at = watch, float("-inf")
    with pytest.raises(KeyboardInterrupt) as kept:  # with its traceback, as an interactive session keeps it
        engine.train(jobs)
    engine.watch = None
    assert not engine._loops, kept
    again = engine.train(jobs)
    assert list(engine._loops.values()) != used
    for ours, theirs in zip(again, right, strict=True):
        assert all(torch.equal(ours.state[name], theirs.state[name]) for name in ours.state)


class Key:
    """A key that is interrupted in the n-th call of its methods."""

    left = -1

    def __init__(self, shape):
        self.shape = shape

    def count(self):
        Key.left -= 1
        if Key.left == 0:
            raise KeyboardInterrupt

    def __hash__(self):
        self.count()
        return hash(self.shape)

    def __eq__(self, other):
        self.count()
        return self.shape == other.shape


def test_an_interrupt_in_the_look_up_of_a_loop_leaves_the_loops_whole(monkeypatch):
    [job] = next(learner_with_a_buffer().work())
    right = Engine(torch.device("cpu")).train([job])[0].state
    shape = type(job).shape.fget
    monkeypatch.setattr(type(job), "shape", property(lambda own: Key(shape(own))))
    engine = Engine(torch.device("cpu"))
    for left in range(1, 30):
        Key.left = left
        with suppress(KeyboardInterrupt):
            engine.train([job])
        Key.left = -1
        assert len(list(engine._loops.values())) == len(engine._loops)
        state = engine.train([job])[0].state
        assert all(torch.equal(state[name], right[name]) for name in right) and len(engine._loops) == 1


def learner_with_a_buffer():
    one = recorded("spr").learner
    one.buffer_filter.choice = type(one.buffer_filter.choice)(
        name="self-centered", features="projection", options=one.buffer_filter.choice.options
    )
    one.grow(2)
    images = torch.randint(0, 256, (8, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    one.take(Batch(images, torch.arange(8) % 2, torch.arange(8)))
    return one


def test_an_interrupt_in_the_loop_of_perceptrons_leaves_the_number_of_threads():
    [job] = next(learner_with_a_buffer().work())
    jobs = [job, type(job)(**(vars(job) | {"seed": job.seed + 1}))]
    torch.set_num_threads(2)
    try:
        Engine(torch.device("cpu")).train(jobs)
        with InterruptAt() as counted:
            Engine(torch.device("cpu")).train(jobs)
        places = sorted(place for place in set(counted.lines) if place[0].endswith("cpu_mlp.py"))
        assert len(places) > 40
        for place in places:  # two threads train, so the number of lines before a place varies
            with suppress(KeyboardInterrupt), InterruptAt(place=place):
                Engine(torch.device("cpu")).train(jobs)
            assert torch.get_num_threads() == 2, place
    finally:
        torch.set_num_threads(1)


# ---------------------------------------------------------------- real signals


def by_signals(seconds: float, learner: str) -> None:
    """Interrupt every call of many lives by a signal at a random time."""

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    right, rng, n_interrupts, n_lives = undisturbed(learner)[0], np.random.default_rng(0), 0, 0
    durations = []
    for _, work in life(make(learner)):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one = make(learner)
        for duration, (n_samples, work) in zip(durations, life(one), strict=True):
            before = getattr(one, "n_seen_", 0)
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, duration))
                work()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert torch.is_grad_enabled() and torch.get_num_threads() == 1 and nothing_is_held(one)
            seen = getattr(one, "n_seen_", 0)
            assert seen in (before, before + n_samples)
            if seen == before:
                work()
        found = outcome(one)
        assert [name for name in right | found if right.get(name) != found.get(name)] == []
        n_lives += 1
    assert threading.active_count() == 1
    print(f"{n_interrupts} interrupts by signals in {n_lives} lives, every end result the same")  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_interrupts_by_signals_change_nothing(learner):
    call = f"by_signals(60, {learner!r})"
    code = f"import torch; torch.set_num_threads(1); from hostile.test_interrupts import *; {call}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    print(done.stdout)  # noqa: T201
