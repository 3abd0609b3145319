"""Random bit flips in every kind of packed file: the answer is right or the file is named, and nothing else.

`make test-slow` flips 300 bits per kind and prints the counts. Half of the flips hit the header with names and facts.
"""

import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from purereplay import SelfPurifiedClassifier
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import Interrupted, UserError
from purereplay.evaluate import running
from purereplay.evaluate.experiment import Experiment, prepare
from purereplay.evaluate.preparation import load
from purereplay.evaluate.settings import resolve
from purereplay.live.predict import ready_classifier
from purereplay.live.store import Store
from purereplay.nets.engine import Engine

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
from tiny_state import items, tiny

CPU = Engine(torch.device("cpu"))
FEW, MANY = 40, 300
SMALL = {"delayed_size": "100", "purified_size": "60", "hidden": "8", "projection_size": "4", "expert_epochs": "1"}
SMALL |= {"base_epochs": "1", "finetune_epochs": "1"}


def flips(path: Path, n: int, ask: Callable[[], bool]) -> Counter[str]:
    """Flip n single bits, one at a time; `ask` opens the file and returns whether the answer is right."""
    content, found, dice = path.read_bytes(), Counter(), random.Random(n)
    header = 8 + int.from_bytes(content[:8], "little")
    for i in range(n):
        at = dice.randrange(header if i % 2 else len(content))
        damaged = bytearray(content)
        damaged[at] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            found["right" if ask() else f"different: bit in byte {at}"] += 1
        except UserError as error:
            found["named" if path.name in str(error) and "\n" not in str(error) else f"not named: {error}"] += 1
        except Exception as error:
            found[f"traceback: {error!r} from a bit in byte {at}"] += 1
    path.write_bytes(content)
    assert ask()
    return found


def check(kind: str, found: Counter[str], n: int) -> None:
    wrong = [sum(k for name, k in found.items() if name.startswith(word)) for word in ("different", "traceback")]
    sys.stdout.write(
        f"\n{kind}: {n} flips: {found['right']} right, {found['named']} named, "
        f"{wrong[0]} silently different, {wrong[1]} tracebacks\n"
    )
    assert found["right"] + found["named"] == n, found


many = pytest.mark.parametrize("n", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


# ---------------------------------------------------------------- saved estimators


@many
def test_a_flipped_bit_renamed_a_class_of_a_saved_estimator(tmp_path, n):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 5)), [f"class {i % 3}" for i in range(50)]
    small = {"hidden": 8, "projection_size": 4, "finetune_epochs": 2}
    one = SelfPurifiedClassifier(
        learner="spr", delayed_size=20, purified_size=20, expert_epochs=1, base_epochs=1, settings=small
    )
    one.partial_fit(X, y, sample_ids=[f"sample {i}" for i in range(50)])
    path = tmp_path / "one.safetensors"
    one.save(path)

    def answers(a: SelfPurifiedClassifier) -> list[object]:
        state = {name: t.numpy().tobytes() for name, t in a._tensors().items()}
        return [a.predict_proba(X).tobytes(), a.classes_.tolist(), a.suspects().tolist(), a._facts(), state]

    expected = answers(one)
    check("saved estimator", flips(path, n, lambda: answers(SelfPurifiedClassifier.load(path)) == expected), n)


# ---------------------------------------------------------------- checkpoints


class Stop(running.Observer):
    """Stops a run after some reports of progress."""

    def __init__(self, after: int) -> None:
        self.left = after

    def measured(self, experiment, line) -> None:
        self.left -= 1
        experiment._save()

    def training(self, now) -> None:
        if self.left <= 0:
            raise Interrupted("stop")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped with two checkpoints, its settings, and its result without the stop."""
    folder = tmp_path_factory.mktemp("runs")
    settings = replace(
        resolve(dataset="digits", preset_name="demo", device="cpu", seed=3, overrides=SMALL), lookahead=2
    )
    expected = running.run(settings, folder / "whole")
    with pytest.raises(Interrupted):
        running.run(settings, folder / "stopped", Stop(after=7))
    assert len(list((folder / "stopped" / "checkpoints").iterdir())) == 2
    return folder / "stopped", settings, expected


def restored(settings, path: Path, dataset) -> tuple[object, ...]:
    e: Experiment = prepare(settings, path, resume=True, engine=CPU, dataset=dataset)
    state = {name: t.numpy().tobytes() for name, t in e.learner.state().items()}
    return state, e.position, e.finished, e.n_ended, e.account.seconds, e.account.steps, e.run.lines


@many
def test_a_flipped_bit_moved_the_position_of_a_checkpoint(stopped, tmp_path, n):
    """The checkpoint before it is used instead: a resumed run makes the same moves from there."""
    path, settings, _ = stopped
    copy = shutil.copytree(path, tmp_path / "run")
    metrics, (before, newest) = (copy / "metrics.jsonl").read_bytes(), sorted((copy / "checkpoints").iterdir())
    dataset = load(settings)
    latest = restored(settings, copy, dataset)
    content = newest.read_bytes()
    newest.unlink()
    earlier = restored(settings, copy, dataset)
    newest.write_bytes(content)
    assert latest[1:] != earlier[1:] and before.exists()

    def ask() -> bool:
        (copy / "metrics.jsonl").write_bytes(metrics)
        return restored(settings, copy, dataset) in (latest, earlier)

    check("checkpoint", flips(newest, n, ask), n)


def test_a_run_with_a_damaged_checkpoint_ends_as_without_damage(stopped, tmp_path):
    path, settings, expected = stopped
    copy = shutil.copytree(path, tmp_path / "run")
    newest = max((copy / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[content.index(b"position") + 13] ^= 1  # a digit of the position
    newest.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        unpack_tensors(newest)
    result = running.run(settings, copy, resume=True)
    own = {"seconds", "device"}
    assert {k: v for k, v in result.items() if k not in own} == {k: v for k, v in expected.items() if k not in own}


# ---------------------------------------------------------------- states


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """A state with a learner that has a buffer in progress, and its classifier."""
    folder = tmp_path_factory.mktemp("states") / "state"
    with tiny(folder) as session:
        session.take(items(0, 45))
        session.work()
    with Store.reading(folder) as store:
        ready_classifier(store, CPU)
    return folder


@many
def test_a_flipped_bit_in_a_learner_file(state, tmp_path, n):
    copy = shutil.copytree(state, tmp_path / "state")
    [path] = copy.glob("learner-*")

    def answer() -> tuple[object, ...]:
        with tiny(copy) as session:
            return session.taken, {name: t.numpy().tobytes() for name, t in session.learning.learner.state().items()}

    expected = answer()
    check("learner file", flips(path, n, lambda: answer() == expected), n)


@many
def test_a_flipped_bit_in_a_classifier_file(state, tmp_path, n):
    """A damaged one is made again."""
    copy = shutil.copytree(state, tmp_path / "state")
    [path] = copy.glob("classifier-*")
    images = torch.arange(72, dtype=torch.uint8).view(2, 1, 6, 6)

    def answer() -> tuple[object, ...]:
        with Store.reading(copy) as store:
            classifier, labels = ready_classifier(store, CPU)
            return labels, classifier.probabilities(images).numpy().tobytes()

    expected = answer()
    found = flips(path, n, lambda: answer() == expected)
    check("classifier file", found, n)
    assert found["right"] == n


def test_another_learners_classifier_was_used(state, tmp_path):
    copy = shutil.copytree(state, tmp_path / "state")
    [path] = copy.glob("classifier-*")
    saved = unpack_tensors(path)
    other = {name: t + 1 for name, t in saved.tensors.items()}
    path.write_bytes(pack_tensors(other, saved.facts | {"learner": "0" * 64})[0])
    with Store.reading(copy) as store:
        ready_classifier(store, CPU)
    assert unpack_tensors(path).digest == saved.digest
