"""Files with a right digest and impossible contents: refused in one sentence, and nothing has changed."""

import copy
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from purereplay import SelfPurifiedClassifier
from purereplay.data.forms import Limits
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import UserError
from purereplay.evaluate import running
from purereplay.evaluate.settings import resolve
from purereplay.live.predict import ready_classifier
from purereplay.live.store import Store
from purereplay.nets.engine import Engine
from purereplay.nets.lockstep import drive

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
sys.path.insert(0, str(Path(__file__).parents[1] / "learners"))
from test_contract import NAMES, learner, same, separable
from tiny_state import LEARNERS, items, tiny

CPU = Engine(torch.device("cpu"))
LIMITS = Limits(10, 4000)
FREE = ("consolidation.images", "report.purified_index")  # their length is not determined by anything else


def impossible(tensors: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Variants of a state with one thing wrong, each with a description."""
    yield "empty", {}
    yield "foreign", tensors | {"foreign": torch.zeros(1)}
    for name, t in tensors.items():
        yield f"{name} missing", {other: own for other, own in tensors.items() if other != name}
        yield f"{name} of another dtype", tensors | {name: t.to(torch.float16)}
        yield f"{name} with another axis", tensors | {name: t[None]}
        if t.ndim and not name.endswith(FREE):
            yield f"{name} with another row", tensors | {name: torch.cat([t, t.new_zeros((1, *t.shape[1:]))])}
        if t.dtype == torch.int64 and t.numel():
            for value in (-1, 2**62):
                wrong = t.clone()
                wrong.view(-1)[-1] = value
                yield f"{name} with {value}", tensors | {name: wrong}
        if t.dtype == torch.float64 and "probability" in name and t.numel():
            for value in (-0.1, 1.5, float("nan")):
                wrong = t.clone()
                wrong[0] = value
                yield f"{name} with {value}", tensors | {name: wrong}


# ---------------------------------------------------------------- learners


@pytest.mark.parametrize("name", NAMES)
def test_every_state_on_the_way_is_a_possible_one(name):
    one = learner(name)
    for i in range(3):
        one.take(separable(85, seed=i + 1))
        while one.pending:
            learner(name).restore(one.state(), LIMITS)
            drive(one.work(), one.engine)
        learner(name).restore(one.state(), LIMITS)
        if one.wants_task_ends:
            one.end_task()
            learner(name).restore(one.state(), LIMITS)
    one.finish()
    learner(name).restore(one.state(), LIMITS)


@pytest.mark.parametrize(
    "name",
    [
        "spr",
        "self-replay",
        "crs+pencil",
        "prs",
        "gdumb",
        "ewc",
        "mir+jocor",
        "multitask",
        "der++",
        "er-mkd",
        "puridiver",
        "cnll",
        "aer",
    ],
)
def test_an_impossible_state_raised_any_error_or_was_accepted(name):
    one = learner(name)
    one.observe(separable(87, seed=1))
    one.take(separable(45, seed=2))
    if one.wants_task_ends:
        one.end_task()
    fresh, before = learner(name), learner(name)
    n = 0
    for what, state in impossible(one.state()):
        with pytest.raises(ValueError, match=r"\S") as caught:
            fresh.restore(state, LIMITS)
            pytest.fail(f"accepted: {what}")
        assert "\n" not in str(caught.value) and same(fresh, before), what
        n += 1
    assert n > 40


def test_a_state_of_a_subclass_may_hold_more():
    one, other = learner("finetune"), learner("finetune")
    for each in (one, other):
        each.state = lambda each=each: {**type(each).state(each), "more": torch.zeros(1)}
    other.restore(one.state(), LIMITS)
    with pytest.raises(ValueError, match="it holds still_more"):
        other.restore(one.state() | {"still_more": torch.zeros(1)}, LIMITS)


# ---------------------------------------------------------------- saved estimators


@pytest.fixture(scope="module", params=LEARNERS)
def saved(tmp_path_factory, request):
    """The contents of a saved estimator with samples in every place."""
    rng = np.random.default_rng(0)
    small = {"hidden": 8, "projection_size": 4, "finetune_epochs": 2}
    sizes = {"delayed_size": 20, "purified_size": 15, "expert_epochs": 1, "base_epochs": 1}
    one = SelfPurifiedClassifier(learner=request.param, **sizes, settings=small)
    one.partial_fit(rng.normal(size=(50, 5)), [i % 3 for i in range(50)], sample_ids=[f"s{i}" for i in range(50)])
    path = tmp_path_factory.mktemp("saved") / "one.safetensors"
    one.save(path)
    return unpack_tensors(path)


def refused(path: Path, tensors: dict[str, Tensor], facts: dict, what: str = "") -> str:
    path.write_bytes(pack_tensors(tensors, facts)[0])
    with pytest.raises(UserError, match=path.name) as caught:
        SelfPurifiedClassifier.load(path)
        pytest.fail(f"accepted: {what}")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_estimator_with_impossible_tensors_is_refused(saved, tmp_path):
    variants = list(impossible(saved.tensors))
    for what, tensors in variants:
        refused(tmp_path / "one.safetensors", tensors, saved.facts, what)
    assert len(variants) > 150


def test_an_estimator_whose_samples_do_not_add_up_is_refused(saved, tmp_path):
    path, tensors = tmp_path / "one.safetensors", saved.tensors
    two_more = {"n_given": tensors["n_given"] + torch.tensor([2, 0, 0])}
    assert "n_given counts 52 samples" in refused(path, tensors | two_more, saved.facts)
    moved = {"n_given": tensors["n_given"] + torch.tensor([1, -1, 0])}
    assert "n_given counts 50 samples" in refused(path, tensors | moved, saved.facts)
    beyond = {"learner.purified.index": tensors["learner.purified.index"] + 40}
    assert "learner.purified.index" in refused(path, tensors | beyond, saved.facts)
    constant = {"scale.std": torch.zeros(5, 1, 1, dtype=torch.float64)}
    assert "scale.std" in refused(path, tensors | constant, saved.facts)
    without = {name: t for name, t in tensors.items() if not name.startswith("scale.")}
    assert "it lacks scale.mean" in refused(path, without, saved.facts)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[" * 100_000, "3", "{}", "[50]", "[50, [], 3]", "[49, [], []]", "[-1, [], []]", "[true, [], []]"),
        *("[50, [0, 0], [1, 2]]", "[50, [50], [1]]", "[50, [0], []]", "[50, [0], [null]]", "[50, [0, 1], [7, 7]]"),
        *('[50, [0], ["s", "t"]]', "[50, [0], [1]]", '[50, ["0"], ["s"]]', "[50.0, [], []]", "[1e400, [], []]"),
    ],
    ids=lambda text: text[:20],
)
def test_an_estimator_with_impossible_names_of_samples_is_refused(saved, tmp_path, text):
    ids = torch.tensor(list(text.encode()), dtype=torch.uint8)
    refused(tmp_path / "one.safetensors", saved.tensors | {"sample_ids": ids}, saved.facts)


def changed(facts: dict, *way: object) -> dict:
    """Facts with the value at the end of a way of keys replaced; the last of `way` is the new value."""
    *keys, last, value = way
    new = copy.deepcopy(facts)
    inner = new
    for key in keys:
        inner = inner[key]
    inner[last] = value
    return new


VALUES = [None, -1, 0, 1.5, 10**30, "x", [], [[]], {}, {"a": 1}, True, float("nan")]


def test_an_estimator_with_impossible_facts_is_refused(saved, tmp_path):
    path, n_variants = tmp_path / "one.safetensors", 0
    for value in VALUES:
        refused(path, saved.tensors, changed(saved.facts, "learner", value))
    for other in {*LEARNERS, "self-replay", "crs"} - {saved.facts["learner"]}:
        refused(path, saved.tensors, changed(saved.facts, "learner", other))
    good = {"seed": [-1, 0, 10**30], "shape": [], "vectors": [True], "labels": [], "params": [], "options": []}
    for name, fine in good.items():
        for value in VALUES:
            if not any(value is own or (type(value) is type(own) and value == own) for own in fine):
                refused(path, saved.tensors, changed(saved.facts, name, value))
                n_variants += 1
        refused(path, saved.tensors, {key: own for key, own in saved.facts.items() if key != name})
    for label in (None, float("nan"), 0.5, [], {}, {"tuple": 3}, {"tuple": [[]]}, {"other": []}, 0, False, 0.0):
        refused(path, saved.tensors, changed(saved.facts, "labels", 2, label))
    for labels in ([0, 1], [0, 1, 2, 3]):
        refused(path, saved.tensors, changed(saved.facts, "labels", labels))
    for shape in ([5, 1], [5, 1, 1, 1], [4, 1, 1], [5, 1, 2], [5, 1, True], ["5", 1, 1], [10**9, 1, 1], [0, 1, 1]):
        refused(path, saved.tensors, changed(saved.facts, "shape", shape))
    for option in saved.facts["options"]:
        for value in (-5, "x", [], {}, float("inf")):
            refused(path, saved.tensors, changed(saved.facts, "options", option, value))
            n_variants += 1
    for name, value in (
        ("hidden", 10**5),
        ("projection_size", 10**12),
        ("delayed_size", 10**15),
        ("network", "resnet18"),
    ):
        refused(path, saved.tensors, changed(saved.facts, "options", name, value))
    refused(path, saved.tensors, changed(saved.facts, "options", "more", 1))
    for name in saved.facts["params"]:
        for value in (1.5, [], float("nan")):
            refused(path, saved.tensors, changed(saved.facts, "params", name, value))
            n_variants += 1
    refused(path, saved.tensors, changed(saved.facts, "params", "more", 1))
    refused(path, saved.tensors, changed(saved.facts, "params", "device", "abacus"))
    for value in VALUES:
        refused(path, saved.tensors, changed(saved.facts, "format", value))
    assert n_variants > 200


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"facts": "{}"},
        {"facts": "[1]"},
        {"facts": "[" * 100_000},
        {"facts": "{}", "more": ""},
        {"facts": "x"},
    ],
)
def test_files_that_are_not_packed_are_named(tmp_path, metadata):
    from purereplay.data.packing import _digest

    tensors = {"a": torch.zeros(3)}
    digest = {} if not metadata else {"digest": _digest(tensors)}
    (tmp_path / "x").write_bytes(save(tensors, None if metadata is None else metadata | digest))
    with pytest.raises(UserError, match=r"x (cannot be read|has format)"):
        SelfPurifiedClassifier.load(tmp_path / "x")
    (tmp_path / "x").write_bytes(save({"a": torch.zeros(3, dtype=torch.bfloat16)}, {"facts": "{}", "digest": ""}))
    with pytest.raises(UserError, match="x cannot be read"):
        SelfPurifiedClassifier.load(tmp_path / "x")
    with pytest.raises(UserError, match="cannot be read"):
        SelfPurifiedClassifier.load(tmp_path)


def test_a_file_without_a_seal_opens_and_one_with_a_wrong_seal_does_not(saved, tmp_path):
    """Version 0.1.0 wrote no seal."""
    path = tmp_path / "one.safetensors"
    facts = json.dumps(saved.facts)
    path.write_bytes(save(saved.tensors, {"facts": facts, "digest": saved.digest}))
    assert SelfPurifiedClassifier.load(path).n_seen_ == 50
    path.write_bytes(save(saved.tensors, {"facts": facts, "digest": saved.digest, "seal": "0" * 64}))
    with pytest.raises(UserError, match="is damaged"):
        SelfPurifiedClassifier.load(path)
    path.write_bytes(save(saved.tensors, {"facts": facts, "digest": saved.digest, "seam": "0" * 64}))
    with pytest.raises(UserError, match="unknown metadata"):
        SelfPurifiedClassifier.load(path)


def test_a_file_that_changed_after_it_was_loaded_changed_the_estimator(saved, tmp_path):
    """The tensors were a map of the file: a file cut in place killed the process."""
    path, X = tmp_path / "one.safetensors", np.ones((3, 5))
    path.write_bytes(pack_tensors(saved.tensors, saved.facts)[0])
    one, before = SelfPurifiedClassifier.load(path), SelfPurifiedClassifier.load(path).predict_proba(X)
    path.write_bytes(b"")
    assert np.array_equal(one.predict_proba(X), before)


# ---------------------------------------------------------------- states and runs


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states") / "state"
    with tiny(folder) as session:
        session.take(items(0, 45))
        session.work()
    return folder


def rewrite(folder: Path, tensors: dict[str, Tensor], facts: dict) -> str:
    """Replace the learner of a state, and all digests in the database; return the name of the learner file."""
    import sqlite3

    from purereplay.live import digests, schema

    content, digest = pack_tensors(tensors, facts)
    [path] = folder.glob("learner-*")
    path = path.rename(folder / f"learner-{digest[:16]}.safetensors")
    path.write_bytes(content)
    with sqlite3.connect(folder / "state.sqlite") as database:
        database.execute("UPDATE learner SET digest = ?, file = ?", [digest, path.name])
        digests.record_all(database, schema.VERSION)
    (folder / "state.mark").unlink(missing_ok=True)
    return path.name


def test_a_state_with_an_impossible_learner_is_refused(state, tmp_path):
    folder = shutil.copytree(state, tmp_path / "state")
    [path] = folder.glob("learner-*")
    good = unpack_tensors(path)
    variants = [(what, tensors, good.facts) for what, tensors in impossible(good.tensors)]
    variants += [("taken", good.tensors, {"taken": value}) for value in (39, None, "40", 10**30)]
    variants += [("no taken", good.tensors, {})]
    more_classes = {"purified.seen": torch.zeros(4, dtype=torch.int64)}
    variants += [("more classes than the database", good.tensors | more_classes, good.facts)]
    for what, tensors, facts in variants[::-3]:
        name = rewrite(folder, tensors, facts)
        with pytest.raises(UserError, match=name) as caught, tiny(folder):
            pytest.fail(f"accepted: {what}")
        assert "\n" not in str(caught.value)
    assert len(variants) > 80
    rewrite(folder, *good[:2])
    with tiny(folder) as session:
        assert session.taken == 40


def test_an_impossible_classifier_raised_any_error_or_was_used(state, tmp_path):
    """It only saves time, so it is made again."""
    folder = shutil.copytree(state, tmp_path / "state")
    images = torch.arange(72, dtype=torch.uint8).view(2, 1, 6, 6)

    def answer() -> list:
        with Store.reading(folder) as store:
            classifier, labels = ready_classifier(store, CPU)
            return [labels, classifier.probabilities(images).tolist()]

    expected = answer()
    [path] = folder.glob("classifier-*")
    good = unpack_tensors(path)
    variants = [(tensors, good.facts) for _, tensors in impossible(good.tensors)]
    variants += [(good.tensors, changed(good.facts, "n_classes", value)) for value in [*VALUES, 2, 4]]
    variants += [(good.tensors, {}), (good.tensors, changed(good.facts, "learner", 3))]
    for tensors, facts in variants:
        path.write_bytes(pack_tensors(tensors, facts)[0])
        assert answer() == expected


def test_a_run_with_an_impossible_checkpoint_is_refused(tmp_path):
    small = {"delayed_size": "100", "purified_size": "60", "hidden": "8", "projection_size": "4", "expert_epochs": "1"}
    small |= {"base_epochs": "1", "finetune_epochs": "1"}
    settings = resolve(dataset="digits", preset_name="demo", device="cpu", overrides=small)
    running.run(settings, tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    good = unpack_tensors(newest)
    classes = {"purified.seen": torch.zeros(11, dtype=torch.int64)}
    index = {"purified.index": torch.full((60,), 1437)}  # the judge has true labels of 0 … 1436
    variants = [("classes", good.tensors | classes), ("index", good.tensors | index), *impossible(good.tensors)]
    for what, tensors in variants[::3]:
        newest.write_bytes(pack_tensors(tensors, good.facts)[0])
        with pytest.raises(UserError, match=r"checkpoint in .* cannot be used") as caught:
            running.run(settings, tmp_path / "run", resume=True)
            pytest.fail(f"accepted: {what}")
        assert "\n" not in str(caught.value)
